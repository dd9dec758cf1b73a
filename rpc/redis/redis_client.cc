#include "flare/rpc/redis_client.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "flare/fiber/async.h"
#include "flare/rpc/client/wait_limit.h"
#include "flare/rpc/redis/redis_cluster.h"
#include "flare/rpc/redis/redis_connection.h"
#include "flare/rpc/redis/redis_connector.h"
#include "flare/rpc/redis/redis_request.h"
#include "flare/rpc/redis/redis_sentinels.h"
#include "flare/rpc/redis/redis_uri.h"

namespace flare {
namespace rpc {
namespace {

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
    FLARE_REDIS_ERROR(REDIS_CROSS_SLOT);
    FLARE_REDIS_ERROR(REDIS_TIMEOUT);
    FLARE_REDIS_ERROR(REDIS_CANCELLED);
    FLARE_REDIS_ERROR(REDIS_CONNECTION_LOST);
    FLARE_REDIS_ERROR(REDIS_MALFORMED_REPLY);
    FLARE_REDIS_ERROR(REDIS_NO_TRANSACTION);
    FLARE_REDIS_ERROR(REDIS_PARTLY_RUN);
  }
#undef FLARE_REDIS_ERROR
  return nullptr;
}

flare::Status NotOpen() {
  return InvalidRedisCommand("the client isn't open (RedisClient::Open)");
}

RedisClient::Result OneReply(RedisExchanged exchanged) {
  if (!exchanged) return exchanged.error();
  return std::move((*exchanged)->last);
}

RedisClient::Results AllReplies(RedisExchanged exchanged) {
  if (!exchanged) return exchanged.error();
  std::vector<RedisReply> replies = std::move((*exchanged)->earlier);
  replies.push_back(std::move((*exchanged)->last));
  return replies;
}

WaitLimit LimitOf(const RedisCallOptions& call,
                  const RedisClientOptions& client) {
  return WaitLimit::In(call.timeout.value_or(client.timeout));
}

// `replies`: of the server, to MULTI, the commands and EXEC.
RedisClient::Result ResultOfTransaction(const RedisConnector& server,
                                        RedisClient::Results replies) {
  if (!replies) return replies.error();
  RedisReply result = std::move(replies->back());
  replies->pop_back();
  const RedisReply& multi = replies->front();
  if (!multi.is_error()) return result;
  // The server has taken the commands one by one.
  const bool all_failed =
      std::all_of(replies->begin(), replies->end(),
                  [](const RedisReply& reply) { return reply.is_error(); });
  if (all_failed) return multi;
  return server.Named(flare::Status(
      REDIS_NO_TRANSACTION,
      "the server refuses MULTI, and has run commands one by one: " +
          multi.text()));
}

}  // namespace
}  // namespace rpc

// --- RedisClient -------------------------------------------------------------

Status RedisClient::Open(const std::string& uri, const Options& options) {
  auto parsed = rpc::ParseRedisUri(uri);
  if (!parsed) return parsed.error();
  connector_ = nullptr;
  cluster_ = nullptr;
  rpc::OpenClientSide();
  if (parsed->kind != rpc::RedisUri::Kind::kCluster) {
    rpc::RedisPlace place;
    if (parsed->kind == rpc::RedisUri::Kind::kSentinel) {
      const auto sentinels =
          std::make_shared<rpc::RedisSentinels>(*parsed, options);
      place.find_master = [sentinels] { return sentinels->FindMaster(); };
      place.doubt_master = [sentinels] { sentinels->AskAnotherFirst(); };
    }
    connector_ = rpc::RedisConnector::Create(*std::move(parsed), options,
                                             std::move(place));
    return {};
  }
  if (options.database.value_or(0) != 0) {
    return Status(REDIS_INVALID_URI, "a cluster has database 0 only");
  }
  cluster_ = rpc::RedisCluster::Create(*std::move(parsed), options);
  return {};
}

RedisClient::Result RedisClient::Execute(const RedisCommand& command,
                                         const CallOptions& options) const {
  const auto connector = connector_;  // The client may go meanwhile.
  if (connector == nullptr) return ExecuteInCluster(command, options);
  Status status = rpc::CheckRedisCommand(command, rpc::RedisWay::kShared);
  if (!status.ok()) return status;
  return rpc::OneReply(
      rpc::RunRedisRequest(*connector, nullptr, {&command},
                           rpc::LimitOf(options, connector->options())));
}

RedisClient::Result RedisClient::ExecuteInCluster(
    const RedisCommand& command, const CallOptions& options) const {
  const auto cluster = cluster_;
  if (cluster == nullptr) return rpc::NotOpen();
  Status status = rpc::CheckRedisCommand(command, rpc::RedisWay::kShared);
  if (!status.ok()) return status;
  return cluster->Execute(command, rpc::LimitOf(options, cluster->options()));
}

