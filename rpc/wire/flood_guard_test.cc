#include "flare/rpc/wire/flood_guard.h"

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

TEST(FloodGuard, AdmitsSoManyWithinASecond) {
  FloodGuard guard(100);
  for (std::int64_t second = 5; second != 8; ++second) {
    for (int i = 0; i != 100; ++i) {
      ASSERT_TRUE(guard.Admit(second * kSecond + i)) << i;
    }
    EXPECT_FALSE(guard.Admit(second * kSecond + 999'999'999));
    EXPECT_FALSE(guard.Admit(second * kSecond + 999'999'999));
  }
}

TEST(FloodGuard, AdmitsAnyNumberInTheLongRun) {
  FloodGuard guard(100);
  for (std::int64_t i = 0; i != 1000; ++i) {
    ASSERT_TRUE(guard.Admit(i * kSecond / 100));
  }
}

}  // namespace
}  // namespace flare::rpc
