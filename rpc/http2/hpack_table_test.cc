#include "flare/rpc/http2/hpack_table.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

TEST(HpackTable, HasTheLatestFieldsThatFit) {
  HpackTable table(2 * (HpackTable::kFieldOverhead + 2));
  EXPECT_EQ(table.count(), 0U);
  table.Insert("a", "1", 10);
  table.Insert("b", "2", 20);
  EXPECT_EQ(table.size(), table.max_size());
  table.Insert("c", "3", 30);
  ASSERT_EQ(table.count(), 2U);
  EXPECT_EQ(table.inserted(), 3U);
  EXPECT_EQ(table.Latest(1).name, "c");
  EXPECT_EQ(table.Latest(1).mark, 30U);
  EXPECT_EQ(table.Latest(2).value, "2");
  table.SetMaxSize(HpackTable::kFieldOverhead + 2);
  EXPECT_EQ(table.count(), 1U);
  table.SetMaxSize(0);
  EXPECT_EQ(table.count(), 0U);
  EXPECT_EQ(table.size(), 0U);
}

TEST(HpackTable, IsEmptyBehindAFieldThatIsTooLarge) {
  HpackTable table(100);
  table.Insert("a", "1", 0);
  table.Insert("b", std::string(100, 'x'), 0);
  EXPECT_EQ(table.count(), 0U);
  table.Insert("c", "3", 0);
  EXPECT_EQ(table.Latest(1).name, "c");
}

TEST(HpackTable, AgreesWithAQueueOfStrings) {
  constexpr std::size_t kMaxSize = 1000;
  std::mt19937 rng(1);
  HpackTable table(kMaxSize);
  std::deque<std::pair<std::string, std::string>> model;
  std::size_t size = 0;
  for (std::uint32_t i = 0; i != 100000; ++i) {
    const std::string name(rng() % 40, static_cast<char>('a' + i % 26));
    const std::string value(rng() % (i % 100 == 0 ? 1000 : 40),
                            static_cast<char>('A' + i % 26));
    table.Insert(name, value, i);
    model.emplace_front(name, value);
    size += name.size() + value.size() + HpackTable::kFieldOverhead;
    while (size > kMaxSize) {
      size -= model.back().first.size() + model.back().second.size() +
              HpackTable::kFieldOverhead;
      model.pop_back();
    }
    ASSERT_EQ(table.size(), size);
    ASSERT_EQ(table.count(), model.size());
    if (i % 10 != 0) continue;
    for (std::uint32_t n = 1; n <= table.count(); ++n) {
      ASSERT_EQ(table.Latest(n).name, model[n - 1].first);
      ASSERT_EQ(table.Latest(n).value, model[n - 1].second);
    }
  }
}

}  // namespace
}  // namespace flare::rpc
