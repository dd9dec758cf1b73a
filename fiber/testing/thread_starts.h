// The time that a machine takes to wake a thread, for tests of the runtime's
// own wake-ups.

#ifndef FLARE_FIBER_TESTING_THREAD_STARTS_H_
#define FLARE_FIBER_TESTING_THREAD_STARTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "flare/base/clock.h"

namespace flare::fiber::testing {

// How long two threads took that started one after the other, at the times
// when Measure() was called. Help from the watch takes two wake-ups, too: its
// own and that of a worker.
class ThreadStarts {
 public:
  void Measure() {
    const std::int64_t start = NowNs();
    std::int64_t there = 0;
    std::thread([&] { std::thread([&] { there = NowNs(); }).join(); }).join();
    took_.push_back(there - start);
  }

  std::int64_t MedianNs() {
    const auto middle =
        took_.begin() + static_cast<std::ptrdiff_t>(took_.size() / 2);
    std::nth_element(took_.begin(), middle, took_.end());
    return *middle;
  }

 private:
  std::vector<std::int64_t> took_;
};

}  // namespace flare::fiber::testing

#endif  // FLARE_FIBER_TESTING_THREAD_STARTS_H_
