// A program to look at from outside: it blocks some named fibers, says "ready"
// when they are, and goes on standing still until its input ends.
// tools/gdb_fibers_test.py looks.

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/fiber_list.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/this_fiber.h"
#include "glog/logging.h"

namespace blocked_fibers {

flare::fiber::Mutex mutex;
flare::fiber::Event event;
std::atomic<long> holders_thread{0};  // About to block in read().

[[gnu::noinline]] void WaitForMutex() {
  mutex.lock();
  mutex.unlock();
}

[[gnu::noinline]] void WaitForEvent(int depth) {
  if (depth > 0) {
    WaitForEvent(depth - 1);
  } else {
    event.Wait();
  }
  asm volatile("");  // Prevents a tail call.
}

[[gnu::noinline]] void HoldWorker() {
  char byte;
  while (read(STDIN_FILENO, &byte, 1) == 1) {
  }
  asm volatile("");
}

// Where debuggers find the main thread: an inlined function has frames of its
// own, which aren't on the stack.
[[gnu::always_inline]] inline void SpinUntil(const std::atomic<bool>& flag) {
  while (!flag.load(std::memory_order_relaxed)) asm volatile("nop; nop; nop");
}

// Whether the thread that was about to block does.
bool HolderSleeps() {
  const long thread = holders_thread.load();
  if (thread == 0) return false;
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');  // Its state comes next.
  return name_end != std::string::npos && line.compare(name_end, 3, ") S") == 0;
}

bool AllAreBlocked() {
  const std::vector<flare::fiber::FiberSnapshot> fibers =
      flare::fiber::ListFibers();
  return std::count_if(fibers.begin(), fibers.end(), [](const auto& fiber) {
           return !fiber.name.empty() &&
                  (fiber.name == "holder" ||
                   fiber.state == flare::fiber::FiberState::kSuspended);
         }) == 4;
}

void Run() {
  mutex.lock();
  std::vector<flare::Fiber> fibers;
  fibers.emplace_back([] {
    flare::this_fiber::SetName("locker");
    flare::this_fiber::GetId();
    WaitForMutex();
  });
  fibers.emplace_back([] {
    flare::this_fiber::SetName("waiter");
    WaitForEvent(3);
  });
  fibers.emplace_back([] {
    flare::this_fiber::SetName("sleeper");
    event.WaitFor(std::chrono::hours(1));
  });
  std::atomic<bool> input_ended{false};
  fibers.emplace_back([&] {
    flare::this_fiber::SetName("holder");
    holders_thread.store(syscall(SYS_gettid));
    HoldWorker();
    input_ended.store(true, std::memory_order_relaxed);
  });
  while (!AllAreBlocked() || !HolderSleeps()) std::this_thread::yield();
  std::puts("ready");
  std::fflush(stdout);
  SpinUntil(input_ended);
  fibers.back().join();
  mutex.unlock();
  event.Set();
  for (flare::Fiber& fiber : fibers) {
    if (fiber.joinable()) fiber.join();
  }
}

}  // namespace blocked_fibers

// With an argument, stacks have no guards: where these cost no mappings of
// their own (Linux 6.13), gdb's own way of writing core files stops at each.
int main(int argc, char**) {
  // Debuggers need not be our parent, where the system would demand it.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  flare::fiber::RuntimeOptions options;
  options.concurrency = 2;
  options.group_size = 2;
  options.stack_size = 65536;
  options.stack_guard = argc == 1;
  options.stuck_threshold = std::chrono::nanoseconds(0);
  const flare::Status started = flare::fiber::StartRuntime(options);
  CHECK(started.ok()) << started.message();
  blocked_fibers::Run();
  flare::fiber::TerminateRuntime();
  return 0;
}
