#include "flare/rpc/redis_client.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/async.h"
#include "flare/rpc/client/wait_limit.h"
#include "flare/rpc/redis/redis_connection.h"
#include "flare/rpc/redis/redis_connector.h"
#include "flare/rpc/redis/redis_counters.h"
#include "flare/rpc/redis/redis_exchange.h"
#include "flare/rpc/redis/redis_uri.h"

namespace flare {
namespace rpc {
namespace {

using Exchanged = Expected<RefPtr<RedisExchange>, flare::Status>;

// Null: it is none.
const char* NameOfRedisError(int code) {
#define FLARE_REDIS_ERROR(name) \
  case name:                    \
    return #name
  switch (code) {
    FLARE_REDIS_ERROR(REDIS_INVALID_URI);
    FLARE_REDIS_ERROR(REDIS_INVALID_COMMAND);
    FLARE_REDIS_ERROR(REDIS_FAIL_TO_CONNECT);
    FLARE_REDIS_ERROR(REDIS_REFUSED);
    FLARE_REDIS_ERROR(REDIS_OVERLOADED);
    FLARE_REDIS_ERROR(REDIS_SHUTDOWN);
    FLARE_REDIS_ERROR(REDIS_TIMEOUT_UNSENT);
    FLARE_REDIS_ERROR(REDIS_CANCELLED_UNSENT);
    FLARE_REDIS_ERROR(REDIS_TIMEOUT);
    FLARE_REDIS_ERROR(REDIS_CANCELLED);
    FLARE_REDIS_ERROR(REDIS_CONNECTION_LOST);
    FLARE_REDIS_ERROR(REDIS_MALFORMED_REPLY);
    FLARE_REDIS_ERROR(REDIS_NO_TRANSACTION);
  }
#undef FLARE_REDIS_ERROR
  return nullptr;
}

flare::Status InvalidRedisCommand(std::string why) {
  return flare::Status(REDIS_INVALID_COMMAND, std::move(why));
}

// How a command is sent.
enum class Way { kShared, kSession, kSubscription };

flare::Status CheckRedisCommand(const RedisCommand& command, Way way) {
  if (command.words() == 0) {
    return InvalidRedisCommand("a command without words");
  }
  if (command.silences()) {
    return InvalidRedisCommand("CLIENT REPLY leaves commands without replies");
  }
  if (way == Way::kShared && command.needs_session()) {
    return InvalidRedisCommand(command.name() +
                               " needs a session (RedisClient::Dedicate)");
  }
  if (way == Way::kSession && command.has_messages()) {
    return InvalidRedisCommand(command.name() +
                               " is answered by messages: use Subscribe()");
  }
  return {};
}

// One request of a client or a session: its exchange, counted. Keeps the
// connector, as the client may go meanwhile.
class RedisRequest {
 public:
  // Null `session`: over the shared connection.
  RedisRequest(std::shared_ptr<RedisConnector> connector,
               RedisConnection* session, const RedisCallOptions& options)
      : connector_(std::move(connector)),
        session_(session),
        limit_(WaitLimit::In(
            options.timeout.value_or(connector_->options().timeout))) {}

  Exchanged Run(const std::vector<const RedisCommand*>& commands) {
    Buffer bytes;
    for (const RedisCommand* command : commands) {
      flare::Status status = CheckRedisCommand(
          *command, in_transaction_ || session_ != nullptr ? Way::kSession
                                                           : Way::kShared);
      if (!status.ok()) return status;
      bytes.Append(command->Encode());
    }
    const auto exchange =
        RedisExchange::Make(std::move(bytes), commands.size());
    const std::int64_t began_ns = NowNs();
    const flare::Status status = Exchange(exchange.Get());
    connector_->cells()->End(OutcomeOf(status, *exchange), NowNs() - began_ns);
    if (status.ok()) return exchange;
    return flare::Status(status.code(),
                         connector_->name() + ": " + status.message());
  }

  void AllowTransaction() { in_transaction_ = true; }

