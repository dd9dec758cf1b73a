/* Writers, the flusher and the closer of one connection: output_list.cc, and
 * Write and RunFlusher of the stream connection. The numbers in brackets are
 * the rules at the top of output_list.cc.
 *
 * Checked: at most one flusher at a time; when nothing can move any more, all
 * that was pushed has been taken, by the flusher or by the closer, and nobody
 * holds the role unless the list was closed under it.
 *
 * Broken variants, each of which must fail:
 *   -DBROKEN_RELEASE   gives the role up without looking for new nodes [OL1]
 *   -DBROKEN_PUSH      takes the role whenever the list is empty, even if a
 *                      flusher is at work [OL1]
 *   -DBROKEN_CLOSE     doesn't take the nodes it finds [OL3]
 */
#define WRITERS 3
#define FREE 0
#define BUSY 1
#define LIST 2
#define END 3

byte head = FREE;
byte queued;       /* nodes behind LIST */
byte pushed, refused, sent, dropped;
byte flushers;     /* who has the role */
byte wanted;       /* flush tasks submitted */

proctype Writer() {
  byte was;
  /* The compare-exchange of Push. */
  d_step {
    was = head;
    if
    :: was == END -> refused++
    :: else -> head = LIST; queued++; pushed++
    fi
  }
  if
  :: was == FREE -> flushers++; wanted++
#ifdef BROKEN_PUSH
  :: was == BUSY -> flushers++; wanted++
#endif
  :: else
  fi
}

proctype Flusher() {
  byte taken;
idle:
  skip;
  d_step { wanted > 0 -> wanted-- }; /* Exactly one worker runs a task. */
take:
  assert(flushers <= 1);
  d_step {
    taken = 0;
    if
    :: head == LIST -> taken = queued; queued = 0; head = BUSY
    :: else
    fi
  }
  if
  :: taken > 0 -> sent = sent + taken; goto take
  :: else
  fi;
#ifdef BROKEN_RELEASE
  flushers--;
  head = (head == END -> END : FREE);
  goto idle;
#else
  /* The compare-exchange of Release. */
  if
  :: d_step { head == BUSY -> head = FREE; flushers-- } goto idle
  :: head == LIST -> goto take
  :: head == END -> flushers--; goto idle
  fi
#endif
}

proctype Closer() {
  if
  :: true ->
     d_step {
#ifndef BROKEN_CLOSE
       dropped = dropped + queued;
       queued = 0;
#endif
       head = END
     }
  :: true           /* Never closed. */
  fi
}

init {
  byte n;
  atomic {
    do
    :: n < WRITERS -> run Writer(); n++
    :: else -> break
    od;
    run Flusher();
    run Flusher();  /* The task may be run by any worker. */
    run Closer()
  }
  timeout -> assert(sent + dropped == pushed && pushed + refused == WRITERS);
  assert(flushers == 0)
}
