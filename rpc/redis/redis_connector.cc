#include "flare/rpc/redis/redis_connector.h"

#include <optional>
#include <utility>
#include <vector>

#include "flare/rpc/redis/redis_counters.h"
#include "flare/rpc/redis_command.h"

namespace flare::rpc {
namespace {

// Errors pass through as they are.
static_assert(int{REDIS_FAIL_TO_CONNECT} == PIPELINE_FAIL_TO_CONNECT &&
              int{REDIS_REFUSED} == PIPELINE_REFUSED &&
              int{REDIS_OVERLOADED} == PIPELINE_OVERLOADED &&
              int{REDIS_SHUTDOWN} == PIPELINE_SHUTDOWN &&
              int{REDIS_TIMEOUT_UNSENT} == PIPELINE_TIMEOUT_UNSENT &&
              int{REDIS_CANCELLED_UNSENT} == PIPELINE_CANCELLED_UNSENT &&
              int{REDIS_TIMEOUT} == PIPELINE_TIMEOUT &&
              int{REDIS_CANCELLED} == PIPELINE_CANCELLED &&
              int{REDIS_CONNECTION_LOST} == PIPELINE_CONNECTION_LOST &&
              int{REDIS_MALFORMED_REPLY} == PIPELINE_MALFORMED_REPLY);

RedisUri WithOptions(RedisUri uri, const RedisClientOptions& options) {
  if (!options.user.empty()) uri.user = options.user;
  if (!options.password.empty()) uri.password = options.password;
  if (options.database) uri.database = *options.database;
  return uri;
}

PipelineConnector::Settings SettingsOf(const RedisUri& uri,
                                       const RedisClientOptions& options) {
  return {.name = uri.ToString(),
          .address = uri.addresses.front(),
          .tls = uri.tls ? std::optional(options.tls) : std::nullopt,
          .connect_timeout = options.connect_timeout,
          .min_reconnect_delay = options.min_reconnect_delay,
          .max_reconnect_delay = options.max_reconnect_delay,
          .fails_while_retrying = false,
          .cells = RedisCounters::Cells()};
}

// The first commands of a connection. Each has one reply.
std::vector<RedisCommand> Greeting(const RedisUri& uri, bool resp3,
                                   const RedisPlace& place) {
  std::vector<RedisCommand> commands;
  if (resp3) {
    RedisCommand& hello = commands.emplace_back(RedisCommand{"HELLO", "3"});
    if (!uri.password.empty()) {
      hello.Add("AUTH").Add(uri.user.empty() ? "default" : uri.user);
      hello.Add(uri.password);
    }
  } else if (!uri.password.empty()) {
    RedisCommand& auth = commands.emplace_back(RedisCommand{"AUTH"});
    if (!uri.user.empty()) auth.Add(uri.user);
    auth.Add(uri.password);
  }
  if (uri.database != 0) {
    commands.push_back(RedisCommand{"SELECT"}.Add(uri.database));
  }
  if (place.reads_replicas) commands.push_back({"READONLY"});
  if (place.find_master) commands.push_back({"ROLE"});
  return commands;
}

flare::Status CheckGreeting(const RedisCommand& command,
                            const RedisReply& reply) {
  if (command.name() != "ROLE") {
    if (!reply.is_error()) return {};
    return flare::Status(REDIS_REFUSED, command.name() + ": " + reply.text());
  }
  if (reply.is_error()) {
    // A user who may not ask for the role has to trust the sentinels.
    const std::string_view why = reply.text();
    if (why.starts_with("NOPERM") || why.starts_with("ERR unknown command")) {
      return {};
    }
    return flare::Status(REDIS_REFUSED, "ROLE: " + reply.text());
  }
  if (reply.size() != 0 && reply[0].text() == "master") return {};
  return flare::Status(REDIS_FAIL_TO_CONNECT,
                       "it isn't a master, though a sentinel says so");
}

}  // namespace

std::shared_ptr<RedisConnector> RedisConnector::Create(
    RedisUri uri, RedisClientOptions options, RedisPlace place) {
  uri = WithOptions(std::move(uri), options);
  std::shared_ptr<RedisConnector> made(
      new RedisConnector(std::move(uri), std::move(options), std::move(place)));
  JoinClientSide(made);
  return made;
}

RedisConnector::RedisConnector(RedisUri uri, RedisClientOptions options,
                               RedisPlace place)
    : PipelineConnector(SettingsOf(uri, options)),
      uri_(std::move(uri)),
      options_(std::move(options)),
      place_(std::move(place)) {}

Expected<RefPtr<RedisConnection>, flare::Status> RedisConnector::NewSession(
    const WaitLimit& limit) {
  auto made = Dedicated(limit);
  if (!made) return made.error();
  return RefPtr<RedisConnection>(adopt_ref,
                                 static_cast<RedisConnection*>(made->Leak()));
}

RedisConnector::Connection RedisConnector::MakeConnection(
    const Endpoint& peer, std::unique_ptr<io::Transport> transport, Role role) {
  return RedisConnection::Make(peer, std::move(transport), options_, role,
                               weak_from_this());
}

void RedisConnector::OnTrouble() const {
  if (place_.on_trouble) place_.on_trouble();
}

void RedisConnector::NoteError(const RedisReply& error,
                               PipelineConnection* connection) {
  if (error.text().starts_with("MOVED ")) OnTrouble();
  // The next command asks the sentinels. A session belongs to the program.
  if (place_.find_master && error.text().starts_with("READONLY ") &&
      Current().Get() == connection) {
    connection->Close(flare::Status(REDIS_CONNECTION_LOST,
                                    "the server is no master any more"));
  }
}

RedisConnector::Made RedisConnector::Connect(Role role) {
  if (!place_.find_master) return ConnectTo(address(), role);
  const auto master = place_.find_master();
  if (!master) return master.error();
  Made made = ConnectTo(*master, role);
  if (made) return made;
  place_.doubt_master();
  return flare::Status(made.error().code(), "the master, " + *master + ": " +
                                                made.error().message());
}

flare::Status RedisConnector::ShakeHands(const Connection& connection,
                                         const WaitLimit& limit) {
  const std::vector<RedisCommand> commands =
      Greeting(uri_, options_.resp3, place_);
  if (commands.empty()) return {};
  Buffer bytes;
  for (const RedisCommand& command : commands) bytes.Append(command.Encode());
  const auto exchange = RedisExchange::Make(std::move(bytes), commands.size());
  flare::Status greeted = Greet(connection, exchange.Get(), limit);
  if (!greeted.ok()) return greeted;
  exchange->earlier.push_back(std::move(exchange->last));
  for (std::size_t i = 0; i != commands.size(); ++i) {
    flare::Status status = CheckGreeting(commands[i], exchange->earlier[i]);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace flare::rpc
