/* Fibers that suspend and are resumed: SuspendFiber, SwitchTo, NextCarrier,
 * AfterSwitch and Loop in carrier.cc; WaitList::Wait, Waiter::Block,
 * BlockStoppable, OnTimeout, OnStop, WakeAll and Wake in wait_list.cc; Yield in
 * this_fiber.cc. The numbers in brackets are the rules at the top of carrier.h
 * and wait_list.cc.
 *
 * Each fiber yields or not, and then waits once, on one list, with or without a
 * deadline or a stop token, while a waker (as Event::Set), the timers and a stop
 * request come whenever they like. When a fiber suspends, its worker goes
 * on with a spare carrier or straight with another resumed fiber, and the
 * after-switch hook runs on either. Any worker takes any queued task: they
 * steal.
 *
 * Checked: a carrier is switched to only when its registers are saved [C2]; it
 * is submitted once per suspension, and is in one place at a time [C1]; errno
 * goes with the fiber [C3] [C4]; no callback touches a waiter that is gone [WL3];
 * and whenever nothing can move any more, every fiber has come to its end, except
 * for those that nobody has woken, whose time is not up and whose token has not
 * been asked to stop [WL1] [WL2] [WL4].
 *
 * Memory is sequentially consistent here; in the code all of this is under the
 * list's lock or handed over through a run queue, except the exchanges of
 * [WL4].
 *
 * Must hold, too:
 *   -DALSO_TOKENS           a stop token instead of deadline and yield
 *   -DALSO_ALL_THREE        both, with one fiber
 *
 * Broken variants, each of which must fail:
 *   -DBROKEN_UNLOCK_EARLY   the list is unlocked before the switch [WL1]
 *   -DBROKEN_SUBMIT_EARLY   Yield queues itself before the switch [C2]
 *   -DBROKEN_HOOK_IN_LOOP   only the loop runs hooks: forgotten where a fiber is
 *                           resumed directly [C2]
 *   -DBROKEN_BOTH_WAKE      the timer wakes whom it finds unlinked, too [WL2]
 *   -DBROKEN_TIMER_RUNS     leaves while the timer's callback may run [WL3]
 *   -DBROKEN_STOP_RUNS      ... while the token's callback may run [WL3]
 *   -DBROKEN_NO_MARK        a stop request that comes before the waiter listens
 *                           leaves no mark [WL4]
 *   -DBROKEN_OLD_WORKER     uses the worker it had before the switch [C3]
 */
#if defined(ALSO_TOKENS) || defined(BROKEN_STOP_RUNS) || \
    defined(BROKEN_NO_MARK)
#define STOP
#define FIBERS 2
#elif defined(ALSO_ALL_THREE)
#define STOP
#define TIMERS
#define FIBERS 1
#else
#define TIMERS
#define FIBERS 2
#endif
#define WORKERS 2
#define CARRIERS 4           /* one for each of them */
#define NOBODY 255

mtype = {
  kRunning, kWaiting, kQueued, kSpare,         /* places [C1] */
  kLoop, kInWait, kInYield,                    /* where a carrier goes on */
  kNoHook, kUnlock, kSubmit,                   /* after-switch hooks */
  kNotStoppable, kRegistering, kListening, kRequested
};

mtype place[CARRIERS];
mtype goes_on[CARRIERS];
bool saved[CARRIERS];        /* the registers */
byte kept_errno[CARRIERS];
byte errno_of[WORKERS];
#ifdef BROKEN_OLD_WORKER
byte left_by[CARRIERS];
#endif

bool locked;                 /* the list's lock */
bool set;                    /* the awaited event */
bool requested;              /* the token's state */
byte fresh;                  /* tasks not yet started */
byte ended;

/* The waiter on each carrier's stack. */
bool alive[CARRIERS];
bool linked[CARRIERS];
bool timed[CARRIERS];
bool timer_armed[CARRIERS], timer_runs[CARRIERS];
mtype stop[CARRIERS];
bool stop_registered[CARRIERS], stop_runs[CARRIERS];

inline lock() { atomic { !locked -> locked = 1 } }
inline unlock() { locked = 0 }

