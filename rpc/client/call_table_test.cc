#include "flare/rpc/client/call_table.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

// The table never looks into a call, so any address will do.
PendingCall* CallNumber(std::uintptr_t n) {
  return reinterpret_cast<PendingCall*>((n + 1) * 64);
}

CallTable::Options Small(std::size_t slots, std::size_t max_slots,
                         std::uint32_t first_id = 1) {
  return {.initial_slots = slots, .max_slots = max_slots, .first_id = first_id};
}

std::vector<PendingCall*> CloseAndCollect(CallTable* table) {
  std::vector<PendingCall*> calls;
  table->Close([&](PendingCall* call) { calls.push_back(call); });
  return calls;
}

TEST(CallTableTest, TakesWhatWasInserted) {
  CallTable table;
  const std::uint32_t a = table.Insert(CallNumber(1));
  const std::uint32_t b = table.Insert(CallNumber(2));
  EXPECT_EQ(a, 1);
  EXPECT_EQ(b, 2);
  EXPECT_EQ(table.Take(b), CallNumber(2));
  EXPECT_EQ(table.Take(a), CallNumber(1));
}

TEST(CallTableTest, TakesOnce) {
  CallTable table;
  const std::uint32_t id = table.Insert(CallNumber(1));
  EXPECT_EQ(table.Take(id), CallNumber(1));
  EXPECT_EQ(table.Take(id), nullptr);
}

TEST(CallTableTest, ForeignIdsFindNothing) {
  CallTable table(Small(4, 4));
  const std::uint32_t id = table.Insert(CallNumber(1));
  // The contents of free slots, or of those being filled in, are no ids either.
  const std::uint64_t foreign[] = {0,
                                   id + 4,
                                   id + 8,
                                   2,
                                   3,
                                   0xffffffff,
                                   std::uint64_t{1} << 32,
                                   (std::uint64_t{1} << 32) | id,
                                   ~std::uint64_t{0}};
  for (std::uint64_t other : foreign) {
    EXPECT_EQ(table.Take(other), nullptr) << other;
  }
  EXPECT_EQ(table.Take(id), CallNumber(1));
}

TEST(CallTableTest, LateIdOfReusedSlotFindsNothing) {
  CallTable table(Small(2, 2));
  const std::uint32_t first = table.Insert(CallNumber(1));
  EXPECT_EQ(table.Take(first), CallNumber(1));
  const std::uint32_t second = table.Insert(CallNumber(2));
  const std::uint32_t third = table.Insert(CallNumber(3));
  EXPECT_EQ(table.Take(first), nullptr);
  EXPECT_EQ(table.Take(second), CallNumber(2));
  EXPECT_EQ(table.Take(third), CallNumber(3));
}

TEST(CallTableTest, IdsGoAroundWithoutZero) {
  CallTable table(Small(4, 4, 0xfffffffe));
  EXPECT_EQ(table.Insert(CallNumber(1)), 0xfffffffe);
  EXPECT_EQ(table.Insert(CallNumber(2)), 0xffffffff);
  EXPECT_EQ(table.Insert(CallNumber(3)), 1);
  EXPECT_EQ(table.Take(0xffffffff), CallNumber(2));
  EXPECT_EQ(table.Take(1), CallNumber(3));
}

TEST(CallTableTest, SkipsIdsWhoseSlotIsOccupied) {
  CallTable table(Small(4, 4));
  ASSERT_EQ(table.Insert(CallNumber(1)), 1);  // Stays.
  for (std::uint32_t n = 2; n <= 4; ++n) {
    ASSERT_EQ(table.Take(table.Insert(CallNumber(n))), CallNumber(n));
  }
  EXPECT_EQ(table.Insert(CallNumber(6)), 6);  // 5 would share the slot of 1.
  EXPECT_EQ(table.Take(1), CallNumber(1));
}

TEST(CallTableTest, FullAtTheLimit) {
  CallTable table(Small(2, 8));
  std::vector<std::uint32_t> ids;
  for (std::uintptr_t n = 0; n != 14; ++n) {
    const std::uint32_t id = table.Insert(CallNumber(n));
    if (id == 0) break;
    ids.push_back(id);
  }
  // Those that came before the table grew stay in the smaller segments.
  EXPECT_EQ(ids.size(), 14);
  EXPECT_EQ(table.Insert(CallNumber(99)), 0);
  EXPECT_FALSE(table.closed());
  EXPECT_EQ(table.Take(ids[13]), CallNumber(13));
  EXPECT_NE(table.Insert(CallNumber(100)), 0);
}

