/* HTTP replies in parts, among others in order and calls without a place:
 * AskForTurn, EndParts, AskToSend, StopWaiting, Send, EnterUnordered and Leave in
 * http/ordered_replies.cc. The numbers in brackets are the rules at its top.
 *
 * One reader enters three requests, each a call, or one that is answered in
 * parts or as a whole, as they come; each has a handler of its own. Whether much
 * is held, so that a replier waits for its turn first, is anybody's guess, and
 * so is whether it waits for too long, and goes on all the same. Locked regions
 * and single atomic operations are one step each.
 *
 * Checked: nothing is written between the parts of a reply [R5] [R6], replies
 * with places leave in their order [R1], nobody is told that waits no more [R8],
 * and whenever nothing can move any more all of them have left.
 *
 * Memory is sequentially consistent here. Closing, the limits, and that others
 * don't wait once somebody has done so in vain, aren't modelled.
 *
 * Broken variants, each of which must fail:
 *   -DBROKEN_PARTS_LATE   a waiter looks for calls before it sets
 *                         kParts [R6]
 *   -DBROKEN_NO_PLACE     calls that see kParts go without a place [R6]
 *   -DBROKEN_CALLS_SILENT the last call that leaves tells nobody [R6]
 *   -DBROKEN_AFTER_SILENT nor does one that counted as a call briefly [R6]
 *   -DBROKEN_EMIT_SILENT  the emitter doesn't tell the next waiter [R5]
 *   -DBROKEN_OWN_TURN     a waiter takes any turn for its own [R5]
 *   -DBROKEN_NEXT_WAITS   the next one waits to be told, too [R8]
 *   -DBROKEN_STOP_TOLD    who waits no more goes on although he is being told [R8]
 *   -DBROKEN_STOP_LINKED  who waits no more leaves his waiter behind [R8]
 */
#define kRequests 3

byte entered;                /* places given */
byte next_place;
bool emitting;
bool ready[4];               /* held until its turn */
bool waits[4];               /* for its turn, in its slot */
byte waiter_of_calls;        /* a place + 1, or 0 */
byte calls;                  /* without a place, and pending */
bool parts;                  /* kParts */
bool told[4];
bool there[4];               /* the waiter of its handler */

bool in_parts;               /* some reply has begun, and not ended */
byte left;

/* Outside the lock: a handler's number + 1, or 0. */
inline tell(whom) {
  if
  :: whom != 0 -> atomic { assert(there[whom - 1]); told[whom - 1] = true }
  :: else
  fi
}

inline await_turn(my) {
  atomic { told[my] -> told[my] = false; there[my] = false }
}

inline tell_calls_are_gone() {
  byte who;
  atomic { who = waiter_of_calls; waiter_of_calls = 0 }
  tell(who)
}

/* Send() at a place whose bytes are there. */
inline send(place) {
  bool mine, more;
  byte at, next;
  next = 0;
  atomic {
    at = place;
    if
    :: place != next_place || emitting -> ready[place] = true; mine = false
    :: else -> emitting = true; mine = true
    fi
  }
  more = mine;
  do
  :: more ->
     atomic {
       assert(!in_parts);
       assert(at == next_place);
       left++
     }
     atomic {
       next_place++;
       at = next_place;
       if
       :: ready[at] -> ready[at] = false
       :: else ->
          more = false;
          emitting = false;
#ifndef BROKEN_EMIT_SILENT
          if
          :: waits[at] -> waits[at] = false; next = at + 1
          :: else
          fi
#endif
       fi
     }
  :: else -> break
  od
  tell(next)
}

proctype InParts(byte my) {
  byte seen;
  bool now;
  do
  :: now = false;
     atomic {
       there[my] = true;
       if
#ifdef BROKEN_OWN_TURN
       :: false
#else
       :: my != next_place || emitting -> waits[my] = true; seen = 255
#endif
       :: else -> waiter_of_calls = my + 1; seen = 0
       fi
     }
     if
     :: seen == 255
     :: else ->
#ifdef BROKEN_PARTS_LATE
        seen = calls;
        parts = true;
#else
        atomic { seen = calls; parts = true }
#endif
        if
        :: seen != 0
        :: else ->
           atomic {
             if
             :: waiter_of_calls == my + 1 -> waiter_of_calls = 0; now = true
             :: else
             fi
           }
        fi
     fi
     if
     :: now -> there[my] = false; break
     :: else -> await_turn(my)
     fi
  od
  atomic { assert(!in_parts && !emitting && my == next_place); in_parts = true }
  in_parts = false;
  parts = false;
  send(my)
}

proctype InOrder(byte my) {
  bool later;
  if
  :: atomic {
#ifdef BROKEN_NEXT_WAITS
       later = true;
#else
       later = (my != next_place);
#endif
       if
       :: later -> waits[my] = true; there[my] = true
       :: else
       fi
     }
     if
     :: later -> await_turn(my)
     :: later ->
        atomic {
          if
#ifdef BROKEN_STOP_TOLD
          :: true -> waits[my] = false; there[my] = false; later = false
#else
          :: waits[my] ->
             there[my] = false; later = false;
#ifndef BROKEN_STOP_LINKED
             waits[my] = false
#endif
          :: else
#endif
          fi
        }
        if
        :: later -> await_turn(my)
        :: else
        fi
     :: else
     fi
  :: true
  fi;
  send(my)
}

proctype Call() {
  bool last;
  atomic { assert(!in_parts); left++ }
  atomic { calls--; last = (parts && calls == 0) }
  if
#ifndef BROKEN_CALLS_SILENT
  :: last -> tell_calls_are_gone()
#endif
  :: else
  fi
}

proctype Reader() {
  byte i;
  bool seen, last;
  for (i : 1 .. kRequests) {
    if
    :: atomic { run InParts(entered); entered++ }
    :: atomic { run InOrder(entered); entered++ }
    :: atomic { seen = parts; calls++ }
#ifdef BROKEN_NO_PLACE
       seen = false;
#endif
       if
       :: !seen -> run Call()
       :: else ->
          atomic { calls--; last = (calls == 0) }
#ifndef BROKEN_AFTER_SILENT
          if
          :: last -> tell_calls_are_gone()
          :: else
          fi
#endif
          atomic { run InOrder(entered); entered++ }
       fi
    fi
  }
}

init {
  run Reader();
  timeout;
  assert(left == kRequests)
}
