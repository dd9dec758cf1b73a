#include "flare/rpc/pipeline/pipeline_connector.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/task.h"
#include "flare/io/tls_context.h"
#include "flare/rpc/naming/list_resolution.h"

namespace flare::rpc {
namespace {

flare::Status PipelineShutDown() {
  return flare::Status::Lenient(PIPELINE_SHUTDOWN, ShutDownStatus().message());
}

}  // namespace

flare::Status AsUnsent(const flare::Status& why) {
  // The time of the request isn't over.
  if (why.code() < PIPELINE_TIMEOUT_UNSENT) return why;
  return flare::Status(PIPELINE_FAIL_TO_CONNECT, why.message());
}

flare::Status PipelineOverloaded() {
  return flare::Status(PIPELINE_OVERLOADED,
                       "too many commands wait for replies (max_outstanding, "
                       "max_outstanding_bytes)");
}

PipelineConnector::PipelineConnector(Settings settings)
    : settings_(std::move(settings)),
      delay_ns_(ToNs(settings_.min_reconnect_delay)) {}

PipelineConnector::~PipelineConnector() {
  const auto why =
      flare::Status::Lenient(PIPELINE_CONNECTION_LOST, "the client is gone");
  for (const auto& [key, connection] : TakeOpen()) connection->Close(why);
}

void PipelineConnector::Shutdown() {
  const flare::Status why = PipelineShutDown();
  for (const auto& [key, connection] : TakeOpen()) connection->Close(why);
}

PipelineConnector::Connections PipelineConnector::TakeOpen() {
  ScopedLock guard(mutex_);
  return std::exchange(open_, {});
}

CallCells* PipelineConnector::cells() {
  // acquire: pairs with the release in NoteCells.
  CallCells* const known = cells_.load(std::memory_order_acquire);
  return known != nullptr ? known
                          : settings_.cells->Of(name(), /*connected=*/false);
}

flare::Status PipelineConnector::Named(const flare::Status& why) const {
  return flare::Status(why.code(), name() + ": " + why.message());
}

flare::Status PipelineConnector::Run(PipelineExchange* exchange,
                                     const WaitLimit& limit,
                                     const WaitLimit& to_connect,
                                     Connection* used) {
  for (;;) {
    auto shared = Shared(to_connect);
    if (!shared) return shared.error();
    *used = *std::move(shared);
    switch ((*used)->Submit(exchange)) {
      case PipelineConnection::Submitted::kTaken:
        return (*used)->Await(exchange, limit);
      case PipelineConnection::Submitted::kOverloaded:
        return PipelineOverloaded();
      case PipelineConnection::Submitted::kClosed:   // Over the next one.
      case PipelineConnection::Submitted::kRefused:  // Only others refuse.
        continue;
    }
  }
}

// --- attempts ----------------------------------------------------------------

PipelineConnector::Made PipelineConnector::Shared(const WaitLimit& limit) {
  for (;;) {
    if (Connection current = Current(); current != nullptr) return current;
    auto attempt = StartShared();
    if (!attempt) return attempt.error();
    if (*attempt == nullptr) continue;
    if ((*attempt)->again && settings_.fails_while_retrying) {
      ScopedLock guard(mutex_);
      return AfterFailure("connecting again after this failure: ");
    }
    return Await(*attempt, limit);
  }
}

void PipelineConnector::ConnectSoon() {
  {
    ScopedLock guard(mutex_);
    if (attempt_ != nullptr || NowNs() < blocked_until_ns_) return;
  }
  try {
    static_cast<void>(StartShared());
  } catch (const std::bad_alloc&) {  // Then later.
  }
}

Expected<std::shared_ptr<PipelineConnector::Attempt>, flare::Status>
PipelineConnector::StartShared() {
  if (!IsClientSideOpen()) return PipelineShutDown();
  std::shared_ptr<Attempt> attempt;
  Connection current;  // It may have been made just now.
  {
    ScopedLock guard(mutex_);
    current = Current();
    if (current != nullptr) return attempt;
    if (attempt_ != nullptr) return attempt_;
    if (flare::Status status = MayConnect(); !status.ok()) return status;
    attempt = attempt_ =
        std::make_shared<Attempt>(Role::kShared, HasFailedLately());
  }
  // relaxed: see in_doubt().
  tried_.store(true, std::memory_order_relaxed);
  Begin(attempt);
  return attempt;
}

PipelineConnector::Made PipelineConnector::Dedicated(const WaitLimit& limit) {
  if (!IsClientSideOpen()) return PipelineShutDown();
  {
    ScopedLock guard(mutex_);
    if (flare::Status status = MayConnect(); !status.ok()) return status;
  }
  const auto attempt = std::make_shared<Attempt>(Role::kSession);
  Begin(attempt);
  return Await(attempt, limit);
}

PipelineConnector::Connection PipelineConnector::Current() {
  Connection current;
  {
    ScopedLock guard(current_lock_);
    current = current_;
  }
  if (current != nullptr && current->closed()) return nullptr;
  return current;
}

flare::Status PipelineConnector::MayConnect() {
  if (NowNs() >= blocked_until_ns_) return {};
  return AfterFailure("no attempt so soon after this failure: ");
}

bool PipelineConnector::HasFailedLately() {
  const std::int64_t lately = SaturatingAdd(ToNs(settings_.max_reconnect_delay),
                                            ToNs(settings_.connect_timeout));
  return failing_ && NowNs() - failed_ns_ <= lately;
}

flare::Status PipelineConnector::AfterFailure(std::string_view what) {
  const bool keeps_code = last_failure_.code() == PIPELINE_REFUSED ||
                          last_failure_.code() == PIPELINE_SHUTDOWN;
  return flare::Status(
      keeps_code ? last_failure_.code() : int{PIPELINE_FAIL_TO_CONNECT},
      std::string(what) + last_failure_.message());
}

void PipelineConnector::NoteFailure(const flare::Status& why) {
  const std::int64_t now = NowNs();
  // relaxed: see in_doubt().
  tried_.store(true, std::memory_order_relaxed);
  last_failure_ = why;
  failed_ns_ = now;
  failing_ = true;
  if (now < blocked_until_ns_) return;  // By another attempt of the same time.
  blocked_until_ns_ = SaturatingAdd(now, delay_ns_);
  delay_ns_ = std::min(SaturatingAdd(delay_ns_, delay_ns_),
                       ToNs(settings_.max_reconnect_delay));
}

void PipelineConnector::Begin(const std::shared_ptr<Attempt>& attempt) {
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

void PipelineConnector::End(Attempt* attempt) {
  if (attempt->made) NoteCells();
  {
    ScopedLock guard(mutex_);
    if (!attempt->made) {
      NoteFailure(attempt->made.error());
    } else if (attempt->role == Role::kShared) {
      attempt->taken = true;
      TakeOver(*attempt->made);
    }
    if (attempt->role == Role::kShared) attempt_ = nullptr;
  }
  if (!attempt->made) OnTrouble();
  attempt->done.Set();
}

void PipelineConnector::TakeOver(const Connection& connection) {
  connected_ns_ = NowNs();
  {
    ScopedLock guard(current_lock_);
    // From here on OnGone() finds it.
    if (!connection->closed()) {
      current_ = connection;
      failing_ = false;
      return;
    }
  }
  NoteFailure(connection->failure());
}

void PipelineConnector::NoteCells() {
  try {
    // release: pairs with the acquire in cells.
    cells_.store(settings_.cells->Of(name(), /*connected=*/true),
                 std::memory_order_release);
  } catch (const std::bad_alloc&) {  // cells() looks again.
  }
}

PipelineConnector::Attempt::~Attempt() {
  if (made && !taken) {
    (*made)->Close(flare::Status::Lenient(PIPELINE_CANCELLED_UNSENT,
                                          "nobody waits for it"));
  }
}

PipelineConnector::Made PipelineConnector::Await(
    const std::shared_ptr<Attempt>& attempt, const WaitLimit& limit) {
  if (!attempt->done.WaitUntil(limit.stop, limit.at)) {
    // relaxed: see in_doubt().
    tried_.store(true, std::memory_order_relaxed);
    return limit.Exceeded("connecting",
                          {PIPELINE_TIMEOUT_UNSENT, PIPELINE_CANCELLED_UNSENT});
  }
  attempt->taken = true;
  return attempt->made;
}

void PipelineConnector::OnGone(PipelineConnection* connection,
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
    if (NowNs() - connected_ns_ >= ToNs(settings_.max_reconnect_delay)) {
      delay_ns_ = ToNs(settings_.min_reconnect_delay);
    } else {
      NoteFailure(why);
    }
  }
  OnTrouble();
}

// --- connecting --------------------------------------------------------------

PipelineConnector::Made PipelineConnector::ConnectTo(const std::string& server,
                                                     Role role) {
  std::vector<Endpoint> peers;
  if (auto literal = EndpointFromString(server)) {
    peers.push_back(*std::move(literal));
  } else if (auto found = LookUpHost(server)) {
    peers = *std::move(found);
  } else {
    return flare::Status(PIPELINE_FAIL_TO_CONNECT, found.error().message());
  }
  flare::Status failure(PIPELINE_FAIL_TO_CONNECT, "its name has no address");
  for (const Endpoint& peer : peers) {
    Made made = ConnectToPeer(peer, server, role);
    if (made) return made;
    failure = made.error();
  }
  return failure;
}

PipelineConnector::Made PipelineConnector::ConnectToPeer(
    const Endpoint& peer, const std::string& server, Role role) {
  std::unique_ptr<io::Transport> transport;
  if (settings_.tls) {
    auto tls = io::TlsClientContext::Get(*settings_.tls, {});
    if (!tls)
      return flare::Status(PIPELINE_FAIL_TO_CONNECT, tls.error().message());
    transport = (*tls)->NewTransport(server, name());
    if (transport == nullptr) {
      return flare::Status(
          PIPELINE_FAIL_TO_CONNECT,
          "TLS: there is no host name to verify, or no memory");
    }
  }
  const Connection connection =
      MakeConnection(peer, std::move(transport), role);
  flare::Status status;
  try {
    status = Establish(connection);
  } catch (const std::bad_alloc&) {
    connection->Close(flare::Status(PIPELINE_FAIL_TO_CONNECT));
    throw;
  }
  if (status.ok()) return connection;
  connection->Close(status);
  return status;
}

flare::Status PipelineConnector::Establish(const Connection& connection) {
  bool counted = false;
  IfClientSideIsOpen([&] {
    ScopedLock guard(mutex_);
    open_[connection.Get()] = connection;
    counted = true;
  });
  if (!counted) return PipelineShutDown();
  connection->Start();
  const WaitLimit limit = WaitLimit::In(settings_.connect_timeout);
  flare::Status status;
  if (!connection->AwaitConnected(limit)) {
    status = flare::Status(PIPELINE_TIMEOUT, "");
  } else if (connection->closed()) {
    return AsUnsent(connection->failure());
  } else {
    status = ShakeHands(connection, limit);
  }
  if (status.code() != PIPELINE_TIMEOUT) return status;
  return flare::Status(
      PIPELINE_FAIL_TO_CONNECT,
      "no answer within " +
          std::to_string(ToNs(settings_.connect_timeout) / kNsPerMs) +
          " ms (connect_timeout)");
}

flare::Status PipelineConnector::Greet(const Connection& connection,
                                       PipelineExchange* exchange,
                                       const WaitLimit& limit) {
  if (connection->Submit(exchange) != PipelineConnection::Submitted::kTaken) {
    return AsUnsent(connection->failure());
  }
  flare::Status status = connection->Await(exchange, limit);
  if (status.ok() || status.code() == PIPELINE_TIMEOUT) return status;
  return flare::Status(PIPELINE_FAIL_TO_CONNECT, status.message());
}

}  // namespace flare::rpc
