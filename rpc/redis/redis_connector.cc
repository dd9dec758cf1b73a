#include "flare/rpc/redis/redis_connector.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/task.h"
#include "flare/io/tls_context.h"
#include "flare/rpc/naming/list_resolution.h"
#include "flare/rpc/redis/redis_counters.h"
#include "flare/rpc/redis_command.h"

namespace flare::rpc {
namespace {

flare::Status RedisShutDown() {
  return flare::Status::Lenient(REDIS_SHUTDOWN, ShutDownStatus().message());
}

RedisUri WithOptions(RedisUri uri, const RedisClientOptions& options) {
  if (!options.user.empty()) uri.user = options.user;
  if (!options.password.empty()) uri.password = options.password;
  if (options.database) uri.database = *options.database;
  return uri;
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

flare::Status AsUnsent(const flare::Status& why) {
  // The time of the command isn't over.
  if (why.code() < REDIS_TIMEOUT_UNSENT) return why;
  return flare::Status(REDIS_FAIL_TO_CONNECT, why.message());
}

std::shared_ptr<RedisConnector> RedisConnector::Create(
    RedisUri uri, RedisClientOptions options, RedisPlace place) {
  std::shared_ptr<RedisConnector> made(
      new RedisConnector(std::move(uri), std::move(options), std::move(place)));
  JoinClientSide(made);
  return made;
}

RedisConnector::RedisConnector(RedisUri uri, RedisClientOptions options,
                               RedisPlace place)
    : uri_(WithOptions(std::move(uri), options)),
      options_(std::move(options)),
      place_(std::move(place)),
      name_(uri_.ToString()),
      delay_ns_(ToNs(options_.min_reconnect_delay)) {}

RedisConnector::~RedisConnector() {
  const auto why =
      flare::Status::Lenient(REDIS_CONNECTION_LOST, "the client is gone");
  for (const auto& [key, connection] : TakeOpen()) connection->Close(why);
}

void RedisConnector::Shutdown() {
  const flare::Status why = RedisShutDown();
  for (const auto& [key, connection] : TakeOpen()) connection->Close(why);
}

RedisConnector::Connections RedisConnector::TakeOpen() {
  ScopedLock guard(mutex_);
  return std::exchange(open_, {});
}

CallCells* RedisConnector::cells() {
  // acquire: pairs with the release in NoteCells.
  CallCells* const known = cells_.load(std::memory_order_acquire);
  return known != nullptr ? known
                          : RedisCounters::Of(name_, /*connected=*/false);
}

void RedisConnector::ReportTrouble() const {
  if (place_.on_trouble) place_.on_trouble();
}

void RedisConnector::NoteError(const RedisReply& error,
                               RedisConnection* connection) {
  if (error.text().starts_with("MOVED ")) ReportTrouble();
  // The next command asks the sentinels. A session belongs to the program.
  if (place_.find_master && error.text().starts_with("READONLY ") &&
      Current().Get() == connection) {
    connection->Close(flare::Status(REDIS_CONNECTION_LOST,
                                    "the server is no master any more"));
  }
}

// --- attempts ----------------------------------------------------------------

RedisConnector::Made RedisConnector::Shared(const WaitLimit& limit) {
  for (;;) {
    if (Connection current = Current(); current != nullptr) return current;
    auto attempt = StartShared();
    if (!attempt) return attempt.error();
    if (*attempt != nullptr) return Await(*attempt, limit);
  }
}

void RedisConnector::ConnectSoon() {
  {
    ScopedLock guard(mutex_);
    if (attempt_ != nullptr || NowNs() < blocked_until_ns_) return;
  }
  static_cast<void>(StartShared());
}

Expected<std::shared_ptr<RedisConnector::Attempt>, flare::Status>
RedisConnector::StartShared() {
  if (!IsClientSideOpen()) return RedisShutDown();
  std::shared_ptr<Attempt> attempt;
  Connection current;  // It may have been made just now.
  {
    ScopedLock guard(mutex_);
    current = Current();
    if (current != nullptr) return attempt;
    if (attempt_ != nullptr) return attempt_;
    if (flare::Status status = MayConnect(); !status.ok()) return status;
    attempt = attempt_ =
        std::make_shared<Attempt>(RedisConnection::Role::kShared);
  }
  // relaxed: see in_doubt().
  tried_.store(true, std::memory_order_relaxed);
  Begin(attempt);
  return attempt;
}

RedisConnector::Made RedisConnector::Dedicated(const WaitLimit& limit) {
  if (!IsClientSideOpen()) return RedisShutDown();
  {
    ScopedLock guard(mutex_);
    if (flare::Status status = MayConnect(); !status.ok()) return status;
  }
  const auto attempt =
      std::make_shared<Attempt>(RedisConnection::Role::kSession);
  Begin(attempt);
  return Await(attempt, limit);
}

RedisConnector::Connection RedisConnector::Current() {
  Connection current;
  {
    ScopedLock guard(current_lock_);
    current = current_;
  }
  if (current != nullptr && current->closed()) return nullptr;
  return current;
}

flare::Status RedisConnector::MayConnect() {
  if (NowNs() >= blocked_until_ns_) return {};
  const bool keeps_code = last_failure_.code() == REDIS_REFUSED ||
                          last_failure_.code() == REDIS_SHUTDOWN;
  return flare::Status(
      keeps_code ? last_failure_.code() : int{REDIS_FAIL_TO_CONNECT},
      "no attempt so soon after this failure: " + last_failure_.message());
}

void RedisConnector::NoteFailure(const flare::Status& why) {
  const std::int64_t now = NowNs();
  // relaxed: see in_doubt().
  tried_.store(true, std::memory_order_relaxed);
  last_failure_ = why;
  if (now < blocked_until_ns_) return;  // By another attempt of the same time.
  blocked_until_ns_ = SaturatingAdd(now, delay_ns_);
  delay_ns_ = std::min(SaturatingAdd(delay_ns_, delay_ns_),
                       ToNs(options_.max_reconnect_delay));
}

void RedisConnector::Begin(const std::shared_ptr<Attempt>& attempt) {
  try {
    fiber::Spawn([self = shared_from_this(), attempt] {
      try {
        attempt->made = self->Connect(attempt->role);
      } catch (const std::bad_alloc&) {  // `made` says so.
      }
      self->End(attempt.get());
    });
  } catch (const std::bad_alloc&) {
    End(attempt.get());
  }
}

void RedisConnector::End(Attempt* attempt) {
  if (attempt->made) NoteCells();
  {
    ScopedLock guard(mutex_);
    if (!attempt->made) {
      NoteFailure(attempt->made.error());
    } else if (attempt->role == RedisConnection::Role::kShared) {
      attempt->taken = true;
      TakeOver(*attempt->made);
    }
    if (attempt->role == RedisConnection::Role::kShared) attempt_ = nullptr;
  }
  if (!attempt->made) ReportTrouble();
  attempt->done.Set();
}

void RedisConnector::TakeOver(const Connection& connection) {
  connected_ns_ = NowNs();
  {
    ScopedLock guard(current_lock_);
    // From here on OnGone() finds it.
    if (!connection->closed()) {
      current_ = connection;
      return;
    }
  }
  NoteFailure(connection->failure());
}

void RedisConnector::NoteCells() {
  try {
    // release: pairs with the acquire in cells.
    cells_.store(RedisCounters::Of(name_, /*connected=*/true),
                 std::memory_order_release);
  } catch (const std::bad_alloc&) {  // cells() looks again.
  }
}

RedisConnector::Attempt::~Attempt() {
  if (made && !taken) {
    (*made)->Close(
        flare::Status::Lenient(REDIS_CANCELLED_UNSENT, "nobody waits for it"));
  }
}

RedisConnector::Made RedisConnector::Await(
    const std::shared_ptr<Attempt>& attempt, const WaitLimit& limit) {
  if (!attempt->done.WaitUntil(limit.stop, limit.at)) {
    return limit.Exceeded("connecting",
                          {REDIS_TIMEOUT_UNSENT, REDIS_CANCELLED_UNSENT});
  }
  attempt->taken = true;
  return attempt->made;
}

void RedisConnector::OnGone(RedisConnection* connection,
                            const flare::Status& why) {
  Connection gone;
  {
    ScopedLock guard(current_lock_);
    if (current_.Get() == connection) gone = std::exchange(current_, nullptr);
  }
  {
    ScopedLock guard(mutex_);
    open_.erase(connection);
    if (gone == nullptr) return;
    if (NowNs() - connected_ns_ >= ToNs(options_.max_reconnect_delay)) {
      delay_ns_ = ToNs(options_.min_reconnect_delay);
    } else {
      NoteFailure(why);
    }
  }
  ReportTrouble();
}

// --- connecting --------------------------------------------------------------

RedisConnector::Made RedisConnector::Connect(RedisConnection::Role role) {
  if (!place_.find_master) return ConnectTo(address(), role);
  const auto master = place_.find_master();
  if (!master) return master.error();
  Made made = ConnectTo(*master, role);
  if (made) return made;
  place_.doubt_master();
  return flare::Status(made.error().code(), "the master, " + *master + ": " +
                                                made.error().message());
}

RedisConnector::Made RedisConnector::ConnectTo(const std::string& server,
                                               RedisConnection::Role role) {
  std::vector<Endpoint> peers;
  if (auto literal = EndpointFromString(server)) {
    peers.push_back(*std::move(literal));
  } else if (auto found = LookUpHost(server)) {
    peers = *std::move(found);
  } else {
    return flare::Status(REDIS_FAIL_TO_CONNECT, found.error().message());
  }
  flare::Status failure(REDIS_FAIL_TO_CONNECT, "its name has no address");
  for (const Endpoint& peer : peers) {
    Made made = ConnectToPeer(peer, server, role);
    if (made) return made;
    failure = made.error();
  }
  return failure;
}

RedisConnector::Made RedisConnector::ConnectToPeer(const Endpoint& peer,
                                                   const std::string& server,
                                                   RedisConnection::Role role) {
  std::unique_ptr<io::Transport> transport;
  if (uri_.tls) {
    auto tls = io::TlsClientContext::Get(options_.tls, {});
    if (!tls)
      return flare::Status(REDIS_FAIL_TO_CONNECT, tls.error().message());
    transport = (*tls)->NewTransport(server, name_);
    if (transport == nullptr) {
      return flare::Status(
          REDIS_FAIL_TO_CONNECT,
          "TLS: there is no host name to verify, or no memory");
    }
  }
  const Connection connection = RedisConnection::Make(
      peer, std::move(transport), options_, role, weak_from_this());
  flare::Status status;
  try {
    status = Establish(connection);
  } catch (const std::bad_alloc&) {
    connection->Close(flare::Status(REDIS_FAIL_TO_CONNECT));
    throw;
  }
  if (status.ok()) return connection;
  connection->Close(status);
  return status;
}

flare::Status RedisConnector::Establish(const Connection& connection) {
  bool counted = false;
  IfClientSideIsOpen([&] {
    ScopedLock guard(mutex_);
    open_[connection.Get()] = connection;
    counted = true;
  });
  if (!counted) return RedisShutDown();
  connection->Start();
  const WaitLimit limit = WaitLimit::In(options_.connect_timeout);
  flare::Status status;
  if (!connection->AwaitConnected(limit)) {
    status = flare::Status(REDIS_TIMEOUT, "");
  } else if (connection->closed()) {
    return AsUnsent(connection->failure());
  } else {
    status = ShakeHands(connection, limit);
  }
  if (status.code() != REDIS_TIMEOUT) return status;
  return flare::Status(
      REDIS_FAIL_TO_CONNECT,
      "no answer within " +
          std::to_string(ToNs(options_.connect_timeout) / kNsPerMs) +
          " ms (connect_timeout)");
}

flare::Status RedisConnector::ShakeHands(const Connection& connection,
                                         const WaitLimit& limit) {
  const std::vector<RedisCommand> commands =
      Greeting(uri_, options_.resp3, place_);
  if (commands.empty()) return {};
  Buffer bytes;
  for (const RedisCommand& command : commands) bytes.Append(command.Encode());
  const auto exchange = RedisExchange::Make(std::move(bytes), commands.size());
  if (connection->Submit(exchange.Get()) !=
      RedisConnection::Submitted::kTaken) {
    return AsUnsent(connection->failure());
  }
  if (auto status = connection->Await(exchange.Get(), limit); !status.ok()) {
    return status.code() == REDIS_TIMEOUT
               ? status
               : flare::Status(REDIS_FAIL_TO_CONNECT, status.message());
  }
  exchange->earlier.push_back(std::move(exchange->last));
  for (std::size_t i = 0; i != commands.size(); ++i) {
    flare::Status status = CheckGreeting(commands[i], exchange->earlier[i]);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace flare::rpc
