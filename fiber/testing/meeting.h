// Parties that come to the same moment, for tests of how waits end. A waiter
// may go, and take the awaited object with it, as soon as its wait has
// returned: so the wake-up, the deadline and a stop come at once here, and the
// parts of the wait are freed, or overwritten, directly after it. A later
// access is found out, by the sanitizers at the latest.
//
//   MeetAgainAndAgain([](Meeting& meeting) {
//     Common<Event> event;
//     meeting.Start([&](int) {
//       const auto at = meeting.NearTime();
//       if (!event->WaitUntil(meeting.stop(), at)) event->Wait();
//       event.Leave();
//     });
//     meeting.RequestStop();
//     meeting.Finish([&] { event->Set(); });
//   });

#ifndef FLARE_FIBER_TESTING_MEETING_H_
#define FLARE_FIBER_TESTING_MEETING_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/random.h"
#include "flare/base/testing/overwrite_stack.h"
#include "flare/fiber/blocking_region.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/testing/stress.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber::testing {

inline constexpr int kParties = 4;

// Parties that meet at one moment.
class Meeting {
 public:
  Meeting(std::uint64_t number, std::int64_t lead_ns)
      : number_(number), at_ns_(NowNs() + lead_ns) {}

  // Runs `f(i)` for each party, on a fiber; in some rounds one is a thread, or
  // in a blocking region.
  template <class F>
  void Start(F f) {
    for (int i = 0; i < kParties; ++i) StartOne(i, [f, i] { f(i); });
  }

  // A stop for all parties, requested at the moment by another fiber or thread;
  // in every other round.
  void RequestStop() {
    if (number_ % 2 == 0) return;
    const auto request = [this] {
      this_fiber::SleepUntilNs(Near());
      stop_.request_stop();
    };
    if (number_ % 8 == 3) {
      threads_.emplace_back(request);
    } else {
      fibers_.emplace_back(request);
    }
  }

  // The moment, a little sooner or later each time. In NowNs() time.
  std::int64_t Near() {
    if (NowNs() > at_ns_) late_ = true;
    return Around();
  }
  std::chrono::steady_clock::time_point NearTime() {
    return ToTimePoint(Near());
  }

  // Calls `f` at the moment, and waits for all parties' ends.
  template <class F>
  void Finish(F f) {
    // Fibers that sleep are woken somewhat late: sooner, in most rounds.
    const std::int64_t at =
        Around() - static_cast<std::int64_t>(number_ % 4) * 15'000;
    while (NowNs() < at) std::this_thread::yield();
    f();
    for (Fiber& fiber : fibers_) fiber.join();
    for (std::thread& thread : threads_) thread.join();
  }

  std::stop_token stop() const { return stop_.get_token(); }
  std::uint64_t number() const { return number_; }
  // Somebody asked for the moment when it had passed.
  bool late() const { return late_; }

 private:
  std::int64_t Around() {
    const std::uint64_t n = number_ * 64 + asked_.fetch_add(1);
    return at_ns_ + static_cast<std::int64_t>(MixBits(n) % 40'000) - 20'000;
  }

  template <class F>
  void StartOne(int i, F f) {
    const auto run = [f = std::move(f)] {
      f();
      flare::testing::OverwriteStack();
    };
    if (i == 0 && number_ % 4 == 0) {
      threads_.emplace_back(run);
    } else if (i == 1 && number_ % 4 == 1) {
      fibers_.emplace_back([run] { RunBlocking(run); });
    } else {
      fibers_.emplace_back(run);
    }
  }

  const std::uint64_t number_;
  const std::int64_t at_ns_;
  std::atomic<std::uint64_t> asked_{0};
  std::atomic<bool> late_{false};
  std::stop_source stop_;
  std::vector<Fiber> fibers_;
  std::vector<std::thread> threads_;
};

// Runs `hold(Meeting&)` for a while. The moment comes when all should just have
// begun to wait.
template <class F>
void MeetAgainAndAgain(F hold) {
  const std::int64_t end = NowNs() + StressNs(30'000'000);
  std::int64_t lead_ns = 60'000;
  for (std::uint64_t i = 0; i < 2 || NowNs() < end; ++i) {
    Meeting meeting(i, lead_ns);
    hold(meeting);
    lead_ns = meeting.late() ? std::min<std::int64_t>(2 * lead_ns, 2'000'000)
                             : std::max<std::int64_t>(lead_ns * 7 / 8, 30'000);
    if (::testing::Test::HasFailure()) return;
  }
}

// Something that the last of all parties to say so deletes.
template <class T>
class Common {
 public:
  template <class... Args>
  explicit Common(Args&&... args)
      : object_(new T(std::forward<Args>(args)...)) {}
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }

  void Leave() {
    if (left_.fetch_sub(1) == 1) delete object_;
  }

 private:
  T* const object_;
  std::atomic<int> left_{kParties};
};

}  // namespace flare::fiber::testing

#endif  // FLARE_FIBER_TESTING_MEETING_H_