TEST(CallTableTest, GrowsAndFindsEverything) {
  CallTable table(Small(2, 1 << 12));
  std::vector<std::uint32_t> ids;
  for (std::uintptr_t n = 0; n != 3000; ++n) {
    ids.push_back(table.Insert(CallNumber(n)));
    ASSERT_NE(ids.back(), 0);
  }
  EXPECT_GT(table.slots(), 1024);
  EXPECT_EQ(std::set<std::uint32_t>(ids.begin(), ids.end()).size(), ids.size());
  for (std::uintptr_t n = 0; n != 3000; ++n) {
    EXPECT_EQ(table.Take(ids[n]), CallNumber(n));
  }
  EXPECT_TRUE(CloseAndCollect(&table).empty());
}

TEST(CallTableTest, DoesNotGrowWithoutNeed) {
  CallTable table(Small(64, 1 << 12));
  for (std::uintptr_t n = 0; n != 10000; ++n) {
    ASSERT_EQ(table.Take(table.Insert(CallNumber(n))), CallNumber(n));
  }
  EXPECT_EQ(table.slots(), 64);
}

// An id that is still there in an old segment isn't given out again.
TEST(CallTableTest, OldSegmentsKeepTheirIdsToThemselves) {
  CallTable table(Small(2, 64, 0xffffffff - 40));
  const std::uint32_t old = table.Insert(CallNumber(0));
  std::vector<std::uint32_t> others;
  while (table.slots() == 2) {
    others.push_back(table.Insert(CallNumber(others.size() + 1)));
  }
  EXPECT_EQ(std::count(others.begin(), others.end(), old), 0);
  EXPECT_EQ(table.Take(old), CallNumber(0));
}

TEST(CallTableTest, CloseGivesAllCallsOnce) {
  CallTable table(Small(2, 64));
  std::vector<PendingCall*> calls;
  std::vector<std::uint32_t> ids;
  for (std::uintptr_t n = 0; n != 50; ++n) {
    calls.push_back(CallNumber(n));
    ids.push_back(table.Insert(calls.back()));
  }
  EXPECT_EQ(table.Take(ids[7]), calls[7]);
  calls.erase(calls.begin() + 7);
  std::vector<PendingCall*> closed = CloseAndCollect(&table);
  std::sort(closed.begin(), closed.end());
  EXPECT_EQ(closed, calls);
  for (std::uint32_t id : ids) EXPECT_EQ(table.Take(id), nullptr);
}

TEST(CallTableTest, ClosedRefuses) {
  CallTable table;
  EXPECT_FALSE(table.closed());
  EXPECT_TRUE(CloseAndCollect(&table).empty());
  EXPECT_TRUE(table.closed());
  EXPECT_EQ(table.Insert(CallNumber(1)), 0);
}

// Against a map, with calls that stay for very different times.
TEST(CallTableTest, RandomOperationsAgreeWithMap) {
  std::mt19937 random(7);
  CallTable table(Small(2, 1 << 10, 0xffffff00));
  std::unordered_map<std::uint32_t, PendingCall*> model;
  std::vector<std::uint32_t> ids;
  for (std::uintptr_t n = 0; n != 200000; ++n) {
    if (model.size() < 300 && random() % 2 == 0) {
      const std::uint32_t id = table.Insert(CallNumber(n));
      ASSERT_NE(id, 0);
      ASSERT_TRUE(model.emplace(id, CallNumber(n)).second) << id;
      ids.push_back(id);
    } else if (!ids.empty()) {
      // Mostly young ones, sometimes one that may have been taken already.
      const std::size_t at =
          random() % 8 == 0
              ? random() % ids.size()
              : ids.size() - 1 -
                    random() % std::min<std::size_t>(4, ids.size());
      const auto it = model.find(ids[at]);
      PendingCall* const expected = it == model.end() ? nullptr : it->second;
      ASSERT_EQ(table.Take(ids[at]), expected);
      if (it != model.end()) model.erase(it);
      if (random() % 2 == 0) ids.erase(ids.begin() + at);
    }
  }
  EXPECT_EQ(CloseAndCollect(&table).size(), model.size());
}

