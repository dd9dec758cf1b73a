/* A fiber that waits at channels, with a limit: ChannelWaiter, DecideFirst and
 * CloseAndWake in channel_base.cc. The numbers in brackets are the rules at its
 * top.
 *
 * One fiber that waits for either of two channels, each of which is closed by
 * somebody, and a timer (or stop request) that may end the wait, or never come.
 * A send or receive by another party ends a wait as closing does. The model
 * leaves out values, channels with several waiters, and plain threads that wait.
 *
 * Checked: the fiber is woken once, after its registers are saved, and not at
 * all if it hasn't suspended itself; nobody touches the waiter once the fiber has
 * left it, nor a channel that went with it; and whenever nothing can move any
 * more the fiber has left.
 *
 * Memory is sequentially consistent here; in the code all is under locks except
 * winner_, which is exchanged.
 *
 * Variants that must hold, too:
 *   -DALSO_ONE           one channel, which goes with the fiber that it woke
 *   -DALSO_NO_LIMIT      no timer: the guard isn't used [CH6]
 *
 * Broken variants, each of which must fail:
 *   -DBROKEN_NO_EXCHANGE   who ends the wait looks at winner_ and then writes it
 *                          [CH2]
 *   -DBROKEN_WAKE_FIRST    a closer wakes the fiber, and then lets go of the lock;
 *                          with one channel [CH3]
 *   -DBROKEN_LINK_LATE     the locks are let go between the trying and the lists
 *                          [CH4]
 *   -DBROKEN_NO_LEAVE      a waiter of two doesn't take the locks again [CH5]
 *   -DBROKEN_LEAVE_ONE     ... or only that of the first channel [CH5]
 *   -DBROKEN_EARLY_GUARD   the fiber lets go of the guard before its registers
 *                          are saved [CH6]
 *   -DBROKEN_WAKE_ALWAYS   the timer wakes a fiber that has not marked itself as
 *                          suspended [CH6]
 *   -DBROKEN_NO_LOOK       the fiber suspends itself though the wait is decided
 *                          [CH6]
 */
#if defined(ALSO_ONE) || defined(BROKEN_WAKE_FIRST)
#define kChannels 1
#else
#define kChannels 2
#endif
#ifndef ALSO_NO_LIMIT
#define LIMITED
#endif

#define kNobody 0
#define kGivenUp 3             /* else 1 + the number of the channel */

bool lock[2];
bool guard;
bool closed[2];
bool linked[2];
byte winner = kNobody;
bool suspended;                /* as marked under the guard */
bool saved;                    /* the registers */
bool hook;                     /* to be run by the next carrier */
bool armed, firing;
byte wakes;
bool gone;                     /* the waiter */
bool channel_gone;

inline access() { assert(!gone) }

inline take(i) { atomic { !lock[i] -> assert(!channel_gone); lock[i] = true } }
inline release(i) { atomic { assert(!channel_gone); lock[i] = false } }

/* Ends the wait, unless somebody has: by an exchange. */
inline decide(who, did) {
#ifdef BROKEN_NO_EXCHANGE
  atomic { access(); did = (winner == kNobody) }
  if
  :: did -> atomic { access(); winner = who }
  :: else
  fi
#else
  atomic {
    access();
    did = (winner == kNobody);
    if
    :: did -> winner = who
    :: else
    fi
  }
#endif
}

inline wake() {
  atomic { access(); assert(saved); wakes++; assert(wakes == 1) }
}

proctype Fiber() {
  byte i;
  take(0);
  if
  :: kChannels == 2 -> take(1)
  :: else
  fi;
  if
  :: closed[0] || closed[1] ->     /* Can be done at once. */
     release(0);
     if
     :: kChannels == 2 -> release(1)
     :: else
     fi;
     goto left
  :: else
  fi;
#ifdef BROKEN_LINK_LATE
  release(0); release(1); take(0); take(1);
#endif
#ifdef LIMITED
  armed = true;
#endif
  atomic { linked[0] = true; linked[1] = (kChannels == 2) }
#ifdef LIMITED
  atomic { !guard -> guard = true }
#ifndef BROKEN_NO_LOOK
  if
  :: winner != kNobody ->
     guard = false;
     release(0);
     if
     :: kChannels == 2 -> release(1)
     :: else
     fi;
     goto decided
  :: else
  fi;
#endif
  suspended = true;
#ifdef BROKEN_EARLY_GUARD
  guard = false;
#endif
#endif
  atomic { saved = true; hook = true }
  wakes > 0;                       /* Resumed, by whichever worker. */
decided:
#ifdef LIMITED
  if                               /* Cancels the timer, or waits for it. */
  :: atomic { armed -> armed = false }
  :: !armed -> !firing
  fi;
#endif
#ifndef BROKEN_NO_LEAVE
  if
  :: winner == kGivenUp || kChannels == 2 ->
     i = 0;
     do
#ifdef BROKEN_LEAVE_ONE
     :: i == 1 -> break
#endif
     :: i == kChannels -> break
     :: i < kChannels -> take(i); linked[i] = false; release(i); i++
     od
  :: else
  fi;
#endif
left:
  /* A channel that woke its only waiter may go with it. */
  atomic { gone = true; channel_gone = (kChannels == 1 && winner == 1) }
}

/* ReleaseLocks, on the carrier that was switched to. */
proctype Hook() {
  hook;
#if defined(LIMITED) && !defined(BROKEN_EARLY_GUARD)
  atomic { access(); guard = false }
#endif
  if
  :: kChannels == 1 -> release(0)  /* Where it is was read before. */
  :: else ->
     atomic { access(); lock[0] = false }
     atomic { access(); lock[1] = false }
  fi
}

proctype Closer(byte i) {
  bool did;
  take(i);
  closed[i] = true;
  if
  :: linked[i] ->
     linked[i] = false;
#ifndef LIMITED
     if                            /* Nobody else can want to. */
     :: kChannels == 1 -> atomic { access(); did = true; winner = 1 + i }
     :: else -> decide(1 + i, did)
     fi
#else
     decide(1 + i, did)
#endif
  :: else
  fi;
#ifdef BROKEN_WAKE_FIRST
  if
  :: did -> wake()
  :: else
  fi;
  release(i)
#else
  release(i);
  if
  :: did -> wake()
  :: else
  fi
#endif
}

#ifdef LIMITED
/* It may never be due. */
proctype Timer() {
  bool did;
  if
  :: atomic { armed -> armed = false; firing = true }
     atomic { !guard -> access(); guard = true }
     decide(kGivenUp, did);
#ifndef BROKEN_WAKE_ALWAYS
     did = did && suspended;
#endif
     atomic { access(); guard = false }
     if
     :: did -> wake()
     :: else
     fi;
     firing = false
  :: true
  fi
}
#endif

init {
  atomic {
    run Fiber();
    run Hook();
    run Closer(0);
    if
    :: kChannels == 2 -> run Closer(1)
    :: else
    fi;
#ifdef LIMITED
    run Timer()
#endif
  }
  timeout;
  assert(gone)
}
