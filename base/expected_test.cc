#include "flare/base/expected.h"

#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace flare {
namespace {

Expected<int> Half(int n) {
  if (n % 2 != 0) return Status(22, "odd number");
  return n / 2;
}

TEST(Expected, HoldsAValueOrAnError) {
  const Expected<int> half = Half(8);
  ASSERT_TRUE(half);
  EXPECT_TRUE(half.has_value());
  EXPECT_EQ(*half, 4);
  EXPECT_EQ(half.value(), 4);

  const Expected<int> none = Half(7);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error(), Status(22, "odd number"));
}

TEST(Expected, DefaultIsADefaultValue) {
  const Expected<std::string> text;
  ASSERT_TRUE(text);
  EXPECT_EQ(*text, "");
  struct NoDefault {
    explicit NoDefault(int) {}
  };
  static_assert(!std::is_default_constructible_v<Expected<NoDefault>>);
}

TEST(Expected, ConvertsWhatConvertsToTheValue) {
  const Expected<std::string> text = "abc";
  EXPECT_EQ(text->size(), 3u);
  const Expected<long> number = 7;
  EXPECT_EQ(*number, 7);
  static_assert(!std::is_convertible_v<std::string, Expected<int>>);
}

TEST(Expected, UnexpectedTellsErrorsFromValuesOfTheSameType) {
  const Expected<std::string, std::string> value = std::string("fine");
  const Expected<std::string, std::string> error = Unexpected("bad");
  ASSERT_TRUE(value);
  ASSERT_FALSE(error);
  EXPECT_EQ(error.error(), "bad");
  const Expected<int, int> number = Unexpected(3);
  EXPECT_EQ(number.error(), 3);
}

TEST(Expected, TakesMoveOnlyValuesAndErrors) {
  Expected<std::unique_ptr<int>> made = std::make_unique<int>(5);
  ASSERT_TRUE(made);
  std::unique_ptr<int> taken = *std::move(made);
  EXPECT_EQ(*taken, 5);

  Expected<std::unique_ptr<int>> again = std::move(taken);
  Expected<std::unique_ptr<int>> moved = std::move(again);
  EXPECT_EQ(*std::move(moved).value(), 5);

  Expected<int, std::unique_ptr<int>> error = std::make_unique<int>(6);
  ASSERT_FALSE(error);
  const std::unique_ptr<int> why = std::move(error).error();
  EXPECT_EQ(*why, 6);
}

TEST(Expected, ValuesCanBeChangedInPlace) {
  Expected<std::string> text = std::string("a");
  *text += "b";
  text->append("c");
  text.value() += "d";
  EXPECT_EQ(*text, "abcd");
  text = Status(1, "gone");
  ASSERT_FALSE(text);
  text.error() = Status(2, "really");
  EXPECT_EQ(text.error().code(), 2);
  text = std::string("back");
  EXPECT_EQ(text.value(), "back");
}

TEST(Expected, CopiesAreIndependent) {
  Expected<std::string> one = std::string("one");
  Expected<std::string> two = one;
  *two = "two";
  EXPECT_EQ(*one, "one");
  one = two;
  EXPECT_EQ(*one, "two");
}

TEST(Expected, ValueOr) {
  EXPECT_EQ(Half(8).value_or(-1), 4);
  EXPECT_EQ(Half(7).value_or(-1), -1);
  const Expected<int> none = Half(1);
  EXPECT_EQ(none.value_or(9), 9);
  Expected<std::unique_ptr<int>> made = std::make_unique<int>(1);
  EXPECT_EQ(*std::move(made).value_or(nullptr), 1);
}

TEST(ExpectedDeathTest, ReadingWhatIsNotThereEndsTheProcess) {
  Expected<int> none = Half(7);
  EXPECT_DEATH(none.value(), "holds an error: \\[22\\] odd number");
  EXPECT_DEATH(*none = 1, "holds an error: \\[22\\] odd number");
  const Expected<std::string> no_string = Status(1, "none");
  EXPECT_DEATH(static_cast<void>(no_string->size()), "holds an error");
  Expected<int> half = Half(8);
  EXPECT_DEATH(half.error(), "holds a value");
  const Expected<int, int> no_text = Unexpected(1);
  EXPECT_DEATH(no_text.value(), "holds an error");
}

}  // namespace
}  // namespace flare