 private:
  flare::Status Exchange(RedisExchange* exchange) {
    for (;;) {
      RefPtr<RedisConnection> connection(ref_ptr, session_);
      if (session_ == nullptr) {
        auto shared = connector_->Shared(limit_);
        if (!shared) return shared.error();
        connection = *std::move(shared);
      }
      switch (connection->Submit(exchange)) {
        case RedisConnection::Submitted::kClosed:
          if (session_ == nullptr) continue;  // Over the next one.
          return flare::Status(
              REDIS_FAIL_TO_CONNECT,
              "the session has ended: " + connection->failure().message());
        case RedisConnection::Submitted::kOverloaded:
          return flare::Status(
              REDIS_OVERLOADED,
              "too many commands wait for replies (max_outstanding, "
              "max_outstanding_bytes)");
        case RedisConnection::Submitted::kSubscribed:
          return InvalidRedisCommand(
              "the session has subscribed: it has only messages");
        case RedisConnection::Submitted::kTaken:
          return connection->Await(exchange, limit_);
      }
    }
  }

  static int OutcomeOf(const flare::Status& status,
                       const RedisExchange& exchange) {
    if (!status.ok()) return status.code();
    const bool failed =
        exchange.last.is_error() ||
        std::any_of(exchange.earlier.begin(), exchange.earlier.end(),
                    [](const RedisReply& reply) { return reply.is_error(); });
    return failed ? RedisCounters::kErrorReply : RedisCounters::kOk;
  }

