/* An attempt of a call, and the fiber that waits for its end: StartPending,
 * WaitForEnd, LetGo and Complete in pending_call.cc. The letters in brackets are
 * the rules at the top of client_call.cc.
 *
 * The issuer is the fiber's own code until it is suspended, then the hook that
 * runs after the switch. The completer may end the attempt at any moment since
 * its start. LetGo() looks before it exchanges, so it is two steps.
 *
 * Checked: the fiber is resumed only while it is suspended, and once [C1] [CA7];
 * it goes on only after both have let go, and nobody touches the call from then
 * on [CA2] [CA4]; and it does go on.
 *
 * Memory is sequentially consistent here; in the code there is one word, whose
 * changes release and acquire.
 *
 * Broken variants, each of which must fail:
 *   -DBROKEN_EARLY    the fiber lets go before it is suspended [CA7]
 *   -DBROKEN_FORGET   the hook lets go, and doesn't look whether it was the last
 *                     [CA7]
 *   -DBROKEN_NO_COUNT the completer resumes the fiber without letting go [CA2]
 *   -DBROKEN_LATE     the completer reads the call after it let go [CA4]
 */
byte holders = 2;
bool suspended;
bool resumed;                /* its task is queued */
bool gone;                   /* FinishAttempt: the call is the owner's */

inline access() { assert(!gone) }

/* Sets `last`. */
inline let_go() {
  atomic { access(); last = (holders == 1) }
  if
  :: last
  :: else ->
     atomic { access(); last = (holders == 1); holders = holders - 1 }
  fi
}

inline resume() {
  atomic { assert(suspended && !resumed); resumed = true }
}

proctype Fiber() {
  bool last;
#ifdef BROKEN_EARLY
  let_go();
  if
  :: last -> goto over
  :: else
  fi;
  suspended = true;
#else
  atomic { access(); last = (holders == 1) }
  if
  :: last -> goto over       /* without having let go, as it is the last */
  :: else
  fi;
  suspended = true;          /* its registers are saved; the hook begins */
  let_go();
#ifndef BROKEN_FORGET
  if
  :: last -> resume()
  :: else
  fi;
#endif
#endif
  atomic { resumed -> resumed = false; suspended = false }
over:
  atomic { assert(holders <= 1); gone = true }
}

proctype Completer() {
  bool last;
  access();                  /* writes the outcome */
#ifdef BROKEN_NO_COUNT
  if
  :: suspended -> resume()
  :: else
  fi
#else
  let_go();
#ifdef BROKEN_LATE
  access();
#endif
  if
  :: last -> resume()
  :: else
  fi
#endif
}

init {
  atomic { run Fiber(); run Completer() }
  timeout;
  assert(gone)
}