// Several threads insert; for each call several others try to take it. Each is
// taken exactly once, and the one that takes it sees the inserter's writes.
TEST(CallTableTest, ConcurrentTakersGetEachCallOnce) {
  constexpr int kInserters = 3;
  constexpr int kTakers = 3;
  constexpr std::uintptr_t kPerInserter = 20000;
  struct Payload {
    std::uint64_t value = 0;  // Plain: a data race here would be reported.
    std::atomic<int> taken{0};
  };
  const auto payloads = std::make_unique<Payload[]>(kInserters * kPerInserter);
  CallTable table(Small(4, 1 << 16));
  std::atomic<std::uint64_t> issued{0};
  std::atomic<std::uintptr_t> total{0};
  std::atomic<int> inserting{kInserters};
  const auto take = [&](std::uint64_t id) {
    auto* const payload = reinterpret_cast<Payload*>(table.Take(id));
    if (payload == nullptr) return;
    EXPECT_EQ(payload->value, 42);
    EXPECT_EQ(payload->taken.fetch_add(1), 0);
    total.fetch_add(1);
  };

  std::vector<std::thread> threads;
  for (int t = 0; t != kInserters; ++t) {
    threads.emplace_back([&, t] {
      for (std::uintptr_t n = 0; n != kPerInserter; ++n) {
        Payload* const payload = &payloads[t * kPerInserter + n];
        payload->value = 42;
        const std::uint32_t id =
            table.Insert(reinterpret_cast<PendingCall*>(payload));
        ASSERT_NE(id, 0);
        issued.store(id);
        if (n % 3 == 0) take(id);
      }
      inserting.fetch_sub(1);
    });
  }
  for (int t = 0; t != kTakers; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      while (inserting.load() != 0) {
        const std::uint64_t id = issued.load();
        for (int i = 0; i != 32; ++i) take(id - i);
        take(random() % (id + 1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  table.Close([&](PendingCall* call) {
    EXPECT_EQ(reinterpret_cast<Payload*>(call)->taken.fetch_add(1), 0);
    total.fetch_add(1);
  });
  EXPECT_EQ(total.load(), kInserters * kPerInserter);
}

TEST(CallTableTest, EmptyLooksIntoAllSegments) {
  CallTable table(Small(4, 1 << 10));
  EXPECT_TRUE(table.Empty());
  std::vector<std::uint32_t> ids;
  for (std::uintptr_t n = 0; n != 100; ++n) {
    ids.push_back(table.Insert(CallNumber(n)));
    EXPECT_FALSE(table.Empty());
  }
  ASSERT_GT(table.slots(), 4);
  for (std::uint32_t id : ids) {
    EXPECT_FALSE(table.Empty());
    EXPECT_NE(table.Take(id), nullptr);
  }
  EXPECT_TRUE(table.Empty());
}

// Each call that is being inserted while the table closes is either given to
// the closer or refused, never both, never neither.
TEST(CallTableTest, NoCallSlipsThroughClosing) {
  for (int round = 0; round != 500; ++round) {
    constexpr int kInserters = 2;
    CallTable table(Small(4, 1 << 10));
    std::atomic<int> ready{0};
    std::array<std::vector<PendingCall*>, kInserters> accepted;
    std::vector<std::thread> threads;
    for (int t = 0; t != kInserters; ++t) {
      threads.emplace_back([&, t] {
        ready.fetch_add(1);
        for (std::uintptr_t n = 0;; ++n) {
          PendingCall* const call = CallNumber(n * kInserters + t);
          if (table.Insert(call) == 0) break;
          accepted[t].push_back(call);
          if (n == 400) break;
        }
      });
    }
    while (ready.load() != kInserters) std::this_thread::yield();
    std::vector<PendingCall*> closed = CloseAndCollect(&table);
    for (std::thread& thread : threads) thread.join();
    std::vector<PendingCall*> all = accepted[0];
    all.insert(all.end(), accepted[1].begin(), accepted[1].end());
    std::sort(all.begin(), all.end());
    std::sort(closed.begin(), closed.end());
    ASSERT_EQ(closed, all) << "in round " << round;
    ASSERT_EQ(table.Insert(CallNumber(0)), 0);
  }
}

}  // namespace
}  // namespace flare::rpc
