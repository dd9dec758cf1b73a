#include "flare/base/backoff.h"

#include "gtest/gtest.h"

namespace flare {
namespace {

// How many occasions pass before the next try.
int Pass(Backoff* backoff) {
  int passed = 0;
  while (!backoff->ShouldTry()) ++passed;
  return passed;
}

TEST(BackoffTest, TriesEachTimeWhileNothingFails) {
  Backoff backoff;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(Pass(&backoff), 0);
    backoff.Succeeded();
  }
}

TEST(BackoffTest, WaitsEverLongerWhileAllFail) {
  Backoff backoff;
  for (const int expected : {0, 1, 5, 21, 85, 341, 1023, 1023}) {
    EXPECT_EQ(Pass(&backoff), expected);
    backoff.Failed();
  }
}

TEST(BackoffTest, SuccessesHalveWhatTheNextFailureCosts) {
  Backoff backoff;
  for (int i = 0; i < 3; ++i) backoff.Failed();
  EXPECT_EQ(Pass(&backoff), 21);
  backoff.Succeeded();  // 10
  EXPECT_EQ(Pass(&backoff), 0);
  backoff.Succeeded();  // 5
  backoff.Failed();
  EXPECT_EQ(Pass(&backoff), 21);
  for (int i = 0; i < 5; ++i) backoff.Succeeded();
  backoff.Failed();
  EXPECT_EQ(Pass(&backoff), 1);
}

TEST(BackoffTest, MayBeginWithAWait) {
  Backoff backoff(16);
  EXPECT_EQ(Pass(&backoff), 16);
  EXPECT_EQ(Pass(&backoff), 0);
  backoff.Failed();
  EXPECT_EQ(Pass(&backoff), 1);
}

}  // namespace
}  // namespace flare
