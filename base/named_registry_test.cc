#include "flare/base/named_registry.h"

#include "gtest/gtest.h"

namespace flare {
namespace {

TEST(NamedRegistry, FindsWhatIsKnownAndWhatWasAdded) {
  NamedRegistry<int> registry({{"one", 1}});
  EXPECT_EQ(registry.Find("one"), 1);
  EXPECT_EQ(registry.Find("two"), std::nullopt);
  EXPECT_TRUE(registry.Add("two", 2));
  EXPECT_EQ(registry.Find("two"), 2);
}

TEST(NamedRegistry, KeepsTheFirstOfAName) {
  NamedRegistry<int> registry({{"one", 1}});
  EXPECT_FALSE(registry.Add("one", 11));
  EXPECT_EQ(registry.Find("one"), 1);
  EXPECT_TRUE(registry.Add("two", 2));
  EXPECT_FALSE(registry.Add("two", 22));
  EXPECT_EQ(registry.Find("two"), 2);
}

TEST(NamedRegistry, SaysWhatIsKnown) {
  NamedRegistry<int> registry({{"two", 2}});
  registry.Add("one", 1);
  EXPECT_EQ(registry.Unknown("number", "three"),
            "unknown number \"three\"; known are one two");
}

}  // namespace
}  // namespace flare
