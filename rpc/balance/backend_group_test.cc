#include "flare/rpc/balance/backend_group.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/random.h"
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
  // Of 1000 calls.
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
}

TEST_F(BackendGroupTest, EjectsByLatencyAgainstTheOthers) {
  const Backends five = group_.Update(MakePeers(0, 5));
  for (std::size_t i = 0; i != 5; ++i) {
    Calls(50, five[i], Verdict::kAnswered, i == 2 ? 50 : 1);
  }
  group_.Review(now_);
  EXPECT_EQ(group_.ejected(), 1);
  EXPECT_EQ(five[2].state()->reason(), EjectionReason::kSlow);
  // A little slower is no reason.
  for (std::size_t i = 0; i != 5; ++i) {
    if (i != 2) Calls(50, five[i], Verdict::kAnswered, i == 0 ? 9 : 1);
  }
  group_.Review(now_);
  EXPECT_EQ(group_.ejected(), 1);
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
  Call(two[0], Verdict::kAnswered, 1, /*probe=*/true);  // Of before.
  EXPECT_TRUE(two[0].state()->fails_checks());
  group_.NoteChecks(two[0].state(), true);
  EXPECT_FALSE(Ejected(two[0]));
}

}  // namespace
}  // namespace flare::rpc
