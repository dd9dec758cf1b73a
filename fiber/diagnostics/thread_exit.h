// pthread_exit() in a fiber ends the process, and the log says which fiber, and
// where. It would end the thread, not the fiber: the worker would be missing
// from then on, tasks that it holds would never be run, and nobody would learn
// of it. So libc's function is replaced, for the whole program, by one that
// looks whether it is called in a fiber.
//
// Threads that run fibers are watched as well: if one ends in another way, by
// pthread_cancel(), the process ends, too.

#ifndef FLARE_FIBER_THREAD_EXIT_H_
#define FLARE_FIBER_THREAD_EXIT_H_

namespace flare::fiber {

// The calling thread runs fibers from now on until it says otherwise.
void ForbidThreadExit();
void AllowThreadExit();

}  // namespace flare::fiber

#endif  // FLARE_FIBER_THREAD_EXIT_H_
