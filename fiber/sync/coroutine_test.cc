#include "flare/fiber/coroutine.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/fiber/async.h"
#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/fiber_local.h"
#include "flare/fiber/future.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

class CoroutineTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(CoroutineTest);

Future<int> AddOne(Future<int> number) { co_return co_await number + 1; }

// Says when it is destroyed.
class Witness {
 public:
  explicit Witness(Event* gone) : gone_(gone) {}
  Witness(Witness&& other) noexcept
      : gone_(std::exchange(other.gone_, nullptr)) {}
  ~Witness() {
    if (gone_ != nullptr) gone_->Set();
  }

 private:
  Event* gone_;
};

// Neither waits nor needs a runtime.
TEST(Coroutine, RunsInItsCallerUntilItWaits) {
  int steps = 0;
  const auto body = [](int* steps) -> Future<> {
    ++*steps;
    co_await MakeReadyFuture();
    ++*steps;
  };
  EXPECT_TRUE(body(&steps).IsReady());
  EXPECT_EQ(steps, 2);
  EXPECT_EQ(AddOne(MakeReadyFuture(1)).Take(), 2);
}

TEST(Coroutine, ReturnsNoneOneOrSeveralValues) {
  const auto several = [](int n) -> Future<int, std::string> {
    const auto values = co_await MakeReadyFuture(n, std::string("x"));
    co_return std::tuple(std::get<0>(values) + 1, std::get<1>(values) + "y");
  };
  EXPECT_EQ(several(1).Take(), std::make_tuple(2, "xy"));
  const auto moved = []() -> Future<std::unique_ptr<int>> {
    auto number = co_await MakeReadyFuture(std::make_unique<int>(3));
    ++*number;
    co_return number;
  };
  EXPECT_EQ(*moved().Take(), 4);
  using Outcome = Expected<std::string, Status>;
  const auto converted = [](bool good) -> Future<Outcome> {
    if (!good) co_return Status(5, "bad");
    co_return "good";
  };
  EXPECT_EQ(converted(true).Take().value(), "good");
  EXPECT_EQ(converted(false).Take().error().code(), 5);
  const auto pair = []() -> Future<std::pair<int, int>> { co_return {1, 2}; };
  EXPECT_EQ(pair().Take(), std::pair(1, 2));
  const auto tuple = []() -> Future<std::tuple<int>> { co_return 7; };
  EXPECT_EQ(tuple().Take(), std::tuple(7));
}

TEST_P(CoroutineTest, GoesOnAsATask) {
  OnBoth([] {
    Promise<int> promise;
    int steps = 0;
    const auto body = [](Future<int> number, int* steps) -> Future<int> {
      ++*steps;
      const int n = co_await number;
      EXPECT_FALSE(number.valid());
      EXPECT_TRUE(IsFiberWorker());
      co_return n + 1;
    };
    Future<int> result = body(promise.GetFuture(), &steps);
    EXPECT_EQ(steps, 1);
    EXPECT_FALSE(result.IsReady());
    promise.SetValue(41);
    EXPECT_EQ(BlockingGet(&result), 42);
  });
}

// The setter holds a lock that the coroutine wants, and could deadlock.
TEST_P(CoroutineTest, DoesNotGoOnInsideSetValue) {
  OnBoth([] {
    Mutex mutex;
    Promise<> promise;
    const auto body = [](Future<> ready, Mutex* mutex) -> Future<> {
      co_await ready;
      const std::scoped_lock guard(*mutex);
    };
    Future<> ended = body(promise.GetFuture(), &mutex);
    {
      const std::scoped_lock guard(mutex);
      promise.SetValue();
      EXPECT_FALSE(ended.IsReady());
    }
    BlockingGet(&ended);
  });
}

TEST_P(CoroutineTest, MayBlockLikeAnyTask) {
  const auto body = []() -> Future<std::string> {
    std::string text = co_await Async([] {
      this_fiber::Yield();
      return std::string("a");
    });
    this_fiber::SleepFor(std::chrono::milliseconds(1));
    text += BlockingGet(Async([] { return std::string("b"); }));
    text += co_await Async([] { return std::string("c"); });
    co_return text;
  };
  std::vector<Future<std::string>> texts;
  for (int i = 0; i < 100; ++i) texts.push_back(body());
  for (const auto& text : BlockingGet(WhenAll(std::move(texts)))) {
    EXPECT_EQ(text, "abc");
  }
}

TEST_P(CoroutineTest, LongChainsTakeNoStack) {
  Promise<int> first;
  Future<int> last = first.GetFuture();
  constexpr int kCoroutines = 10'000;
  for (int i = 0; i < kCoroutines; ++i) last = AddOne(std::move(last));
  Fiber([&] { first.SetValue(1); }).join();
  EXPECT_EQ(BlockingGet(&last), 1 + kCoroutines);
}

