#include "flare/fiber/startup/group_sets.h"

#include <cerrno>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using Groups = std::vector<std::size_t>;

GroupSets Sets(std::string_view text, std::size_t groups) {
  auto sets = GroupSets::Parse(text, groups);
  EXPECT_TRUE(sets) << sets.error().message();
  return *std::move(sets);
}

std::string Refusal(std::string_view text, std::size_t groups) {
  const auto sets = GroupSets::Parse(text, groups);
  if (sets) return "accepted";
  EXPECT_EQ(sets.error().code(), EINVAL);
  return sets.error().message();
}

TEST(GroupSetsTest, NothingNamed) {
  for (const char* text : {"", " ", "\n"}) {
    const GroupSets sets = Sets(text, 3);
    EXPECT_EQ(*sets.Find(""), (Groups{0, 1, 2}));
    EXPECT_TRUE(sets.Together(0, 2));
    EXPECT_EQ(sets.NameOf(1), "");
    EXPECT_EQ(sets.ToString(), "");
  }
  EXPECT_EQ(*GroupSets().Find(""), Groups());
  EXPECT_EQ(GroupSets().ToString(), "");
}

TEST(GroupSetsTest, TwoSetsAndARest) {
  const GroupSets sets = Sets("front:0-2; batch : 4,3", 6);
  EXPECT_EQ(*sets.Find("front"), (Groups{0, 1, 2}));
  EXPECT_EQ(*sets.Find("batch"), (Groups{3, 4}));
  EXPECT_EQ(*sets.Find(""), (Groups{0, 1, 2, 3, 4, 5}));
  EXPECT_TRUE(sets.Together(0, 2));
  EXPECT_FALSE(sets.Together(2, 3));
  EXPECT_FALSE(sets.Together(4, 5));
  EXPECT_TRUE(sets.Together(5, 5));
  EXPECT_EQ(sets.NameOf(0), "front");
  EXPECT_EQ(sets.NameOf(4), "batch");
  EXPECT_EQ(sets.NameOf(5), "");
  EXPECT_EQ(sets.ToString(), "front 0-2, batch 3-4, 5 in none");
}

TEST(GroupSetsTest, NegativeNumbersCountFromTheLast) {
  const GroupSets sets = Sets("a:0--2;b:-1", 4);
  EXPECT_EQ(*sets.Find("a"), (Groups{0, 1, 2}));
  EXPECT_EQ(*sets.Find("b"), (Groups{3}));
  EXPECT_EQ(sets.ToString(), "a 0-2, b 3");
}

TEST(GroupSetsTest, UnknownSetsAreSaidToBeSo) {
  const auto some = Sets("front:0;batch:1", 2).Find("bulk");
  ASSERT_FALSE(some);
  EXPECT_EQ(some.error().code(), ENOENT);
  EXPECT_NE(some.error().message().find("'bulk'"), std::string::npos);
  EXPECT_NE(some.error().message().find("front, batch"), std::string::npos);
  const auto none = Sets("", 2).Find("bulk");
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message().find("none"), std::string::npos);
}

TEST(GroupSetsTest, RefusesTheRest) {
  for (const char* text : {"front", ":0", " :0", "a:0;", ";a:0", "a:0;;b:1"}) {
    EXPECT_NE(Refusal(text, 4).find("name:groups"), std::string::npos) << text;
  }
  for (const char* text : {"a:", "a:x", "a:0-", "a:2-1", "a:0:1", "a:-5"}) {
    EXPECT_NE(Refusal(text, 4).find("no list of groups"), std::string::npos)
        << text;
  }
  for (const auto& [text, why] :
       {std::pair("a:2-1", "\"2-1\" runs backwards"),
        std::pair("a:-99", "\"-99\" is out of range"),
        std::pair("a:0,x", "\"x\" is neither a number nor a range")}) {
    EXPECT_NE(Refusal(text, 4).find(why), std::string::npos) << text;
  }
  EXPECT_NE(Refusal("a:0;a:1", 4).find("'a:1' names a set twice"),
            std::string::npos);
  EXPECT_NE(Refusal("a:0-1;b:1-2", 4).find("group 1, which is in set 'a'"),
            std::string::npos);
  const std::string beyond = Refusal("a:0-4", 4);
  EXPECT_NE(beyond.find("group 4, but there are 4"), std::string::npos);
  EXPECT_NE(beyond.find("flare_scheduling_group_size"), std::string::npos);
}

// Against a table of which group was put where.
TEST(GroupSetsTest, RandomSets) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const std::size_t groups = 1 + random() % 16;
    std::map<std::string, Groups> wanted;
    std::vector<std::string> name_of(groups);
    for (std::size_t i = 0; i < groups; ++i) {
      const auto set = random() % 4;
      if (set == 0) continue;
      name_of[i] = "set" + std::to_string(set);
      wanted[name_of[i]].push_back(i);
    }
    std::string text;
    for (const auto& [name, members] : wanted) {
      text += (text.empty() ? "" : ";") + name + ":";
      for (std::size_t i = 0; i < members.size(); ++i) {
        text += (i == 0 ? "" : ",") + std::to_string(members[i]);
      }
    }
    const GroupSets sets = Sets(text, groups);
    for (const auto& [name, members] : wanted) {
      EXPECT_EQ(*sets.Find(name), members) << text;
    }
    for (std::size_t a = 0; a < groups; ++a) {
      EXPECT_EQ(sets.NameOf(a), name_of[a]) << text;
      for (std::size_t b = 0; b < groups; ++b) {
        EXPECT_EQ(sets.Together(a, b), name_of[a] == name_of[b]) << text;
      }
    }
  }
}

}  // namespace
}  // namespace flare::fiber
