// The kernel doesn't know the stacks of threads, except for the main thread's,
// "[stack]" among the mappings (proc(5)). But it knows each thread's list of
// robust mutexes, the head of which the C library keeps in the thread's
// descriptor, and that lies at the high end of its stack (get_robust_list(2),
// pthread_create(3)). So a stack reaches from the start of the mapping that has
// the head, or from the head before it, if stacks without a guard are joined in
// one mapping, to the head.
#include "flare/fiber/diagnostics/thread_stacks.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <system_error>

namespace flare::fiber {
namespace {

// The threads except the main thread, by the heads of their lists.
std::map<std::uintptr_t, pid_t> ListThreads() {
  std::map<std::uintptr_t, pid_t> threads;
  std::error_code error;
  std::filesystem::directory_iterator entries("/proc/self/task", error);
  for (; !error && entries != std::filesystem::directory_iterator();
       entries.increment(error)) {
    const auto thread =
        static_cast<pid_t>(std::atoi(entries->path().filename().c_str()));
    std::uintptr_t head = 0;
    std::size_t length = 0;
    if (thread != getpid() &&
        syscall(SYS_get_robust_list, thread, &head, &length) == 0 &&
        head != 0) {
      threads[head] = thread;
    }
  }
  return threads;
}

}  // namespace

ThreadStacks::ThreadStacks() {
  const std::map<std::uintptr_t, pid_t> threads = ListThreads();
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t low = 0;
    std::uintptr_t high = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx", &low, &high) != 2) continue;
    if (line.ends_with("[stack]")) stacks_.push_back({low, high, getpid()});
    for (auto at = threads.lower_bound(low);
         at != threads.end() && at->first < high; ++at) {
      stacks_.push_back({low, at->first, at->second});
      low = at->first;
    }
  }
}

pid_t ThreadStacks::ThreadAt(std::uintptr_t address) const {
  const auto stack = std::find_if(
      stacks_.begin(), stacks_.end(),
      [&](const Stack& s) { return address >= s.low && address < s.high; });
  return stack == stacks_.end() ? 0 : stack->thread;
}

}  // namespace flare::fiber
