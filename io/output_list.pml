/* Writers, the flusher and the closers of one connection: output_list.cc, and
 * Write and SendAll of the stream connection. The numbers in brackets are the
 * rules at the top of output_list.cc.
 *
 * A send may fail. Then the reader closes; but it may have paused until there
 * is room, that is until all that was pushed has been taken.
 *
 * Checked: at most one flusher at a time; when nothing can move any more, all
 * that was pushed has been taken, by the flusher or by the closer, nobody holds
 * the role, a connection whose send failed is closed, and the role of one that
 * is closed was left once.
 *
 * Broken variants, each of which must fail:
 *   -DBROKEN_RELEASE   gives the role up without looking for new nodes [OL1]
 *   -DBROKEN_PUSH      takes the role whenever the list is empty, even if a
 *                      flusher is at work [OL1]
 *   -DBROKEN_CLOSE     doesn't take the nodes it finds [OL3]
 *   -DBROKEN_FAILURE   keeps the role after a send that failed, and waits for
 *                      the end without looking for new nodes [OL5]
 *   -DBROKEN_LEAVE     the closer leaves the role of a flusher that has ended
 *                      the list, too [OL5]
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
byte left;         /* how often it was left for good */
byte wanted;       /* flush tasks submitted */
bool failed;       /* a send has */
bool closed;

/* The exchange of Close, by whomever. */
inline End() {
  was = head;
#ifndef BROKEN_CLOSE
  dropped = dropped + queued;
  queued = 0;
#endif
  head = END
}

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
  byte taken, was;
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
  :: taken > 0 -> dropped = dropped + taken; failed = true; goto over
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
  :: head == END -> goto leave
  fi;
#endif
over:
#ifdef BROKEN_FAILURE
  head == END;
#else
  skip;
  d_step { End() }
#endif
leave:
  flushers--;
  left++;
  goto idle
}

proctype Closer() {
  byte was;
  if
  :: true                             /* Close(). */
  :: true -> failed && queued == 0    /* The reader's, or never. */
  fi;
  d_step { End(); closed = true }
  if
  :: was == FREE -> left++            /* A flusher that nobody was. */
#ifdef BROKEN_LEAVE
  :: was == END -> left++
#endif
  :: else
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
  assert(flushers == 0);
  assert(closed || !failed);
  assert(left == closed)
}
