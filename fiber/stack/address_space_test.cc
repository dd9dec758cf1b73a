#include "flare/fiber/stack/address_space.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstddef>
#include <string>

#include "flare/base/sanitizer.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

TEST(AddressSpaceTest, OnlyALimitCanBeTooLow) {
#if defined(FLARE_ASAN) || defined(FLARE_TSAN)
  GTEST_SKIP() << "their own memory is beyond any limit";
#endif
  constexpr std::size_t kManyThreads = 1'000'000;  // 12 MiB each.
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  if (before.rlim_cur != RLIM_INFINITY) GTEST_SKIP() << "limited already";
  EXPECT_TRUE(CheckAddressSpace(kManyThreads).ok());

  rlimit limit = before;
  limit.rlim_cur = rlim_t{1} << 40;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  rlimit now;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &now), 0);
  if (now.rlim_cur != limit.rlim_cur) GTEST_SKIP() << "an emulator keeps it";
  const Status few = CheckAddressSpace(10);
  const Status many = CheckAddressSpace(kManyThreads);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_TRUE(few.ok()) << few.message();
  EXPECT_EQ(many.code(), ENOMEM);
  EXPECT_NE(many.message().find("MiB of address space for 1000000 threads"),
            std::string::npos)
      << many.message();
  EXPECT_NE(many.message().find("ulimit -v"), std::string::npos);
}

}  // namespace
}  // namespace flare::fiber
