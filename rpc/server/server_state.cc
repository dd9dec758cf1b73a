#include "flare/rpc/server/server_state.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/string.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task.h"
#include "flare/rpc/rpc_status.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

// A connection without progress for so long is closed before those that hold
// less than so many times as much.
constexpr std::int64_t kStandstillNs = kNsPerSecond;
constexpr std::size_t kStandstillWeight = 8;

}  // namespace

ServerState::ServerState(ServerOptions options)
    : connections(options.max_concurrent_connections),
      name_(options.service_name),
      options_(std::move(options)),
      budget_(MakeRefCounted<io::MemoryBudget>(options_.max_buffered_bytes,
                                               [this] { AskForRelief(); })) {
  relief_.state = this;
  relief_.run = &ServerState::RunRelief;
}

void ServerState::DropUserCode() {
  methods.DropInterceptors();
  interceptors.clear();
  owned_services.clear();
  options_.conn_filter = nullptr;
}

std::string ServerState::title() const {
  ScopedLock guard(name_mutex_);
  return name_.empty() ? "Server" : "Server " + name_;
}

void ServerState::SetName(std::string name) {
  ScopedLock guard(name_mutex_);
  name_ = std::move(name);
}

flare::Status ServerState::Freeze(
    ServerProtocolSet protocols, const std::vector<std::string>& names,
    std::shared_ptr<const void> used_by_protocols) {
  if (options_.status_code_for_overloaded == STATUS_SUCCESS) {
    return flare::Status(STATUS_FAILED,
                         "status_code_for_overloaded must not be 0: calls that "
                         "were refused would seem to have succeeded");
  }
  methods.PutInterceptorsFirst(interceptors);
  used_by_protocols_ = std::move(used_by_protocols);
  protocols_ = std::move(protocols);
  for (const std::string& name : names) {
    if (!protocol_names_.empty()) protocol_names_ += ", ";
    protocol_names_ += name;
  }
  counters_ = std::vector<Counters>(fiber::GetSchedulingGroupCount());
  if (flare::Status status = SetUpAdmission(); !status.ok()) return status;
  gates_ = std::vector<CallGate>(fiber::GetSchedulingGroupCount());
  for (CallGate& gate : gates_) {
    gate.SetUp(options_.max_request_queueing_delay, RulesBesideGate());
  }
  call_limit_.SetUp(options_.max_concurrent_requests);
  methods.SetUpCounters();
  return methods.SetLimits(options_.max_concurrent_requests_per_method);
}

CallGate::OtherRules ServerState::RulesBesideGate() const {
  using Mode = AdmissionOptions::Mode;
  if (admission_ == nullptr) return CallGate::OtherRules::kNone;
  const AdmissionOptions& rules = options_.admission;
  return rules.queue == Mode::kRefuse || rules.limit == Mode::kRefuse
             ? CallGate::OtherRules::kKeepItShort
             : CallGate::OtherRules::kSome;
}

flare::Status ServerState::SetUpAdmission() {
  const AdmissionOptions& rules = options_.admission;
  if (!rules.AnyIsOn()) return flare::Status();
  if (rules.queue_target.count() <= 0 ||
      rules.queue_interval <= rules.queue_target) {
    return flare::Status(
        STATUS_FAILED,
        "admission.queue_target must be positive, and "
        "queue_interval longer: they are " +
            std::to_string(rules.queue_target.count()) + " ns and " +
            std::to_string(rules.queue_interval.count()) + " ns");
  }
  if (rules.priority_key != ToLower(rules.priority_key)) {
    return flare::Status(STATUS_FAILED,
                         "admission.priority_key: names of metadata are in "
                         "lower case, \"" +
                             rules.priority_key + "\" isn't");
  }
  admission_ = std::make_unique<AdmissionControl>(
      rules, fiber::GetSchedulingGroupCount(),
      options_.max_concurrent_requests);
  methods.SetUpAdmission(*admission_);
  return flare::Status();
}

std::size_t ServerState::AdmitCalls(std::size_t group, std::size_t n) {
  // Without a stack they would wait for one, and others behind them.
  const std::size_t admitted =
      fiber::ShortOfStacks() ? 0 : call_limit_.Enter(n);
  if (admitted != n) [[unlikely]]
    RefuseCalls(group, n - admitted);
  return admitted;
}

std::size_t ServerState::RefuseCalls(std::size_t group, std::size_t n) {
  counters_[group].refused.fetch_add(n, std::memory_order_relaxed);
  return 0;
}

// Called by those who hold a connection, and thus this.
void ServerState::AskForRelief() {
  // acquire: pairs with the release in RunRelief, which has used the task.
  if (relief_asked_.exchange(true, std::memory_order_acquire)) return;
  Ref();
  fiber::Submit(&relief_);
}

void ServerState::RunRelief(fiber::Task* task) {
  ServerState* const state = static_cast<ReliefTask*>(task)->state;
  // release: pairs with AskForRelief.
  state->relief_asked_.store(false, std::memory_order_release);
  state->CloseGreedy();
  state->Deref();
}

bool ServerState::EnterStream() {
  const std::size_t calls = options_.max_concurrent_requests;
  // relaxed: a limit, nothing is ordered by it.
  if (streams_.fetch_add(1, std::memory_order_relaxed) < calls - calls / 10) {
    return true;
  }
  LeaveStream();
  return false;
}

