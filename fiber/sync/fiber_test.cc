#include "flare/fiber/fiber.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/fiber/event.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

class FiberTest : public fiber::testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(FiberTest);

TEST_P(FiberTest, JoinSeesWhatTheFiberDid) {
  int value = 0;
  Fiber fiber([&] {
    this_fiber::Yield();
    value = 42;
  });
  EXPECT_TRUE(fiber.joinable());
  fiber.join();
  EXPECT_EQ(value, 42);
  EXPECT_FALSE(fiber.joinable());
}

TEST_P(FiberTest, PassesArgumentsByValue) {
  std::string text = "before";
  int seen = 0;
  Fiber fiber(
      [&seen](const std::string& copy, std::unique_ptr<int> moved) {
        EXPECT_EQ(copy, "before");
        seen = *moved;
      },
      text, std::make_unique<int>(5));
  text = "after";
  fiber.join();
  EXPECT_EQ(seen, 5);
}

// A reference_wrapper arrives as a reference_wrapper, as with std::thread.
TEST_P(FiberTest, PassesReferencesOnRequest) {
  int value = 1;
  Fiber([](int& reference) { ++reference; }, std::ref(value)).join();
  EXPECT_EQ(value, 2);
  Fiber([](auto wrapper) { ++wrapper.get(); }, std::ref(value)).join();
  EXPECT_EQ(value, 3);
}

TEST_P(FiberTest, CapturesEndBeforeTheJoin) {
  auto shared = std::make_shared<int>(1);
  Fiber fiber([shared] {});
  fiber.join();
  EXPECT_EQ(shared.use_count(), 1);
}

TEST_P(FiberTest, MovesLikeAThread) {
  fiber::Event go;
  Fiber first([&] { go.Wait(); });
  Fiber second(std::move(first));
  EXPECT_FALSE(first.joinable());  // NOLINT: under test
  EXPECT_TRUE(second.joinable());
  first = std::move(second);
  EXPECT_TRUE(first.joinable());
  go.Set();
  first.join();
  EXPECT_FALSE(Fiber().joinable());
}

TEST_P(FiberTest, DetachedRunsOn) {
  fiber::Event done;
  {
    Fiber fiber([&] {
      this_fiber::Yield();
      done.Set();
    });
    fiber.detach();
    EXPECT_FALSE(fiber.joinable());
  }
  done.Wait();
}

TEST_P(FiberTest, FibersJoinFibers) {
  std::atomic<int> ran{0};
  Fiber([&] {
    std::vector<Fiber> children;
    for (int i = 0; i < 100; ++i) {
      children.emplace_back([&] {
        Fiber([&] { ran.fetch_add(1); }).join();
        ran.fetch_add(1);
      });
    }
    for (auto& child : children) child.join();
  }).join();
  EXPECT_EQ(ran.load(), 200);
}

TEST_P(FiberTest, StartsInTheGroupAskedFor) {
  for (std::size_t g = 0; g < fiber::GetSchedulingGroupCount(); ++g) {
    Fiber::Attributes attributes;
    attributes.scheduling_group = g;
    Fiber(attributes, [g] {
      EXPECT_LT(fiber::GetCurrentSchedulingGroupIndex(),
                fiber::GetSchedulingGroupCount());
      // Groups of one node may steal from each other; a single one can't.
      if (fiber::GetSchedulingGroupCount() == 1) {
        EXPECT_EQ(fiber::GetCurrentSchedulingGroupIndex(), g);
      }
    }).join();
  }
}

TEST_P(FiberTest, StartsFromAPlainThread) {
  fiber::Event done;
  StartFiberFromPthread([&] {
    EXPECT_TRUE(fiber::IsFiberWorker());
    done.Set();
  });
  done.Wait();
}

using FiberDeathTest = ::testing::Test;

void WithRuntime(void (*body)()) {
  fiber::RuntimeOptions options;
  options.concurrency = 1;
  if (!fiber::StartRuntime(options).ok()) return;
  body();
  fiber::TerminateRuntime();
}

TEST(FiberDeathTest, MisuseIsNamed) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(WithRuntime([] { Fiber fiber([] {}); }),
               "joined or detached before it is destroyed");
  EXPECT_DEATH(WithRuntime([] { Fiber().join(); }), "isn't joinable");
  EXPECT_DEATH(WithRuntime([] { Fiber().detach(); }), "isn't joinable");
  EXPECT_DEATH(Fiber([] {}).join(), "runtime is not running");
}

TEST(FiberDeathTest, EscapedExceptionTerminates) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(WithRuntime([] {
                 Fiber([] { throw std::runtime_error("escaped"); }).join();
               }),
               "escaped");
}

}  // namespace
}  // namespace flare