  const std::shared_ptr<RedisConnector> connector_;
  RedisConnection* const session_;
  const WaitLimit limit_;
  bool in_transaction_ = false;
};

// With the server.
flare::Status NamedRedisError(const RedisConnector& connector,
                              const flare::Status& why) {
  return flare::Status(why.code(), connector.name() + ": " + why.message());
}

flare::Status NotOpen() {
  return InvalidRedisCommand("the client isn't open (RedisClient::Open)");
}

RedisClient::Result OneReply(Exchanged exchanged) {
  if (!exchanged) return exchanged.error();
  return std::move((*exchanged)->last);
}

RedisClient::Results AllReplies(Exchanged exchanged) {
  if (!exchanged) return exchanged.error();
  std::vector<RedisReply> replies = std::move((*exchanged)->earlier);
  replies.push_back(std::move((*exchanged)->last));
  return replies;
}

bool AllFailed(const std::vector<RedisReply>& replies) {
  return std::all_of(replies.begin(), replies.end(),
                     [](const RedisReply& reply) { return reply.is_error(); });
}

std::vector<const RedisCommand*> AddressesOf(
    const std::vector<RedisCommand>& commands) {
  std::vector<const RedisCommand*> addresses;
  addresses.reserve(commands.size() + 2);
  for (const RedisCommand& command : commands) addresses.push_back(&command);
  return addresses;
}

}  // namespace
}  // namespace rpc

// --- RedisClient -------------------------------------------------------------

Status RedisClient::Open(const std::string& uri, const Options& options) {
  auto parsed = rpc::ParseRedisUri(uri);
  if (!parsed) return parsed.error();
  connector_ = rpc::RedisConnector::Create(*std::move(parsed), options);
  return {};
}

RedisClient::Result RedisClient::Execute(const RedisCommand& command,
                                         const CallOptions& options) const {
  if (connector_ == nullptr) return rpc::NotOpen();
  rpc::RedisRequest request(connector_, nullptr, options);
  return rpc::OneReply(request.Run({&command}));
}

RedisClient::Results RedisClient::ExecuteAll(
    const std::vector<RedisCommand>& commands,
    const CallOptions& options) const {
  if (connector_ == nullptr) return rpc::NotOpen();
  if (commands.empty()) return std::vector<RedisReply>();
  rpc::RedisRequest request(connector_, nullptr, options);
  return rpc::AllReplies(request.Run(rpc::AddressesOf(commands)));
}

RedisClient::Result RedisClient::Transact(
    const std::vector<RedisCommand>& commands,
    const CallOptions& options) const {
  if (connector_ == nullptr) return rpc::NotOpen();
  const auto connector = connector_;  // The client may go meanwhile.
  for (const RedisCommand& command : commands) {
    Status status = rpc::CheckRedisCommand(command, rpc::Way::kShared);
    if (!status.ok()) return status;
  }
  static const RedisCommand multi{"MULTI"};
  static const RedisCommand exec{"EXEC"};
  std::vector<const RedisCommand*> all = rpc::AddressesOf(commands);
  all.insert(all.begin(), &multi);
  all.push_back(&exec);
  rpc::RedisRequest request(connector, nullptr, options);
  request.AllowTransaction();
  auto exchanged = request.Run(all);
  if (!exchanged) return exchanged.error();
  const std::vector<RedisReply>& earlier = (*exchanged)->earlier;
  if (!earlier[0].is_error()) return std::move((*exchanged)->last);
  // The server has taken the commands one by one.
  if (rpc::AllFailed(earlier)) return earlier[0];
  return Status(rpc::REDIS_NO_TRANSACTION,
                connector->name() + ": the server refuses MULTI, and has run " +
                    "commands one by one: " + earlier[0].text());
}

Future<RedisClient::Result> RedisClient::AsyncExecute(
    RedisCommand command, const CallOptions& options) const {
  return fiber::Async([client = *this, command = std::move(command), options] {
    return client.Execute(command, options);
  });
}

Future<RedisClient::Results> RedisClient::AsyncExecuteAll(
    std::vector<RedisCommand> commands, const CallOptions& options) const {
  return fiber::Async(
      [client = *this, commands = std::move(commands), options] {
        return client.ExecuteAll(commands, options);
      });
}

Expected<RedisSession, Status> RedisClient::Dedicate(
    const CallOptions& options) const {
  if (connector_ == nullptr) return rpc::NotOpen();
  const auto connector = connector_;  // The client may go meanwhile.
  auto made = connector->Dedicated(rpc::WaitLimit::In(
      options.timeout.value_or(connector->options().timeout)));
  if (made) return RedisSession(connector, *std::move(made));
  return rpc::NamedRedisError(*connector, made.error());
}

const char* RedisClient::ErrorCodeToString(int code) {
  const char* const name = rpc::NameOfRedisError(code);
  return name != nullptr ? name : "REDIS_UNKNOWN";
}

// --- RedisSession ------------------------------------------------------------

RedisSession::RedisSession(std::shared_ptr<rpc::RedisConnector> connector,
                           RefPtr<rpc::RedisConnection> connection)
    : connector_(std::move(connector)), connection_(std::move(connection)) {}

RedisSession::RedisSession(RedisSession&& other) noexcept = default;

RedisSession& RedisSession::operator=(RedisSession&& other) noexcept {
  if (this != &other) {
    Close();
    connector_ = std::move(other.connector_);
    connection_ = std::move(other.connection_);
  }
  return *this;
}

RedisSession::~RedisSession() { Close(); }

void RedisSession::Close() {
  if (connection_ == nullptr) return;
  connection_->Close(
      Status::Lenient(rpc::REDIS_CONNECTION_LOST, "the session's end"));
  connection_ = nullptr;
}

RedisSession::Result RedisSession::Execute(const RedisCommand& command,
                                           const CallOptions& options) {
  rpc::RedisRequest request(connector_, connection_.Get(), options);
  return rpc::OneReply(request.Run({&command}));
}

RedisSession::Results RedisSession::ExecuteAll(
    const std::vector<RedisCommand>& commands, const CallOptions& options) {
  if (commands.empty()) return std::vector<RedisReply>();
  rpc::RedisRequest request(connector_, connection_.Get(), options);
  return rpc::AllReplies(request.Run(rpc::AddressesOf(commands)));
}

Status RedisSession::Subscribe(const RedisCommand& command) {
  Status status = rpc::CheckRedisCommand(command, rpc::Way::kSubscription);
  if (status.ok()) status = connection_->Subscribe(command.Encode());
  return status.ok() ? status : rpc::NamedRedisError(*connector_, status);
}

RedisSession::Result RedisSession::Receive(const CallOptions& options) {
  Result message = connection_->Receive(rpc::WaitLimit::In(
      options.timeout.value_or(std::chrono::nanoseconds::max())));
  if (message) return message;
  return rpc::NamedRedisError(*connector_, message.error());
}

}  // namespace flare
