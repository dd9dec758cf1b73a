#include "flare/rpc/server_state.h"

#include <algorithm>
#include <utility>

#include "flare/base/string.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/rpc_status.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

Server::Options WithinLimits(Server::Options options) {
  for (std::size_t* const limit :
       {&options.maximum_packet_size, &options.max_meta_size,
        &options.max_http_header_size}) {
    *limit = std::min(*limit, kMaxLimit);
  }
  return options;
}

}  // namespace

ServerState::ServerState(Server::Options options)
    : connections(options.max_concurrent_connections),
      name_(options.service_name),
      options_(WithinLimits(std::move(options))) {}

void ServerState::DropUserCode() {
  owned_services.clear();
  routes.Clear();
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

flare::Status ServerState::Freeze(const std::vector<std::string>& protocols) {
  if (options_.status_code_for_overloaded == STATUS_SUCCESS) {
    return flare::Status(STATUS_FAILED,
                         "status_code_for_overloaded must not be 0: calls that "
                         "were refused would seem to have succeeded");
  }
  Limits limits;
  limits.max_packet_size = options_.maximum_packet_size;
  limits.max_meta_size = options_.max_meta_size;
  limits.max_decompressed_size = options_.max_decompressed_size;
  limits.max_http_header = options_.max_http_header_size;
  limits.max_http_header_fields = options_.max_http_header_fields;
  // The connection, which lets one in in any case, reads no more before the
  // protocol would refuse it.
  limits.max_http_pipeline =
      std::max<std::size_t>(options_.max_concurrent_requests_per_connection, 1);
  auto cors = HttpCors::FromText(options_.http_cors_origins);
  if (!cors) {
    return flare::Status(cors.error().code(),
                         "http_cors_origins: " + cors.error().message());
  }
  cors_ = *std::move(cors);
  http_paths_.SetUp(methods, routes);
  HttpUses http;
  http.paths = &http_paths_;
  http.cors = &cors_;
  auto set = ServerProtocolSet::FromNames(protocols, limits, http);
  if (!set) return set.error();
  protocols_ = *std::move(set);
  for (const std::string& protocol : protocols) {
    if (!protocol_names_.empty()) protocol_names_ += ", ";
    protocol_names_ += protocol;
  }
  counters_ = std::vector<Counters>(fiber::GetSchedulingGroupCount());
  gates_ = std::vector<CallGate>(fiber::GetSchedulingGroupCount());
  for (CallGate& gate : gates_) gate.SetUp(options_.max_request_queueing_delay);
  call_limit_.SetUp(options_.max_concurrent_requests);
  methods.SetUpCounters();
  return methods.SetLimits(options_.max_concurrent_requests_per_method);
}

std::size_t ServerState::AdmitCalls(std::size_t group, std::size_t n) {
  // Without a stack they would wait for one, and others behind them.
  const std::size_t admitted =
      fiber::ShortOfStacks() ? 0 : call_limit_.Enter(n);
  if (admitted != n) [[unlikely]] {
    counters_[group].refused.fetch_add(n - admitted, std::memory_order_relaxed);
  }
  return admitted;
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
  }
}

void ServerState::LogConnection(const Endpoint& peer, const std::string& what) {
  if (auto left_out = connection_log_.Admit()) {
    LOG(WARNING) << title() << ", connection from " << OneLine(peer.ToString())
                 << ": " << what << LogThrottle::NoteOthers(*left_out);
  }
}

Server::Statistics ServerState::statistics() const {
  const auto get = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  Server::Statistics sum;
  sum.connections_accepted = get(connection_counters.accepted);
  sum.connections_open = connections.open();
  sum.connections_refused = get(connection_counters.refused);
  sum.connections_idle = get(connection_counters.idle);
  sum.connections_slow = get(connection_counters.slow);
  sum.connections_malformed = get(connection_counters.malformed);
  sum.connections_broken = get(connection_counters.broken);
  sum.calls = call_limit_.entered();
  sum.calls_running = call_limit_.running();
  for (const Counters& counters : counters_) {
    sum.calls += get(counters.refused);
    sum.calls_failed += get(counters.failed);
    sum.calls_overloaded += get(counters.overloaded);
    sum.calls_malformed += get(counters.malformed);
    sum.calls_unknown += get(counters.unknown);
  }
  return sum;
}

}  // namespace flare::rpc
