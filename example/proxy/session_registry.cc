#include "example/proxy/session_registry.h"

#include <chrono>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>

#include "example/proxy/session.h"
#include "flare/fiber/runtime.h"

namespace example::proxy {
namespace {

// Counters on their own, that order nothing.
constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

std::string_view ToString(SessionEnd end) {
  switch (end) {
    case SessionEnd::kFinished:
      return "finished";
    case SessionEnd::kClientAborted:
      return "client-aborted";
    case SessionEnd::kUpstreamAborted:
      return "upstream-aborted";
    case SessionEnd::kIdle:
      return "idle";
    case SessionEnd::kNoUpstream:
      return "no-upstream";
    case SessionEnd::kOverLimit:
      return "over-limit";
    case SessionEnd::kBadHeader:
      return "bad-header";
    case SessionEnd::kNoRoute:
      return "no-route";
    case SessionEnd::kTlsFailed:
      return "tls-failed";
    case SessionEnd::kCut:
      return "cut";
    case SessionEnd::kNoMemory:
      return "no-memory";
  }
  return "unknown";
}

SessionRegistry::SessionRegistry(OnSessionEnd on_end)
    : on_end_(std::move(on_end)),
      groups_(flare::fiber::GetSchedulingGroupCount()) {}

SessionRegistry::~SessionRegistry() = default;

bool SessionRegistry::Enter(std::size_t max, std::size_t group,
                            std::size_t* home) {
  accepted_.fetch_add(1, kRelaxed);
  // Counted first, so that two that come at once can't both take the last
  // place.
  if (active_.fetch_add(1, kRelaxed) >= max) {
    active_.fetch_sub(1, kRelaxed);
    refused_.fetch_add(1, kRelaxed);
    return false;
  }
  *home = group;
  std::uint64_t least = groups_[group].size.load(kRelaxed);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const std::uint64_t size = groups_[i].size.load(kRelaxed);
    if (size < least) {
      least = size;
      *home = i;
    }
  }
  groups_[*home].size.fetch_add(1, kRelaxed);
  return true;
}

void SessionRegistry::Add(Session* session, std::size_t home) {
  Group& group = groups_[home];
  flare::ScopedLock guard(group.lock);
  group.sessions.PushBack(session);
}

void SessionRegistry::Leave(Session* session, std::size_t home,
                            const SessionReport& report) {
  CountEnd(report);
  try {
    if (on_end_) on_end_(report);
  } catch (const std::bad_alloc&) {
    // One report is lost; the session must still end.
  }
  Group& group = groups_[home];
  {
    flare::ScopedLock guard(group.lock);
    group.sessions.Remove(session);
  }
  CountLeft(group);
}

void SessionRegistry::LeaveUnbegun(std::size_t home) {
  aborted_.fetch_add(1, kRelaxed);
  CountLeft(groups_[home]);
}

void SessionRegistry::CountLeft(Group& group) {
  group.size.fetch_sub(1, kRelaxed);
  // release: pairs with the acquire in WaitUntilEmpty, for whom the session is
  // over with all that it did.
  if (active_.fetch_sub(1, std::memory_order_release) == 1) {
    flare::ScopedLock guard(empty_lock_);
    empty_.notify_all();
  }
}

void SessionRegistry::ReportRefused(const SessionReport& report) {
  if (on_end_) on_end_(report);
}

void SessionRegistry::CutAll() {
  for (Group& group : groups_) {
    flare::ScopedLock guard(group.lock);
    for (Session& session : group.sessions) session.Cut();
  }
}

void SessionRegistry::LookAtUpstreams() {
  for (Group& group : groups_) {
    flare::ScopedLock guard(group.lock);
    for (Session& session : group.sessions) session.LookAtUpstream();
  }
}

bool SessionRegistry::WaitUntilEmpty(std::int64_t deadline_ns) {
  std::unique_lock lock(empty_lock_);
  return empty_.wait_until(
      lock,
      std::chrono::steady_clock::time_point(
          std::chrono::nanoseconds(deadline_ns)),
      // acquire: pairs with the release in Leave.
      [this] { return active_.load(std::memory_order_acquire) == 0; });
}

void SessionRegistry::CountConnectFailure() noexcept {
  connect_failures_.fetch_add(1, kRelaxed);
}

void SessionRegistry::CountRetry() noexcept { retries_.fetch_add(1, kRelaxed); }

void SessionRegistry::CountBytes(std::uint64_t to_upstream,
                                 std::uint64_t to_client) noexcept {
  bytes_to_upstream_.fetch_add(to_upstream, kRelaxed);
  bytes_to_client_.fetch_add(to_client, kRelaxed);
}

void SessionRegistry::CountEnd(const SessionReport& report) noexcept {
  switch (report.end) {
    case SessionEnd::kNoUpstream:
      unserved_.fetch_add(1, kRelaxed);
      break;
    case SessionEnd::kIdle:
      idle_.fetch_add(1, kRelaxed);
      break;
    case SessionEnd::kClientAborted:
    case SessionEnd::kUpstreamAborted:
    case SessionEnd::kNoMemory:
      aborted_.fetch_add(1, kRelaxed);
      break;
    default:
      break;
  }
}

ProxyStatistics SessionRegistry::statistics() const {
  return {.accepted = accepted_.load(kRelaxed),
          .active = active_.load(kRelaxed),
          .refused = refused_.load(kRelaxed),
          .connect_failures = connect_failures_.load(kRelaxed),
          .retries = retries_.load(kRelaxed),
          .unserved = unserved_.load(kRelaxed),
          .idle = idle_.load(kRelaxed),
          .aborted = aborted_.load(kRelaxed),
          .bytes_to_upstream = bytes_to_upstream_.load(kRelaxed),
          .bytes_to_client = bytes_to_client_.load(kRelaxed)};
}

std::vector<std::uint64_t> SessionRegistry::sizes() const {
  std::vector<std::uint64_t> sizes;
  for (const Group& group : groups_) sizes.push_back(group.size.load(kRelaxed));
  return sizes;
}

}  // namespace example::proxy
