#include "flare/rpc/http2/http2_stream_table.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

TEST(Http2StreamTableTest, FindsWhatWasInserted) {
  Http2StreamTable<int> table;
  EXPECT_EQ(table.Find(1), nullptr);
  table.Remove(1);
  int one = 1;
  int three = 3;
  table.Insert(1, &one);
  table.Insert(3, &three);
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(table.Find(1), &one);
  EXPECT_EQ(table.Find(3), &three);
  EXPECT_EQ(table.Find(5), nullptr);
  EXPECT_EQ(table.Find(0), nullptr);
  table.Remove(1);
  table.Remove(1);
  EXPECT_EQ(table.Find(1), nullptr);
  EXPECT_EQ(table.size(), 1u);
}

// As a map does, with numbers that grow as a connection's do, and any others.
TEST(Http2StreamTableTest, IsLikeAMap) {
  std::minstd_rand random;
  Http2StreamTable<int> table;
  std::map<std::int32_t, int*> model;
  std::vector<std::unique_ptr<int>> streams;
  std::int32_t next = 1;
  for (int i = 0; i != 50'000; ++i) {
    if (model.size() < 40 + static_cast<std::size_t>(i) / 1000 &&
        random() % 3 != 0) {
      streams.push_back(std::make_unique<int>(i));
      next +=
          2 * static_cast<std::int32_t>(1 + (i % 7 == 0 ? random() % 1000 : 0));
      model.emplace(next, streams.back().get());
      table.Insert(next, streams.back().get());
    } else if (!model.empty()) {
      auto victim = model.lower_bound(
          static_cast<std::int32_t>(random() % static_cast<unsigned>(next)));
      if (victim == model.end()) victim = model.begin();
      table.Remove(victim->first);
      EXPECT_EQ(table.Find(victim->first), nullptr);
      model.erase(victim);
    }
    ASSERT_EQ(table.size(), model.size());
    if (i % 100 != 0) continue;
    for (const auto& [id, stream] : model) ASSERT_EQ(table.Find(id), stream);
    std::size_t seen = 0;
    table.ForEach([&](int*) { ++seen; });
    ASSERT_EQ(seen, model.size());
  }
}

}  // namespace
}  // namespace flare::rpc
