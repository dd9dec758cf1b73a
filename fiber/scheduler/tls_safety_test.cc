// Nothing that the runtime keeps in thread-local storage is reached by an
// address from before a suspension. Each test uses an accessor, moves the fiber
// to another thread and uses it again, all in one function, where a compiler
// that sees into the accessor would reuse the first address. tools/test_tls
// builds this with gcc and clang at -O3, where they do.
#include <cerrno>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>

#include "flare/base/buffer_block.h"
#include "flare/base/clock.h"
#include "flare/base/object_pool.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/fiber_local.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/runtime_state.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/worker.h"
#include "flare/fiber/task.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

// Identifies the thread without help from the compiler's thread-locals.
[[gnu::always_inline]] inline std::uintptr_t ThreadPointer() {
  std::uintptr_t value;
#if defined(__x86_64__)
  asm volatile("movq %%fs:0, %0" : "=r"(value));
#else
  asm volatile("mrs %0, tpidr_el0" : "=r"(value));
#endif
  return value;
}

// Continues the calling fiber on the only worker of `group`.
void MoveTo(std::size_t group) {
  struct Move {
    std::size_t group;
    Task* resume;
  } move{group, CurrentCarrier()->resume_task()};
  SuspendFiber(
      {"MoveTo"},
      [](void* argument) {
        const Move move = *static_cast<Move*>(argument);
        SubmitTo(move.group, move.resume);
      },
      &move);
}

// Two groups of one worker each, which don't help each other.
class TlsSafetyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RuntimeOptions options;
    options.concurrency = 2;
    options.group_size = 1;
    options.work_stealing_ratio = 0;
    const Status status = StartRuntime(options);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  void TearDown() override { TerminateRuntime(); }

  // Runs `f` as a fiber that starts in group 0.
  template <class F>
  void OnFiber(F f) {
    Latch done(1);
    SpawnTo(0, [&] {
      f();
      done.count_down();
    });
    done.wait();
  }
};

TEST_F(TlsSafetyTest, MovesBetweenThreads) {
  OnFiber([] {
    const std::uintptr_t first = ThreadPointer();
    MoveTo(1);
    const std::uintptr_t second = ThreadPointer();
    EXPECT_NE(first, second);
    MoveTo(0);
    EXPECT_EQ(ThreadPointer(), first);
    this_fiber::Yield();
    EXPECT_EQ(ThreadPointer(), first);
  });
}

TEST_F(TlsSafetyTest, CurrentWorker) {
  OnFiber([] {
    Worker* const first = CurrentWorker();
    EXPECT_EQ(NearestGroup()->index(), 0U);
    MoveTo(1);
    Worker* const second = CurrentWorker();
    EXPECT_EQ(NearestGroup()->index(), 1U);
    EXPECT_NE(first, second);
    MoveTo(0);
    EXPECT_EQ(CurrentWorker(), first);
    EXPECT_EQ(NearestGroup()->index(), 0U);
  });
}

TEST_F(TlsSafetyTest, CurrentCarrierStays) {
  OnFiber([] {
    Carrier* const first = CurrentCarrier();
    for (std::size_t i = 1; i < 5; ++i) {
      MoveTo(i % 2);
      EXPECT_EQ(CurrentCarrier(), first);
    }
  });
}

TEST_F(TlsSafetyTest, Errno) {
  OnFiber([] {
    SetLastError(1001);
    MoveTo(1);
    EXPECT_EQ(GetLastError(), 1001);  // Came along.
    SetLastError(1002);
    MoveTo(0);
    EXPECT_EQ(GetLastError(), 1002);
  });
  // Neither thread's own was taken for the other's while the fiber was away.
  OnFiber([this] {
    SetLastError(1001);
    MoveTo(1);
    SetLastError(1002);
    Latch done(1);
    SpawnTo(0, [&] {
      EXPECT_NE(GetLastError(), 1002);
      done.count_down();
    });
    done.wait();
    EXPECT_EQ(GetLastError(), 1002);
  });
}

TEST_F(TlsSafetyTest, FiberLocals) {
  FiberLocal<int> local;
  OnFiber([&] {
    int* const first = local.get();
    *first = 5;
    MoveTo(1);
    EXPECT_EQ(local.get(), first);
    EXPECT_EQ(*local, 5);
    Latch done(1);
    SpawnTo(0, [&] {  // Another fiber, on the thread that was left.
      EXPECT_NE(local.get(), first);
      done.count_down();
    });
    done.wait();
    EXPECT_EQ(local.get(), first);
  });
}

TEST_F(TlsSafetyTest, ExecutionContextStays) {
  OnFiber([] {
    const ExecutionContext* const first = ExecutionContext::Current();
    MoveTo(1);
    EXPECT_EQ(ExecutionContext::Current(), first);
  });
}

// An object that a thread has put into its own cache comes back there, and only
// there.
TEST_F(TlsSafetyTest, ObjectPool) {
  struct Object {
    int value = 0;
  };
  OnFiber([] {
    Object* const first = ObjectPool<Object>::Get();
    ObjectPool<Object>::Put(first);
    MoveTo(1);
    Object* const second = ObjectPool<Object>::Get();
    EXPECT_NE(second, first);
    ObjectPool<Object>::Put(second);
    MoveTo(0);
    EXPECT_EQ(ObjectPool<Object>::Get(), first);
    MoveTo(1);
    EXPECT_EQ(ObjectPool<Object>::Get(), second);
    ObjectPool<Object>::Put(first);
    ObjectPool<Object>::Put(second);
  });
}

