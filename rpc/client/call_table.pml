/* The calls under way on one connection: call_table.cc, Insert, Claim, Grow,
 * Take, TakeFrom, TakeAny and Close. The numbers in brackets are the rules at its
 * top.
 *
 * Two threads insert calls, into a table of one slot that may grow once, to two
 * more. Each party that may end a call whose id is known takes it out: its
 * reply, or, of the first one, another reply or the timer. Somebody closes the
 * table.
 *
 * Checked: each call is taken out once, or else refused [CT1] [CT2]; who has its
 * id finds it, unless it was taken before, and never finds another in its place
 * [CT1] [CT4]; and when all have come to their end none is left in [CT3].
 *
 * Memory: closed_ and the words that inserters store go through store buffers,
 * which the machine writes back whenever it likes, and which a sequentially
 * consistent load of the same thread waits for. An acquire load doesn't, as on
 * AArch64 (LDAPR after STLR). All else is sequentially consistent here. Growing
 * stores newest_ before it stores a word, so its own buffer would change
 * nothing: that this store, too, is seq_cst, and the load before the word, is
 * for C++, which knows no buffers.
 *
 * Ids come around after 2^32 calls; who was about to insert or take out a call
 * by one of them has done so by then.
 *
 * Must hold, too:
 *   -DALSO_AROUND        ids that come around while a call is still there
 *   -DALSO_THREE         a third call, and nobody who may end the first two
 *
 * Broken variants, each of which must fail:
 *   -DBROKEN_NEWEST      the closer loads newest_ before closed_ is seen [CT3]
 *   -DBROKEN_WEAK_LOOK   an inserter loads closed_ before its word is seen [CT3]
 *   -DBROKEN_NO_LOOK     an inserter doesn't look whether it was closed [CT3]
 *   -DBROKEN_LOOK_FIRST  ... looks before it stores the word [CT3]
 *   -DBROKEN_WALK_FIRST  the closer takes calls out and then closes [CT3]
 *   -DBROKEN_NO_CLAIM    an inserter fills a slot that it saw free [CT1]
 *   -DBROKEN_PUBLISH_FIRST  ... stores the word before the call [CT1]
 *   -DBROKEN_TWIN        Claim doesn't look for the id in the older segment
 *                        [CT1]
 *   -DBROKEN_NO_EXCHANGE a taker frees a slot in which it saw its id [CT2]
 *   -DBROKEN_READ_LATE   a taker reads the call after its exchange [CT2]
 *   -DBROKEN_ONE_SEGMENT takers look into the newest segment only [CT4]
 */
#if defined(ALSO_AROUND) || defined(BROKEN_TWIN)
#define AROUND
#define IDS 3
#define hold(id) users[id]++
#define let_go(id) users[id]--
#define nobody_holds(id) (users[id] == 0)
#else
#define IDS 12                 /* as many as are needed at most */
#define hold(id) skip
#define let_go(id) skip
#define nobody_holds(id) true
#endif
#ifdef ALSO_THREE
#define CALLS 3
#else
#define CALLS 2
#endif
#define MOST_PROBES 2

#define FREE 0
#define BUSY 15
#define SLOTS 3                /* the old segment's, the newer one's two */
#define slot_of(segment, id) ((segment) == 0 -> 0 : 1 + (id) % 2)

byte word[SLOTS];
byte call[SLOTS];              /* calls are 1 .. CALLS */
bool larger;                   /* newest_ is the newer segment */
bool closed;                   /* in memory */
bool own_closed;               /* as the closer has stored it */
byte next_id = 1;
bool growing;                  /* grow_lock_ */

/* The store buffers of the two inserters; 0: empty. */
byte stored[2];
byte stored_at[2];

byte id_of[CALLS + 1];         /* once Insert has returned it */
bool refused[CALLS + 1];
bool taken[CALLS + 1];
#ifdef AROUND
byte users[IDS + 1];           /* who have that id in their hands */
#endif
byte finished;
#ifdef ALSO_THREE
#define THREADS 4
#elif defined(AROUND)
#define THREADS 5
#else
#define THREADS 6
#endif

/* The machine, at any moment. */
active proctype StoreBuffers() {
end_quiet:
  do
  :: atomic { own_closed && !closed -> closed = 1 }
  :: atomic { stored[0] != 0 -> word[stored_at[0]] = stored[0]; stored[0] = 0 }
  :: atomic { stored[1] != 0 -> word[stored_at[1]] = stored[1]; stored[1] = 0 }
  od
}

/* Sets `got`: the call, or 0. */
inline take_from(slot, id) {
  got = 0;
  if
  :: word[slot] != id
  :: else ->
#ifdef BROKEN_READ_LATE
     if
     :: atomic { word[slot] == id -> word[slot] = FREE };
        got = call[slot];
        take(got)
     :: word[slot] != id
     fi
#else
     got = call[slot];
     if
#ifdef BROKEN_NO_EXCHANGE
     :: word[slot] = FREE; take(got)
#else
     :: atomic { word[slot] == id -> word[slot] = FREE; take(got) }
     :: word[slot] != id -> got = 0
#endif
     fi
#endif
  fi
}