TEST_P(CoroutineTest, LoopsTakeNoStack) {
  const auto sum = [](int rounds) -> Future<int> {
    int sum = 0;
    for (int i = 0; i < rounds; ++i) {
      if (i % 2 == 0) {
        sum += co_await MakeReadyFuture(1);
      } else {
        sum += co_await Async([] { return 2; });
      }
    }
    co_return sum;
  };
  Fiber([&] { EXPECT_EQ(BlockingGet(sum(10'000)), 15'000); }).join();
}

TEST_P(CoroutineTest, GoesOnThoughItsFutureIsDropped) {
  Promise<> promise;
  Event went_on;
  const auto body = [](Future<> ready, Event* went_on) -> Future<> {
    co_await ready;
    went_on->Set();
  };
  static_cast<void>(body(promise.GetFuture(), &went_on));
  promise.SetValue();
  went_on.Wait();
}

TEST_P(CoroutineTest, ItsValueComesWhenItsParametersAreGone) {
  const auto body = [](Future<int> number, Witness) -> Future<int> {
    co_return co_await number;
  };
  OnBoth([&] {
    Promise<int> promise;
    Event gone;
    Future<bool> in_order =
        body(promise.GetFuture(), Witness(&gone)).Then([&](int n) {
          return n == 2 && gone.IsSet();
        });
    EXPECT_FALSE(gone.IsSet());
    promise.SetValue(2);
    EXPECT_TRUE(BlockingGet(&in_order));
  });
}

TEST_P(CoroutineTest, TravelsWithItsExecutionContext) {
  static ExecutionLocal<int> number;
  const auto body = [](Future<> ready, Mutex* mutex) -> Future<> {
    *number = 1;
    co_await ready;
    EXPECT_EQ((*number)++, 1);
    EXPECT_EQ(ExecutionContext::Current()->deadline_ns(), 77);
    co_await Async([] { EXPECT_EQ((*number)++, 2); });
    EXPECT_EQ(*number, 3);
    mutex->lock();  // As a fiber.
    EXPECT_EQ(*number, 3);
    mutex->unlock();
    EXPECT_TRUE(ExecutionContext::Current()->stop_requested());
  };
  OnBoth([&] {
    Promise<> promise;
    Mutex mutex;
    const auto context = ExecutionContext::Create(77);
    Future<> ended =
        context->Execute([&] { return body(promise.GetFuture(), &mutex); });
    EXPECT_EQ(ExecutionContext::Current(), nullptr);
    mutex.lock();
    ExecutionContext::Create()->Execute([&] { promise.SetValue(); });
    EXPECT_TRUE(context->RequestStop(StopCause::kCancelled));
    mutex.unlock();
    BlockingGet(&ended);
  });
}

TEST_P(CoroutineTest, HasNoContextIfItBeganWithout) {
  Promise<> promise;
  const auto body = [](Future<> ready) -> Future<bool> {
    co_await ready;
    co_return ExecutionContext::Current() == nullptr;
  };
  Future<bool> without = body(promise.GetFuture());
  ExecutionContext::Create()->Execute([&] { promise.SetValue(); });
  EXPECT_TRUE(BlockingGet(&without));
}

// A task has its own.
TEST_P(CoroutineTest, FiberLocalsEndWhereItWaits) {
  static FiberLocal<int> local;
  const auto body = [](Future<> ready) -> Future<int> {
    *local = 5;
    co_await ready;
    co_return *local;
  };
  Fiber([&] {
    Promise<> promise;
    Future<int> seen = body(promise.GetFuture());
    EXPECT_EQ(*local, 5);  // It began here.
    Fiber([&] { promise.SetValue(); }).join();
    EXPECT_EQ(BlockingGet(&seen), 0);
  }).join();
}

TEST_P(CoroutineTest, ABrokenFutureEndsIt) {
  static ExecutionLocal<int> number;
  struct Local {
    explicit Local(Mutex* mutex) : mutex(mutex) {}
    ~Local() {
      const std::scoped_lock guard(*mutex);  // It may wait.
      EXPECT_TRUE(IsFiberWorker());
      EXPECT_EQ(*number, 3);
    }
    Mutex* mutex;
  };
  const auto body = [](Future<> ready, Mutex* mutex, Witness) -> Future<int> {
    const Local local(mutex);
    co_await ready;
    ADD_FAILURE() << "it went on";
    co_return 1;
  };
  OnBoth([&] {
    Mutex mutex;
    Event parameters_gone;
    std::optional<Promise<>> promise(std::in_place);
    Future<int> outer = ExecutionContext::Create()->Execute([&] {
      *number = 3;
      return AddOne(
          body(promise->GetFuture(), &mutex, Witness(&parameters_gone)));
    });
    {
      const std::scoped_lock guard(mutex);
      promise.reset();
      EXPECT_FALSE(outer.IsBroken());
    }
    parameters_gone.Wait();
    FutureWaiter(&outer).Wait();
    EXPECT_TRUE(outer.IsBroken());
  });
}

TEST_P(CoroutineTest, AnAlreadyBrokenFutureEndsIt) {
  Future<int> result = AddOne(Promise<int>().GetFuture());
  FutureWaiter(&result).Wait();
  EXPECT_TRUE(result.IsBroken());
}

struct CoroutineErrors : google::LogSink {
  CoroutineErrors() { google::AddLogSink(this); }
  ~CoroutineErrors() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity severity, const char*, const char*, int,
            const std::tm*, const char* message, std::size_t size) override {
    if (severity == google::GLOG_ERROR) text.append(message, size);
  }
  std::string text;
};

TEST_P(CoroutineTest, AnExceptionBreaksItsFuture) {
  const auto body = [](Future<int> number, Witness) -> Future<int> {
    if (co_await number == 0) throw std::invalid_argument("no\nnumber");
    co_return 1;
  };
  OnBoth([&] {
    Event before, after;
    Future<int> at_once = AddOne(body(MakeReadyFuture(0), Witness(&before)));
    Promise<int> promise;
    Future<int> later = AddOne(body(promise.GetFuture(), Witness(&after)));
    promise.SetValue(0);
    before.Wait();
    after.Wait();
    for (Future<int>* future : {&at_once, &later}) {
      FutureWaiter(future).Wait();
      EXPECT_TRUE(future->IsBroken());
    }
    EXPECT_EQ(BlockingGet(AddOne(body(MakeReadyFuture(1), Witness(&before)))),
              2);
  });
}

// At most one per second is logged, so there is one such test.
TEST(Coroutine, ExceptionsAreLogged) {
  CoroutineErrors errors;
  const auto body = []() -> Future<int> {
    throw std::invalid_argument("no\nnumber");
    co_return 1;
  };
  while (errors.text.empty()) EXPECT_TRUE(body().IsBroken());
  EXPECT_EQ(errors.text,
            "an exception left a coroutine, whose future is broken: "
            "std::invalid_argument: no\\x0anumber");
}

// There are two groups, without stealing: the value comes from the other one.
TEST(CoroutineGroups, GoesOnInTheGroupInWhichItWaited) {
  RuntimeOptions options;
  options.concurrency = 2;
  options.group_size = 1;
  options.work_stealing_ratio = 0;
  ASSERT_TRUE(StartRuntime(options).ok());
  const auto body = [](Future<> ready) -> Future<std::size_t> {
    co_await ready;
    co_return GetCurrentSchedulingGroupIndex();
  };
  for (const std::size_t group : {0, 1}) {
    Promise<> promise;
    Future<std::size_t> here;
    const auto in_group = [](std::size_t group, auto f) {
      BlockingGet(Async(Launch::Post, group, f));
    };
    in_group(group, [&] { here = body(promise.GetFuture()); });
    in_group(1 - group, [&] { promise.SetValue(); });
    EXPECT_EQ(BlockingGet(&here), group);
  }
  TerminateRuntime();
}

// Nothing leaks: AddressSanitizer looks.
TEST(CoroutineEnd, APromiseDroppedAfterTheRuntimeDestroysIt) {
  ASSERT_TRUE(StartRuntime({}).ok());
  Event gone;
  std::optional<Promise<int>> promise(std::in_place);
  const auto body = [](Future<int> number, Witness) -> Future<int> {
    co_return co_await number;
  };
  Future<int> result = body(promise->GetFuture(), Witness(&gone));
  TerminateRuntime();
  promise.reset();
  EXPECT_TRUE(gone.IsSet());
  EXPECT_TRUE(result.IsBroken());
}

TEST(CoroutineDeathTest, AFutureIsConsumed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto body = []() -> Future<int> {
    Future<int> number = MakeReadyFuture(1);
    co_return co_await number + co_await std::move(number);
  };
  EXPECT_DEATH(static_cast<void>(body()),
               "co_await of a future that has been consumed");
}

// Values come while the coroutines begin to wait, or before, or after that.
TEST_P(CoroutineTest, ValuesComeAtAnyTime) {
  constexpr int kRounds = 2'000;
  std::vector<Promise<int>> promises(kRounds);
  std::vector<Future<int>> futures;
  futures.reserve(kRounds);
  for (Promise<int>& promise : promises) futures.push_back(promise.GetFuture());
  std::atomic<int> begun{0};
  std::thread setter([&] {
    for (int i = 0; i < kRounds; ++i) {
      while (begun.load() < i) std::this_thread::yield();
      if (i % 7 == 0) {
        promises[i] = Promise<int>();
      } else {
        promises[i].SetValue(i);
      }
    }
  });
  Fiber([&] {
    for (int i = 0; i < kRounds; ++i) {
      begun.store(i);
      futures[i] = AddOne(AddOne(std::move(futures[i])));
    }
  }).join();
  setter.join();
  for (int i = 0; i < kRounds; ++i) {
    FutureWaiter(&futures[i]).Wait();
    EXPECT_EQ(futures[i].TryGet(),
              i % 7 == 0 ? std::nullopt : std::optional(i + 2));
  }
}

}  // namespace
}  // namespace flare::fiber