TEST_F(TlsSafetyTest, RawPool) {
  OnFiber([] {
    constexpr std::size_t kSize = 224;
    void* const first = PoolAllocate<kSize>();
    PoolFree<kSize>(first);
    MoveTo(1);
    void* const second = PoolAllocate<kSize>();
    EXPECT_NE(second, first);
    PoolFree<kSize>(second);
    MoveTo(0);
    void* const again = PoolAllocate<kSize>();
    EXPECT_EQ(again, first);
    PoolFree<kSize>(again);
  });
}

TEST_F(TlsSafetyTest, SpawnNodes) {
  OnFiber([] {
    const SpawnNode first = AllocateSpawnNode();
    FreeSpawnNode(first.memory);
    MoveTo(1);
    const SpawnNode second = AllocateSpawnNode();
    EXPECT_NE(second.worker, first.worker);
    EXPECT_NE(second.memory, first.memory);
    FreeSpawnNode(second.memory);
  });
}

TEST_F(TlsSafetyTest, HotBlocks) {
  for (const HotBlock which : {HotBlock::kBuild, HotBlock::kRead}) {
    OnFiber([which] {
      const WritableBlock first = TakeHotBlock(which);
      GiveBackHotBlock(which, first);
      MoveTo(1);
      const WritableBlock second = TakeHotBlock(which);
      EXPECT_NE(second.block, first.block);
      GiveBackHotBlock(which, second);
      MoveTo(0);
      const WritableBlock again = TakeHotBlock(which);
      EXPECT_EQ(again.block, first.block);
      GiveBackHotBlock(which, again);
    });
  }
}

// Each thread has its own anchor; one is made to stand still.
TEST_F(TlsSafetyTest, Clock) {
  OnFiber([] {
    const std::int64_t frozen = NowNs();
    SetVirtualNow(frozen);
    EXPECT_EQ(NowNs(), frozen);
    MoveTo(1);
    EXPECT_GT(NowNs(), frozen);
    MoveTo(0);
    EXPECT_EQ(NowNs(), frozen);
    EndVirtualNow();
    EXPECT_GT(NowNs(), frozen);
  });
}

TEST_F(TlsSafetyTest, ThreadMutexes) {
  ThreadMutex::SetCheck(true);
  OnFiber([] {
    ThreadMutex here;
    ThreadMutex there;
    here.lock();
    EXPECT_EQ(ThreadMutex::HeldByThisThread().size(), 1U);
    here.unlock();
    MoveTo(1);
    there.lock();
    EXPECT_EQ(ThreadMutex::HeldByThisThread().size(), 1U);
    there.unlock();
    EXPECT_TRUE(ThreadMutex::HeldByThisThread().empty());
    MoveTo(0);
    EXPECT_TRUE(ThreadMutex::HeldByThisThread().empty());
  });
  ThreadMutex::SetCheck(false);
}

// The library's record of exceptions being handled, which it keeps per thread.
TEST_F(TlsSafetyTest, ExceptionsBeingHandled) {
  OnFiber([] {
    std::string caught;
    try {
      try {
        throw std::runtime_error("first");
      } catch (const std::exception&) {
        MoveTo(1);
        EXPECT_NE(std::current_exception(), nullptr);
        throw;
      }
    } catch (const std::exception& e) {
      MoveTo(0);
      caught = e.what();
    }
    EXPECT_EQ(caught, "first");
    EXPECT_EQ(std::current_exception(), nullptr);
    MoveTo(1);
    EXPECT_EQ(std::current_exception(), nullptr);
    EXPECT_EQ(std::uncaught_exceptions(), 0);
  });
}

struct MovesWhenDestroyed {
  ~MovesWhenDestroyed() {
    EXPECT_EQ(std::uncaught_exceptions(), 1);
    MoveTo(1);
    EXPECT_EQ(std::uncaught_exceptions(), 1);
  }
};

TEST_F(TlsSafetyTest, ExceptionsOnTheirWay) {
  OnFiber([] {
    try {
      const MovesWhenDestroyed guard;
      throw std::runtime_error("on its way");
    } catch (const std::exception& e) {
      EXPECT_EQ(std::string(e.what()), "on its way");
    }
    EXPECT_EQ(std::uncaught_exceptions(), 0);
  });
}

// Shows the failures without the rules: built by tools/test_tls alone, where
// each of these must fail, or the tests above show nothing.
#ifdef FLARE_TLS_CONTROL

thread_local int probe = 0;
inline int* InlinedProbe() { return &probe; }

TEST_F(TlsSafetyTest, ControlInlinedAccessor) {
  OnFiber([] {
    int* const first = InlinedProbe();
    *first = 1;
    MoveTo(1);
    int* const second = InlinedProbe();
    *second = 2;
    EXPECT_NE(first, second);
  });
}

TEST_F(TlsSafetyTest, ControlErrno) {
  OnFiber([] {
    int* const first = &errno;
    *first = 1;
    MoveTo(1);
    int* const second = &errno;
    *second = 2;
    EXPECT_NE(first, second);
  });
}

#endif

}  // namespace
}  // namespace flare::fiber
