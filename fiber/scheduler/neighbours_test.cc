// Whom a group helps.
#include "flare/fiber/scheduler/neighbours.h"

#include <atomic>
#include <cstdint>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

SchedulingGroup* Fake(std::uintptr_t n) {
  return reinterpret_cast<SchedulingGroup*>(n * 64);  // Never looked into.
}

TEST(NeighboursTest, AreChosenOnceInSoManySearches) {
  Neighbours neighbours;
  EXPECT_TRUE(neighbours.empty());
  EXPECT_EQ(neighbours.ChooseNear(0, 0), nullptr);
  neighbours.Set({{Fake(1), Fake(2)}, 4}, {{Fake(3)}, 10});
  EXPECT_FALSE(neighbours.empty());
  int near = 0;
  int far = 0;
  std::set<SchedulingGroup*> seen;
  for (std::uint32_t attempt = 1; attempt <= 200; ++attempt) {
    if (SchedulingGroup* const group =
            neighbours.ChooseNear(attempt, attempt / 4)) {
      ++near;
      seen.insert(group);
    }
    if (neighbours.ChooseFar(attempt, attempt) == Fake(3)) ++far;
  }
  EXPECT_EQ(near, 50);
  EXPECT_EQ(far, 20);
  EXPECT_EQ(seen, (std::set<SchedulingGroup*>{Fake(1), Fake(2)}));
  EXPECT_TRUE(neighbours.IsFar(Fake(3)));
  EXPECT_FALSE(neighbours.IsFar(Fake(1)));
}

TEST(NeighboursTest, NeverMeansNever) {
  Neighbours neighbours;
  neighbours.Set({{Fake(1)}, 0}, {{Fake(2)}, 0});
  EXPECT_TRUE(neighbours.empty());
  EXPECT_EQ(neighbours.ChooseNear(0, 0), nullptr);
  EXPECT_EQ(neighbours.ChooseFar(0, 0), nullptr);
  EXPECT_EQ(neighbours.Find([](SchedulingGroup*) { return true; }), nullptr);
  EXPECT_FALSE(neighbours.IsFar(Fake(2)));
}

TEST(NeighboursTest, AnInvitationIsForOne) {
  Neighbours neighbours;
  EXPECT_EQ(neighbours.TakeInvitation(), nullptr);
  neighbours.Invite(Fake(1));
  neighbours.Invite(Fake(2));  // The latest one counts.
  std::atomic<int> taken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      if (neighbours.TakeInvitation() == Fake(2)) taken.fetch_add(1);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(taken.load(), 1);
}

}  // namespace
}  // namespace flare::fiber