bool ServerState::HasRoomFor(std::size_t bytes) const {
  const std::size_t limit = budget_->limit();
  const std::size_t left = limit - std::min(limit, budget_->held());
  return bytes <= left / fiber::GetWorkerCount();
}

void ServerState::CloseGreedy() {
  if (!budget_->alarmed()) return;
  // relaxed, both: a thread that comes meanwhile is spared the work.
  if (closing_greedy_.exchange(true, std::memory_order_relaxed)) return;
  const std::size_t held = budget_->held();
  std::size_t closed = 0;
  try {
    closed = CloseMostGreedy();
  } catch (const std::bad_alloc&) {  // Somebody will ask again.
  }
  if (held - std::min(held, closed) > budget_->limit()) budget_->Snooze();
  closing_greedy_.store(false, std::memory_order_relaxed);
}

ServerState::Share ServerState::ShareOf(const ServedConnection& connection,
                                        std::int64_t since_ns) {
  const std::size_t bytes = connection.held();
  if (bytes < io::MemoryBudget::kStep) return {0, bytes};
  const bool still = connection.StandsStill(since_ns);
  return {still ? bytes * kStandstillWeight : bytes, bytes};
}

// Returns how many bytes the closed ones held.
std::size_t ServerState::CloseMostGreedy() {
  const std::int64_t since_ns = NowNs() - kStandstillNs;
  std::vector<Share> shares;
  std::size_t open = 0;  // The bytes that the open ones hold together.
  connections.ForEachOpen([&](ServedConnection* connection) {
    const Share share = ShareOf(*connection, since_ns);
    open += share.bytes;
    if (share.score != 0) shares.push_back(share);
  });
  std::sort(shares.begin(), shares.end(),
            [](const Share& a, const Share& b) { return a.score > b.score; });
  // The calls of closed connections have the rest.
  const std::size_t limit = budget_->limit();
  const std::size_t held = budget_->held();
  const std::size_t gone = held - std::min(held, open);
  const std::size_t wanted = std::max(
      limit - limit / 8 - std::min(gone, limit - limit / 8), limit / 8);
  // The score down to which it takes to close them.
  std::size_t least = std::numeric_limits<std::size_t>::max();
  std::size_t left = open;
  for (const Share& share : shares) {
    if (left <= wanted) break;
    left -= share.bytes;
    least = share.score;
  }
  left = open;
  connections.ForEachOpen([&](ServedConnection* connection) {
    const Share share = ShareOf(*connection, since_ns);
    if (left <= wanted || share.score == 0 || share.score < least) return;
    connection->CloseGreedy(share.bytes);
    left -= std::min(left, share.bytes);
  });
  return open - left;
}

void ServerState::CountFailure(std::size_t group, Failure failure) {
  Counters& mine = counters_[group];
  Count(&mine.failed);
  switch (failure) {
    case Failure::kOther:
      break;
    case Failure::kOverloaded:
      return Count(&mine.overloaded);
    case Failure::kMalformed:
      return Count(&mine.malformed);
    case Failure::kUnknown:
      return Count(&mine.unknown);
    case Failure::kUnauthenticated:
      return Count(&mine.unauthenticated);
    case Failure::kDenied:
      return Count(&mine.denied);
  }
}

ServerState::Failure ServerState::FailureOf(int status) {
  switch (status) {
    case STATUS_UNAUTHENTICATED:
      return Failure::kUnauthenticated;
    case STATUS_PERMISSION_DENIED:
      return Failure::kDenied;
    default:
      return Failure::kOther;
  }
}

void ServerState::LogConnection(const Endpoint& peer, const std::string& what) {
  if (auto left_out = connection_log_.Admit()) {
    LOG(WARNING) << title() << ", connection from " << OneLine(peer.ToString())
                 << ": " << what << LogThrottle::NoteOthers(*left_out);
  }
}

ServerStatistics ServerState::statistics() const {
  const auto get = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  ServerStatistics sum;
  sum.connections_accepted = get(connection_counters.accepted);
  sum.connections_open = connections.open();
  sum.connections_refused = get(connection_counters.refused);
  sum.connections_idle = get(connection_counters.idle);
  sum.connections_slow = get(connection_counters.slow);
  sum.connections_greedy = get(connection_counters.greedy);
  sum.connections_malformed = get(connection_counters.malformed);
  sum.connections_broken = get(connection_counters.broken);
  sum.buffered_bytes = budget_->held();
  sum.calls = call_limit_.entered();
  sum.calls_running = call_limit_.running();
  if (admission_ != nullptr) sum.admission = admission_->statistics();
  for (const Counters& counters : counters_) {
    sum.calls += get(counters.refused);
    sum.calls_failed += get(counters.failed);
    sum.calls_overloaded += get(counters.overloaded);
    sum.calls_malformed += get(counters.malformed);
    sum.calls_unknown += get(counters.unknown);
    sum.calls_unauthenticated += get(counters.unauthenticated);
    sum.calls_denied += get(counters.denied);
    sum.calls_cancelled += get(counters.cancelled);
  }
  return sum;
}

}  // namespace flare::rpc
