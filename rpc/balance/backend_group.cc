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

std::uint64_t Answered(const BackendState::Window& window) {
  return window.calls - std::min(window.failures, window.calls);
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
  const std::size_t silent = state->End(verdict, latency_ns, now_ns);
  if (probe) [[unlikely]] {
    ProbeEnded(state, verdict, now_ns);
  } else if (silent >= options_.consecutive_timeouts &&
             options_.consecutive_timeouts != 0 && silent != 0) [[unlikely]] {
    Silent(state, now_ns);
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

void BackendGroup::Silent(BackendState* state, std::int64_t now_ns) {
  ScopedLock guard(mutex_);
  TryToEject(state, EjectionReason::kSilent, now_ns);
}

void BackendGroup::ProbeEnded(BackendState* state, Verdict verdict,
                              std::int64_t now_ns) {
  ScopedLock guard(mutex_);
  if (!state->ejected() || state->fails_checks()) return;
  switch (verdict) {
    case Verdict::kAnswered:
      return Readmit(state, now_ns);
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

void BackendGroup::Readmit(BackendState* state, std::int64_t now_ns) {
  slow_start_ns_ > 0 ? state->Recover(now_ns) : state->SetWell();
}

bool BackendGroup::ReviewIsDue(std::int64_t now_ns) {
  // relaxed, both: this only decides who reviews, and when.
  std::int64_t due = next_review_ns_.load(std::memory_order_relaxed);
  return now_ns >= due && next_review_ns_.compare_exchange_strong(
                              due, now_ns + options_.interval.count(),
                              std::memory_order_relaxed);
}

void BackendGroup::Review(std::int64_t now_ns) {
  ScopedLock guard(mutex_);
  std::vector<BackendState::Window> windows;
  for (const Member& member : members_) {
    windows.push_back(member.state->TakeWindow());
    if (member.state->mode() == BackendState::Mode::kWell &&
        member.state->doublings != 0) {
      --member.state->doublings;  // It has been well for a while.
    }
  }
  if (!options_.enabled) return;
  ReviewErrors(windows, now_ns);
  ReviewLatencies(windows, now_ns);
}

std::size_t BackendGroup::MinCalls(const BackendState& state) const {
  return state.mode() == BackendState::Mode::kRecovering
             ? std::min(kMinCallsRecovering, options_.min_calls)
             : options_.min_calls;
}

void BackendGroup::ReviewErrors(
    const std::vector<BackendState::Window>& windows, std::int64_t now_ns) {
  if (options_.error_rate <= 0) return;
  std::uint64_t calls = 0;
  std::uint64_t failures = 0;
  for (const BackendState::Window& window : windows) {
    calls += window.calls;
    failures += window.failures;
  }
  for (std::size_t i = 0; i != windows.size(); ++i) {
    const BackendState::Window& own = windows[i];
    BackendState* const state = members_[i].state.get();
    if (state->ejected() || own.calls < MinCalls(*state) ||
        own.failures < kFewFailures) {
      continue;
    }
    const double rate =
        static_cast<double>(own.failures) / static_cast<double>(own.calls);
    const double others =
        static_cast<double>(failures - own.failures) /
        static_cast<double>(std::max<std::uint64_t>(1, calls - own.calls));
    if (rate >= options_.error_rate && rate >= kTimesOthers * others) {
      TryToEject(state, EjectionReason::kErrors, now_ns);
    }
  }
}

void BackendGroup::ReviewLatencies(
    const std::vector<BackendState::Window>& windows, std::int64_t now_ns) {
  if (options_.latency_factor <= 0) return;
  const auto mean = [&](std::size_t i) {
    const std::uint64_t answered = Answered(windows[i]);
    return answered == 0 ? 0.0
                         : static_cast<double>(windows[i].latency_sum_ns) /
                               static_cast<double>(answered);
  };
  for (std::size_t i = 0; i != windows.size(); ++i) {
    BackendState* const state = members_[i].state.get();
    if (state->ejected() || Answered(windows[i]) < MinCalls(*state) ||
        mean(i) < static_cast<double>(options_.slow_from.count())) {
      continue;
    }
    std::vector<double> others;
    for (std::size_t k = 0; k != windows.size(); ++k) {
      if (k != i && Answered(windows[k]) >= options_.min_calls) {
        others.push_back(mean(k));
      }
    }
    if (others.empty()) continue;
    const auto middle =
        others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2);
    std::nth_element(others.begin(), middle, others.end());
    if (mean(i) >= options_.latency_factor * *middle) {
      TryToEject(state, EjectionReason::kSlow, now_ns);
    }
  }
}

// False: as many as may be are ejected.
bool BackendGroup::TryToEject(BackendState* state, EjectionReason reason,
                              std::int64_t now_ns) {
  if (!options_.enabled || state->ejected()) return false;
  const auto member =
      std::find_if(members_.begin(), members_.end(),
                   [&](const Member& m) { return m.state.get() == state; });
  if (member == members_.end()) return false;  // Of an older list.
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
