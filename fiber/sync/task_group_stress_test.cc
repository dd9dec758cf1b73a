#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <stop_token>

#include "flare/base/clock.h"
#include "flare/base/status.h"
#include "flare/fiber/task_group.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/testing/stress.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

class TaskGroupStressTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(TaskGroupStressTest);

// Trees of groups whose members fail, throw, wait for the end, or time out at
// random: nobody outlives its scope, and failures arrive where they must.
class RandomTree {
 public:
  explicit RandomTree(std::atomic<int>* alive) : alive_(alive) {}

  Status Grow(std::uint32_t seed, int depth) const {
    std::minstd_rand random(seed * 2 + 1);
    std::atomic<int> mine{0};
    // Else exceptions would be logged, by many at once.
    const bool looks = random() % 4 != 0;
    bool failing = false;
    Status status;
    try {
      TaskGroup group;
      const auto children = random() % 5;
      for (std::uint32_t i = 0; i < children; ++i) {
        const auto what = random() % 8;
        failing = failing || what < 2;
        group.Spawn([=, this, &mine, seed = random()](std::stop_token stop) {
          alive_->fetch_add(1);
          mine.fetch_add(1);
          const auto end = [&] {
            mine.fetch_sub(1);
            alive_->fetch_sub(1);
          };
          Status result;
          if (what == 0 && looks) {
            end();
            throw std::runtime_error("random");
          } else if (what < 2) {
            result = Status(EIO, "random");
          } else if (what == 2) {
            if (seed % 2 == 0) this_fiber::Yield();
          } else if (depth > 0) {
            result = Grow(seed, depth - 1);
          }
          if (stop.stop_requested()) this_fiber::Yield();
          end();
          return result;
        });
      }
      if (!looks) {
        failing = false;
      } else if (random() % 4 == 0) {
        status = group.WaitFor(std::chrono::microseconds(random() % 200));
      } else {
        status = group.Wait();
      }
      if (failing) {
        EXPECT_FALSE(status.ok());
      }
    } catch (const std::runtime_error&) {
      status = Status(EIO, "thrown");
    }
    EXPECT_EQ(mine.load(), 0);
    return status;
  }

 private:
  std::atomic<int>* const alive_;
};

TEST_P(TaskGroupStressTest, RandomTrees) {
  const std::int64_t end = NowNs() + testing::StressNs(300'000'000);
  std::atomic<int> alive{0};
  const RandomTree tree(&alive);
  for (std::uint32_t seed = 1; NowNs() < end; ++seed) {
    static_cast<void>(tree.Grow(seed, 4));
    ASSERT_EQ(alive.load(), 0) << "seed " << seed;
  }
}

}  // namespace
}  // namespace flare::fiber
