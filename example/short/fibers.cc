// The fiber library alone, without RPC: links //fiber (CMake: flare::fiber).
// Fibers square numbers that another one sends them.

#include <atomic>
#include <iostream>

#include "flare/base/status.h"
#include "flare/fiber/channel.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task_group.h"

namespace {

void SumSquares() {
  flare::fiber::Channel<int> numbers(8);
  std::atomic<int> sum = 0;
  flare::fiber::TaskGroup group;
  for (int worker = 0; worker != 4; ++worker) {
    group.Spawn([&] {
      while (auto number = numbers.Receive()) sum += *number * *number;
    });
  }
  for (int i = 1; i <= 100; ++i) {
    // Suspends this fiber while the channel is full.
    static_cast<void>(numbers.Send(i));
  }
  numbers.Close();  // Ends the loops above, once they have emptied it.
  if (group.Wait().ok()) std::cout << "sum of squares: " << sum << '\n';
}

}  // namespace

int main() {
  if (flare::Status status = flare::fiber::StartRuntime({}); !status.ok()) {
    std::cerr << status.ToString() << '\n';
    return 1;
  }
  flare::Fiber(SumSquares).join();
  flare::fiber::TerminateRuntime();
  return 0;
}
