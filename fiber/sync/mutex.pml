/* fiber::Mutex: lock, LockSlow, unlock and UnlockSlow in mutex.cc. The numbers in
 * brackets are the rules at its top.
 *
 * Three fibers lock the mutex, some of them more than once. Each may give up one
 * wait, by a timer, and then tries again. A waiter that has been woken in vain
 * may wait among the starving ones, as its time is up, and must after the second
 * time. The last one to leave destroys the mutex.
 *
 * Checked: one holder at a time; nobody takes the mutex past a starving waiter
 * [MU4], so that none is woken in vain more often than it puts up with; nobody
 * touches it once it is destroyed [MU3]; and whenever nothing can move any more
 * all have left.
 *
 * Memory is sequentially consistent here; in the code state_ is changed by
 * exchanges that acquire or release, and the rest is under lock_. The steps
 * of a wait between its link and its end are suspend_resume.pml's.
 *
 * Variants that must hold, too:
 *   -DALSO_PATIENT        nobody gives up, and all come twice
 *
 * Broken variants, each of which must fail:
 *   -DBROKEN_LOOK_FIRST   a waiter looks at state_ before it takes lock_ [MU2]
 *   -DBROKEN_UNMARK       a new holder makes it kHeld though others wait [MU2]
 *   -DBROKEN_FREE_LATE    when all have given up it is freed under lock_ [MU3]
 *   -DBROKEN_NO_LOCK      a waiter that was handed the mutex doesn't come for
 *                         lock_ [MU3]
 *   -DBROKEN_FREE         it is freed although it is handed over [MU4]
 *   -DBROKEN_NEVER        it is never handed over [MU4]
 *   -DBROKEN_BACK         a starving waiter waits among the others [MU4]
 */
#define kFree 0
#define kHeld 1
#define kContended 2

#define FIBERS 3
#define MOST_IN_VAIN 2
#ifdef ALSO_PATIENT
#define MOST_GIVEN_UP 0
#define ROUNDS 2
#else
#define MOST_GIVEN_UP 1
#define ROUNDS (id == 0 -> 4 : 1)
#endif

byte state = kFree;
bool lock;                            /* lock_ */
chan waiters = [FIBERS] of { byte };
chan starving = [FIBERS] of { byte };
bool linked[FIBERS];
bool woken[FIBERS];
byte inside;                          /* holders */
byte users = FIBERS;
bool gone;                            /* the mutex */

inline access() { assert(!gone) }
inline take() { atomic { !lock -> access(); lock = true } }
inline release() { atomic { access(); lock = false } }

/* WakeOne. */
inline wake_one(list) {
  atomic {
    list?other;
    linked[other] = false;
    woken[other] = true
  }
}

/* By competition, not by being handed it. */
inline took() { assert(len(starving) == 0); inside++; assert(inside == 1) }

inline note_taken() {
  atomic {
    access();
    if
#ifdef BROKEN_UNMARK
    :: true -> state = kHeld
#else
    :: len(waiters) + len(starving) == 0 -> state = kHeld
    :: else
#endif
    fi
  }
}

proctype Fiber(byte id) {
  byte round, in_vain, given_up, other;
  bool got, starves, last;
again:
  in_vain = 0;
  atomic {                            /* try_lock */
    access();
    if
    :: state == kFree -> state = kHeld; got = true; took()
    :: else -> got = false
    fi
  }
  do
  :: got -> break
  :: else ->
#ifdef BROKEN_LOOK_FIRST
     atomic {
       access();
       got = (state == kFree);
       state = kContended;
       if
       :: got -> took()
       :: else
       fi
     }
     take();
#else
     take();
     atomic {
       access();
       got = (state == kFree);
       state = kContended;
       if
       :: got -> took()
       :: else
       fi
     }
#endif
     if
     :: got -> note_taken(); release(); break
     :: else
     fi;
     assert(in_vain <= MOST_IN_VAIN);
     starves = false;
#ifndef BROKEN_NEVER
     if
     :: in_vain > 0 -> starves = true
     :: in_vain < MOST_IN_VAIN -> starves = false
     fi;
#endif
     atomic {
       access();
       linked[id] = true;
       if
#ifndef BROKEN_BACK
       :: starves -> starving!id
       :: else -> waiters!id
#else
       :: true -> waiters!id
#endif
       fi;
       lock = false
     }
     if
     :: woken[id] -> woken[id] = false
     :: given_up < MOST_GIVEN_UP ->   /* The time is up: GiveUp. */
        take();
        if
        :: linked[id] ->
           atomic {
             linked[id] = false;
             if
             :: waiters??[eval(id)] -> waiters??eval(id)
             :: starving??[eval(id)] -> starving??eval(id)
             fi
           }
           given_up++;
           release();
           goto again
        :: else -> release(); woken[id] -> woken[id] = false
        fi
     fi;
     if
     :: starves ->
        atomic { inside++; assert(inside == 1) }
#ifdef BROKEN_NO_LOCK
        note_taken();
#else
        take();
        note_taken();
        release();
#endif
        got = true
     :: else -> in_vain++
     fi
  od;

  round++;
  atomic {
    if
    :: round == ROUNDS -> users--
    :: else
    fi;
    last = (users == 0);
    inside--
  }
  do                                  /* unlock */
  :: atomic { state == kHeld -> access(); state = kFree } break
  :: state == kContended ->
     take();
     if
#ifndef BROKEN_FREE
     :: len(starving) > 0 -> wake_one(starving); release(); break
#else
     :: len(starving) > 0 ->
        atomic { access(); state = kFree } wake_one(starving); release(); break
#endif
     :: len(starving) == 0 && len(waiters) > 0 ->
        atomic { access(); state = kFree }
        wake_one(waiters);
        release();
        break
     :: len(starving) + len(waiters) == 0 ->
#ifdef BROKEN_FREE_LATE
        atomic { access(); state = kFree }
        release();
        break
#else
        atomic { access(); state = kHeld }
        release()
#endif
     fi
  od;
  if
  :: last -> gone = true
  :: round < ROUNDS -> goto again
  :: else
  fi
}

init {
  byte n;
  atomic {
    do
    :: n < FIBERS -> run Fiber(n); n++
    :: else -> break
    od
  }
  timeout;
  assert(gone)
}