/* Any thread: Submit(carrier->resume_task()). */
inline submit(c) {
  d_step {
    assert(place[c] == kWaiting);
    place[c] = kQueued
  }
}

/* The thread leaves `from`, whose frames are complete by then, for `to`. */
inline switch_carrier(from, to) {
  d_step {
    assert(!saved[from]);
    saved[from] = 1
  }
  d_step {
    assert(saved[to] && place[to] == kRunning);
    saved[to] = 0
  }
}

/* One of the carriers at `where`, any of them. */
inline take_from(where, c) {
  if
  :: place[0] == where -> c = 0
  :: place[1] == where -> c = 1
  :: place[2] == where -> c = 2
  :: place[3] == where -> c = 3
  fi;
  place[c] = kRunning
}

#define SOME_QUEUED                                      \
  (place[0] == kQueued || place[1] == kQueued ||         \
   place[2] == kQueued || place[3] == kQueued)

proctype Worker(byte id; byte on) {
  byte to = NOBODY;            /* the carrier to switch to */
  byte vacated = NOBODY;
  byte hook_of = NOBODY;       /* the fiber whose hook it is */
  mtype hook = kNoHook;
  bool handed;                 /* a task for the loop */

loop:                          /* Worker::Loop, on carrier `on` */
  if
  :: handed -> handed = 0
  :: atomic { !handed && fresh > 0 -> fresh-- }
  :: atomic {
       !handed && SOME_QUEUED -> take_from(kQueued, to);
       vacated = on
     };
     goto switch
  fi;

  /* The task's function. */
  if
#ifndef STOP
  :: atomic {                  /* Yield */
       errno_of[id] = on + 1;
       goes_on[on] = kInYield;
       place[on] = kWaiting;
#ifdef BROKEN_SUBMIT_EARLY
       submit(on)
#else
       hook = kSubmit
#endif
     };
     goto suspend
#endif
  :: errno_of[id] = on + 1
  fi;

wait:                          /* WaitList::Wait */
  lock();
  if
  :: set -> unlock(); ended++; goto loop
  :: else
  fi;
  d_step { alive[on] = 1; linked[on] = 1; place[on] = kWaiting }
  if                           /* BlockStoppable */
  :: skip
#ifdef STOP
  :: atomic {
       stop[on] = kRegistering;
       if
       :: requested -> stop[on] = kRequested   /* called at once */
       :: else -> stop_registered[on] = 1
       fi
     };
     atomic {
       if
       :: stop[on] == kRegistering -> stop[on] = kListening
       :: else ->
          linked[on] = 0;
          place[on] = kRunning
       fi
     };
     if
     :: !linked[on] -> unlock(); goto left
     :: else
     fi
#endif
  fi;
  if                           /* Block */
#ifdef TIMERS
  :: d_step { timed[on] = 1; timer_armed[on] = 1 }
#endif
  :: skip
  fi;
#ifdef BROKEN_UNLOCK_EARLY
  unlock();
#else
  hook = kUnlock;
#endif
  goes_on[on] = kInWait;

suspend:                       /* SuspendFiber */
  atomic {                     /* NextCarrier */
    kept_errno[on] = errno_of[id];
#ifdef BROKEN_OLD_WORKER
    left_by[on] = id;
#endif
    hook_of = on;
    if
    :: SOME_QUEUED -> take_from(kQueued, to)
    :: fresh > 0 -> fresh--; handed = 1; take_from(kSpare, to)
    :: take_from(kSpare, to)
    fi
  }

switch:                        /* SwitchTo */
  switch_carrier(on, to);
  d_step { on = to; to = NOBODY };   /* on another stack: AfterSwitch */
  if
  :: vacated != NOBODY ->
     d_step { place[vacated] = kSpare; vacated = NOBODY }
  :: else ->
#ifdef BROKEN_HOOK_IN_LOOP
     if
     :: goes_on[on] != kLoop -> hook = kNoHook
     :: else
     fi;
#endif
     if
     :: hook == kUnlock -> unlock()
     :: hook == kSubmit -> submit(hook_of)
     :: hook == kNoHook
     fi;
     d_step { hook = kNoHook; hook_of = NOBODY }
  fi;
  if
  :: goes_on[on] == kLoop -> goto loop
  :: else
  fi;

  /* Back in SuspendFiber, of another fiber. */
  d_step {
#ifdef BROKEN_OLD_WORKER
    errno_of[left_by[on]] = kept_errno[on];
#else
    errno_of[id] = kept_errno[on];
#endif
    assert(errno_of[id] == on + 1);
    kept_errno[on] = 0
  }
  if
  :: d_step { goes_on[on] == kInYield -> goes_on[on] = kLoop }; goto wait
  :: d_step { goes_on[on] == kInWait -> goes_on[on] = kLoop }
  fi;
  assert(!linked[on]);

left:                          /* CancelTimer; ~stop_callback */
#ifndef BROKEN_TIMER_RUNS
  atomic { timer_armed[on] = 0; !timer_runs[on] };
#else
  timer_armed[on] = 0;
#endif
#ifndef BROKEN_STOP_RUNS
  atomic { stop_registered[on] = 0; !stop_runs[on] };
#else
  stop_registered[on] = 0;
#endif
  d_step { alive[on] = 0; timed[on] = 0; stop[on] = kNotStoppable; ended++ }
  goto loop
}