inline take(c) {
  d_step { assert(c != 0); assert(!taken[c]); taken[c] = 1 }
}

/* Inserts the calls `c`, `c` + 2 ... */
proctype Inserter(byte me; byte c) {
  byte id, slot, probes, got;
  bool at;
#ifdef BROKEN_LOOK_FIRST
  bool was_closed;
#endif

again:
  if
  :: c > CALLS -> goto done
  :: else
  fi;
next:
  atomic {
    nobody_holds(next_id) ->
    id = next_id;
    hold(id);
    next_id = (id == IDS -> 1 : id + 1)
  };
  at = larger;
#ifndef BROKEN_TWIN
  if
  :: at && word[0] == id -> goto occupied
  :: else
  fi;
#endif
  slot = slot_of(at, id);
  if
#ifdef BROKEN_NO_CLAIM
  :: word[slot] == FREE
#else
  :: atomic { word[slot] == FREE -> word[slot] = BUSY }
#endif
  :: word[slot] != FREE -> goto occupied
  fi;

#ifdef BROKEN_PUBLISH_FIRST
  word[slot] = id;
  call[slot] = c;
#else
  call[slot] = c;
#ifdef BROKEN_LOOK_FIRST
  was_closed = closed;
#endif
  d_step { stored_at[me] = slot; stored[me] = id };
#endif
#ifndef BROKEN_WEAK_LOOK
  stored[me] == 0;             /* a sequentially consistent load waits for it */
#endif
#ifdef BROKEN_NO_LOOK
  goto inserted;
#endif
  if
#ifdef BROKEN_LOOK_FIRST
  :: !was_closed -> goto inserted
#else
  :: !closed -> goto inserted
#endif
  :: else
  fi;
  stored[me] == 0;             /* its own store comes before its exchange */
  take_from(slot, id);
  if
  :: got != 0 -> d_step { assert(got == c); taken[c] = 0; refused[c] = 1 }
  :: else -> goto inserted
  fi;
  goto following;
inserted:
  stored[me] == 0;             /* before the request, that is */
  id_of[c] = id;
following:
  atomic {
    let_go(id);
    c = c + 2; id = 0; slot = 0; got = 0; at = 0; probes = 0
  };
  goto again;

occupied:
  atomic {
    probes++;
    if
    :: probes < MOST_PROBES -> let_go(id); goto next
    :: else -> probes = 0
    fi;
    if
    :: at ->                   /* as large as may be */
       refused[c] = 1;
       goto following
    :: else -> let_go(id)
    fi
  };
  atomic { !growing -> growing = 1 };
  larger = 1;
  growing = 0;
  goto next;

done:
  finished++
}

/* Take() by a party that knows the id of the call `c`, if it gets one; or none. */
proctype Taker(byte c) {
  byte id, got;
  bool at;

  if
  :: goto done
  :: id_of[c] != 0
  fi;
  atomic { id = id_of[c]; hold(id) };
  at = larger;
  if
  :: at -> take_from(slot_of(1, id), id)
  :: else
  fi;
#ifdef BROKEN_ONE_SEGMENT
  if
  :: got == 0 && !at -> take_from(0, id)
  :: else
  fi;
#else
  if
  :: got == 0 -> take_from(0, id)
  :: else
  fi;
#endif
  d_step {
    assert(got == c || taken[c]);        /* it was there */
#ifndef AROUND
    assert(got == 0 || got == c);
#endif
    let_go(id)
  };
done:
  atomic { id = 0; got = 0; at = 0; finished++ }
}

proctype Closer() {
  byte slot, id, got;
  bool at;

#ifndef BROKEN_WALK_FIRST
  own_closed = 1;              /* into the store buffer */
#endif
#if !defined(BROKEN_NEWEST) && !defined(BROKEN_WALK_FIRST)
  closed;                      /* a sequentially consistent load waits for it */
#endif
  at = larger;
#ifndef BROKEN_WALK_FIRST
  closed;
#endif
  slot = (at -> 1 : 0);
  do
  :: slot < SLOTS ->
     atomic {
       id = word[slot];
       if
       :: id != FREE && id != BUSY -> hold(id)
       :: else -> id = FREE
       fi
     };
     if
     :: id != FREE -> take_from(slot, id); let_go(id)
     :: else
     fi;
     /* The older segment comes last. */
     if
     :: slot == 0 -> break
     :: slot == SLOTS - 1 -> slot = 0
     :: else -> slot++
     fi
  od;
#ifdef BROKEN_WALK_FIRST
  own_closed = 1;
#endif
  atomic { slot = 0; id = 0; got = 0; at = 0; finished++ }
}

init {
  byte c;
  atomic {
    run Inserter(0, 1);
    run Inserter(1, 2);
#ifdef ALSO_THREE
    run Taker(3);
#else
    run Taker(1);
    run Taker(2);
#ifndef AROUND
    run Taker(1);
#endif
#endif
    run Closer()
  }
  timeout;
  assert(finished == THREADS);
  for (c : 1 .. CALLS) {
    assert(taken[c] != refused[c])
  }
}
