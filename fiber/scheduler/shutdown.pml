/* The orderly end: shutdown.cc, Request, FinishIfQuiescent, AllIdle and WakeAll,
 * with what matters to it of Park, Inject and WakeWorker in
 * scheduling_group.cc. The numbers in brackets are the rules at the top of
 * shutdown.cc; outsiders [SD3] are left out.
 *
 * Two groups of one worker each, whose tasks hand tasks to the other group.
 *
 * With -DALSO_DEFERRED they also queue tasks that wait for events (DeferTask),
 * which a worker takes when it has no others, or the watch makes injected ones,
 * at any moment: InjectDeferred() with its two stores of the sizes, which others
 * may see one by one, while only the watch has the locks.
 *
 * Checked: when the end is declared nothing is queued anywhere and nothing runs;
 * and whenever nothing can move any more all tasks have run, and all workers
 * have left.
 *
 * Memory is sequentially consistent here; in the code the accesses modelled are
 * seq_cst, except the stores that lower a queue's size, which release [SD1].
 *
 * Must hold, too:
 *   -DALSO_DEFERRED      as said above
 *
 * Broken variants, each of which must fail:
 *   -DBROKEN_ONE_PASS    looks at all groups once [SD1]
 *   -DBROKEN_NO_COUNT    doesn't compare how often workers were roused [SD1]
 *   -DBROKEN_ASK_FIRST   asks whether all is quiet before it sets its idle bit
 *                        [SD2]
 *   -DBROKEN_QUIET_END   declares the end and wakes nobody
 *   -DBROKEN_IN_HANDS    the watch takes deferred tasks and then injects them
 *                        [SD1]
 *   -DBROKEN_LOWER_FIRST  ... lowers one size before it raises the other [SD1]
 */
#if defined(ALSO_DEFERRED) || defined(BROKEN_IN_HANDS) || \
    defined(BROKEN_LOWER_FIRST)
#define DEFERRED
#endif
#define GROUPS 2
#ifdef DEFERRED
#define HANDED 1
#else
#define HANDED 2             /* tasks that hand one on before they end */
#endif

byte queued[GROUPS];
bool idle[GROUPS];
bool word[GROUPS];
byte rouses;
bool requested, finished;
byte running, to_hand, left;
#ifdef DEFERRED
byte deferred;               /* of the first group */
byte to_defer = 1;
bool locked;                 /* both queues, by the watch */
bool in_hands;               /* the watch has a task */
#define nothing_deferred (deferred == 0)
#else
#define nothing_deferred true
#endif

#ifdef DEFERRED
#define may_take !locked
#else
#define may_take true
#endif

inline wake(g, claimed) {
  d_step { claimed = idle[g]; idle[g] = 0 }
  if
  :: claimed -> word[g] = 0
  :: else
  fi
}

inline all_idle(quiet) {
  quiet = 1;
  g = 0;
  do
  :: g < GROUPS && quiet ->
     quiet = idle[g];
     quiet = quiet && (g != 0 || nothing_deferred);
     quiet = quiet && queued[g] == 0;
     g++
  :: else -> break
  od
}

inline finish_if_quiescent() {
  before = rouses;
  all_idle(quiet);
#ifndef BROKEN_ONE_PASS
  if
  :: quiet -> all_idle(quiet)
  :: else
  fi;
#endif
#ifndef BROKEN_NO_COUNT
  quiet = quiet && rouses == before;
#endif
  if
  :: quiet ->
     d_step {
       finished = 1;
       assert(queued[0] + queued[1] + running == 0);
#ifdef DEFERRED
       assert(deferred == 0 && !in_hands)
#endif
     }
#ifndef BROKEN_QUIET_END
     g = 0;
     do
     :: g < GROUPS -> wake(g, claimed); g++
     :: else -> break
     od
#endif
  :: else
  fi
}

proctype Worker(byte id) {
  byte g, before;
  bool quiet, claimed;
again:
  if
  :: atomic { queued[id] > 0 && may_take -> queued[id]--; running++ };
#ifdef DEFERRED
     if
     :: atomic { id == 0 && to_defer > 0 && !locked -> to_defer--; deferred++ }
     :: skip
     fi;
#endif
     if
     :: atomic { to_hand > 0 -> to_hand--; queued[1 - id]++ };
        wake(1 - id, claimed)
     :: to_hand == 0
     fi;
     running--;
     goto again
  :: queued[id] == 0
  fi;
#ifdef DEFERRED
  if
  :: atomic { id == 0 && deferred > 0 && !locked -> deferred--; running++ };
     running--;
     goto again
  :: id != 0 || deferred == 0
  fi;
#endif
  if
  :: finished -> goto leave
  :: else
  fi;

  word[id] = 1;                  /* Park */
#ifdef BROKEN_ASK_FIRST
  if
  :: requested -> finish_if_quiescent()
  :: else
  fi;
  idle[id] = 1;
#else
  idle[id] = 1;
  if
  :: requested -> finish_if_quiescent()
  :: else
  fi;
#endif
  if
  :: queued[id] == 0 && (id != 0 || nothing_deferred) && !finished ->
     word[id] == 0
  :: else
  fi;
  d_step { claimed = !idle[id]; idle[id] = 0 }
  rouses++;
  if
  :: claimed -> word[id] == 0
  :: else
  fi;
  atomic { g = 0; before = 0; quiet = 0; claimed = 0 }
  goto again;
leave:
  left++
}

/* From outside: a last task, then Request. */
proctype Requester() {
  byte g;
  bool claimed;
  queued[0]++;
  wake(0, claimed);
  requested = 1;
  g = 0;
  do
  :: g < GROUPS -> wake(g, claimed); g++
  :: else -> break
  od
}

#ifdef DEFERRED
/* One of the deferred tasks becomes an injected one, if there is any. */
proctype Watch() {
  bool claimed;
  if
  :: atomic { deferred > 0 && !locked -> locked = 1 };
#ifdef BROKEN_IN_HANDS
     d_step { deferred--; in_hands = 1; locked = 0 }
     d_step { in_hands = 0; queued[0]++ }
#elif defined(BROKEN_LOWER_FIRST)
     d_step { deferred--; in_hands = 1 }
     d_step { in_hands = 0; queued[0]++ }
     locked = 0;
#else
     queued[0]++;
     deferred--;
     locked = 0;
#endif
     wake(0, claimed)
  :: skip
  fi
}
#endif

init {
  atomic {
    to_hand = HANDED;
    run Worker(0);
    run Worker(1);
    run Requester();
#ifdef DEFERRED
    run Watch()
#endif
  }
  timeout ->
    assert(to_hand == 0 && queued[0] + queued[1] == 0 && left == GROUPS);
#ifdef DEFERRED
    assert(deferred == 0 && !locked)
#endif
}
