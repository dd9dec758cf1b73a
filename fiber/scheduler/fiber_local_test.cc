#include "flare/fiber/fiber_local.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "flare/fiber/fiber.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

class FiberLocalTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(FiberLocalTest);

TEST_P(FiberLocalTest, OnePerFiber) {
  FiberLocal<int> number;
  FiberLocal<std::string> text;
  *number = -1;  // This thread's.
  std::vector<Fiber> fibers;
  for (int i = 0; i < 100; ++i) {
    fibers.emplace_back([&, i] {
      EXPECT_EQ(*number, 0);
      *number = i;
      int* const where = number.get();
      *text = std::to_string(i);
      for (int k = 0; k < 10; ++k) {
        this_fiber::Yield();
        EXPECT_EQ(number.get(), where);  // Stays where it is.
        EXPECT_EQ(*number, i);
        EXPECT_EQ(*text, std::to_string(i));
      }
    });
  }
  for (auto& fiber : fibers) fiber.join();
  EXPECT_EQ(*number, -1);
}

TEST_P(FiberLocalTest, ThreadsHaveTheirOwn) {
  static FiberLocal<std::shared_ptr<int>> local;
  const auto counted = std::make_shared<int>(1);
  std::thread([&] {
    EXPECT_EQ(*local, nullptr);
    *local = counted;
    EXPECT_EQ(counted.use_count(), 2);
  }).join();
  EXPECT_EQ(counted.use_count(), 1);
}

// Destructors of thread-locals and statics run after the end of the thread's
// values: they find none of these, and values that they make end with the
// thread.
FiberLocal<std::shared_ptr<int>>* LateLocal() {
  static auto* const local = new FiberLocal<std::shared_ptr<int>>();
  return local;
}

struct UsesLateLocal {
  std::shared_ptr<int> counted;

  ~UsesLateLocal() {
    if (**LateLocal() != nullptr) std::abort();
    **LateLocal() = counted;
    if (**LateLocal() != counted) std::abort();
  }
};

TEST(FiberLocalLifeTest, DestructorsOfThreadLocalsMayUseThem) {
  const auto counted = std::make_shared<int>(1);
  std::thread([&] {
    static thread_local UsesLateLocal late;
    late.counted = counted;
    **LateLocal() = std::make_shared<int>(2);
  }).join();
  EXPECT_EQ(counted.use_count(), 1);
}

TEST(FiberLocalDeathTest, DestructorsOfStaticsMayUseThem) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        static UsesLateLocal late;
        late.counted = std::make_shared<int>(1);
        **LateLocal() = std::make_shared<int>(2);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

// A destructor does all that a fiber may: and the join waits for it.
TEST_P(FiberLocalTest, DestructorsMayBlock) {
  static Mutex mutex;
  static int ended;
  struct Value {
    ~Value() {
      EXPECT_TRUE(IsFiberWorker());
      const std::uint64_t id = this_fiber::GetId();
      EXPECT_EQ(id, fiber_id);  // Still this fiber.
      this_fiber::SleepFor(std::chrono::microseconds(200));
      int from_child = 0;
      Fiber([&] {
        this_fiber::Yield();
        from_child = 1;
      }).join();
      std::scoped_lock lock(mutex);
      this_fiber::Yield();
      ended += from_child;
      EXPECT_EQ(this_fiber::GetId(), id);
    }
    std::uint64_t fiber_id = 0;
  };
  static FiberLocal<Value> local;
  ended = 0;
  std::vector<Fiber> fibers;
  for (int i = 0; i < 50; ++i) {
    fibers.emplace_back([] { local->fiber_id = this_fiber::GetId(); });
  }
  for (auto& fiber : fibers) fiber.join();
  EXPECT_EQ(ended, 50);
}

std::atomic<int> alive;

struct Counted {
  Counted() { alive.fetch_add(1); }
  ~Counted() { alive.fetch_sub(1); }
  int number = 0;
};

// Makes another value of its own slot, `left` times, and of two others.
struct Chained : Counted {
  ~Chained();
  int left = 0;
};

FiberLocal<Counted> early;
FiberLocal<Chained> chained;
FiberLocal<Counted> late;

Chained::~Chained() {
  this_fiber::Yield();
  early->number = 1;
  late->number = 1;
  if (left > 0) chained->left = left - 1;
}

TEST_P(FiberLocalTest, DestructorsMayMakeValues) {
  alive = 0;
  Fiber([] {
    early->number = 7;
    chained->left = 3;
    late->number = 7;
    EXPECT_EQ(alive.load(), 3);
  }).join();
  EXPECT_EQ(alive.load(), 0);
}

TEST_P(FiberLocalTest, ValuesOutliveTheirFiberLocal) {
  const auto counted = std::make_shared<int>(1);
  Fiber([&] {
    {
      FiberLocal<std::shared_ptr<int>> local;
      *local = counted;
    }
    EXPECT_EQ(counted.use_count(), 2);
    FiberLocal<std::shared_ptr<int>> other;  // Gets another slot.
    EXPECT_EQ(*other, nullptr);
  }).join();
  EXPECT_EQ(counted.use_count(), 1);
}

// A carrier's next task starts without values, and costs none.
TEST_P(FiberLocalTest, NothingIsLeftForTheNextTask) {
  static FiberLocal<int> local;
  for (int i = 0; i < 200; ++i) {
    Fiber([i] {
      EXPECT_EQ(*local, 0);
      *local = i;
      if (i % 3 == 0) this_fiber::Yield();
    }).join();
  }
}

}  // namespace
}  // namespace flare::fiber
