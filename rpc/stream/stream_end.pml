/* The end of a stream (rpc/stream/call_stream.cc [SX...]): reader, writer, the
 * connection's reader that brings a message and the end, a reset or the loss of
 * the connection, the deadline's timer, and the canceller, all at once. On a
 * client, which detaches as soon as both directions are over; with
 * -DALSO_SERVER on a server, whose method detaches when it ends.
 *
 * Changes under lock_ are atomic here. Waits may time out at any moment.
 *
 * Checked: events are set while their waiter is there, and once [SX3]; nobody waits
 * for ever once the call is over [SX3]; the wire is used only while it is there,
 * and given back once [SX4]; the timer's reference is given back once, and the
 * stream isn't used after its last reference [SX5].
 *
 * Broken variants, each of which must fail:
 *   -DBROKEN_LOOK_FIRST  who reads looks for messages before it takes the lock
 *                        under which it leaves its event [SX3]
 *   -DBROKEN_NO_WAIT     who times out doesn't wait for a Set() on its way [SX3]
 *   -DBROKEN_KEEP_EVENT  who wakes leaves the event where it was [SX3]
 *   -DBROKEN_TWICE       what comes after the end counts, too [SX1] [SX4]
 *   -DBROKEN_BARE_WIRE   who writes looks at the wire without the lock [SX4]
 *   -DBROKEN_NO_DEREF    who cancels the timer in time keeps its reference [SX5]
 *   -DBROKEN_DEREF       who cancels gives it back in any case [SX5]
 */
bool input_over, output_over, failed, detached;
bool wire = true;
bool connection = true;          /* lives until on_detached */
byte queued;

/* References: reader's, writer's, canceller's and the timer's. */
byte refs = 4;

bool timer_armed = true;         /* as the stream has it */
bool timer_set = true;           /* as the wheel has it */
bool timer_runs;

/* The waiter's events: there, left in its place, set. */
bool r_alive, r_place, r_set;
bool w_alive, w_place, w_set;
bool credit;
byte ended;                      /* parties */

#define over (input_over && output_over)

#ifdef BROKEN_TWICE
#define twice true
#else
#define twice false
#endif

/* Under lock_; the remaining work is in the party's own variables. */
inline take_reader() {
  if
  :: r_place ->
     wake_r = true;
#ifndef BROKEN_KEEP_EVENT
     r_place = false
#endif
  :: else
  fi
}
inline take_writer() {
  if
  :: w_place -> w_place = false; wake_w = true
  :: else
  fi
}
inline detach_now() {
  if
  :: !detached || twice ->
     detached = true; wire = false; gone = true;
     if
     :: timer_armed -> timer_armed = false; cancel = true
     :: else
     fi
  :: else
  fi
}
inline detach_if_over() {
  skip;
#ifndef ALSO_SERVER
  if
  :: over -> detach_now()
  :: else
  fi
#endif
}
inline end_input() {
  if
  :: !input_over || twice -> input_over = true; take_reader(); detach_if_over()
  :: else
  fi
}
inline end_output() {
  if
  :: !output_over -> output_over = true; take_writer(); detach_if_over()
  :: else
  fi
}
inline fail() {
  if
  :: (failed || over) && !twice
  :: else ->
     failed = true;
     assert(!wire || connection);   /* SendReset */
     queued = 0;
     end_output();
     end_input()
  fi
}
inline set_events() {
  if
  :: wake_r -> atomic { assert(r_alive && !r_set); r_set = true; wake_r = false }
  :: else
  fi;
  if
  :: wake_w -> atomic { assert(w_alive && !w_set); w_set = true; wake_w = false }
  :: else
  fi
}
inline deref() {
  atomic { assert(refs > 0); refs-- }
}
/* Outside of lock_, by anybody but the timer's callback. */
inline do_after() {
  set_events();
  if
  :: gone -> atomic { assert(connection); connection = false; gone = false }
  :: else
  fi;
  if
  :: cancel ->
     cancel = false;
     if
     :: atomic { timer_set -> timer_set = false };
#ifndef BROKEN_NO_DEREF
        deref()
#endif
     :: atomic { !timer_set && !timer_runs };
#ifdef BROKEN_DEREF
        deref()
#endif
     fi
  :: else
  fi
}

