// Exceptions and suspensions: the handled exception and the number of those in
// flight belong to the fiber and go with it to other workers [C4].
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/scheduler/thread_stack.h"
#include "flare/fiber/task_group.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/testing/stress.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

class ExceptionTest : public testing::RuntimeTest {
 protected:
  // On several fibers at once, so that each suspension lets others throw.
  template <class F>
  static void OnMany(F f) {
    TaskGroup group;
    for (int i = 0; i < 40; ++i) group.Spawn([&f, i] { f(i); });
    EXPECT_TRUE(group.Wait().ok());
  }

  // A suspension that often ends on another worker.
  static void Pause(int i) {
    if (i % 3 == 0) {
      this_fiber::SleepFor(std::chrono::microseconds(20 + i));
    } else {
      this_fiber::Yield();
    }
  }

  static std::string Current() {
    try {
      throw;
    } catch (const std::exception& e) {
      return e.what();
    }
  }
};
FLARE_INSTANTIATE_RUNTIME_TEST(ExceptionTest);

TEST_P(ExceptionTest, ThrownOnTheStackOfAThread) {
  OnBoth([] {
    EXPECT_THROW(RunOnThreadStack([] { throw std::runtime_error("there"); }),
                 std::runtime_error);
  });
}

TEST_P(ExceptionTest, ThrownBelowAndCaughtAboveSuspensions) {
  OnMany([](int i) {
    for (int k = 0; k < 10; ++k) {
      try {
        Pause(i + k);
        [&] {
          Pause(i);
          throw std::runtime_error(std::to_string(i));
        }();
        ADD_FAILURE();
      } catch (const std::runtime_error& e) {
        EXPECT_EQ(e.what(), std::to_string(i));
      }
    }
  });
}

TEST_P(ExceptionTest, SuspendedWhileHandling) {
  OnMany([](int i) {
    try {
      throw std::runtime_error(std::to_string(i));
    } catch (const std::runtime_error& e) {
      for (int k = 0; k < 10; ++k) {
        Pause(i + k);
        EXPECT_EQ(e.what(), std::to_string(i));
        EXPECT_EQ(Current(), std::to_string(i));
        EXPECT_NE(std::current_exception(), nullptr);
        EXPECT_EQ(std::uncaught_exceptions(), 0);
      }
    }
    EXPECT_EQ(std::current_exception(), nullptr);
  });
}

TEST_P(ExceptionTest, NestedHandlers) {
  OnMany([](int i) {
    const auto name = [i](int depth) {
      return std::to_string(i) + "/" + std::to_string(depth);
    };
    const std::function<void(int)> nest = [&](int depth) {
      try {
        throw std::runtime_error(name(depth));
      } catch (const std::runtime_error&) {
        Pause(i + depth);
        EXPECT_EQ(Current(), name(depth));
        if (depth < 5) nest(depth + 1);
        Pause(i);
        // The inner ones are over; this one is current again.
        EXPECT_EQ(Current(), name(depth));
      }
    };
    nest(0);
    EXPECT_EQ(std::current_exception(), nullptr);
  });
}

TEST_P(ExceptionTest, RethrownAfterSuspensions) {
  OnMany([](int i) {
    int rethrown = 0;
    try {
      try {
        try {
          throw std::runtime_error(std::to_string(i));
        } catch (...) {
          Pause(i);
          ++rethrown;
          throw;
        }
      } catch (const std::runtime_error&) {
        Pause(i + 1);
        ++rethrown;
        std::throw_with_nested(std::logic_error("outer"));
      }
    } catch (const std::logic_error& e) {
      Pause(i);
      try {
        std::rethrow_if_nested(e);
        ADD_FAILURE();
      } catch (const std::runtime_error& inner) {
        Pause(i);
        EXPECT_EQ(inner.what(), std::to_string(i));
      }
      EXPECT_EQ(Current(), "outer");
    }
    EXPECT_EQ(rethrown, 2);
  });
}

