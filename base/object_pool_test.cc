#include "flare/base/object_pool.h"

#include <atomic>
#include <barrier>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/sanitizer.h"
#include "gtest/gtest.h"

namespace flare {

namespace {
// Counts live instances, over all threads.
template <int kTag>
struct Tracked {
  static inline std::atomic<int> alive = 0;
  Tracked() { ++alive; }
  ~Tracked() { --alive; }
  std::string text;
  std::atomic<bool> in_use{false};
};
using Small = Tracked<1>;
using Bounded = Tracked<2>;
using Stressed = Tracked<3>;
using Late = Tracked<4>;
using Moving = Tracked<5>;
}  // namespace

template <>
struct ObjectPoolTraits<Bounded> {
  static constexpr std::size_t kThreadCache = 4;
  static constexpr std::size_t kShared = 6;
};
template <>
struct ObjectPoolTraits<Moving> {
  static constexpr std::size_t kThreadCache = 4;
  static constexpr std::size_t kShared = 1000;
};
template <>
struct ObjectPoolTraits<Stressed> {
  static constexpr std::size_t kThreadCache = 4;
  static constexpr std::size_t kShared = 16;
};

namespace {

TEST(ObjectPool, ObjectsStayConstructed) {
  Small* first = ObjectPool<Small>::Get();
  first->text = "kept";
  ObjectPool<Small>::Put(first);
  EXPECT_EQ(Small::alive, 1);
  Small* second = ObjectPool<Small>::Get();
  EXPECT_EQ(second, first) << "Not the hottest one.";
  EXPECT_EQ(second->text, "kept");
  Small* third = ObjectPool<Small>::Get();
  EXPECT_NE(third, second);
  EXPECT_EQ(Small::alive, 2);
  ObjectPool<Small>::Put(third);
  ObjectPool<Small>::Put(second);
  EXPECT_EQ(Small::alive, 2);
}

TEST(ObjectPool, PooledPtrGoesBack) {
  Small* raw;
  {
    PooledPtr<Small> p = MakePooled<Small>();
    raw = p.get();
  }
  PooledPtr<Small> again = MakePooled<Small>();
  EXPECT_EQ(again.get(), raw);
}

TEST(ObjectPool, IsBounded) {
  std::vector<Bounded*> all;
  for (int i = 0; i < 50; ++i) all.push_back(ObjectPool<Bounded>::Get());
  EXPECT_EQ(Bounded::alive, 50);
  for (Bounded* p : all) ObjectPool<Bounded>::Put(p);
  // At most a full cache, and a full shelf per node (the thread may have
  // wandered between nodes).
  EXPECT_GE(Bounded::alive, 6);
  EXPECT_LE(Bounded::alive, 4 + 8 * 6);
  std::set<Bounded*> distinct;
  for (int i = 0; i < 50; ++i) distinct.insert(ObjectPool<Bounded>::Get());
  EXPECT_EQ(distinct.size(), 50u) << "An object was given out twice.";
  for (Bounded* p : distinct) delete p;
}

TEST(ObjectPool, ThreadExitHandsOver) {
  std::thread([] {
    std::vector<Moving*> all;
    for (int i = 0; i < 100; ++i) all.push_back(ObjectPool<Moving>::Get());
    for (Moving* p : all) ObjectPool<Moving>::Put(p);
  }).join();
  // All kept, none in the cache of the dead thread only: another thread finds
  // them (on the same node) instead of making new ones, save for the last
  // batch of a shelf that runs empty.
  EXPECT_EQ(Moving::alive, 100);
  std::vector<Moving*> all;
  for (int i = 0; i < 100; ++i) all.push_back(ObjectPool<Moving>::Get());
  EXPECT_LE(Moving::alive, 200);
  std::set<Moving*> distinct(all.begin(), all.end());
  EXPECT_EQ(distinct.size(), 100u);
  for (Moving* p : all) ObjectPool<Moving>::Put(p);
}

// Uses the pool after its per-thread cache was closed.
struct UsesPoolAtExit {
  ~UsesPoolAtExit() {
    PooledPtr<Late> a = MakePooled<Late>();
    PooledPtr<Late> b = MakePooled<Late>();
    EXPECT_NE(a.get(), b.get());
    if (kept) ObjectPool<Late>::Put(kept);
  }
  Late* kept = nullptr;
};

TEST(ObjectPool, UsableWhileTheThreadExits) {
  for (int i = 0; i < 3; ++i) {
    std::thread([] {
      // Constructed before the pool's own exit handler, so destroyed after.
      static thread_local UsesPoolAtExit at_exit;
      at_exit.kept = ObjectPool<Late>::Get();
    }).join();
  }
  EXPECT_LE(Late::alive, 3 * 8);
}

TEST(PoolAllocate, IsAlignedAndDistinct) {
  std::set<void*> distinct;
  for (int i = 0; i < 1000; ++i) {
    void* p = PoolAllocate<100>();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 64, 0u);
    std::memset(p, 0xab, 100);
    EXPECT_TRUE(distinct.insert(p).second);
  }
  for (void* p : distinct) PoolFree<100>(p);
  void* p = PoolAllocate<1>();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 32, 0u);
  PoolFree<1>(p);
}

