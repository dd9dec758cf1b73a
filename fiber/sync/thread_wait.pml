/* A plain thread that waits and is woken: Until, Look, Sleep and Wake in
 * thread_wait.cc. The numbers in brackets are the rules at its top.
 *
 * One waiter, one waker. The waiter may look any number of times before it
 * sleeps, and a sleep may end early, by its deadline or for no reason. Once it
 * has seen that it was woken it frees the word.
 *
 * Checked: whenever nothing can move any more the waiter has returned [TH1]; and
 * the word isn't accessed once it is free, except as an address [TH2].
 *
 * Memory is sequentially consistent here; in the code there is one word, which is
 * exchanged by both, and what the waker did before reaches the waiter by it.
 *
 * Broken variants, each of which must fail:
 *   -DBROKEN_STORE      the waiter stores kAsleep whatever the word is [TH1]
 *   -DBROKEN_NO_CHECK   the kernel puts it to sleep without a look at the word,
 *                       as a condition variable without its mutex would [TH1]
 *   -DBROKEN_LOOK_FIRST the waker looks whether the waiter sleeps, and only then
 *                       changes the word [TH1]
 *   -DBROKEN_ACCESS     the waker reads the word after its exchange [TH2]
 */
#define kAwake 0
#define kAsleep 1
#define kWoken 2

byte word = kAwake;
bool gone;                   /* the word */
bool sleeping;               /* in the kernel */
bool returned;

inline access() { assert(!gone) }

proctype Waiter() {
  do
  :: true ->
     atomic {
       access();
       if
       :: word == kWoken -> gone = true; returned = true; break
       :: else
       fi
     }
     if
     :: true                 /* looks again */
     :: true ->
#ifdef BROKEN_STORE
        atomic { access(); word = kAsleep }
#else
        atomic {
          access();
          if
          :: word == kAwake -> word = kAsleep
          :: else
          fi
        }
#endif
        atomic {             /* FutexWait looks at the word once more. */
          access();
#ifdef BROKEN_NO_CHECK
          sleeping = true
#else
          if
          :: word == kAsleep -> sleeping = true
          :: else
          fi
#endif
        }
        !sleeping            /* until somebody rouses it */
     fi
  od
}

/* Sleeps may end early, but nobody may count on it. */
proctype Early() {
  if
  :: atomic { sleeping -> sleeping = false }
  :: true
  fi
}

proctype Waker() {
  byte was;
#ifdef BROKEN_LOOK_FIRST
  atomic { access(); was = word }
  atomic { access(); word = kWoken }
#else
  atomic { access(); was = word; word = kWoken }
#endif
#ifdef BROKEN_ACCESS
  atomic { access(); was = (was == kAsleep -> kAsleep : word) }
#endif
  if
  :: was == kAsleep -> sleeping = false
  :: else
  fi
}

init {
  atomic { run Waiter(); run Early(); run Waker() }
  timeout;
  assert(returned)
}
