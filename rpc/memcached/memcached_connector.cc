#include "flare/rpc/memcached/memcached_connector.h"

#include <string_view>
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

bool IsMemcachedServerError(std::string_view error) {
  return error.starts_with("SERVER_ERROR");
}

constexpr std::string_view kUnauthenticated = "CLIENT_ERROR unauthenticated";

flare::Status RefusalOf(std::string_view question,
                        const MemcachedAnswer& answer) {
  std::string text = "it answers \"" + std::string(question) + "\" with \"" +
                     answer.error + "\"";
  if (answer.error.starts_with("ERROR Too many open connections")) {
    return flare::Status(MEMCACHED_FAIL_TO_CONNECT, std::move(text));
  }
  text += answer.error == kUnauthenticated
              ? "; it takes a username and a password"
              : "; it takes memcached 1.6.10 or later";
  return flare::Status(MEMCACHED_REFUSED, std::move(text));
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

// A server that doesn't know today's meta commands would take values for
// commands. Versions 1.6.0 to 1.6.9 know "mn", but not this form of "ms", which
// stores nothing: no value has that number. Its value does no harm as a
// command, and gets such a server out of step. A server that has no memory for
// it has understood it if it is in step behind it.
flare::Status MemcachedConnector::ShakeHands(const Connection& connection,
                                             const WaitLimit& limit) {
  auto answer = Ask("mn\r\n", connection, limit);
  if (!answer) return answer.error();
  if (answer->error == kUnauthenticated && !options_.username.empty()) {
    flare::Status status = Authenticate(connection, limit);
    if (!status.ok()) return status;
  } else if (answer->code != MemcachedAnswer::Code::kNothing) {
    return RefusalOf("mn", *answer);
  }
  constexpr std::string_view kStore = "ms flare 2 C18446744073709551615 MS";
  answer = Ask(std::string(kStore) + "\r\nmn\r\n", connection, limit);
  if (!answer) return answer.error();
  if (answer->code == MemcachedAnswer::Code::kNotFound ||
      answer->code == MemcachedAnswer::Code::kExists) {
    return {};
  }
  if (!IsMemcachedServerError(answer->error)) {
    return RefusalOf(kStore, *answer);
  }
  const auto in_step = Ask("mn\r\n", connection, limit);
  if (!in_step) return in_step.error();
  if (in_step->code == MemcachedAnswer::Code::kNothing) return {};
  return RefusalOf(kStore, *answer);
}

// For a server that has asked for it: others would store what this sends.
flare::Status MemcachedConnector::Authenticate(const Connection& connection,
                                               const WaitLimit& limit) {
  const std::string both = options_.username + ' ' + options_.password;
  const auto answer = Ask(
      "set auth 0 0 " + std::to_string(both.size()) + "\r\n" + both + "\r\n",
      connection, limit);
  if (!answer) return answer.error();
  if (answer->code == MemcachedAnswer::Code::kAuthenticated) return {};
  return flare::Status(
      MEMCACHED_REFUSED,
      "it refuses the username or the password: \"" + answer->error + "\"");
}

Expected<MemcachedAnswer, flare::Status> MemcachedConnector::Ask(
    const std::string& question, const Connection& connection,
    const WaitLimit& limit) {
  const auto exchange = MakeRefCounted<MemcachedExchange>(
      CreateBufferSlow(question), std::vector<MemcachedCommand::Kind>());
  flare::Status greeted = Greet(connection, exchange.Get(), limit);
  if (!greeted.ok()) return greeted;
  return std::move(exchange->answers.front());
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
      results.push_back(Named(flare::Status(IsMemcachedServerError(answer.error)
                                                ? MEMCACHED_SERVER_ERROR
                                                : MEMCACHED_ERROR_REPLY,
                                            answer.error)));
    } else {
      results.push_back(std::move(answer.reply));
    }
  }
  cells()->End(outcome, NowNs() - began_ns);
  return results;
}

}  // namespace flare::rpc