active proctype Reader() {
  bool wake_r, wake_w, gone, cancel, saw_none, patient;
  if
  :: patient = true    /* no deadline */
  :: patient = false
  fi;
  do
  :: atomic { queued > 0 -> assert(refs > 0); queued-- }
  :: atomic { queued == 0 && input_over -> break }
#ifdef BROKEN_LOOK_FIRST
  :: atomic { queued == 0 && !input_over -> saw_none = true };
     atomic { r_place = true; r_alive = true; r_set = false };
#else
  :: atomic { queued == 0 && !input_over ->
              r_place = true; r_alive = true; r_set = false };
#endif
     if
     :: atomic { r_set -> r_alive = false }
     :: atomic { r_place && !patient -> r_place = false; r_alive = false }
     :: atomic { !r_place && !r_set && !patient -> skip };
#ifdef BROKEN_NO_WAIT
        r_alive = false
#else
        atomic { r_set -> r_alive = false }
#endif
     fi
  od;
  deref();
  ended++
}

active proctype Writer() {
  bool wake_r, wake_w, gone, cancel, sees;
  do
#ifdef BROKEN_BARE_WIRE
  :: atomic { sees = wire };
     if
     :: sees -> assert(connection)
     :: else -> break
     fi
#endif
  :: atomic { output_over || !wire -> break }
  :: atomic { !output_over && wire && credit ->
              assert(connection);             /* SendMessage */
              credit = false };
  :: atomic { !output_over && wire -> assert(connection); /* CloseWriting */
              end_output() };
     do_after();
     break
  :: atomic { !output_over && wire && !credit ->
              w_place = true; w_alive = true; w_set = false };
     if
     :: atomic { w_set -> w_alive = false }
     :: atomic { w_place -> w_place = false; w_alive = false }
     :: atomic { !w_place && !w_set -> skip };
        atomic { w_set -> w_alive = false }
     fi
  od;
#ifdef ALSO_SERVER
  /* The method has ended: Finish() and Detach(). */
  atomic { end_output(); end_input(); queued = 0; detach_now() };
  do_after();
#endif
  deref();
  ended++
}

/* The connection's reader. It finds the stream by the table, which holds it. */
active proctype Wire() {
  bool wake_r, wake_w, gone, cancel;
  /* A message and credit may come, and then the end, or the connection's. */
  atomic {
    if
    :: !input_over -> queued++; take_reader()
    :: else
    fi
  };
  do_after();
  atomic { credit = true; take_writer() };
  do_after();
  if
  :: atomic {
       skip;
       if
       :: !input_over ->
#ifndef ALSO_SERVER
          end_output();
#endif
          end_input()
       :: else
       fi
     }
  :: atomic { skip; fail() }
  fi;
  do_after();
  ended++
}

active proctype Timer() {
  bool wake_r, wake_w, gone, cancel;
  if
  :: atomic { timer_set -> timer_set = false; timer_runs = true };
     atomic { assert(refs > 0); timer_armed = false };
     atomic { fail() };
     set_events();
     if
     :: gone -> atomic { assert(connection); connection = false; gone = false }
     :: else
     fi;
     assert(!cancel);
     deref();
     timer_runs = false
  :: true
  fi;
  ended++
}

active proctype Canceller() {
  bool wake_r, wake_w, gone, cancel;
  if
  :: atomic { assert(refs > 0); fail() };
     do_after()
  :: true
  fi;
  deref();
  ended++
}

active proctype Check() {
  /* The call comes to its end: the connection's reader sees to that. Without a
     party that waits for ever all of them end. */
  timeout ->
  assert(ended == 5);
  assert(detached && !connection && !wire);
  assert(!r_place && !w_place);
  /* The timer's is given back, too, unless it is still to fire, which it
     can't be once the stream is detached. */
  assert(refs == 0 && !timer_set)
}
