/* A worker's queue: run_queue.h. The owner pushes (Push, TakeHalf when full) and
 * pops (Pop, Claim, ClaimSeveral, PopAfterRescue), a thief steals (StealInto)
 * and another one rescues claimed tasks (RescueInto). The numbers in brackets
 * are the rules at the top of run_queue.h.
 *
 * Checked: whatever the order, each task is taken exactly once: never by two,
 * and when all have come to their end none is left.
 *
 * Memory: the owner's stores of next_ and the rescuer's of rescues_ go through
 * a store buffer each, which the machine writes back whenever it likes, and in
 * any case when the thread unlocks, or when a membarrier reaches it. So both can
 * be late, which [RQ5] is about. Everything else is sequentially consistent
 * here: head_ changes by compare-exchange only, and a thread that reads a slot
 * wrongly has its exchange fail [RQ2].
 *
 * A task moved into a thief's queue counts as taken: that queue is another one
 * of the same kind, and the thief its owner.
 *
 * Must hold, too:
 *   -DALSO_WIDE              more slots and longer claims: several are rescued
 *
 * Broken variants, each of which must fail:
 *   -DBROKEN_NO_BARRIER      rescues without the membarrier [RQ5]
 *   -DBROKEN_NO_LOOK         the owner doesn't look for rescues [RQ5]
 *   -DBROKEN_LOOK_FIRST      ... looks before it stores next_ [RQ5]
 *   -DBROKEN_NO_LOCK         claims without the lock [RQ4]
 *   -DBROKEN_STALE_END       a rescuer leaves end_ as it is [RQ4]
 *   -DBROKEN_READ_LATE       a thief reads the slots after its exchange [RQ2]
 *   -DBROKEN_PUBLISH_FIRST   Push moves tail_ before it writes the slot [RQ1]
 */
#ifdef ALSO_WIDE
#define CAPACITY 5
#define TASKS 5
#define MOST_CLAIMED 3
#define RESCUES 1
#else
#define CAPACITY 3
#define TASKS 5
#define MOST_CLAIMED 2
#define RESCUES 2
#endif

byte head, tail;
byte ring[CAPACITY];          /* tasks are 1 .. TASKS; 0: never written */
byte claimed[MOST_CLAIMED];
byte next_, own_next;         /* in memory; as its owner sees it */
byte end_;
byte rescues, own_rescues;    /* in memory; as the rescuer sees it */
bool locked;
bool taken[TASKS + 1];
byte count;                   /* of those taken */
byte finished;

/* Nobody else has it. */
inline take(task) {
  d_step {
    assert(task != 0);
    assert(!taken[task]);
    taken[task] = 1;
    count++
  }
}

inline lock() { d_step { !locked -> locked = 1 } }

/* The content of the store buffers is visible before the lock is free. */
inline unlock_owner() { d_step { next_ = own_next; locked = 0 } }
inline unlock_rescuer() { d_step { rescues = own_rescues; locked = 0 } }

/* The machine, at any moment. Older values may be seen on the way. */
active proctype StoreBuffers() {
end_quiet:
  do
  :: atomic { next_ < own_next -> next_++ }
  :: atomic { next_ > own_next -> next_ = own_next }
  :: atomic { rescues != own_rescues -> rescues = own_rescues }
  :: finished == 3 -> break
  od
}

