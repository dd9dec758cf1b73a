#include "flare/rpc/balance/backend_group.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/random.h"
#include "flare/base/testing/rounds.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

Peer MakePeer(std::size_t number) {
  const std::string name = "10.0.0." + std::to_string(1 + number) + ":5567";
  return {*EndpointFromString(name), name};
}

std::vector<Peer> MakePeers(std::size_t from, std::size_t to) {
  std::vector<Peer> peers;
  for (std::size_t i = from; i != to; ++i) peers.push_back(MakePeer(i));
  return peers;
}

// A group whose time goes as the test says.
class BackendGroupTest : public ::testing::Test {
 protected:
  void SetUp() override { SetVirtualNow(now_); }
  void TearDown() override { EndVirtualNow(); }

  void Pass(std::int64_t ms) {
    now_ += ms * kNsPerMs;
    SetVirtualNow(now_);
  }
  void Call(const Backend& backend, Verdict verdict, std::int64_t ms = 1,
            bool probe = false) {
    backend.state()->Begin();
    group_.End(backend.state(), verdict, ms * kNsPerMs, now_, probe);
  }
  void Calls(int calls, const Backend& backend, Verdict verdict,
             std::int64_t ms = 1) {
    for (int i = 0; i != calls; ++i) Call(backend, verdict, ms);
  }
  Admission Admit(const Backend& backend, std::uint64_t random = 0) {
    return group_.Admit(backend.state(), random);
  }
  static bool Ejected(const Backend& backend) {
    return backend.state()->ejected();
  }
  // Counts those of 1000 calls.
  int Admitted(const Backend& backend) {
    int admitted = 0;
    for (std::uint64_t i = 0; i != 1000; ++i) {
      admitted += Admit(backend, MixBits(i)) == Admission::kAdmitted;
    }
    return admitted;
  }

  std::int64_t now_ = 1'000'000'000'000;
  HealthOptions options_;
  BackendGroup group_{options_};
};

TEST_F(BackendGroupTest, EjectsAfterTimeoutsInARow) {
  const Backends two = group_.Update(MakePeers(0, 2));
  Calls(4, two[0], Verdict::kSilent);
  Call(two[0], Verdict::kAnswered);
  Calls(4, two[0], Verdict::kSilent);
  Call(two[0], Verdict::kNeutral);
  EXPECT_FALSE(Ejected(two[0]));
  Call(two[0], Verdict::kSilent);
  EXPECT_TRUE(Ejected(two[0]));
  EXPECT_EQ(two[0].state()->reason(), EjectionReason::kSilent);
  EXPECT_EQ(Admit(two[0]), Admission::kRefused);
  EXPECT_EQ(Admit(two[1]), Admission::kAdmitted);
  EXPECT_EQ(two[0].in_flight(), 0);
}

TEST_F(BackendGroupTest, EjectsAfterFailuresInARow) {
  const Backends two = group_.Update(MakePeers(0, 2));
  const auto fail = [&](int calls) {
    for (int i = 0; i != calls; ++i) {
      Pass(10);
      Call(two[0], Verdict::kFailed);
    }
  };
  fail(4);
  Call(two[0], Verdict::kAnswered);
  fail(4);
  Call(two[0], Verdict::kRefused);
  EXPECT_FALSE(Ejected(two[0]));
  fail(1);
  EXPECT_TRUE(Ejected(two[0]));
  EXPECT_EQ(two[0].state()->reason(), EjectionReason::kErrors);
}

// As the connection breaks that all of them are on, or as each of them has a
// connection to a server that is killed.
TEST_F(BackendGroupTest, CallsThatFailTogetherCountOnce) {
  const Backends two = group_.Update(MakePeers(0, 2));
  for (int times = 0; times != 5; ++times) {
    EXPECT_FALSE(Ejected(two[0]));
    Pass(100);
    Calls(20, two[0], Verdict::kFailed, 50);
  }
  EXPECT_TRUE(Ejected(two[0]));
}

