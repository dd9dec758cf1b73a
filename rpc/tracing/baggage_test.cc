#include "flare/rpc/tracing/baggage.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/string.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

std::string Joined(const std::vector<std::string_view>& values) {
  return JoinBaggage(values, kMaxBaggageBytes).text;
}

TEST(BaggageTest, IsJoinedWithoutBlanks) {
  EXPECT_EQ(Joined({}), "");
  EXPECT_EQ(Joined({"", " ", ",,"}), "");
  EXPECT_EQ(Joined({"a=1", " b = 2 ;p = 3; q\t,\tc=", "a=2"}),
            "a=1,b=2;p=3;q,c=,a=2");
  // An equals sign may be part of a value.
  EXPECT_EQ(Joined({"a==1=2;p=="}), "a==1=2;p==");
}

TEST(BaggageTest, MalformedMembersAreLeftOut) {
  for (const char* malformed :
       {"a", "=", "=1", "a b=1", "a=1 2", "a=\"1\"", "a=\\", "a=\x7f",
        "a=\xc3\xa4", "\xc3\xa4=1", "a=\n", "a=1;", "a=1;;p", "a=1;=2",
        "a=1;p=x y", ";a=1", "a;p=1", "@=1", "(=1"}) {
    EXPECT_EQ(Joined({malformed}), "") << malformed;
    EXPECT_EQ(Joined({std::string("x=1,") + malformed + ",y=2"}), "x=1,y=2")
        << malformed;
  }
}

TEST(BaggageTest, HasSoManyMembers) {
  std::vector<std::string> members;
  for (std::size_t i = 0; i != kMaxBaggageMembers; ++i) {
    members.push_back("k" + std::to_string(i) + "=v");
  }
  const std::string most = Join(members, ",");
  EXPECT_EQ(Joined({most}), most);
  // Malformed ones don't count.
  EXPECT_EQ(Joined({"x", most}), most);
  EXPECT_EQ(Joined({most, "x=1", "y=1"}), most);
}

TEST(BaggageTest, HasSoManyBytes) {
  const std::string most = "a=" + std::string(kMaxBaggageBytes - 2, 'x');
  EXPECT_EQ(Joined({most}), most);
  EXPECT_EQ(Joined({most, "b=1"}), most);
  // Whole members go, and smaller ones may still have room.
  EXPECT_EQ(Joined({most + "x", "b=1"}), "b=1");
  EXPECT_EQ(Joined({"b=1", most, "c=1"}), "b=1,c=1");
  const std::string half = "h=" + std::string(kMaxBaggageBytes / 2 - 2, 'x');
  EXPECT_EQ(Joined({half, half, "b=1"}), half + ",b=1");
  EXPECT_EQ(Joined({half, half.substr(1)}), half);
  const std::string rest = half.substr(0, half.size() - 1);
  EXPECT_EQ(Joined({half, rest}).size(), kMaxBaggageBytes);
}

TEST(BaggageTest, MembersBeyondALimitAreCounted) {
  const auto short_one = JoinBaggage({"a=1,b=22", "c=3,x,d=4"}, 7);
  EXPECT_EQ(short_one.text, "a=1,c=3");
  EXPECT_EQ(short_one.dropped, 2u);  // Malformed ones aren't counted.
  EXPECT_EQ(JoinBaggage({"a=1"}, 2).text, "");
  std::string many = "k=v";
  for (std::size_t i = 0; i != kMaxBaggageMembers + 2; ++i) many += ",k=v";
  EXPECT_EQ(JoinBaggage({many}, kMaxBaggageBytes).dropped, 3u);
  EXPECT_EQ(CountBaggage(many), kMaxBaggageMembers + 3);
  EXPECT_EQ(CountBaggage("a=1"), 1u);
  EXPECT_EQ(CountBaggage(""), 0u);
}

TEST(BaggageTest, MembersAreFound) {
  constexpr std::string_view kText = "a=x%20y,b=2;a=3,c=,b=4,d=1=2";
  EXPECT_EQ(FindBaggage(kText, "a"), "x y");
  EXPECT_EQ(FindBaggage(kText, "b"), "2");
  EXPECT_EQ(FindBaggage(kText, "c"), "");
  EXPECT_EQ(FindBaggage(kText, "d"), "1=2");
  for (const char* none : {"", "x", "A", "a=x", "2;a"}) {
    EXPECT_FALSE(FindBaggage(kText, none)) << none;
  }
  EXPECT_FALSE(FindBaggage("", "a"));
  EXPECT_FALSE(FindBaggage("", ""));
}

TEST(BaggageTest, ValuesAreUtf8) {
  EXPECT_EQ(FindBaggage("a=%c3%A4+", "a"), "\u00e4+");
  // As the standard says: U+FFFD for each byte that isn't.
  EXPECT_EQ(FindBaggage("a=x%ff%C3y", "a"), "x\ufffd\ufffdy");
  EXPECT_EQ(FindBaggage("a=%4A%zz", "a"), "%4A%zz");
  EXPECT_EQ(FindBaggage("a=%4A%", "a"), "%4A%");
}

}  // namespace
}  // namespace flare