active proctype Owner() {
  byte pushed, limit = 1, seen_rescues;
  byte at, to, n, i, task;        /* at, to: head and tail as read */
  byte mine, last;                /* next_ and end_ as read */
  bool rescued;

again:
  if
  :: pushed < TASKS -> goto push
  :: goto pop
  fi;

push:
  if
  :: atomic { tail - head < CAPACITY -> pushed++ };
#ifdef BROKEN_PUBLISH_FIRST
     tail++;
     ring[(tail - 1) % CAPACITY] = pushed;
#else
     ring[tail % CAPACITY] = pushed;
     tail++;
#endif
     goto again
  :: tail - head >= CAPACITY ->    /* TakeHalf: the group's queue has them */
     at = head;
     n = (tail - at) / 2;
     if
     :: atomic {
          head == at -> head = at + n;
          i = 0;
          do
          :: i < n -> take(ring[(at + i) % CAPACITY]); i++
          :: else -> break
          od
        }
     :: head != at
     fi;
     goto again
  fi;

pop:
  mine = own_next;
  last = end_;
  if
  :: mine == last -> goto claim
  :: else
  fi;
  task = claimed[mine];
#ifdef BROKEN_LOOK_FIRST
  rescued = rescues != seen_rescues;
  own_next = mine + 1;
#else
  own_next = mine + 1;             /* into the store buffer */
#ifdef BROKEN_NO_LOOK
  rescued = 0;
#else
  rescued = rescues != seen_rescues;
#endif
#endif
  if
  :: !rescued -> take(task); goto again
  :: else
  fi;

  lock();                          /* PopAfterRescue */
  seen_rescues = rescues;
  last = end_;
  if
  :: mine < last ->
     task = claimed[mine];
     unlock_owner();
     take(task);
     goto again
  :: else -> own_next = last; unlock_owner()
  fi;

claim:
  at = head; to = tail;
  if                               /* as the tasks get shorter or longer */
  :: limit = 1
  :: limit = MOST_CLAIMED
  fi;
  if
  :: limit > 1 && to - at > 2 -> goto several
  :: else
  fi;
claim_one:
  if
  :: at == to ->                   /* empty */
     if
     :: pushed == TASKS -> goto done
     :: else -> goto again
     fi
  :: else
  fi;
  task = ring[at % CAPACITY];
  if
  :: atomic { head == at -> head = at + 1 }; take(task); goto again
  :: head != at -> at = head; goto claim_one
  fi;

several:
#ifndef BROKEN_NO_LOCK
  lock();
#endif
  do
  :: at = head;
     n = to - at;
     if
     :: n == 0 -> break
     :: else
     fi;
     d_step {
       n = n - n / 2;
       if
       :: n > limit -> n = limit
       :: else
       fi
     };
     if
     :: atomic { head == at -> head = at + n }; break
     :: head != at
     fi
  od;
  if
  :: n != 0 ->
     atomic {                      /* slots that nobody else writes */
       i = 0;
       do
       :: i < n -> claimed[i] = ring[(at + i) % CAPACITY]; i++
       :: else -> break
       od
     }
     seen_rescues = rescues;
     own_next = 1;
     end_ = n;
     task = claimed[0];
#ifndef BROKEN_NO_LOCK
     unlock_owner();
#endif
     take(task)
  :: else ->
     unlock_owner()
  fi;
  goto again;

done:
  finished++
}

active proctype Thief() {
  byte at, n, i;
  byte held[CAPACITY];

  at = head;
  do
  :: n = tail - at;                /* unsigned: a stale head shows as a lot */
     if
     :: n == 0 -> break
     :: n > CAPACITY -> at = head
     :: n > 0 && n <= CAPACITY ->
        n = n - n / 2;
        i = 0;
#ifndef BROKEN_READ_LATE
        do
        :: i < n -> held[i] = ring[(at + i) % CAPACITY]; i++
        :: i == n -> break
        od;
        if
        :: atomic {
             head == at -> head = at + n;
             i = 0;
             do
             :: i < n -> take(held[i]); i++
             :: else -> break
             od
           };
           break
        :: head != at -> at = head
        fi
#else
        if
        :: atomic { head == at -> head = at + n }
        :: head != at -> at = head; n = 0
        fi;
        do
        :: i < n -> held[i] = ring[(at + i) % CAPACITY]; take(held[i]); i++
        :: i == n -> break
        od
#endif
     fi
  od;
  atomic { d_step { at = 0; n = 0; i = 0 } finished++ }
}

active proctype Rescuer() {
  byte i, first, last, tries;

  do
  :: tries < RESCUES ->
     tries++;
     lock();
     if
     :: next_ == end_ -> unlock_rescuer()
     :: else ->
        own_rescues++;             /* into the store buffer */
#ifndef BROKEN_NO_BARRIER
        rescues = own_rescues;     /* here ... */
        next_ = own_next;           /* ... and there, before it is done */
#endif
        first = next_;
        last = end_;
        if
        :: first >= last
        :: else ->
#ifndef BROKEN_STALE_END
           end_ = first;
#endif
           i = first;
           do
           :: i < last -> take(claimed[i]); i++
           :: else -> break
           od
        fi;
        unlock_rescuer()
     fi
  :: else -> break
  od;
  finished++
}

active proctype Check() {
  finished == 3;
  assert(count == TASKS)
}
