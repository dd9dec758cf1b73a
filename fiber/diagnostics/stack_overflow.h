// Reports the overflow of a fiber's stack. Its guard turns that into a SIGSEGV,
// for which a handler writes to standard error
//
//   *** fiber "resize", id 17, overflowed its stack of 128 KiB; raise
//   --flare_fiber_stack_size (or find the recursion) ***
//   entry: Handle(flare::fiber::Task*) (server.cc:12)
//       #0 0x5581a0 Parse(Node*) (parser.cc:30)
//   ...
//       ... 812 frames are left out ...
//       #876 0x558090 Read(Request const&) (reader.cc:51)
//   ...
//
// (the 64 innermost frames and the 16 outermost) and then lets the fault happen
// again with whatever was in effect before, so that the process dies, or
// another handler runs, as it would have. Any other SIGSEGV or SIGBUS is handed
// to the handler that was there before. A handler that is installed later,
// without an alternate stack, hides this one: install it (say, glog's
// InstallFailureSignalHandler()) before the runtime starts.
//
// Only a guard's worth of overflow is seen: a function with larger arrays than
// that may step over it, unless it is compiled with -fstack-clash-protection.
//
// Under AddressSanitizer and ThreadSanitizer, which have handlers of their own,
// nothing here does anything.

#ifndef FLARE_FIBER_STACK_OVERFLOW_H_
#define FLARE_FIBER_STACK_OVERFLOW_H_

namespace flare::fiber {

// Installs the handler, unless it is in effect. By StartRuntime().
void InstallOverflowHandler();

// Gives the calling thread a signal stack, which the handler needs, for as long
// as the thread lives; unless it has one. For each thread that fibers run on.
void InstallOverflowHandlerForThread();

}  // namespace flare::fiber

#endif  // FLARE_FIBER_STACK_OVERFLOW_H_
