#include "example/rpc/work.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "gtest/gtest.h"

namespace example {
namespace {

using namespace std::literals;

TEST(WorkKind, HasNames) {
  EXPECT_EQ(ParseWorkKind("none"), WorkKind::kNone);
  EXPECT_EQ(ParseWorkKind("sleep_thread"), WorkKind::kSleepThread);
  EXPECT_EQ(ParseWorkKind("sleep_fiber"), WorkKind::kSleepFiber);
  EXPECT_EQ(ParseWorkKind("spin"), WorkKind::kSpin);
  EXPECT_EQ(ParseWorkKind(""), std::nullopt);
  EXPECT_EQ(ParseWorkKind("Spin"), std::nullopt);
}

TEST(RequestedWork, IsCheckedAsItComesFromOthers) {
  EXPECT_EQ(RequestedWork(0, 0)->kind, WorkKind::kNone);
  const auto spin = RequestedWork(3, 10'000'000);
  ASSERT_TRUE(spin);
  EXPECT_EQ(spin->kind, WorkKind::kSpin);
  EXPECT_EQ(spin->length, 10s);
  for (const auto& [kind, length] :
       {std::pair(4, 1u), std::pair(-1, 1u), std::pair(3, 10'000'001u),
        std::pair(1 << 30, 0u), std::pair(3, ~0u)}) {
    EXPECT_FALSE(RequestedWork(kind, length)) << kind << " " << length;
  }
}

TEST(WorkSource, FixedIsAlwaysTheSame) {
  EXPECT_EQ(WorkSource().Draw().kind, WorkKind::kNone);
  const auto source = MakeWorkSource("spin", 50, "fixed");
  ASSERT_TRUE(source);
  for (int i = 0; i != 10; ++i) {
    EXPECT_EQ(source->Draw().kind, WorkKind::kSpin);
    EXPECT_EQ(source->Draw().length, 50us);
  }
}

TEST(WorkSource, PoissonHasItsMeanAndIsBounded) {
  for (int mean : {1, 50, 5000}) {
    const auto source = MakeWorkSource("sleep_thread", mean, "poisson");
    ASSERT_TRUE(source);
    constexpr int kDraws = 10'000;
    std::int64_t sum = 0;
    std::int64_t least = INT64_MAX;
    std::int64_t most = 0;
    for (int i = 0; i != kDraws; ++i) {
      const Work work = source->Draw();
      EXPECT_EQ(work.kind, WorkKind::kSleepThread);
      sum += work.length.count();
      least = std::min<std::int64_t>(least, work.length.count());
      most = std::max<std::int64_t>(most, work.length.count());
    }
    // Ten standard deviations of the average: its variance is mean / draws.
    EXPECT_NEAR(static_cast<double>(sum) / kDraws, mean,
                10 * std::sqrt(static_cast<double>(mean) / kDraws));
    EXPECT_GE(least, 0);
    EXPECT_LE(most, 20 * mean);
    EXPECT_LT(least, most);
  }
  EXPECT_EQ(MakeWorkSource("spin", 0, "poisson")->Draw().length, 0us);
}

TEST(WorkSource, ErrorsNameTheFlag) {
  const auto said = [](const char* kind, int length, const char* distribution) {
    const auto source = MakeWorkSource(kind, length, distribution);
    return source ? "" : source.error().message();
  };
  EXPECT_NE(said("sleep", 1, "fixed").find("--work=sleep"), std::string::npos);
  for (int length : {-1, 10'000'001}) {
    EXPECT_NE(said("spin", length, "fixed").find("--work_us"),
              std::string::npos);
  }
  EXPECT_NE(said("spin", 1, "normal").find("--work_dist=normal"),
            std::string::npos);
  EXPECT_EQ(said("none", 0, "poisson"), "");
}

TEST(DoWorkOnThread, TakesItsTime) {
  for (WorkKind kind :
       {WorkKind::kSleepThread, WorkKind::kSleepFiber, WorkKind::kSpin}) {
    const std::int64_t begin = flare::NowNs();
    DoWorkOnThread({kind, 2ms});
    EXPECT_GE(flare::NowNs() - begin, 2'000'000);
  }
  DoWorkOnThread({WorkKind::kNone, 1h});
}

}  // namespace
}  // namespace example
