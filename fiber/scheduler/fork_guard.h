// A process that was forked from one with a running runtime, without exec, has
// none of the workers: whatever it gave them to do would never be done. This
// makes such a child die with a message that says so, at its first use of the
// runtime, instead of hanging.
//
// fork() and exec, posix_spawn(), popen() and system() work as ever, from plain
// threads and from fibers: up to the exec the child may do anything that a
// child of a multi-threaded process may do anyway (async-signal-safe calls),
// and code that never touches the runtime may run on. A process may be forked
// before the runtime is started, or after it has ended, and parent and child
// may then start their own.
//
// Nothing is checked where the runtime is fast. In the child there is no
// runtime, which calls from plain threads notice as they always do; and if a
// fiber has forked, its thread's worker is replaced by an address at which
// nothing can be read, so that any use of it, be it that the fiber ends, ends
// in a handler for that fault.

#ifndef FLARE_FIBER_FORK_GUARD_H_
#define FLARE_FIBER_FORK_GUARD_H_

namespace flare::fiber {

// From now until DisarmForkGuard(), a forked child calls `forget`, which must
// be async-signal-safe and make the runtime disappear, and is marked. By
// StartRuntime() and TerminateRuntime().
void ArmForkGuard(void (*forget)());
void DisarmForkGuard();

// Is this process a child of one that ran the runtime when it was forked?
bool IsForkedChild() noexcept;

// The message of the child's death.
extern const char kForkedChildMessage[];

// Writes the message to stderr and aborts. Doesn't log: another thread of the
// parent may have held the logger's locks at the time of the fork.
[[noreturn]] void DieAsForkedChild() noexcept;

}  // namespace flare::fiber

#endif  // FLARE_FIBER_FORK_GUARD_H_
