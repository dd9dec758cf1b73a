// Which thread a stack belongs to. For diagnostics: threads needn't register.

#ifndef FLARE_FIBER_THREAD_STACKS_H_
#define FLARE_FIBER_THREAD_STACKS_H_

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace flare::fiber {

// The stacks of all threads of this process as they were when it was made.
class ThreadStacks {
 public:
  // Reads /proc: takes about 10 us per thread and 1 us per mapping, for which
  // it blocks the thread.
  ThreadStacks();

  // The number, as of gettid(), of the thread whose stack `address` lies in; 0:
  // of none, or the system doesn't say.
  pid_t ThreadAt(std::uintptr_t address) const;

 private:
  struct Stack {
    std::uintptr_t low;
    std::uintptr_t high;
    pid_t thread;
  };

  std::vector<Stack> stacks_;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_THREAD_STACKS_H_
