#include "flare/rpc/balance/backend_group.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/random.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

// An error rate counts if it is so many times that of the others, and is of
// more than a few calls.
constexpr double kTimesOthers = 3;
constexpr std::uint64_t kFewFailures = 3;

// A server that is slowly coming back has few calls, which must suffice.
constexpr std::size_t kMinCallsRecovering = 5;

// Latencies are compared so many times in each interval.
constexpr std::int64_t kReviewsPerInterval = 10;
// A server is slow if this share of its calls is, while less than the other
// share of the others' calls is. Most services have a few calls that take much
// longer than the rest. So the number of slow calls tells servers apart that
// the mean of as many latencies wouldn't.
constexpr double kMostAreSlow = 0.5;
constexpr double kFewAreSlow = 0.1;

double FailureRate(const BackendState::Window& window) {
  return static_cast<double>(window.failures) /
         static_cast<double>(std::max<std::uint64_t>(1, window.calls));
}

// Where nothing is known of the others, any rate is more.
bool FailsMore(const BackendState::Window& own,
               const BackendState::Window& others) {
  return FailureRate(own) >= kTimesOthers * FailureRate(others);
}

// The lower one of two in the middle: with two servers, of which one is slow,
// it is the other one.
template <class T>
T LowerMedian(std::vector<T> values) {
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

BackendGroup::BackendGroup(const HealthOptions& options)
    : options_(options),
      slow_start_ns_(options.enabled ? options.slow_start.count() : 0) {}

Backends BackendGroup::Update(std::vector<Peer> peers) {
  const std::int64_t now = NowNs();
  Backends backends;
  std::vector<Member> members;
  ScopedLock guard(mutex_);
  const auto known = [&](const Peer& peer) FLARE_NO_THREAD_SAFETY_ANALYSIS {
    const auto it =
        std::find_if(members_.begin(), members_.end(),
                     [&](const Member& m) { return m.peer == peer; });
    return it != members_.end() ? it->state : nullptr;
  };
  const bool any_known =
      std::any_of(peers.begin(), peers.end(),
                  [&](const Peer& peer) { return known(peer) != nullptr; });
  for (Peer& peer : peers) {
    State state = known(peer);
    if (state == nullptr) {
      state = std::make_shared<BackendState>();
      // Beside servers that have their share it begins with a small one.
      if (any_known && slow_start_ns_ > 0) state->Recover(now);
    }
    members.push_back({peer, state});
    backends.emplace_back(std::move(peer), std::move(state));
  }
  members_ = std::move(members);
  return backends;
}

void BackendGroup::End(BackendState* state, Verdict verdict,
                       std::int64_t latency_ns, std::int64_t now_ns,
                       bool probe) {
  // relaxed, here and below: a number to compare with.
  const bool slow = latency_ns >= slow_ns_.load(std::memory_order_relaxed);
  if (slow && verdict != Verdict::kNeutral) [[unlikely]]
    state->CountSlow();
  const std::size_t failed = state->End(verdict, latency_ns, now_ns);
  Heed(state, verdict, failed, slow, now_ns, probe);
}

void BackendGroup::AnswerStream(BackendState* state, std::int64_t now_ns,
                                bool probe) {
  state->CountStream(Verdict::kAnswered, 0, now_ns);
  Heed(state, Verdict::kAnswered, 0, /*slow=*/false, now_ns, probe);
}

void BackendGroup::EndStream(BackendState* state, Verdict verdict,
                             std::int64_t took_ns, std::int64_t now_ns,
                             bool probe) {
  state->EndStream();
  const std::size_t failed = state->CountStream(verdict, took_ns, now_ns);
  Heed(state, verdict, failed, /*slow=*/false, now_ns, probe);
}

// The verdict's consequences. `failed`: as many in a row.
void BackendGroup::Heed(BackendState* state, Verdict verdict,
                        std::size_t failed, bool slow, std::int64_t now_ns,
                        bool probe) {
  if (probe) [[unlikely]] {
    ProbeEnded(state, verdict, slow, now_ns);
  } else if (failed >= options_.consecutive_failures &&
             options_.consecutive_failures != 0 && failed != 0) [[unlikely]] {
    FailedInRow(state, verdict, now_ns);
  } else if (state->ejected() && verdict == Verdict::kAnswered &&
             state->reason() == EjectionReason::kSilent) [[unlikely]] {
    // A call from before the ejection: the server is back.
    ScopedLock guard(mutex_);
    // Another cause may have taken its place.
    if (state->ejected() && state->reason() == EjectionReason::kSilent) {
      state->AllowProbe(now_ns);
    }
  }
}

void BackendGroup::FailedInRow(BackendState* state, Verdict latest,
                               std::int64_t now_ns) {
  ScopedLock guard(mutex_);
  // If all fail alike, it is for a cause that they share, and each ejection
  // would leave more work to the others. Rows of time-outs alone need no
  // comparison: each makes a caller wait.
  if (state->row_has_errors() && !FailsMoreThanOthers(state)) return;
  TryToEject(state,
             latest == Verdict::kSilent ? EjectionReason::kSilent
                                        : EjectionReason::kErrors,
             now_ns);
}

void BackendGroup::ProbeEnded(BackendState* state, Verdict verdict, bool slow,
                              std::int64_t now_ns) {
  ScopedLock guard(mutex_);
  if (!state->ejected() || state->fails_checks()) return;
  switch (verdict) {
    case Verdict::kAnswered:
      if (slow && state->reason() == EjectionReason::kSlow) {
        return Prolong(state, state->reason(), now_ns);
      }
      return Readmit(state, now_ns);
    case Verdict::kRefused:
    case Verdict::kFailed:
    case Verdict::kSilent:
      return Prolong(state, state->reason(), now_ns);
    case Verdict::kNeutral:
      return state->AllowProbe(now_ns);
  }
}

void BackendGroup::NoteChecks(BackendState* state, bool healthy) {
  ScopedLock guard(mutex_);
  if (healthy == !state->fails_checks()) return;
  if (healthy) return Readmit(state, NowNs());
  state->Eject(EjectionReason::kChecks,
               std::numeric_limits<std::int64_t>::max());
}

// Its earlier failures don't count.
void BackendGroup::Readmit(BackendState* state, std::int64_t now_ns) {
  state->CloseWindow();
  slow_start_ns_ > 0 ? state->Recover(now_ns) : state->SetWell();
}

bool BackendGroup::ReviewIsDue(std::int64_t now_ns) {
  // relaxed, both: this only decides who reviews, and when.
  std::int64_t due = next_review_ns_.load(std::memory_order_relaxed);
  return now_ns >= due &&
         next_review_ns_.compare_exchange_strong(
             due, now_ns + options_.interval.count() / kReviewsPerInterval,
             std::memory_order_relaxed);
}

void BackendGroup::Review(std::int64_t now_ns) {
  ScopedLock guard(mutex_);
  if (now_ns >= interval_ends_ns_) {
    interval_ends_ns_ = now_ns + options_.interval.count();
    for (const Member& member : members_) {
      if (member.state->mode() == BackendState::Mode::kWell &&
          member.state->doublings != 0) {
        --member.state->doublings;  // It has been well for a while.
      }
    }
  }
  if (!options_.enabled) return;
  ReviewLatencies(now_ns);
  if (now_ns >= errors_due_ns_) ReviewErrors(now_ns);
}

std::size_t BackendGroup::MinCalls(const BackendState& state) const {
  return state.mode() == BackendState::Mode::kRecovering
             ? std::min(kMinCallsRecovering, options_.min_calls)
             : options_.min_calls;
}

// Lately. It may be of an older list.
bool BackendGroup::FailsMoreThanOthers(const BackendState* state) const {
  BackendState::Window others;
  for (const Member& member : members_) {
    if (member.state.get() == state) continue;
    const BackendState::Window window = member.state->recent();
    others.calls += window.calls;
    others.failures += window.failures;
  }
  return FailsMore(state->recent(), others);
}

void BackendGroup::ReviewErrors(std::int64_t now_ns) {
  std::vector<BackendState::Window> windows;
  bool enough = false;
  for (const Member& member : members_) {
    windows.push_back(member.state->window());
    enough |= windows.back().calls >= options_.min_calls;
  }
  if (!enough) return;
  errors_due_ns_ = now_ns + options_.interval.count();
  for (const Member& member : members_) member.state->CloseWindow();
  if (options_.error_rate <= 0) return;
  BackendState::Window all;
  for (const BackendState::Window& window : windows) {
    all.calls += window.calls;
    all.failures += window.failures;
  }
  for (std::size_t i = 0; i != windows.size(); ++i) {
    const BackendState::Window& own = windows[i];
    BackendState* const state = members_[i].state.get();
    if (state->ejected() || own.calls < MinCalls(*state) ||
        own.failures < kFewFailures) {
      continue;
    }
    if (FailureRate(own) >= options_.error_rate &&
        FailsMore(own, {all.calls - own.calls, all.failures - own.failures})) {
      TryToEject(state, EjectionReason::kErrors, now_ns);
    }
  }
}

void BackendGroup::ReviewLatencies(std::int64_t now_ns) {
  if (options_.latency_factor <= 0) return;
  const std::int64_t slow_ns = slow_ns_.load(std::memory_order_relaxed);
  for (const Member& member : members_) {
    Pace& pace = member.state->pace;
    pace.Note(member.state->totals(), now_ns, slow_ns);
    if (member.state->ejected()) pace.Forget();
  }
  std::vector<BackendState*> counted;
  for (const Member& member : members_) {
    BackendState* const state = member.state.get();
    if (state->pace.calls() < CallsOfWindow(*state)) continue;
    counted.push_back(state);
    if (state->pace.SlowShare() >= kMostAreSlow && !OthersAreSlow(state)) {
      TryToEject(state, EjectionReason::kSlow, now_ns);
    }
  }
  for (BackendState* state : counted) state->pace.CloseWindow();
  slow_ns_.store(SlowFrom(), std::memory_order_relaxed);
}

std::size_t BackendGroup::CallsOfWindow(const BackendState& state) const {
  const std::size_t all = std::max<std::size_t>(1, options_.slow_calls);
  return state.mode() == BackendState::Mode::kRecovering
             ? std::max<std::size_t>(1, all / 2)
             : all;
}

// Also if nothing is known of them: then there is nothing to compare with.
bool BackendGroup::OthersAreSlow(const BackendState* state) const {
  std::vector<double> quick_shares;
  for (const Member& member : members_) {
    const Pace& pace = member.state->pace;
    if (member.state.get() != state && pace.LatestCalls() != 0) {
      quick_shares.push_back(1 - pace.LatestSlowShare());
    }
  }
  return quick_shares.empty() ||
         LowerMedian(std::move(quick_shares)) <= 1 - kFewAreSlow;
}

// Servers that take as long for most of their calls are slow; the greatest
// number if nothing is known of any.
std::int64_t BackendGroup::SlowFrom() const {
  std::vector<double> means;
  for (const Member& member : members_) {
    if (member.state->pace.mean_ns() > 0) {
      means.push_back(member.state->pace.mean_ns());
    }
  }
  constexpr auto kNever = std::numeric_limits<std::int64_t>::max();
  if (means.empty()) return kNever;
  const double slow_ns =
      LowerMedian(std::move(means)) * options_.latency_factor;
  return slow_ns < 0x1p63
             ? std::max<std::int64_t>(options_.slow_from.count(),
                                      static_cast<std::int64_t>(slow_ns))
             : kNever;
}

// False: as many as may be are ejected.
bool BackendGroup::TryToEject(BackendState* state, EjectionReason reason,
                              std::int64_t now_ns) {
  if (!options_.enabled || state->ejected()) return false;
  const auto member =
      std::find_if(members_.begin(), members_.end(),
                   [&](const Member& m) { return m.state.get() == state; });
  if (member == members_.end()) return false;  // From an older list.
  const std::size_t all = members_.size();
  const auto share = static_cast<std::size_t>(static_cast<double>(all) *
                                              options_.max_ejected_share);
  const std::size_t most = all < 2 ? 0 : std::max<std::size_t>(1, share);
  if (options_.max_ejected_share <= 0 || EjectedLocked() >= most) return false;
  Prolong(state, reason, now_ns);
  LOG(WARNING) << "server " << member->peer.endpoint.ToString()
               << " gets no calls for a while, because of its "
               << ToString(reason) << "; " << EjectedLocked() << " of " << all
               << " servers are left alone now";
  return true;
}

void BackendGroup::Prolong(BackendState* state, EjectionReason reason,
                           std::int64_t now_ns) {
  std::int64_t delay = options_.first_ejection.count();
  const std::int64_t most = options_.max_ejection.count();
  for (unsigned i = 0; i != state->doublings && delay < most; ++i) delay *= 2;
  if (delay < most) ++state->doublings;
  delay = std::min(delay, most);
  // Less up to a quarter, so that clients of one server don't come all at once.
  const auto random = MixBits(static_cast<std::uint64_t>(now_ns) ^
                              reinterpret_cast<std::uintptr_t>(state)) %
                      1024;
  delay -= delay / 4 * static_cast<std::int64_t>(random) / 1024;
  state->Eject(reason, now_ns + delay);
}

void BackendGroup::NoteUsable(std::size_t usable, std::size_t all) {
  panic_.store(static_cast<double>(usable) <
                   static_cast<double>(all) * options_.panic_below,
               std::memory_order_relaxed);
}

std::size_t BackendGroup::EjectedLocked() const {
  return static_cast<std::size_t>(
      std::count_if(members_.begin(), members_.end(),
                    [](const Member& m) { return m.state->ejected(); }));
}

std::size_t BackendGroup::ejected() const {
  ScopedLock guard(mutex_);
  return EjectedLocked();
}

}  // namespace flare::rpc
