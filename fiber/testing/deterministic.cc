#include "flare/fiber/testing/deterministic.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/random.h"
#include "flare/fiber/fiber_list.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/schedule.h"
#include "flare/fiber/stack/sanitizer.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/stress.h"
#include "flare/fiber/this_fiber.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

#if defined(FLARE_ASAN) || defined(FLARE_TSAN)
#include <sanitizer/common_interface_defs.h>
#endif

namespace flare::fiber::testing {
namespace {

// Where virtual time starts: the same in all runs, and a boundary of all levels
// of the timer wheel, so that deadlines are rounded alike.
constexpr std::int64_t kStartNs = std::int64_t{1} << 61;
constexpr std::int64_t kTaskNs = 1000;  // The time of each task.
// Deadlines further off pass only when there is nothing else to do: they are
// there for tests that hang.
constexpr std::int64_t kMostNsAtOnce = 1'000'000'000;

class SeededSchedule : public Schedule {
 public:
  explicit SeededSchedule(std::uint64_t seed) : seed_(MixBits(seed)) {
    // Each seed has ways of its own: most of the orders worth seeing are either
    // nearly the usual one, or one in which somebody starves.
    order_ = static_cast<Order>(seed_ % 4);
    static constexpr std::uint64_t kDelayOdds[] = {2, 8, 64};
    delay_odds_ = kDelayOdds[seed_ / 4 % 3];
  }

  bool deterministic() const override { return true; }
  void OnThreadStart() override { SetVirtualNow(kStartNs); }

  void BeforeTask(std::int64_t next_deadline_ns) override {
    if (!running_) return;
    now_ += kTaskNs;
    if (next_deadline_ns > now_ && next_deadline_ns <= now_ + kMostNsAtOnce &&
        Choose(delay_odds_) == 0) {
      now_ = next_deadline_ns;
    }
    SetVirtualNow(now_);
  }

  std::size_t ChooseTask(std::size_t queued) override {
    if (!running_) return 0;
    switch (order_) {
      case Order::kMostlyOldest:
        return Choose(4) == 0 ? Choose(queued) : 0;
      case Order::kMostlyNewest:
        return Choose(4) == 0 ? Choose(queued) : queued - 1;
      default:
        return Choose(queued);
    }
  }

  bool OnIdle(std::int64_t next_deadline_ns) override {
    if (!running_) return false;
    if (next_deadline_ns == kNoDeadline) Deadlock();
    now_ = std::max(now_, next_deadline_ns);
    SetVirtualNow(now_);
    return true;
  }

  // Called in the body's fiber: its predecessors and successors depend on other
  // threads.
  void Begin() { running_ = true; }
  void End() { running_ = false; }

  bool ChoosePreemption() { return running_ && Choose(2) == 0; }

  std::uint64_t decisions() const { return decisions_; }
  std::uint64_t trace() const { return trace_; }
  std::int64_t elapsed_ns() const { return now_ - kStartNs; }

 private:
  enum class Order { kRandom, kAsRandom, kMostlyOldest, kMostlyNewest };

  std::uint64_t Choose(std::uint64_t n) {
    const std::uint64_t choice = MixBits(seed_ + ++decisions_) % n;
    trace_ = MixBits(trace_ ^ (n << 32 | choice));
    return choice;
  }

  [[noreturn]] void Deadlock() {
    std::ostringstream fibers;
    DumpFibers(fibers);
    LOG(FATAL) << "deadlock: no fiber can run and no timer is armed\n"
               << fibers.str();
    std::abort();
  }

