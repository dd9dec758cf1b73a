// The check that shipped programs are linked with, beside protobuf's own check,
// which this program calls by the name that the linker would give it.

#include <google/protobuf/stubs/common.h>

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace {

int originals = 0;       // calls of it
int original_bytes = 0;  // of the last one

}  // namespace

bool CheckOfProtobuf(const char* text, int size) asm(
    "__real__ZN6google8protobuf8internal23IsStructurallyValidUTF8EPKci");
bool CheckInstead(const char* text, int size) asm(
    "__wrap__ZN6google8protobuf8internal23IsStructurallyValidUTF8EPKci");

bool CheckOfProtobuf(const char* text, int size) {
  ++originals;
  original_bytes = size;
  return google::protobuf::internal::IsStructurallyValidUTF8(text, size);
}

namespace flare {
namespace {

bool IsValid(const std::string& text) {
  return CheckInstead(text.data(), static_cast<int>(text.size()));
}

TEST(ProtobufUtf8, AsciiIsPassedOver) {
  originals = 0;
  for (int size = 0; size != 300; ++size) {
    EXPECT_TRUE(IsValid(std::string(static_cast<std::size_t>(size), 'a')));
  }
  EXPECT_EQ(originals, 0);
  std::string text(1000, 'a');
  text += "\xc3\xa4";
  EXPECT_TRUE(IsValid(text));
  EXPECT_EQ(originals, 1);
  EXPECT_EQ(original_bytes, 2);
}

TEST(ProtobufUtf8, SaysWhatTheOriginalSays) {
  const std::vector<std::string> pieces = {std::string(70, 'a'),
                                           "b",
                                           std::string(1, '\0'),
                                           "\xc3\xa4",
                                           "\xe2\x82\xac",
                                           "\xf0\x9f\x98\x80",  // UTF-8
                                           "\x80",
                                           "\xff",
                                           "\xc0\xaf",
                                           "\xed\xa0\x80",
                                           "\xf4\x90\x80\x80",
                                           "\xe2\x82"};  // none
  std::mt19937 random(1);
  int valid = 0;
  constexpr int kTurns = 20'000;
  for (int i = 0; i != kTurns; ++i) {
    std::string text;
    // Few of those that are none.
    const std::size_t kinds = random() % 3 == 0 ? pieces.size() : 6;
    for (std::size_t left = random() % 8; left != 0; --left) {
      text += pieces[random() % kinds];
    }
    const bool expected = google::protobuf::internal::IsStructurallyValidUTF8(
        text.data(), static_cast<int>(text.size()));
    ASSERT_EQ(IsValid(text), expected) << text;
    valid += expected;
  }
  EXPECT_GT(valid, kTurns / 2);
  EXPECT_LT(valid, kTurns);
}

}  // namespace
}  // namespace flare