// Where all servers are overloaded, rows of refusals come by chance, and each
// ejection would leave more work to the others.
TEST_F(BackendGroupTest, RefusalsInARowAreNoReason) {
  const Backends two = group_.Update(MakePeers(0, 2));
  for (int i = 0; i != 100; ++i) {
    Pass(10);
    for (const Backend& backend : two) Call(backend, Verdict::kRefused);
    group_.Review(now_);
  }
  EXPECT_EQ(group_.ejected(), 0);
  // But one that refuses more than the others has little to give.
  for (int i = 0; i != 200; ++i) {
    Pass(10);
    Call(two[0], Verdict::kRefused);
    Call(two[1], Verdict::kAnswered);
    group_.Review(now_);
  }
  EXPECT_TRUE(Ejected(two[0]));
}

// By a fault of their common database, or of the client's own network.
TEST_F(BackendGroupTest, FailuresInARowOfAllAreNoReason) {
  const Backends five = group_.Update(MakePeers(0, 5));
  const auto round = [&](Verdict others) {
    Pass(10);
    for (const Backend& backend : five) {
      Call(backend, &backend == &five[3] ? Verdict::kFailed : others);
    }
    group_.Review(now_);
  };
  for (const Backend& backend : five) Calls(100, backend, Verdict::kAnswered);
  // For longer than a window lasts.
  for (int i = 0; i != 300; ++i) {
    round(i % 20 == 19 ? Verdict::kSilent : Verdict::kFailed);
    EXPECT_EQ(group_.ejected(), 0);
  }
  // The others are well again.
  for (int i = 0; i != 300; ++i) round(Verdict::kAnswered);
  EXPECT_EQ(group_.ejected(), 1);
  EXPECT_TRUE(Ejected(five[3]));
}

// Calls that failed before the current window began still count.
TEST_F(BackendGroupTest, ARowIsComparedWithTheLastWindow) {
  const Backends two = group_.Update(MakePeers(0, 2));
  for (int i = 0; i != 60; ++i) {
    Pass(10);
    for (const Backend& backend : two) Call(backend, Verdict::kFailed);
  }
  group_.Review(now_);
  ASSERT_EQ(two[1].state()->window().calls, 0);
  Pass(10);
  Call(two[0], Verdict::kFailed);
  EXPECT_EQ(group_.ejected(), 0);
}

// Also where shares of errors are no reason.
TEST_F(BackendGroupTest, ARowIsComparedWithWhatIsRecent) {
  options_.error_rate = 0;
  BackendGroup group(options_);
  const Backends two = group.Update(MakePeers(0, 2));
  const auto calls = [&](int count, const Backend& backend, Verdict verdict) {
    for (int i = 0; i != count; ++i) {
      Pass(10);
      backend.state()->Begin();
      group.End(backend.state(), verdict, kNsPerMs, now_, /*probe=*/false);
    }
  };
  calls(100, two[1], Verdict::kRefused);
  calls(1000, two[0], Verdict::kAnswered);
  group.Review(now_);
  for (int i = 0; i != 2; ++i) {
    calls(100, two[1], Verdict::kAnswered);
    group.Review(now_);
  }
  calls(5, two[0], Verdict::kFailed);
  EXPECT_TRUE(Ejected(two[0]));
}

// With the row its failures are forgotten, that of a call that began before one
// of them counts in the next.
TEST_F(BackendGroupTest, ALongCallCountsInANewRow) {
  const Backends two = group_.Update(MakePeers(0, 2));
  const auto fail = [&](std::int64_t ms) {
    Pass(10);
    Call(two[0], Verdict::kFailed, ms);
  };
  fail(1);
  Call(two[0], Verdict::kAnswered);
  fail(1000);
  for (int i = 0; i != 3; ++i) fail(1);
  EXPECT_FALSE(Ejected(two[0]));
  fail(1);
  EXPECT_TRUE(Ejected(two[0]));
}

TEST_F(BackendGroupTest, EjectsNoMoreThanAShare) {
  const Backends five = group_.Update(MakePeers(0, 5));
  for (const Backend& backend : five) Calls(20, backend, Verdict::kSilent);
  EXPECT_EQ(group_.ejected(), 2);
  BackendGroup one(options_);
  const Backends single = one.Update(MakePeers(0, 1));
  for (int i = 0; i != 20; ++i) {
    single[0].state()->Begin();
    one.End(single[0].state(), Verdict::kSilent, 1, now_, false);
  }
  EXPECT_EQ(one.ejected(), 0);
}