  const std::uint64_t seed_;
  Order order_;
  std::uint64_t delay_odds_;  // One in so many tasks is preceded by a delay.
  bool running_ = false;
  std::int64_t now_ = kStartNs;
  std::uint64_t decisions_ = 0;
  std::uint64_t trace_ = 0;
};

// The schedule of the run that is under way.
std::atomic<SeededSchedule*> current{nullptr};

std::string ReplayHint(std::uint64_t seed) {
  std::string hint = "replay with FLARE_SEED=" + std::to_string(seed);
  const auto* const test =
      ::testing::UnitTest::GetInstance()->current_test_info();
  if (test != nullptr) {
    hint += std::string(" and --gtest_filter=") + test->test_suite_name() +
            "." + test->name();
  }
  return hint;
}

// Written by the thread that starts a run, before it does.
char last_words[512];

void SayLastWords() {
  // There is nobody to tell if it can't be written.
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, last_words, strlen(last_words));
}

// Says the seed if the process dies while this exists, and lets it die as it
// would have.
class DeathWatch {
 public:
  explicit DeathWatch(std::uint64_t seed) {
    std::snprintf(last_words, sizeof(last_words), "%s\n",
                  ReplayHint(seed).c_str());
    struct sigaction action = {};
    action.sa_handler = &OnSignal;
    action.sa_flags = SA_ONSTACK;
    for (std::size_t i = 0; i < std::size(kSignals); ++i) {
      sigaction(kSignals[i], &action, &former_[i]);
    }
    SetSanitizerCallback(&SayLastWords);
  }
  ~DeathWatch() {
    SetSanitizerCallback(nullptr);
    for (const int signal : kSignals) Restore(signal);
  }
  DeathWatch(const DeathWatch&) = delete;
  DeathWatch& operator=(const DeathWatch&) = delete;

 private:
  // SIGTERM: by a test runner that has lost its patience.
  static constexpr int kSignals[] = {SIGABRT, SIGTERM, SIGSEGV,
                                     SIGBUS,  SIGFPE,  SIGILL};

  static void Restore(int signal) {
    const int* const found =
        std::find(std::begin(kSignals), std::end(kSignals), signal);
    sigaction(signal, &former_[found - std::begin(kSignals)], nullptr);
  }

  static void OnSignal(int signal) {
    SayLastWords();
    Restore(signal);
    // Faults come again by themselves, with their addresses.
    if (signal == SIGABRT || signal == SIGTERM) raise(signal);
  }

  static void SetSanitizerCallback([[maybe_unused]] void (*callback)()) {
#if defined(FLARE_ASAN) || defined(FLARE_TSAN)
    __sanitizer_set_death_callback(callback);
#endif
  }

  static struct sigaction former_[std::size(kSignals)];
};

struct sigaction DeathWatch::former_[std::size(kSignals)];

std::uint64_t SeedFromEnvironment() {
  const char* const text = std::getenv("FLARE_SEED");
  if (text == nullptr || *text == '\0') return 0;
  std::uint64_t seed = 0;
  const char* const end = text + strlen(text);
  const auto [parsed, error] = std::from_chars(text, end, seed);
  CHECK(error == std::errc() && parsed == end && seed != 0)
      << "FLARE_SEED is \"" << text << "\"; it must be a positive number";
  return seed;
}

// False: `seed` made the test fail.
bool RunOne(std::uint64_t seed, Function<void()>* body) {
  RunDeterministic(seed, [body] { (*body)(); });
  if (!::testing::Test::HasFailure()) return true;
  std::fprintf(stderr, "%s\n", ReplayHint(seed).c_str());
  return false;
}

}  // namespace

DeterministicRun RunDeterministic(std::uint64_t seed, Function<void()> body) {
  const auto schedule = std::make_shared<SeededSchedule>(seed);
  const DeathWatch death_watch(seed);
  RuntimeOptions options;
  options.concurrency = 1;
  options.group_size = 1;
  options.numa_aware = false;
  options.schedule = schedule;
  const Status status = StartRuntime(options);
  CHECK(status.ok()) << "can't start a deterministic run: " << status.message();

  DeterministicRun run;
  run.seed = seed;
  Latch ended(1);
  current.store(schedule.get());
  Spawn([&] {
    schedule->Begin();
    body();
    body = nullptr;
    schedule->End();
    run.decisions = schedule->decisions();
    run.trace = schedule->trace();
    run.virtual_ns = schedule->elapsed_ns();
    ended.count_down();
  });
  ended.wait();
  TerminateRuntime();
  current.store(nullptr);
  return run;
}

int ExploreSchedules(int count, Function<void()> body) {
  if (const std::uint64_t seed = SeedFromEnvironment(); seed != 0) {
    RunOne(seed, &body);
    return 1;
  }
  const std::int64_t end = NowNs() + StressNs(0);
  int runs = 0;
  while (runs < count || NowNs() < end) {
    ++runs;
    if (!RunOne(static_cast<std::uint64_t>(runs), &body)) break;
  }
  return runs;
}

void PreemptionPoint() {
  SeededSchedule* const schedule = current.load();
  if (schedule != nullptr && IsFiberWorker() && schedule->ChoosePreemption()) {
    this_fiber::Yield();
  }
}

}  // namespace flare::fiber::testing
