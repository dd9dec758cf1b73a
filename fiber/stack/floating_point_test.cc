// Floating-point modes are the fiber's that has set them [C5].

#include <atomic>
#include <cfenv>
#include <functional>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/blocking_region.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/fiber_local.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "flare/fiber/timer.h"
#include "flare/fiber/work_queue.h"
#include "gtest/gtest.h"

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

namespace flare::fiber {
namespace {

constexpr unsigned kFlushToZero = 0x8040;  // Bits of x86: results and operands.

// Acts like a library that forgets to restore the mode.
void Spoil() {
  std::fesetround(FE_UPWARD);
  feenableexcept(FE_DIVBYZERO);
#ifdef __x86_64__
  _mm_setcsr(_mm_getcsr() | kFlushToZero);
#endif
}

bool AreDefaults() {
#ifdef __x86_64__
  if ((_mm_getcsr() & kFlushToZero) != 0) return false;
#endif
  return std::fegetround() == FE_TONEAREST && fegetexcept() == 0;
}

class FloatingPointTest : public testing::RuntimeTest {
 protected:
  // Counts spoilt tasks by Spawn() and fibers; some suspend.
  static int SpoiltOnes() {
    constexpr int kTasks = 40;
    std::atomic<int> spoilt{0};
    Latch done(kTasks);
    const auto look = [&](bool yield) {
      if (!AreDefaults()) ++spoilt;
      if (yield) this_fiber::Yield();
      if (!AreDefaults()) ++spoilt;
      done.count_down();
    };
    for (int i = 0; i < kTasks; i += 2) {
      Spawn([&, i] { look(i % 4 == 0); });
      Fiber([&, i] { look(i % 4 == 0); }).detach();
    }
    done.wait();
    return spoilt;
  }
};
FLARE_INSTANTIATE_RUNTIME_TEST(FloatingPointTest);

struct SpoilsAtItsEnd {
  ~SpoilsAtItsEnd() { Spoil(); }
};
FiberLocal<SpoilsAtItsEnd> spoils_at_its_end;

TEST_P(FloatingPointTest, NoTaskInheritsThoseOfAnother) {
  const std::function<void()> ways[] = {
      [] { Fiber(Spoil).join(); },
      [] {
        Event done;
        Spawn([&] {
          Spoil();
          done.Set();
        });
        done.Wait();
      },
      [] {
        Fiber([] {
          Spoil();
          this_fiber::Yield();
        }).join();
      },
      [] {
        Fiber([] {
          BlockingRegion region;
          Spoil();
        }).join();
      },
      [] {
        Event done;
        const TimerId timer = SetTimer(ReadSteadyClock(), [&] {
          Spoil();
          done.Set();
        });
        done.Wait();
        KillTimer(timer);
      },
      [] { Fiber([] { spoils_at_its_end.get(); }).join(); },
  };
  int number = 0;
  for (const auto& way : ways) {
    way();
    EXPECT_EQ(SpoiltOnes(), 0) << "way " << number;
    ++number;
  }
}

TEST_P(FloatingPointTest, NorDoClosuresOfAQueue) {
  WorkQueue queue;
  int spoilt = 0;
  for (int i = 0; i < 200; ++i) {
    queue.Push([&] {
      if (!AreDefaults()) ++spoilt;
      Spoil();
    });
  }
  queue.Stop();
  queue.Join();
  EXPECT_EQ(spoilt, 0);
}

// Others' tasks run in between, with modes of their own.
TEST_P(FloatingPointTest, AFiberKeepsItsOwn) {
  std::vector<Fiber> fibers;
  for (const int mode : {FE_UPWARD, FE_TONEAREST, FE_DOWNWARD, FE_TOWARDZERO}) {
    fibers.emplace_back([mode] {
      std::fesetround(mode);
      for (int i = 0; i < 50; ++i) {
        this_fiber::Yield();
        ASSERT_EQ(std::fegetround(), mode);
        RunBlocking([mode] { ASSERT_EQ(std::fegetround(), mode); });
      }
    });
  }
  for (Fiber& fiber : fibers) fiber.join();
}

}  // namespace
}  // namespace flare::fiber