RedisClient::Results RedisClient::ExecuteAll(
    const std::vector<RedisCommand>& commands,
    const CallOptions& options) const {
  const auto connector = connector_;
  const auto cluster = cluster_;
  if (connector == nullptr && cluster == nullptr) return rpc::NotOpen();
  if (commands.empty()) return std::vector<RedisReply>();
  const auto all = rpc::AddressesOf(commands);
  Status status = rpc::CheckRedisCommands(all, rpc::RedisWay::kShared);
  if (!status.ok()) return status;
  if (cluster != nullptr) {
    return cluster->ExecuteAll(all, rpc::LimitOf(options, cluster->options()));
  }
  return rpc::AllReplies(rpc::RunRedisRequest(
      *connector, nullptr, all, rpc::LimitOf(options, connector->options())));
}

RedisClient::Result RedisClient::Transact(
    const std::vector<RedisCommand>& commands,
    const CallOptions& options) const {
  const auto connector = connector_;
  const auto cluster = cluster_;
  if (connector == nullptr && cluster == nullptr) return rpc::NotOpen();
  auto all = rpc::AddressesOf(commands);
  Status status = rpc::CheckRedisCommands(all, rpc::RedisWay::kShared);
  if (!status.ok()) return status;
  static const RedisCommand multi{"MULTI"};
  static const RedisCommand exec{"EXEC"};
  all.insert(all.begin(), &multi);
  all.push_back(&exec);
  if (cluster == nullptr) {
    return rpc::ResultOfTransaction(
        *connector, rpc::AllReplies(rpc::RunRedisRequest(
                        *connector, nullptr, all,
                        rpc::LimitOf(options, connector->options()))));
  }
  std::shared_ptr<rpc::RedisConnector> server;
  auto replies = cluster->Transact(
      all, rpc::LimitOf(options, cluster->options()), &server);
  if (!replies) return replies.error();
  return rpc::ResultOfTransaction(*server, std::move(replies));
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
  return DedicateTo(std::nullopt, options);
}

Expected<RedisSession, Status> RedisClient::DedicateFor(
    std::string_view key, const CallOptions& options) const {
  return DedicateTo(key, options);
}

Expected<RedisSession, Status> RedisClient::DedicateTo(
    std::optional<std::string_view> key, const CallOptions& options) const {
  const auto connector = connector_;  // The client may go meanwhile.
  const auto cluster = cluster_;
  if (connector == nullptr && cluster == nullptr) return rpc::NotOpen();
  if (cluster == nullptr) {
    auto made =
        connector->NewSession(rpc::LimitOf(options, connector->options()));
    if (made) return RedisSession(connector, *std::move(made));
    return connector->Named(made.error());
  }
  const auto limit = rpc::LimitOf(options, cluster->options());
  const auto servers = cluster->ServersFor(key, limit);
  if (!servers) return servers.error();
  Status failure;
  for (const auto& server : *servers) {
    const bool last = server == servers->back();
    auto made = server->NewSession(last ? limit : limit.Half());
    if (made) return RedisSession(server, *std::move(made));
    failure = server->Named(made.error());
    const bool unreachable = failure.code() == REDIS_FAIL_TO_CONNECT ||
                             failure.code() == REDIS_TIMEOUT_UNSENT;
    if (!unreachable || limit.exceeded()) break;
  }
  return failure;
}

Expected<std::vector<RedisClient>, Status> RedisClient::Masters(
    const CallOptions& options) const {
  if (connector_ != nullptr) return std::vector<RedisClient>{*this};
  const auto cluster = cluster_;
  if (cluster == nullptr) return rpc::NotOpen();
  auto servers = cluster->Masters(rpc::LimitOf(options, cluster->options()));
  if (!servers) return servers.error();
  std::vector<RedisClient> clients(servers->size());
  for (std::size_t i = 0; i != clients.size(); ++i) {
    clients[i].connector_ = std::move((*servers)[i]);
  }
  return clients;
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
  Status status = rpc::CheckRedisCommand(command, rpc::RedisWay::kSession);
  if (!status.ok()) return status;
  return rpc::OneReply(
      rpc::RunRedisRequest(*connector_, connection_.Get(), {&command},
                           rpc::LimitOf(options, connector_->options())));
}

RedisSession::Results RedisSession::ExecuteAll(
    const std::vector<RedisCommand>& commands, const CallOptions& options) {
  if (commands.empty()) return std::vector<RedisReply>();
  const auto all = rpc::AddressesOf(commands);
  Status status = rpc::CheckRedisCommands(all, rpc::RedisWay::kSession);
  if (!status.ok()) return status;
  return rpc::AllReplies(
      rpc::RunRedisRequest(*connector_, connection_.Get(), all,
                           rpc::LimitOf(options, connector_->options())));
}

Status RedisSession::Subscribe(const RedisCommand& command) {
  Status status = rpc::CheckRedisCommand(command, rpc::RedisWay::kSubscription);
  if (status.ok()) status = connection_->Subscribe(command.Encode());
  return status.ok() ? status : connector_->Named(status);
}

RedisSession::Result RedisSession::Receive(const CallOptions& options) {
  Result message = connection_->Receive(rpc::WaitLimit::In(
      options.timeout.value_or(std::chrono::nanoseconds::max())));
  if (message) return message;
  return connector_->Named(message.error());
}

}  // namespace flare
