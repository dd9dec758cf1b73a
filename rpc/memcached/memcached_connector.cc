#include "flare/rpc/memcached/memcached_connector.h"

#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/rpc/client/server_cells.h"
#include "flare/rpc/memcached/memcached_connection.h"

namespace flare::rpc {
namespace {

// Errors pass through as they are.
static_assert(int{MEMCACHED_FAIL_TO_CONNECT} == PIPELINE_FAIL_TO_CONNECT &&
              int{MEMCACHED_REFUSED} == PIPELINE_REFUSED &&
              int{MEMCACHED_OVERLOADED} == PIPELINE_OVERLOADED &&
              int{MEMCACHED_SHUTDOWN} == PIPELINE_SHUTDOWN &&
              int{MEMCACHED_TIMEOUT_UNSENT} == PIPELINE_TIMEOUT_UNSENT &&
              int{MEMCACHED_CANCELLED_UNSENT} == PIPELINE_CANCELLED_UNSENT &&
              int{MEMCACHED_TIMEOUT} == PIPELINE_TIMEOUT &&
              int{MEMCACHED_CANCELLED} == PIPELINE_CANCELLED &&
              int{MEMCACHED_CONNECTION_LOST} == PIPELINE_CONNECTION_LOST &&
              int{MEMCACHED_MALFORMED_REPLY} == PIPELINE_MALFORMED_REPLY);

ServerCells* CellsOfMemcachedClients() {
  static auto* const cells = new ServerCells(PIPELINE_OK);
  return cells;
}

}  // namespace

std::map<std::string, CallCells::Values> MemcachedConnector::ReadCounters() {
  return CellsOfMemcachedClients()->Read();
}

std::shared_ptr<MemcachedConnector> MemcachedConnector::Create(
    const std::string& address, const MemcachedClientOptions& options) {
  std::shared_ptr<MemcachedConnector> made(
      new MemcachedConnector(address, options));
  JoinClientSide(made);
  return made;
}

MemcachedConnector::MemcachedConnector(const std::string& address,
                                       const MemcachedClientOptions& options)
    : PipelineConnector({.name = "memcached " + address,
                         .address = address,
                         .tls = options.tls,
                         .connect_timeout = options.connect_timeout,
                         .min_reconnect_delay = options.min_reconnect_delay,
                         .max_reconnect_delay = options.max_reconnect_delay,
                         .fails_while_retrying = true,
                         .cells = CellsOfMemcachedClients()}),
      options_(options) {}

PipelineConnector::Connection MemcachedConnector::MakeConnection(
    const Endpoint& peer, std::unique_ptr<io::Transport> transport, Role) {
  return MemcachedConnection::Make(peer, std::move(transport), options_,
                                   weak_from_this());
}

// A server that takes no meta commands could take values for commands.
flare::Status MemcachedConnector::ShakeHands(const Connection& connection,
                                             const WaitLimit& limit) {
  const auto exchange = MakeRefCounted<MemcachedExchange>(
      CreateBufferSlow("mn\r\n"), std::vector<MemcachedCommand::Kind>());
  flare::Status greeted = Greet(connection, exchange.Get(), limit);
  if (!greeted.ok()) return greeted;
  const MemcachedAnswer& answer = exchange->answers.front();
  if (answer.code == MemcachedAnswer::Code::kNothing) return {};
  return flare::Status(MEMCACHED_REFUSED,
                       "it answers \"mn\" with \"" + answer.error +
                           "\"; meta commands need memcached 1.6");
}

std::vector<MemcachedConnector::Result> MemcachedConnector::Execute(
    const Commands& commands, const WaitLimit& limit) {
  Buffer bytes;
  std::vector<MemcachedCommand::Kind> kinds;
  kinds.reserve(commands.size());
  for (const MemcachedCommand* command : commands) {
    bytes.Append(command->bytes());
    kinds.push_back(command->kind());
  }
  const auto exchange =
      MakeRefCounted<MemcachedExchange>(std::move(bytes), std::move(kinds));
  Connection used;
  const std::int64_t began_ns = NowNs();
  const flare::Status status = Run(exchange.Get(), limit, limit, &used);
  int outcome = status.code();
  std::vector<Result> results;
  results.reserve(commands.size());
  for (std::size_t i = 0; i != commands.size(); ++i) {
    if (!status.ok()) {
      results.push_back(Named(status));
      continue;
    }
    MemcachedAnswer& answer = exchange->answers[i];
    if (answer.code == MemcachedAnswer::Code::kError) {
      outcome = PIPELINE_ERROR_REPLY;
      results.push_back(
          Named(flare::Status(MEMCACHED_ERROR_REPLY, answer.error)));
    } else {
      results.push_back(std::move(answer.reply));
    }
  }
  cells()->End(outcome, NowNs() - began_ns);
  return results;
}

}  // namespace flare::rpc