TEST(PoolAllocate, SimilarSizesShare) {
  EXPECT_EQ(PoolSizeClass(1), 32u);
  EXPECT_EQ(PoolSizeClass(32), 32u);
  EXPECT_EQ(PoolSizeClass(33), 64u);
  void* p = PoolAllocate<40>();
  PoolFree<40>(p);
  void* q = PoolAllocate<64>();
  EXPECT_EQ(p, q);
  PoolFree<64>(q);
}

#ifdef FLARE_ASAN
TEST(PoolAllocateDeathTest, UseAfterFreeIsReported) {
  auto* p = static_cast<volatile char*>(PoolAllocate<64>());
  p[0] = 1;
  PoolFree<64>(const_cast<char*>(p));
  EXPECT_DEATH(p[0] = 2, "use-after-poison");
}
#endif

// Objects wander between threads; nobody ever shares one.
TEST(ObjectPool, Stress) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 10000;
  std::mutex mutex;
  // Returned by other threads than the ones that got them.
  std::deque<Stressed*> market;
  std::vector<std::thread> threads;
  std::atomic<int> shared = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<Stressed*> mine;
      for (int i = 0; i < kRounds; ++i) {
        switch (random() % 4) {
          case 0:
          case 1: {
            Stressed* p = ObjectPool<Stressed>::Get();
            if (p->in_use.exchange(true)) ++shared;
            p->text = "x";
            mine.push_back(p);
            break;
          }
          case 2:
            if (!mine.empty()) {
              mine.back()->in_use = false;
              ObjectPool<Stressed>::Put(mine.back());
              mine.pop_back();
            }
            break;
          case 3: {
            std::scoped_lock lock(mutex);
            market.insert(market.end(), mine.begin(), mine.end());
            mine.clear();
            while (market.size() > 20) {
              mine.push_back(market.front());
              market.pop_front();
            }
          }
        }
      }
      for (Stressed* p : mine) delete p;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Stressed* p : market) delete p;
  EXPECT_EQ(shared, 0);
  EXPECT_LE(Stressed::alive, 8 * 16);
}

TEST(PoolDepot, TakesWhatWasPut) {
  PoolDepot depot(3);
  int values[5];
  void* items[5];
  for (int i = 0; i < 5; ++i) items[i] = &values[i];
  void* out[5] = {};
  // One thread on one CPU sees one shelf; on a machine with several nodes it
  // may move between the calls, so pin it.
  cpu_set_t old_cpus;
  cpu_set_t one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(old_cpus), &old_cpus), 0);
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(depot.Take(out, 5), 0u);
  EXPECT_EQ(depot.Put(items, 2), 2u);
  EXPECT_EQ(depot.Put(items + 2, 3), 1u);
  EXPECT_EQ(depot.Put(items + 3, 2), 0u);
  EXPECT_EQ(depot.Take(out, 2), 2u);
  EXPECT_EQ(depot.Take(out + 2, 5), 1u);
  std::set<void*> taken(out, out + 3);
  EXPECT_EQ(taken, (std::set<void*>{items[0], items[1], items[2]}));
  EXPECT_EQ(depot.Take(out, 1), 0u);
  sched_setaffinity(0, sizeof(old_cpus), &old_cpus);
}

}  // namespace
}  // namespace flare
