/* A call whose context somebody watches: ExecutionContext::stop_token() with
 * ServerCall::OnWatched(), CallCompletion::Watch() and CallWatch::Begin(),
 * WatchedCalls::StopAll(), ServerCall::Run() with Finish(), and the timer of the
 * deadline. The letters in brackets are the rules at the top of call_watch.cc,
 * call_completion.cc and execution_context.cc.
 *
 * There are two watchers, of which the first makes the watch, one who stops the
 * calls of the connection, the end of the call, behind which the connection may
 * go, and the timer. Callbacks of the token, and values in the context, are left
 * out.
 *
 * Checked: nobody touches the watch once it is destroyed, nor the connection
 * once it is gone, nor calls the owner after Disown(); the context is stopped
 * once; and a call that was watched before its end has been claimed is stopped,
 * if the connection's calls were stopped before that end.
 *
 * Memory is sequentially consistent here; in the code all that is shared is
 * guarded by locks, except CallCompletion's word, whose changes release and acquire.
 *
 * Broken variants, each of which must fail:
 *   -DBROKEN_NO_CLAIM    a watch begins though the end has been claimed [CE1]
 *   -DBROKEN_NO_DISOWN   the end doesn't wait for a watch that begins [CW1]
 *   -DBROKEN_NO_CAUSE    Add() doesn't look for an earlier StopAll() [CW2]
 *   -DBROKEN_NO_REMOVE   the end leaves the watch in the list [CW3]
 *   -DBROKEN_LATE        StopAll() reads the watch without the lock [CW3]
 *   -DBROKEN_TWICE       a stop is requested without a look at the cause [EC3]
 */
bool context_lock, list_lock;
bool ended, watched;          /* bits of CallCompletion's word */
bool owned = true;            /* the context's owner */
bool made;                    /* the stop state */
bool watch;                   /* CallContext::watch_: it lives */
bool listed;                  /* the watch is in the list */
bool armed;                   /* its timer */
bool cause_of_all;            /* WatchedCalls::cause_ */
bool cause;                   /* ExecutionContext::cause_ */
byte stops;                   /* calls of request_stop() that count */
bool connection = true;       /* there is one */
bool stopped_before_end;      /* StopAll() was through before the claim */
bool over;                    /* the end is through */
byte watchers_done;

inline lock(l) { atomic { !l -> l = true } }
inline unlock(l) { l = false }

/* RequestStop(). */
inline request_stop() {
  lock(context_lock);
#ifdef BROKEN_TWICE
  first = true;
#else
  first = !cause;
#endif
  cause = true;
  if
  :: first && made -> stops = stops + 1
  :: else
  fi;
  unlock(context_lock)
}

proctype Watcher() {
  bool told, claimed;
  lock(context_lock);
  if
  :: made -> skip
  :: else ->
     told = cause;
     if
     :: !cause && owned ->
        /* OnWatched() */
        atomic { claimed = ended; watched = true }
        if
#ifndef BROKEN_NO_CLAIM
        :: claimed -> skip
        :: else ->
#else
        :: true ->
#endif
           assert(connection);
           watch = true;
           armed = true;
           lock(list_lock);
           assert(connection);
#ifdef BROKEN_NO_CAUSE
           listed = true;
#else
           if
           :: cause_of_all -> told = true
           :: else -> listed = true
           fi;
#endif
           unlock(list_lock);
           cause = told
        fi
     :: else
     fi;
     made = true;
     if
     :: told -> stops = stops + 1
     :: else
     fi
  fi;
  unlock(context_lock);
  watchers_done++
}

proctype Stopper() {
  bool took, first;
  /* OnClosed() or the end of input: the connection is there until it is
   * through, which the call's end doesn't decide alone. */
  lock(list_lock);
  cause_of_all = true;
  took = listed;
  listed = false;
#ifdef BROKEN_LATE
  unlock(list_lock);
  if
  :: took -> assert(watch)      /* reads its context */
  :: else
  fi;
#else
  if
  :: took -> assert(watch)
  :: else
  fi;
  unlock(list_lock);
#endif
  if
  :: took -> request_stop()
  :: else
  fi;
  atomic { stopped_before_end = !ended }
}

proctype Timer() {
  bool first;
  armed;
  if
  :: request_stop()
  :: skip                       /* the deadline is far */
  fi
}

proctype End() {
  bool first;
  ended = true;                 /* the claim */
  if
  :: watched ->
#ifndef BROKEN_NO_DISOWN
     lock(context_lock);
     owned = false;
     unlock(context_lock);
#endif
     if
     :: watch ->
        lock(list_lock);
#ifndef BROKEN_NO_REMOVE
        listed = false;
#endif
        unlock(list_lock);
        watch = false
     :: else
     fi
  :: else
  fi;
  connection = false;           /* CallFinished() */
  over = true
}

init {
  atomic { run Watcher(); run Watcher(); run Stopper(); run Timer(); run End() }
  timeout;
  assert(over && watchers_done == 2 && !listed && !watch);
  assert(stops <= 1);
  assert(!cause || !made || stops == 1);
  /* Holds for a watch before the end, with StopAll() before it, too. */
  assert(!(watched && stopped_before_end && armed) || cause)
}