/* Waiter::GiveUp and Wake, by the timer and by the token. */
inline give_up(c) {
  lock();
  assert(alive[c]);
  if
  :: linked[c] -> linked[c] = 0; submit(c)
  :: else
#ifdef BROKEN_BOTH_WAKE
     -> submit(c)
#endif
  fi;
  unlock()
}

/* Some worker's FireTimers, or the watch. */
proctype Timers() {
  byte c;
  do
  :: atomic {
       if
       :: timer_armed[0] -> c = 0
       :: timer_armed[1] -> c = 1
       :: timer_armed[2] -> c = 2
       :: timer_armed[3] -> c = 3
       fi;
       timer_armed[c] = 0;
       timer_runs[c] = 1
     };
     assert(alive[c]);
     give_up(c);
     timer_runs[c] = 0
  od
}

/* request_stop(); may never come. */
proctype Stopper() {
  byte c;
  bool listening;
  requested = 1;
  c = 0;
  do
  :: c < CARRIERS ->
     atomic {
       if
       :: stop_registered[c] -> stop_registered[c] = 0; stop_runs[c] = 1
       :: else
       fi
     }
     if
     :: stop_runs[c] ->
        assert(alive[c]);
        d_step {               /* OnStop */
          listening = stop[c] == kListening;
#ifdef BROKEN_NO_MARK
          if
          :: listening -> stop[c] = kRequested
          :: else
          fi
#else
          stop[c] = kRequested
#endif
        }
        if
        :: listening -> give_up(c)
        :: else
        fi;
        stop_runs[c] = 0
     :: else
     fi;
     c++
  :: else -> break
  od
}

/* Event::Set; may never come. */
proctype Waker() {
  byte c;
  lock();
  set = 1;
  c = 0;
  do
  :: c < CARRIERS ->
     if
     :: linked[c] -> linked[c] = 0; submit(c)
     :: else
     fi;
     c++
  :: else -> break
  od;
  unlock()
}

init {
  byte n, waiting;
  atomic {
    do
    :: n < CARRIERS ->
       goes_on[n] = kLoop;
       stop[n] = kNotStoppable;
       saved[n] = n >= WORKERS;
       place[n] = (n < WORKERS -> kRunning : kSpare);
       n++
    :: else -> break
    od;
    fresh = FIBERS;
    n = 0;
    do
    :: n < WORKERS -> run Worker(n, n); n++
    :: else -> break
    od;
#ifdef TIMERS
    run Timers();
#endif
#ifdef STOP
    if
    :: run Stopper()
    :: skip
    fi;
#endif
    if
    :: run Waker()
    :: skip
    fi
  }
  /* Nothing else can move. */
  timeout ->
    n = 0;
    do
    :: n < CARRIERS ->
       if
       :: linked[n] ->
          waiting++;
          assert(!set && !timed[n] && saved[n]);
          assert(!(requested && stop[n] != kNotStoppable))
       :: else
       fi;
       n++
    :: else -> break
    od;
    assert(!locked);
    assert(ended + waiting == FIBERS)
}