TEST_F(BackendGroupTest, OneProbeDecidesAndFailuresDoubleTheTime) {
  const Backends two = group_.Update(MakePeers(0, 2));
  Calls(5, two[0], Verdict::kSilent);
  std::int64_t ms = 1000;
  for (int i = 0; i != 4; ++i, ms *= 2) {
    Pass(ms * 3 / 4 - 1);
    EXPECT_EQ(Admit(two[0]), Admission::kRefused) << ms;
    Pass(ms / 4 + 1);
    EXPECT_EQ(Admit(two[0]), Admission::kProbe) << ms;
    EXPECT_EQ(Admit(two[0]), Admission::kRefused) << ms;
    // A call from before the ejection says nothing new.
    Call(two[0], Verdict::kSilent);
    Call(two[0], Verdict::kSilent, 1, /*probe=*/true);
  }
}

TEST_F(BackendGroupTest, AProbeWithoutAVerdictIsFollowedByAnother) {
  const Backends two = group_.Update(MakePeers(0, 2));
  Calls(5, two[0], Verdict::kSilent);
  Pass(1000);
  ASSERT_EQ(Admit(two[0]), Admission::kProbe);
  Call(two[0], Verdict::kNeutral, 1, /*probe=*/true);
  ASSERT_EQ(Admit(two[0]), Admission::kProbe);
  Pass(2000);  // Its end never comes.
  ASSERT_EQ(Admit(two[0]), Admission::kProbe);
}

TEST_F(BackendGroupTest, RecoveredServersStartSlowly) {
  const Backends two = group_.Update(MakePeers(0, 2));
  Calls(5, two[0], Verdict::kSilent);
  Pass(1000);
  ASSERT_EQ(Admit(two[0]), Admission::kProbe);
  Call(two[0], Verdict::kAnswered, 1, /*probe=*/true);
  EXPECT_FALSE(Ejected(two[0]));
  EXPECT_NEAR(Admitted(two[0]), 100, 50);
  Pass(2500);
  EXPECT_NEAR(Admitted(two[0]), 500, 80);
  Pass(2500);
  EXPECT_EQ(Admitted(two[0]), 1000);
  EXPECT_EQ(two[0].state()->mode(), BackendState::Mode::kWell);
}

TEST_F(BackendGroupTest, AnAnswerToAnOlderCallLeadsToAProbe) {
  const Backends two = group_.Update(MakePeers(0, 2));
  Calls(5, two[0], Verdict::kSilent);
  ASSERT_EQ(Admit(two[0]), Admission::kRefused);
  Call(two[0], Verdict::kAnswered);
  EXPECT_EQ(Admit(two[0]), Admission::kProbe);
}

TEST_F(BackendGroupTest, NewServersBesideOthersStartSlowly) {
  (void)group_.Update(MakePeers(0, 2));
  const Backends three = group_.Update(MakePeers(0, 3));
  EXPECT_EQ(Admitted(three[1]), 1000);
  EXPECT_LT(Admitted(three[2]), 200);
}

TEST_F(BackendGroupTest, KnowsServersAgain) {
  const Backends two = group_.Update(MakePeers(0, 2));
  Calls(5, two[1], Verdict::kSilent);
  const Backends later = group_.Update(MakePeers(1, 4));
  EXPECT_EQ(later[0].state(), two[1].state());
  EXPECT_TRUE(Ejected(later[0]));
  // The one that is gone isn't ejected any more, nor does it count.
  Calls(20, two[0], Verdict::kSilent);
  EXPECT_FALSE(Ejected(two[0]));
}

