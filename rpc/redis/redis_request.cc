#include "flare/rpc/redis/redis_request.h"

#include <string>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/rpc/redis/redis_counters.h"
#include "flare/rpc/redis_client_options.h"
#include "flare/rpc/redis_reply.h"

namespace flare::rpc {
namespace {

flare::Status ExchangeInSession(RedisConnection* session,
                                RedisExchange* exchange,
                                const WaitLimit& limit) {
  switch (session->Submit(exchange)) {
    case RedisConnection::Submitted::kTaken:
      break;
    case RedisConnection::Submitted::kClosed:
      return flare::Status(
          REDIS_FAIL_TO_CONNECT,
          "the session has ended: " + session->failure().message());
    case RedisConnection::Submitted::kOverloaded:
      return PipelineOverloaded();
    case RedisConnection::Submitted::kRefused:
      return InvalidRedisCommand(
          "the session has subscribed: it has only messages");
  }
  return session->Await(exchange, limit);
}

// Notes errors among the replies. False: there is none.
bool NoteErrors(RedisConnector& connector, const RedisExchange& exchange,
                PipelineConnection* connection) {
  bool any = false;
  const auto note = [&](const RedisReply& reply) {
    if (!reply.is_error()) return;
    any = true;
    connector.NoteError(reply, connection);
  };
  for (const RedisReply& reply : exchange.earlier) note(reply);
  note(exchange.last);
  return any;
}

}  // namespace

RedisCommandList AddressesOf(const std::vector<RedisCommand>& commands) {
  RedisCommandList addresses;
  addresses.reserve(commands.size() + 2);  // MULTI and EXEC.
  for (const RedisCommand& command : commands) addresses.push_back(&command);
  return addresses;
}

flare::Status InvalidRedisCommand(std::string why) {
  return flare::Status(REDIS_INVALID_COMMAND, std::move(why));
}

flare::Status CheckRedisCommand(const RedisCommand& command, RedisWay way) {
  if (command.words() == 0) {
    return InvalidRedisCommand("a command without words");
  }
  if (command.silences()) {
    return InvalidRedisCommand("CLIENT REPLY leaves commands without replies");
  }
  if (way == RedisWay::kShared && command.needs_session()) {
    return InvalidRedisCommand(command.name() +
                               " needs a session (RedisClient::Dedicate)");
  }
  if (way == RedisWay::kSession && command.has_messages()) {
    return InvalidRedisCommand(command.name() +
                               " is answered by messages: use Subscribe()");
  }
  return {};
}

flare::Status CheckRedisCommands(const RedisCommandList& commands,
                                 RedisWay way) {
  for (const RedisCommand* command : commands) {
    flare::Status status = CheckRedisCommand(*command, way);
    if (!status.ok()) return status;
  }
  return {};
}

RedisExchanged RunRedisRequest(RedisConnector& connector,
                               RedisConnection* session,
                               const RedisCommandList& commands,
                               const WaitLimit& limit,
                               const WaitLimit& to_connect) {
  Buffer bytes;
  for (const RedisCommand* command : commands) {
    bytes.Append(command->Encode());
  }
  const auto exchange = RedisExchange::Make(std::move(bytes), commands.size());
  PipelineConnector::Connection connection(ref_ptr, session);
  const std::int64_t began_ns = NowNs();
  const flare::Status status =
      session != nullptr
          ? ExchangeInSession(session, exchange.Get(), limit)
          : connector.Run(exchange.Get(), limit, to_connect, &connection);
  const int outcome = !status.ok() ? status.code()
                      : NoteErrors(connector, *exchange, connection.Get())
                          ? RedisCounters::kErrorReply
                          : RedisCounters::kOk;
  connector.cells()->End(outcome, NowNs() - began_ns);
  if (status.ok()) return exchange;
  return connector.Named(status);
}

RedisExchanged AskRedis(RedisConnector& connector, const RedisCommand& question,
                        const WaitLimit& limit) {
  auto exchanged = RunRedisRequest(connector, nullptr, {&question}, limit);
  if (exchanged) return exchanged;
  return AsUnsent(exchanged.error());
}

}  // namespace flare::rpc
