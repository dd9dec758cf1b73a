/* The ends of a call's attempt, all at once: the reply, the timer, two
 * cancellers, and the issuer that sees that it was cancelled before. Insert,
 * BeginAttempt, EndAttempt and FinishAttempt of the call, its OnTimer and
 * Cancel, and StartCancel: client_call.cc [CA...], rpc_client_controller.cc
 * [CC...].
 *
 * Replies may come as soon as the call is in the table, timers as soon as they
 * are armed, or never. After a reply there may be another attempt, as after a
 * failure. How issuer and completer let go is modelled in call_wait.pml; here it
 * is one step.
 *
 * Checked: an attempt is ended once [CA1]; timer and cancellers use the call's
 * connection only while the call is a user of it [CA3] [CA5], and the controller
 * only until the call is over [CC2]; and no call that was cancelled goes on for
 * ever [CC3].
 *
 * Memory is sequentially consistent here, as are the accesses of [CC3].
 *
 * Broken variants, each of which must fail:
 *   -DBROKEN_NO_TAKE    a canceller ends a call it hasn't taken from the table [CA1]
 *   -DBROKEN_NO_WAIT    the owner doesn't wait for the timer's callback [CA3]
 *   -DBROKEN_STILL_BUSY nor for a canceller [CC2]
 *   -DBROKEN_LEFT       EndAttempt leaves the call's name behind [CC1]
 *   -DBROKEN_LOOK_FIRST BeginAttempt looks for the wish before it gives the name
 *                       [CC3]
 *   -DBROKEN_LOOK_EARLY a canceller looks for the name before it says its wish
 *                       [CC3]
 */
#define kAttempts 2

mtype = { nothing, reply, timer, cancelled };
mtype outcome;
mtype = { nobody, call, busy };
mtype cancelable = nobody;
bool wish;

byte table;                  /* the attempt whose call is in it; 0: none */
byte id;                     /* the call's own */
byte holders;                /* issuer and completer */
bool armed, running;         /* the timer, and its callback */
bool user;                   /* of the connection */
bool over;

/* Ends the attempt, for the party that has taken it. */
inline complete(how) {
  atomic { assert(outcome == nothing && holders > 0); outcome = how; holders-- }
}

/* By the call's connection and id. */
inline take() {
  atomic {
    assert(user && id != 0);
    got = (table == id);
    if
    :: got -> table = 0
    :: else
    fi
  }
}

inline begin_attempt() {
#ifdef BROKEN_LOOK_FIRST
  got = wish;
  cancelable = call;
#else
  cancelable = call;
  got = wish;
#endif
  if
  :: got ->
     take();
     if
     :: got -> complete(cancelled)
     :: else
     fi
  :: else
  fi
}

inline cancel_timer() {
  if
  :: outcome != timer ->
     if
     :: atomic { armed -> armed = false }
     :: atomic { !armed ->
#ifndef BROKEN_NO_WAIT
          !running
#endif
        }
     fi
  :: else
  fi
}

inline end_attempt() {
#ifdef BROKEN_LEFT
  skip
#else
  if
  :: atomic { cancelable == call -> cancelable = nobody }
#ifdef BROKEN_STILL_BUSY
  :: cancelable != call
#else
  :: cancelable == nobody
#endif
  fi
#endif
}

proctype Owner() {
  byte attempt;
  bool got;
  for (attempt : 1 .. kAttempts) {
    atomic { outcome = nothing; holders = 2; id = 0; user = true }
    table = attempt;
    id = attempt;
    armed = true;
    begin_attempt();
    holders--;
    holders == 0;
    cancel_timer();
    end_attempt();
    user = false;
    if
    :: outcome == reply
    :: break
    fi
  }
  over = true
}

proctype Reader() {
  do
  :: atomic { table != 0 -> table = 0 }
     complete(reply)
  :: over -> break
  od
}

proctype Timer() {
  bool got;
  do
  :: atomic { armed -> armed = false; running = true }
     take();
     if
     :: got -> complete(timer)
     :: else
     fi;
     running = false
  :: over -> break
  od
}

proctype Canceller() {
  bool got;
#ifdef BROKEN_LOOK_EARLY
  got = (cancelable == call);
  wish = true;
#else
  wish = true;
  got = (cancelable == call);
#endif
  if
  :: got ->
     atomic {
       got = (cancelable == call);
       if
       :: got -> cancelable = busy
       :: else
       fi
     }
  :: else
  fi;
  if
  :: got ->
     assert(!over);
     take();
#ifdef BROKEN_NO_TAKE
     got = true;
#endif
     if
     :: got -> complete(cancelled)
     :: else
     fi;
     atomic { assert(!over); cancelable = nobody }
  :: else
  fi
}

init {
  atomic {
    run Owner();
    run Canceller();
    run Canceller();
    if
    :: run Reader()
    :: true
    fi;
    if
    :: run Timer()
    :: true
    fi
  }
  timeout;
  assert(over)
}