TEST_F(BackendGroupTest, EjectsByErrorRateAgainstTheOthers) {
  const Backends five = group_.Update(MakePeers(0, 5));
  for (const Backend& backend : five) Calls(90, backend, Verdict::kAnswered);
  Calls(10, five[3], Verdict::kFailed);
  EXPECT_TRUE(group_.ReviewIsDue(now_));
  EXPECT_FALSE(group_.ReviewIsDue(now_));
  group_.Review(now_);
  EXPECT_EQ(group_.ejected(), 1);
  EXPECT_TRUE(Ejected(five[3]));
  EXPECT_EQ(five[3].state()->reason(), EjectionReason::kErrors);
}

TEST_F(BackendGroupTest, EjectsNobodyWhereAllFail) {
  const Backends five = group_.Update(MakePeers(0, 5));
  for (const Backend& backend : five) {
    Calls(50, backend, Verdict::kAnswered);
    Calls(20, backend, Verdict::kFailed);
  }
  group_.Review(now_);
  EXPECT_EQ(group_.ejected(), 0);
}

TEST_F(BackendGroupTest, EjectsNobodyForFewCalls) {
  const Backends five = group_.Update(MakePeers(0, 5));
  for (const Backend& backend : five) Calls(30, backend, Verdict::kAnswered);
  Calls(10, five[3], Verdict::kFailed);
  group_.Review(now_);
  EXPECT_EQ(group_.ejected(), 0);
  // They count when there are enough.
  Pass(1000);
  for (const Backend& backend : five) Calls(20, backend, Verdict::kAnswered);
  group_.Review(now_);
  EXPECT_TRUE(Ejected(five[3]));
}

TEST_F(BackendGroupTest, ForgetsTheFailuresOfBeforeAnEjection) {
  const Backends five = group_.Update(MakePeers(0, 5));
  Calls(5, five[0], Verdict::kSilent);
  Call(five[0], Verdict::kSilent);  // Under way at the ejection.
  Pass(1000);
  ASSERT_EQ(Admit(five[0]), Admission::kProbe);
  Call(five[0], Verdict::kAnswered, 1, /*probe=*/true);
  Pass(1000);
  Calls(10, five[0], Verdict::kAnswered);
  for (std::size_t i = 1; i != 5; ++i) Calls(50, five[i], Verdict::kAnswered);
  group_.Review(now_);
  EXPECT_FALSE(Ejected(five[0]));
  Pass(1000);
  Calls(5, five[0], Verdict::kFailed);  // Those of after it count.
  for (std::size_t i = 1; i != 5; ++i) Calls(50, five[i], Verdict::kAnswered);
  group_.Review(now_);
  EXPECT_TRUE(Ejected(five[0]));
}

// The usual latency must be known before.
TEST_F(BackendGroupTest, EjectsByLatencyAgainstTheOthers) {
  const Backends five = group_.Update(MakePeers(0, 5));
  const auto calls = [&](std::size_t slow, std::int64_t ms) {
    for (std::size_t i = 0; i != 5; ++i) {
      if (!Ejected(five[i])) {
        Calls(20, five[i], Verdict::kAnswered, i == slow ? ms : 1);
      }
    }
    Pass(100);
    group_.Review(now_);
  };
  calls(2, 1);
  // A little slower is no reason.
  calls(2, 9);
  EXPECT_EQ(group_.ejected(), 0);
  calls(2, 50);
  EXPECT_EQ(group_.ejected(), 1);
  EXPECT_EQ(five[2].state()->reason(), EjectionReason::kSlow);
  calls(0, 9);
  EXPECT_EQ(group_.ejected(), 1);
}

TEST_F(BackendGroupTest, EjectsNobodyWhereAllBecomeSlow) {
  const Backends five = group_.Update(MakePeers(0, 5));
  for (const std::int64_t ms : {1, 1, 100, 100, 1000}) {
    for (const Backend& backend : five) {
      Calls(20, backend, Verdict::kAnswered, ms);
    }
    Pass(100);
    group_.Review(now_);
  }
  EXPECT_EQ(group_.ejected(), 0);
}

