/* Workers that sleep and are woken: scheduling_group.cc, Park, SleepDeadline,
 * Wake, WakeSomebody, WakeWorker, Unpark, Inject, BeginSearch, EndSearch and
 * FireTimers, Worker::NextWhenEmpty in worker.cc, and ArmTimer in timer.cc. The
 * numbers in brackets are the rules at the top of scheduling_group.cc.
 *
 * Plain threads inject tasks, wanting one searcher or more, and arm a timer on
 * some worker's wheel; the network has an event.
 *
 * Checked: whenever nothing can move any more, every injected task has run,
 * every event has been seen and every timer has fired. That is, no wake-up is
 * lost, nobody sleeps past a deadline [P5], and if all workers sleep one of them
 * is in the poller [P6].
 *
 * Memory is sequentially consistent here; in the code the accesses modelled are
 * seq_cst.
 *
 * Must hold, too:
 *   -DALSO_TIMERS          timers instead of events
 *
 * Broken variants, each of which must fail:
 *   -DBROKEN_CHECK_FIRST   looks for work before it sets its idle bit [P1]
 *   -DBROKEN_NO_CLAIM      wakes without clearing the idle bit, hence twice the
 *                          same one while another is needed [P3]
 *   -DBROKEN_SEARCHER      stops being counted as searching only after its last
 *                          look at the queue, while it sets its bit [P4]
 *   -DBROKEN_OLD_DEADLINE  reads its wheel's deadline before it sets its idle bit
 *                          [P1] [P5]
 *   -DBROKEN_ARM_QUIETLY   arms another worker's timer and doesn't wake it [P5]
 *   -DBROKEN_POLLER        tries for the poller after it has set its idle bit
 *                          and only if no other bit is set [P6]
 */
#define WORKERS 2
#if defined(ALSO_TIMERS) || defined(BROKEN_OLD_DEADLINE) || \
    defined(BROKEN_ARM_QUIETLY)
#define TASKS 1
#define EVENTS 0
#define TIMERS 1
#else
#define TASKS 2
#define EVENTS 1
#define TIMERS 0
#endif

byte injected;               /* length of the injection queue */
byte ran;                    /* tasks and events handled */
byte events;                 /* readable sockets nobody has seen */
byte armed[WORKERS];         /* timers on each wheel */
byte fired;
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

/* Clears the bit and, if it was set, wakes: in WakeSomebody and WakeWorker. */
inline claim_and_rouse(i, claimed) {
  d_step {
    claimed = idle[i];
#ifndef BROKEN_NO_CLAIM
    idle[i] = 0
#endif
  }
  if
  :: claimed -> searching++; rouse(i)
  :: else
  fi
}

/* Wake(want): any idle worker, and another one if two are wanted. */
inline wake(want, i, claimed) {
  if
  :: searching < want ->
     i = 0;
     do
     :: i < WORKERS ->
        claim_and_rouse(i, claimed);
        if
        :: claimed && want == 1 -> break
        :: else -> i++
        fi
     :: i >= WORKERS -> break
     od
  :: else
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

/* SleepDeadline: is there one? Those of the wheels that count here. */
inline look_at_timers() {
  d_step {
    bounded = armed[id];
    if
    :: in_poller[id] -> bounded = armed[0] + armed[WORKERS - 1]
    :: else
    fi
  }
}

/* FireTimers: each may be due or not. */
inline fire_timers() {
  atomic {
    i = (TIMERS == 0 -> WORKERS : 0);
    do
    :: i < WORKERS ->
       if
       :: armed[i] > 0 -> armed[i]--; fired++
       :: true
       fi;
       i++
    :: i >= WORKERS -> break
    od
  }
}

proctype Worker(byte id) {
  bool counted = 0;   /* in searching */
  bool got, woken, claimed;
  byte seen, i, bounded;
again:
  atomic { got = 0; woken = 0; claimed = 0; seen = 0; i = 0; bounded = 0 };
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
     :: injected > 0 -> wake(1, i, claimed)
     :: else
     fi;
     goto again
  :: else
  fi;

  fire_timers();
  begin_sleep();
#ifdef BROKEN_OLD_DEADLINE
  look_at_timers();
#endif
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
#ifndef BROKEN_OLD_DEADLINE
     look_at_timers();
#endif
     if
     :: bounded                   /* the time has come */
     :: d_step { in_poller[id] && (wake_poller || events > 0) ->
          wake_poller = 0;
          ran = ran + events;
          events = 0
        }
     :: !in_poller[id] && word[id] == 0
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
  byte n, i, want;
  bool claimed;
  do
  :: n < TASKS ->
     injected++;
     if
     :: want = 1
     :: want = 2
     fi;
     wake(want, i, claimed);
     n++
  :: else -> break
  od
}

/* A plain thread: ArmTimer. */
proctype Armer() {
  byte n, i;
  bool claimed;
  do
  :: n < TIMERS ->
     if
     :: i = 0
     :: i = WORKERS - 1
     fi;
     armed[i]++;
#ifndef BROKEN_ARM_QUIETLY
     claim_and_rouse(i, claimed);
#endif
     n++
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
    run Armer();
    run Network()
  }
  /* Nothing else can move. */
  timeout ->
    assert(ran == TASKS + EVENTS && fired == TIMERS && searching == 0)
}
