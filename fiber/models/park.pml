/* Workers that sleep and are woken: scheduling_group.cc, Park, WakeOne, Inject,
 * BeginSearch and EndSearch, and Worker::NextWhenEmpty in worker.cc. The numbers
 * in brackets are the rules at the top of scheduling_group.cc.
 *
 * Checked: whenever nothing can move any more, every injected task has run and
 * every event has been seen. That is, no wake-up is lost, and if all workers
 * sleep one of them is in the poller [P6].
 *
 * Memory is sequentially consistent here; in the code the accesses modelled are
 * seq_cst.
 *
 * Broken variants, each of which must fail:
 *   -DBROKEN_CHECK_FIRST   looks for work before it sets its idle bit [P1]
 *   -DBROKEN_NO_CLAIM      wakes without clearing the idle bit, hence twice the
 *                          same one while another is needed [P3]
 *   -DBROKEN_SEARCHER      stops being counted as searching only after its last
 *                          look at the queue, while it sets its bit [P4]
 *   -DBROKEN_POLLER        tries for the poller after it has set its idle bit
 *                          and only if no other bit is set [P6]
 */
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef TASKS
#define TASKS 2
#endif
#ifndef EVENTS
#define EVENTS 1
#endif

byte injected;               /* length of the injection queue */
byte ran;                    /* tasks and events handled */
byte events;                 /* readable sockets nobody has seen */
bool idle[WORKERS];          /* the idle mask */
bool word[WORKERS];          /* parking words */
bool in_poller[WORKERS];
byte searching;
bool polling;                /* the poller is taken */
bool wake_poller;            /* the eventfd */

inline rouse(i) {
  word[i] = 0;
  if
  :: in_poller[i] -> wake_poller = 1
  :: else
  fi
}

/* One idle worker, any of them. */
inline wake_one(i) {
  if
  :: searching == 0 ->
     i = 0;
     do
     :: i < WORKERS ->
        if
        :: d_step {
             idle[i] ->
#ifndef BROKEN_NO_CLAIM
             idle[i] = 0;
#endif
             searching++
           }
           rouse(i);
           break
        :: !idle[i] -> i++
        fi
     :: i >= WORKERS -> break
     od
  :: searching != 0
  fi
}

inline begin_sleep() {
#ifndef BROKEN_POLLER
  if
  :: d_step { !polling -> polling = 1; in_poller[id] = 1 }
  :: polling -> in_poller[id] = 0
  fi;
#else
  in_poller[id] = 0;
#endif
  word[id] = 1
}

inline set_idle() {
  idle[id] = 1
#ifdef BROKEN_POLLER
  ;
  if
  :: d_step { !polling && !idle[1 - id] -> polling = 1; in_poller[id] = 1 }
  :: polling || idle[1 - id]
  fi
#endif
}

inline look() { seen = injected }

proctype Worker(byte id) {
  bool counted = 0;   /* in searching */
  bool got, woken;
  byte seen, i;
again:
  got = 0;
  if
  :: d_step { injected > 0 -> injected--; got = 1 }
  :: injected == 0
  fi;
#ifndef BROKEN_SEARCHER
  if
  :: !got && !counted ->      /* a look at the siblings */
     if
     :: searching < 2 -> searching++; searching--
     :: true                  /* two are at it already */
     fi
  :: counted -> searching--; counted = 0
  :: got && !counted
  fi;
#endif
  if
  :: got ->
     ran++;
#ifdef BROKEN_SEARCHER
     if
     :: counted -> searching--; counted = 0
     :: else
     fi;
#endif
     if
     :: injected > 0 -> wake_one(i)
     :: else
     fi;
     goto again
  :: else
  fi;

  begin_sleep();
#ifdef BROKEN_CHECK_FIRST
  look();
  set_idle();
#else
  set_idle();      /* [P1] */
  look();
#endif
#ifdef BROKEN_SEARCHER
  if
  :: counted -> searching--; counted = 0
  :: else
  fi;
#endif
  if
  :: seen == 0 ->
     if
     :: in_poller[id] ->
        d_step { wake_poller || events > 0 ->
          wake_poller = 0;
          ran = ran + events;
          events = 0
        }
     :: else -> word[id] == 0
     fi
  :: else
  fi;
  d_step { woken = !idle[id]; idle[id] = 0 }
  if
  :: woken -> word[id] == 0; counted = 1    /* [P3] */
  :: else
  fi;
  if
  :: in_poller[id] -> in_poller[id] = 0; polling = 0
  :: else
  fi;
  goto again
}

/* A plain thread: Inject. */
proctype Producer() {
  byte n, i;
  do
  :: n < TASKS -> injected++; wake_one(i); n++
  :: else -> break
  od
}

proctype Network() {
  byte n;
  do
  :: n < EVENTS -> events++; n++
  :: else -> break
  od
}

init {
  byte n;
  atomic {
    do
    :: n < WORKERS -> run Worker(n); n++
    :: else -> break
    od;
    run Producer();
    run Network()
  }
  /* Nothing else can move. */
  timeout -> assert(ran == TASKS + EVENTS && searching == 0)
}