TEST_F(BackendGroupTest, CallsThatDoNotEndAreSlow) {
  const Backends two = group_.Update(MakePeers(0, 2));
  const auto review = [&] {
    Calls(20, two[0], Verdict::kAnswered);
    Pass(100);
    group_.Review(now_);
  };
  for (int i = 0; i != 30; ++i) two[1].state()->BeginStream();
  Calls(20, two[1], Verdict::kAnswered);
  review();
  review();
  EXPECT_EQ(group_.ejected(), 0);  // Streams may take long.
  for (int i = 0; i != 20; ++i) two[1].state()->Begin();
  review();  // They may be new.
  EXPECT_EQ(group_.ejected(), 0);
  review();
  EXPECT_TRUE(Ejected(two[1]));
  EXPECT_EQ(two[1].state()->reason(), EjectionReason::kSlow);
}

// Also if it was noticed while it was under way.
TEST_F(BackendGroupTest, ASlowCallCountsOnce) {
  const Backends two = group_.Update(MakePeers(0, 2));
  const auto review = [&](std::int64_t ms) {
    Pass(ms);
    group_.Review(now_);
  };
  for (const Backend& backend : two) Calls(20, backend, Verdict::kAnswered);
  review(100);
  for (int i = 0; i != 10; ++i) two[1].state()->Begin();
  review(100);
  review(100);
  ASSERT_EQ(two[1].state()->pace.calls(), 10);
  const auto end = [&](int calls) {
    for (int i = 0; i != calls; ++i) {
      group_.End(two[1].state(), Verdict::kAnswered, 200 * kNsPerMs, now_,
                 /*probe=*/false);
    }
  };
  end(10);
  Calls(19, two[1], Verdict::kAnswered);  // Ten of 29 are slow.
  review(1);
  EXPECT_EQ(group_.ejected(), 0);
  // Those that nobody noticed before count at their end.
  for (int i = 0; i != 20; ++i) two[1].state()->Begin();
  end(20);
  review(1);
  EXPECT_EQ(group_.ejected(), 1);
}

TEST_F(BackendGroupTest, NoCallIsSlowByAHugeFactor) {
  options_.latency_factor = 1e13;
  BackendGroup group(options_);
  const Backends two = group.Update(MakePeers(0, 2));
  for (const std::int64_t ms : {1, 1, 1000}) {
    for (int i = 0; i != 40; ++i) {
      two[i % 2].state()->Begin();
      group.End(two[i % 2].state(), Verdict::kAnswered,
                (i % 2 == 0 ? 1 : ms) * kNsPerMs, now_, /*probe=*/false);
    }
    Pass(100);
    group.Review(now_);
  }
  EXPECT_EQ(group.ejected(), 0);
}

TEST_F(BackendGroupTest, ASlowAnswerDoesNotBringASlowServerBack) {
  const Backends two = group_.Update(MakePeers(0, 2));
  for (const std::int64_t ms : {1, 100}) {
    Calls(20, two[0], Verdict::kAnswered);
    Calls(20, two[1], Verdict::kAnswered, ms);
    group_.Review(now_);
  }
  ASSERT_TRUE(Ejected(two[1]));
  Pass(1000);
  ASSERT_EQ(Admit(two[1]), Admission::kProbe);
  Call(two[1], Verdict::kAnswered, 100, /*probe=*/true);
  EXPECT_TRUE(Ejected(two[1]));
  Pass(1000);
  EXPECT_EQ(Admit(two[1]), Admission::kRefused);
  Pass(1000);
  ASSERT_EQ(Admit(two[1]), Admission::kProbe);
  Call(two[1], Verdict::kAnswered, 1, /*probe=*/true);
  EXPECT_FALSE(Ejected(two[1]));
}

TEST_F(BackendGroupTest, IgnoresEjectionsInPanic) {
  const Backends five = group_.Update(MakePeers(0, 5));
  Calls(5, five[0], Verdict::kSilent);
  ASSERT_EQ(Admit(five[0]), Admission::kRefused);
  group_.NoteUsable(1, 5);
  EXPECT_TRUE(group_.panic());
  EXPECT_EQ(Admit(five[0]), Admission::kAdmitted);
  group_.NoteUsable(2, 5);
  EXPECT_FALSE(group_.panic());
  EXPECT_EQ(Admit(five[0]), Admission::kRefused);
}

