// An exception that leaves a fiber's function ends the process, as it does for
// threads. This logs the fiber, the exception, and the place of the throw:
//
//   E ... an exception left fiber "resize", id 12, entry ..., on worker 0/3:
//   std::runtime_error: no such picture. Thrown here:
//       #4 0x55d2b4 __cxa_throw
//       #5 0x55d310 Resize(Picture const&) (app/resize.cc:31)
//       ...
//
// The stack is that of the `throw`: nothing is unwound before the end, so a
// core file shows it as well. Only if a noexcept function is in between it is
// unwound to there.

#ifndef FLARE_FIBER_TERMINATE_HANDLER_H_
#define FLARE_FIBER_TERMINATE_HANDLER_H_

namespace flare::fiber {

// Puts itself before the std::terminate handler of the moment, which is called
// afterwards, and directly on plain threads. Once per process: further calls do
// nothing. By StartRuntime().
void InstallTerminateHandler();

}  // namespace flare::fiber

#endif  // FLARE_FIBER_TERMINATE_HANDLER_H_
