/* Workers that sleep and are woken: scheduling_group.cc, Park, SleepDeadline,
 * Wake, WakeSomebody, WakeWorker, Unpark, Inject, BeginSearch, EndSearch and
 * FireTimers, Worker::NextWhenEmpty and LookForIo in worker.cc, and ArmTimer in timer.cc; with
 * a reserve NextToWake, Vacancies and Retire. The numbers in brackets
 * are the rules at the top of scheduling_group.cc.
 *
 * Plain threads inject tasks, wanting one searcher or more, and arm a timer on
 * some worker's wheel; the network has an event.
 *
 * Checked: whenever nothing can move any more, every task has run, every event has been seen and every timer has fired. That is, no wake-up is
 * lost, nobody sleeps past a deadline [P5], and if all workers sleep one of them
 * is in the poller [P6].
 *
 * Memory is sequentially consistent here; in the code the accesses modelled are
 * seq_cst.
 *
 * Must hold, too:
 *   -DALSO_TIMERS          timers instead of events
 *   -DALSO_RESERVE         one of the workers is in reserve: the watch marks
 *                          workers as blocked and takes that back, at any time
 *   -DALSO_DEFERRED        tasks make others that wait for events [P7]
 *   -DALSO_DEFERRED_RESERVE  both
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
 *   -DBROKEN_RETIRE        retires by a mask that may have changed since [RV4]
 *   -DBROKEN_LIMIT         looks whether anybody may be woken before it has
 *                          queued the work [RV2]
 *   -DBROKEN_DEFERRED      takes what waits for events only when there are
 *                          further ones, and sleeps without a look [P7]
 *   -DBROKEN_LAST          the last to sleep doesn't look whether the one that
 *                          was in the poller has retired meanwhile [P6]
 */
#if defined(ALSO_RESERVE) || defined(BROKEN_RETIRE) || defined(BROKEN_LIMIT) || \
    defined(BROKEN_LAST)
#define RESERVE
#endif
#ifdef ALSO_DEFERRED_RESERVE
#define RESERVE
#endif
#if defined(ALSO_DEFERRED) || defined(ALSO_DEFERRED_RESERVE) || \
    defined(BROKEN_DEFERRED)
#define DEFERRED 1
#endif
#define WORKERS 2
#if defined(ALSO_TIMERS) || defined(BROKEN_OLD_DEADLINE) || \
    defined(BROKEN_ARM_QUIETLY)
#define TASKS 1
#define EVENTS 0
#define TIMERS 1
#elif defined(ALSO_DEFERRED_RESERVE)
#define TASKS 1
#define EVENTS 0
#define TIMERS 0
#elif defined(RESERVE) || defined(DEFERRED)
#define TASKS 1
#define EVENTS 1
#define TIMERS 0
#else
#define TASKS 2
#define EVENTS 1
#define TIMERS 0
#endif

byte injected;               /* length of the injection queue */
#ifdef DEFERRED
byte deferred;               /* tasks that wait for events */
byte defers;                 /* how many there have been */
#endif
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
#ifdef RESERVE
#define LIMIT 1
bool marked[WORKERS];        /* blocked_ */
#define RUNS(i) (!idle[i] && !marked[i])
#define RUNNING (RUNS(0) + RUNS(1))
#endif

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

#if defined(RESERVE) && !defined(BROKEN_LAST)
#define MAY_SLEEP && !(!in_poller[id] && !polling && idle[0] && idle[1])
#else
#define MAY_SLEEP
#endif

#ifdef RESERVE
#define MAY_WAKE (RUNNING < LIMIT)
#else
#define MAY_WAKE true
#endif

/* Wake(want): any idle worker, and another one if two are wanted. */
inline wake(want, i, claimed) { wake_if(MAY_WAKE, want, i, claimed) }

inline wake_if(may, want, i, claimed) {
  if
  :: searching < want && may ->
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

#if defined(DEFERRED) && !defined(BROKEN_DEFERRED)
inline look() { seen = injected; seen = seen + deferred }
#else
inline look() { seen = injected }
#endif

#ifdef DEFERRED
/* A task that somebody else takes meanwhile is that one's to run. */
inline take_deferred() {
  d_step { taken = deferred; deferred = 0; ran = ran + taken }
}
#endif

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
#ifdef DEFERRED
  byte taken;
#endif
#ifdef RESERVE
  bool surplus;
#endif
again:
  atomic { got = 0; woken = 0; claimed = 0; seen = 0; i = 0; bounded = 0 };
#ifdef RESERVE
  /* Retire [RV4]. Marks may change between their look and the exchange, which
   * only guards the idle mask: as if they were seen later. */
  if
  :: !counted && RUNNING > LIMIT ->
     word[id] = 1;
#ifdef BROKEN_RETIRE
     surplus = RUNNING > LIMIT;
     idle[id] = surplus;
#else
     d_step { surplus = RUNNING > LIMIT; idle[id] = surplus };
#endif
     if
     :: surplus ->
        look_at_timers();
        if
        :: bounded
        :: word[id] == 0
        fi;
        goto awake
     :: else
     fi
  :: else
  fi;
#endif
  if
  :: d_step { injected > 0 -> injected--; got = 1 }
  :: injected == 0
  fi;
#if defined(DEFERRED) && !defined(BROKEN_DEFERRED)
  if
  :: !got -> take_deferred(); got = (taken > 0)
  :: else
  fi;
#endif
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
#ifdef DEFERRED
     if
     :: taken == 0 ->
        ran++;
        if
        :: defers < DEFERRED -> d_step { deferred++; defers++ }
        :: true
        fi
     :: else -> taken = 0
     fi;
#else
     ran++;
#endif
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
#if defined(RESERVE) && !defined(BROKEN_LAST)
  :: seen == 0 && !in_poller[id] && !polling && idle[0] && idle[1]
#endif
  :: seen == 0 MAY_SLEEP ->
#ifndef BROKEN_OLD_DEADLINE
     look_at_timers();
#endif
     if
     :: bounded                   /* the time has come */
     :: d_step { in_poller[id] && (wake_poller || events > 0) ->
          wake_poller = 0;
          ran = ran + events;
#ifdef BROKEN_DEFERRED
          if
          :: events > 0 -> ran = ran + deferred; deferred = 0
          :: else
          fi;
#endif
          events = 0
        }
     :: !in_poller[id] && word[id] == 0
     fi
  :: else
  fi;
awake:
  skip;
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
#ifdef BROKEN_LIMIT
  bool may;
#endif
  do
  :: n < TASKS ->
#ifdef BROKEN_LIMIT
     may = MAY_WAKE;
#endif
     injected++;
     if
     :: want = 1
     :: want = 2
     fi;
#ifdef BROKEN_LIMIT
     wake_if(may, want, i, claimed);
#else
     wake(want, i, claimed);
#endif
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

#ifdef RESERVE
proctype Watch() {
  byte n, i;
  do
  :: n < 2 ->
     if
     :: i = 0
     :: i = 1
     fi;
     marked[i] = 1 - marked[i];
     n++
  :: break
  od
}
#endif

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
#ifdef RESERVE
    run Watch();
#endif
    run Network()
  }
  /* Nothing else can move. */
  timeout ->
#ifdef DEFERRED
    assert(ran == TASKS + EVENTS + defers);
#else
    assert(ran == TASKS + EVENTS);
#endif
    assert(fired == TIMERS && searching == 0)
}
