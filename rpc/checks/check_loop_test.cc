#include "flare/rpc/checks/check_loop.h"

#include <cerrno>
#include <chrono>
#include <string>
#include <vector>

#include "flare/rpc/checks/check_text.h"
#include "flare/rpc/checks/probe.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::literals;

constexpr bool kGood = true;
constexpr bool kBad = false;

bool Note(CheckVerdict* verdict, bool good) {
  const HealthCheckOptions options{.rise = 2, .fall = 3};
  return verdict->Note(good ? flare::Status() : flare::Status(ECONNREFUSED),
                       options);
}

TEST(CheckVerdictTest, TheFirstCheckDecidesAlone) {
  CheckVerdict verdict;
  EXPECT_FALSE(verdict.decided());
  EXPECT_TRUE(Note(&verdict, kBad));
  EXPECT_TRUE(verdict.decided());
  EXPECT_FALSE(verdict.healthy());
  CheckVerdict other;
  EXPECT_TRUE(Note(&other, kGood));
  EXPECT_TRUE(other.healthy());
}

TEST(CheckVerdictTest, RowsOfRiseAndFall) {
  CheckVerdict verdict;
  EXPECT_TRUE(Note(&verdict, kGood));
  EXPECT_FALSE(Note(&verdict, kBad));
  EXPECT_FALSE(Note(&verdict, kBad));
  EXPECT_FALSE(Note(&verdict, kGood));  // Breaks the row.
  EXPECT_FALSE(Note(&verdict, kBad));
  EXPECT_FALSE(Note(&verdict, kBad));
  EXPECT_TRUE(verdict.healthy());
  EXPECT_TRUE(Note(&verdict, kBad));
  EXPECT_FALSE(verdict.healthy());
  EXPECT_FALSE(Note(&verdict, kGood));
  EXPECT_FALSE(Note(&verdict, kBad));
  EXPECT_FALSE(Note(&verdict, kGood));
  EXPECT_TRUE(Note(&verdict, kGood));
  EXPECT_TRUE(verdict.healthy());
}

TEST(CheckVerdictTest, OurOwnShortageCountsForNothing) {
  // [::1] where IPv6 is switched off is EADDRNOTAVAIL.
  for (const int code :
       {ECONNREFUSED, ETIMEDOUT, ENETUNREACH, EADDRNOTAVAIL, EAGAIN, ENOENT}) {
    EXPECT_FALSE(IsShortage(code)) << code;
  }
  for (const int code : {EMFILE, ENFILE, ENOBUFS, ENOMEM, ENOSPC}) {
    EXPECT_TRUE(IsShortage(code)) << code;
    CheckVerdict verdict;
    const HealthCheckOptions options{.fall = 1};
    EXPECT_FALSE(verdict.Note(flare::Status(code), options));
    EXPECT_FALSE(verdict.decided());
    EXPECT_TRUE(verdict.Note(flare::Status(), options));
    EXPECT_FALSE(verdict.Note(flare::Status(code), options));
    EXPECT_TRUE(verdict.healthy());
  }
}

// Other processes, and these after a reload, don't check at the same moments.
TEST(CheckPausesTest, NoTwoKeepInStep) {
  const HealthCheckOptions options{.interval = 5s, .jitter_percent = 20};
  CheckPauses pauses(options);
  CheckPauses others(options);
  std::vector<std::chrono::nanoseconds> drawn[2];
  for (int i = 0; i != 10; ++i) {
    drawn[0].push_back(pauses.Next());
    drawn[1].push_back(others.Next());
  }
  EXPECT_NE(drawn[0], drawn[1]);
  for (const auto& row : drawn) {
    for (const std::chrono::nanoseconds pause : row) {
      EXPECT_GE(pause, 4s);
      EXPECT_LE(pause, 6s);
    }
  }
}

TEST(CheckPausesTest, AreEqualWithoutJitter) {
  CheckPauses pauses({.interval = 5s, .jitter_percent = 0});
  for (int i = 0; i != 10; ++i) EXPECT_EQ(pauses.Next(), 5s);
}

TEST(CheckTextTest, ReadsWhatUsersWrite) {
  struct Case {
    const char* text;
    HealthCheckKind kind;
    const char* target;
  };
  for (const Case& c :
       {Case{"", HealthCheckKind::kNone, ""},
        {"none", HealthCheckKind::kNone, ""},
        {"connect", HealthCheckKind::kConnect, ""},
        {"http:/health?x=1", HealthCheckKind::kHttp, "/health?x=1"},
        {"grpc", HealthCheckKind::kGrpc, ""},
        {"grpc:shop.Orders", HealthCheckKind::kGrpc, "shop.Orders"},
        {"call:shop.Orders.Ping", HealthCheckKind::kCall,
         "shop.Orders.Ping"}}) {
    const auto options = ParseHealthCheck(c.text);
    ASSERT_TRUE(options) << c.text;
    EXPECT_EQ(options->kind, c.kind) << c.text;
    EXPECT_EQ(options->target, c.target) << c.text;
    EXPECT_TRUE(ValidateHealthCheck(*options).ok()) << c.text;
  }
}

TEST(CheckTextTest, SaysWhatIsWrong) {
  struct Case {
    const char* text;
    const char* why;
  };
  for (const Case& c : {Case{"tcp", "there are none, connect, http:/path"},
                        {"connect:1", "a check that only connects has none"},
                        {"http", "'' is no path"},
                        {"http:health", "'health' is no path"},
                        {"http:/a b", "'/a b' is no path"},
                        {"grpc:a b", "'a b' is no service's name"},
                        {"call:Ping", "'Ping' is no method"}}) {
    const auto options = ParseHealthCheck(c.text);
    ASSERT_FALSE(options) << c.text;
    EXPECT_EQ(options.error().code(), EINVAL);
    EXPECT_NE(options.error().message().find(c.why), std::string::npos)
        << options.error().message();
  }
  for (const HealthCheckOptions& bad :
       {HealthCheckOptions{.interval = 0s}, HealthCheckOptions{.timeout = 0s},
        HealthCheckOptions{.jitter_percent = 91}, HealthCheckOptions{.rise = 0},
        HealthCheckOptions{.fall = 0}}) {
    EXPECT_EQ(ValidateHealthCheck(bad).code(), EINVAL);
  }
}

}  // namespace
}  // namespace flare::rpc