// Destructors that run while an exception leaves their scope may suspend.
TEST_P(ExceptionTest, SuspendedWhileUnwinding) {
  static Mutex mutex;
  struct Pauses {
    explicit Pauses(int i) : i(i) {}
    ~Pauses() {
      EXPECT_EQ(std::uncaught_exceptions(), 1);
      {
        std::scoped_lock lock(mutex);
        Pause(i);
      }
      // Another one thrown and caught within.
      try {
        Pause(i);
        throw 5;
      } catch (int) {
        Pause(i);
        EXPECT_EQ(std::uncaught_exceptions(), 1);
      }
      Fiber([] { EXPECT_EQ(std::uncaught_exceptions(), 0); }).join();
      EXPECT_EQ(std::uncaught_exceptions(), 1);
    }
    int i;
  };
  OnMany([](int i) {
    try {
      const Pauses outer(i);
      const Pauses inner(i + 1);
      EXPECT_EQ(std::uncaught_exceptions(), 0);
      throw std::runtime_error(std::to_string(i));
    } catch (const std::runtime_error& e) {
      EXPECT_EQ(e.what(), std::to_string(i));
    }
    EXPECT_EQ(std::uncaught_exceptions(), 0);
  });
}

TEST_P(ExceptionTest, UncaughtOnesAreCountedPerFiber) {
  Latch unwinding(3);
  Event go;
  struct Waits {
    ~Waits() {
      unwinding->count_down();
      go->Wait();
      EXPECT_EQ(std::uncaught_exceptions(), 1);
    }
    Latch* unwinding;
    Event* go;
  };
  TaskGroup group;
  for (int i = 0; i < 3; ++i) {
    group.Spawn([&] {
      try {
        const Waits waits{&unwinding, &go};
        throw 1;
      } catch (int) {
      }
    });
  }
  unwinding.wait();
  // Three are in flight now, on suspended fibers.
  EXPECT_EQ(std::uncaught_exceptions(), 0);
  Fiber([] {
    EXPECT_EQ(std::uncaught_exceptions(), 0);
    EXPECT_EQ(std::current_exception(), nullptr);
    this_fiber::Yield();
    EXPECT_EQ(std::uncaught_exceptions(), 0);
  }).join();
  go.Set();
  EXPECT_TRUE(group.Wait().ok());
}

TEST_P(ExceptionTest, CarriedToOtherFibers) {
  std::exception_ptr pointer;
  std::weak_ptr<int> watch;
  struct Payload : std::exception {
    std::shared_ptr<int> value = std::make_shared<int>(9);
  };
  Fiber([&] {
    try {
      throw Payload();
    } catch (const Payload& payload) {
      watch = payload.value;
      this_fiber::Yield();
      pointer = std::current_exception();
    }
  }).join();
  OnMany([&](int i) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Payload& payload) {
      Pause(i);
      EXPECT_EQ(*payload.value, 9);
    }
  });
  EXPECT_FALSE(watch.expired());
  pointer = nullptr;
  EXPECT_TRUE(watch.expired());  // Nothing holds on to it.
}

// Random nests of throwing, catching, rethrowing and suspending.
class RandomThrower {
 public:
  explicit RandomThrower(std::uint32_t seed) : random_(seed * 2 + 1) {}

  void Run() {
    for (int i = 0; i < 30; ++i) {
      try {
        Nest(0);
      } catch (const int thrown) {
        EXPECT_EQ(thrown, last_);
      }
      EXPECT_EQ(std::uncaught_exceptions(), 0);
      EXPECT_EQ(std::current_exception(), nullptr);
    }
  }

 private:
  struct Unwound {
    ~Unwound() {
      if (thrower->random_() % 2 == 0) this_fiber::Yield();
    }
    RandomThrower* thrower;
  };

  void Nest(int depth) {
    const Unwound unwound{this};
    if (random_() % 3 == 0) this_fiber::Yield();
    try {
      if (depth < 4 && random_() % 4 != 0) Nest(depth + 1);
      if (random_() % 2 == 0) {
        last_ = static_cast<int>(random_());
        throw last_;
      }
    } catch (const int caught) {
      EXPECT_EQ(caught, last_);
      if (random_() % 2 == 0) this_fiber::Yield();
      if (random_() % 3 == 0) {
        try {
          Nest(depth + 1);
        } catch (int) {
        }
        last_ = caught;
      }
      if (random_() % 2 == 0) throw;
    }
  }

  std::minstd_rand random_;
  int last_ = 0;
};

TEST_P(ExceptionTest, StressOfRandomThrowers) {
  const std::int64_t end = NowNs() + testing::StressNs(200'000'000);
  for (std::uint32_t seed = 0; NowNs() < end; seed += 40) {
    OnMany([seed](int i) { RandomThrower(seed + i).Run(); });
  }
}

}  // namespace
}  // namespace flare::fiber