TEST_F(BackendGroupTest, DoesNothingWhereItIsOff) {
  options_.enabled = false;
  BackendGroup group(options_);
  const Backends two = group.Update(MakePeers(0, 2));
  for (int i = 0; i != 100; ++i) {
    two[0].state()->Begin();
    group.End(two[0].state(), Verdict::kSilent, 1, now_, false);
  }
  group.Review(now_);
  EXPECT_EQ(group.ejected(), 0);
  EXPECT_EQ(group.Admit(two[0].state(), 0), Admission::kAdmitted);
}

TEST_F(BackendGroupTest, FailedChecksKeepCallsAwayForAsLongAsTheyFail) {
  const Backends four = group_.Update(MakePeers(0, 4));
  group_.NoteChecks(four[0].state(), true);
  EXPECT_EQ(Admit(four[0]), Admission::kAdmitted);
  // No share of the servers limits it.
  for (int i = 0; i != 3; ++i) group_.NoteChecks(four[i].state(), false);
  Pass(3600'000);
  for (int i = 0; i != 3; ++i) {
    EXPECT_EQ(Admit(four[i]), Admission::kRefused);
    EXPECT_TRUE(four[i].state()->fails_checks());
  }
  // It isn't for calls to say that it is well.
  Call(four[0], Verdict::kAnswered);
  EXPECT_EQ(Admit(four[0]), Admission::kRefused);
  group_.NoteUsable(1, 4);
  EXPECT_EQ(Admit(four[0]), Admission::kAdmitted);
  group_.NoteUsable(4, 4);
  // It comes back slowly.
  group_.NoteChecks(four[0].state(), true);
  EXPECT_NEAR(Admitted(four[0]), 100, 50);
  Pass(5000);
  EXPECT_EQ(Admitted(four[0]), 1000);
}

TEST_F(BackendGroupTest, ChecksGoBeforeEjections) {
  const Backends two = group_.Update(MakePeers(0, 2));
  Calls(5, two[0], Verdict::kSilent);
  EXPECT_TRUE(Ejected(two[0]));
  // Good checks don't say that calls are answered.
  group_.NoteChecks(two[0].state(), true);
  EXPECT_TRUE(Ejected(two[0]));
  group_.NoteChecks(two[0].state(), false);
  Pass(2000);
  EXPECT_EQ(Admit(two[0]), Admission::kRefused);
  Call(two[0], Verdict::kAnswered, 1, /*probe=*/true);  // A probe of before.
  EXPECT_TRUE(two[0].state()->fails_checks());
  group_.NoteChecks(two[0].state(), true);
  EXPECT_FALSE(Ejected(two[0]));
}

// Five servers that get calls at random, in a time of their own.
class LoadedGroupTest : public BackendGroupTest {
 protected:
  static constexpr std::size_t kServers = 5;
  using Latency = std::function<double(std::mt19937_64&)>;  // In ms.

  void SetUp() override {
    BackendGroupTest::SetUp();
    servers_ = group_.Update(MakePeers(0, kServers));
  }

  // So many calls per second to each server, for a while.
  void Run(double per_second, std::int64_t seconds, const Latency& latency) {
    std::exponential_distribution<double> gap(per_second * kServers / 1e9);
    const std::int64_t end_ns = now_ + seconds * kNsPerSecond;
    while (now_ < end_ns) {
      const std::int64_t next_ns =
          now_ + static_cast<std::int64_t>(gap(random_)) + 1;
      EndCallsUntil(next_ns);
      MoveTo(next_ns);
      Begin(random_() % kServers, latency(random_));
    }
  }

  std::uint64_t Ejections() const {
    std::uint64_t ejections = 0;
    for (const Backend& server : servers_) {
      ejections += server.state()->ejections();
    }
    return ejections;
  }

  // For so long, so often, the client stands still, and sees no calls end.
  std::int64_t pause_every_ns_ = 0;
  std::int64_t pause_ns_ = 0;
  double times_slower_ = 1;  // The first server's.
  std::uint64_t calls_of_first_ = 0;

 private:
  struct UnderWay {
    std::int64_t ends_ns;
    std::int64_t began_ns;
    std::size_t server;
    bool probe;
    bool operator>(const UnderWay& other) const {
      return ends_ns > other.ends_ns;
    }
  };

  void MoveTo(std::int64_t ns) {
    now_ = ns;
    SetVirtualNow(ns);
  }

  void Begin(std::size_t server, double ms) {
    Admission admission = Admission::kRefused;
    for (; admission == Admission::kRefused; server = (server + 1) % kServers) {
      admission = Admit(servers_[server], random_());
      if (admission != Admission::kRefused) break;
    }
    servers_[server].state()->Begin();
    calls_of_first_ += server == 0;
    std::int64_t ends_ns =
        now_ + static_cast<std::int64_t>((server == 0 ? times_slower_ : 1) *
                                         ms * kNsPerMs);
    if (pause_ns_ != 0) {
      const std::int64_t in_pause = ends_ns % pause_every_ns_;
      if (in_pause < pause_ns_) ends_ns += pause_ns_ - in_pause;
    }
    under_way_.push({ends_ns, now_, server, admission == Admission::kProbe});
  }

  void EndCallsUntil(std::int64_t ns) {
    while (!under_way_.empty() && under_way_.top().ends_ns <= ns) {
      const UnderWay call = under_way_.top();
      under_way_.pop();
      MoveTo(call.ends_ns);
      group_.End(servers_[call.server].state(), Verdict::kAnswered,
                 now_ - call.began_ns, now_, call.probe);
      if (group_.ReviewIsDue(now_)) group_.Review(now_);
    }
  }

  Backends servers_;
  std::mt19937_64 random_{1};
  std::priority_queue<UnderWay, std::vector<UnderWay>, std::greater<>>
      under_way_;
};

// In the mean 2 ms, or a little more.
double Exponential(std::mt19937_64& random) {
  return std::exponential_distribution<double>(0.5)(random);
}
double HeavyTailed(std::mt19937_64& random) {
  return std::lognormal_distribution<double>(0, 1.5)(random);
}
double FewAreLong(std::mt19937_64& random) {
  return random() % 100 < 3 ? 200 : 1 + Exponential(random) / 10;
}

TEST_F(LoadedGroupTest, EqualServersAreNotEjected) {
  for (const bool pauses : {false, true}) {
    pause_every_ns_ = 1700 * kNsPerMs;
    pause_ns_ = pauses ? 250 * kNsPerMs : 0;
    for (const auto& latency : {Exponential, HeavyTailed, FewAreLong}) {
      Run(5, flare::testing::Rounds(1800), latency);
      Run(60, flare::testing::Rounds(600), latency);
      Run(1000, flare::testing::Rounds(20), latency);
      EXPECT_EQ(Ejections(), 0) << pauses;
    }
  }
}

// Nor are those that a calm minute has made used to short times.
TEST_F(LoadedGroupTest, EqualServersAreNotEjectedWhenAllBecomeSlow) {
  for (int i = 0; i != 10; ++i) {
    for (const double per_second : {10, 60, 300}) {
      Run(per_second, 10, Exponential);
      Run(per_second, 10,
          [](std::mt19937_64& random) { return 50 * Exponential(random); });
    }
  }
  EXPECT_EQ(Ejections(), 0);
}

TEST_F(LoadedGroupTest, ASlowServerHasFewCallsAfterASecond) {
  constexpr std::uint64_t kTimes = 20;
  std::uint64_t calls = 0;
  for (std::uint64_t i = 0; i != kTimes; ++i) {
    Run(60, 60, HeavyTailed);
    times_slower_ = 50;
    Run(60, 1, HeavyTailed);
    calls_of_first_ = 0;
    Run(60, 10, HeavyTailed);
    calls += calls_of_first_;
    times_slower_ = 1;
    Run(60, 60, HeavyTailed);
  }
  // At most 30 of 600 each time: some probes, and some calls after each quick
  // one.
  EXPECT_LE(calls, 30 * kTimes);
}

}  // namespace
}  // namespace flare::rpc
