#include "flare/base/ref_ptr.h"

#include <latch>
#include <thread>
#include <unordered_set>
#include <vector>

#include "gtest/gtest.h"

namespace flare {
namespace {

struct Counted : RefCounted<Counted> {
  explicit Counted(int* alive, int value = 0) : alive(alive), value(value) {
    ++*alive;
  }
  virtual ~Counted() { --*alive; }
  int* alive;
  int value;
};

struct Derived : Counted {
  using Counted::Counted;
};

TEST(RefPtr, EmptyByDefault) {
  RefPtr<Counted> p;
  EXPECT_FALSE(p);
  EXPECT_EQ(p, nullptr);
  EXPECT_EQ(p.Get(), nullptr);
  p.Reset();
  EXPECT_EQ(RefPtr<Counted>(nullptr), p);
  EXPECT_EQ(RefPtr<Counted>(ref_ptr, nullptr), p);
}

TEST(RefPtr, MakeAdoptsTheFirstReference) {
  int alive = 0;
  {
    RefPtr<Counted> p = MakeRefCounted<Counted>(&alive, 7);
    EXPECT_EQ(alive, 1);
    EXPECT_EQ(p->value, 7);
    EXPECT_EQ((*p).value, 7);
    EXPECT_EQ(p->UnsafeRefCount(), 1u);
    EXPECT_TRUE(p->HasOneRef());
  }
  EXPECT_EQ(alive, 0);
}

TEST(RefPtr, CopySharesMoveDoesNot) {
  int alive = 0;
  auto p = MakeRefCounted<Counted>(&alive);
  RefPtr<Counted> copy = p;
  EXPECT_EQ(p->UnsafeRefCount(), 2u);
  EXPECT_FALSE(p->HasOneRef());
  EXPECT_EQ(copy, p);
  RefPtr<Counted> moved = std::move(p);
  EXPECT_EQ(moved->UnsafeRefCount(), 2u);
  EXPECT_FALSE(p);
  copy.Reset();
  EXPECT_EQ(alive, 1);
  moved = nullptr;
  EXPECT_EQ(alive, 0);
}

TEST(RefPtr, Assignment) {
  int first = 0;
  int second = 0;
  auto p = MakeRefCounted<Counted>(&first);
  auto q = MakeRefCounted<Counted>(&second);
  p = q;
  EXPECT_EQ(first, 0);
  EXPECT_EQ(q->UnsafeRefCount(), 2u);
  RefPtr<Counted>& self = p;
  p = self;
  EXPECT_EQ(q->UnsafeRefCount(), 2u);
  p = std::move(self);
  EXPECT_EQ(q->UnsafeRefCount(), 2u);
  p = MakeRefCounted<Counted>(&first);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(q->UnsafeRefCount(), 1u);
}

TEST(RefPtr, LeakAndAdopt) {
  int alive = 0;
  auto p = MakeRefCounted<Counted>(&alive);
  Counted* raw = p.Leak();
  EXPECT_FALSE(p);
  EXPECT_EQ(alive, 1);
  EXPECT_EQ(raw->UnsafeRefCount(), 1u);
  RefPtr<Counted> again(ref_ptr, raw);
  EXPECT_EQ(raw->UnsafeRefCount(), 2u);
  RefPtr<Counted> adopted(adopt_ref, raw);
  EXPECT_EQ(raw->UnsafeRefCount(), 2u);
}

TEST(RefPtr, ConvertsToTheBase) {
  int alive = 0;
  auto derived = MakeRefCounted<Derived>(&alive);
  RefPtr<Counted> base = derived;
  EXPECT_EQ(base->UnsafeRefCount(), 2u);
  RefPtr<Counted> moved = std::move(derived);
  EXPECT_EQ(base->UnsafeRefCount(), 2u);
  EXPECT_EQ(moved, base);
  static_assert(!std::is_convertible_v<RefPtr<Counted>, RefPtr<Derived>>);
}

TEST(RefPtr, Hash) {
  int alive = 0;
  auto p = MakeRefCounted<Counted>(&alive);
  std::unordered_set<RefPtr<Counted>> set{p, p, nullptr};
  EXPECT_EQ(set.size(), 2u);
  EXPECT_TRUE(set.contains(p));
}

struct Recycler {
  static inline int recycled = 0;
  template <class T>
  void operator()(T* p) const {
    ++recycled;
    delete p;
  }
};
struct Recycled : RefCounted<Recycled, Recycler> {};

TEST(RefPtr, CustomDeleter) {
  { RefPtr<Recycled> p = MakeRefCounted<Recycled>(); }
  EXPECT_EQ(Recycler::recycled, 1);
}

// Under ThreadSanitizer this shows that the last drop is ordered after all
// uses.
TEST(RefPtr, DropsFromManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 2000;
  struct Slots : RefCounted<Slots> {
    explicit Slots(std::atomic<int>* sum) : sum(sum) {}
    ~Slots() {
      for (int value : values) *sum += value;
    }
    int values[kThreads] = {};
    std::atomic<int>* sum;
  };
  std::atomic<int> sum = 0;
  std::vector<RefPtr<Slots>> objects;
  for (int i = 0; i < kRounds; ++i) {
    objects.push_back(MakeRefCounted<Slots>(&sum));
  }
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t, mine = objects]() mutable {
      start.arrive_and_wait();
      for (RefPtr<Slots>& p : mine) {
        RefPtr<Slots> another = p;
        p.Reset();
        another->values[t] = 1;
      }
    });
  }
  objects.clear();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, kThreads * kRounds);
}

}  // namespace
}  // namespace flare
