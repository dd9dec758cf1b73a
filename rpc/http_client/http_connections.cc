#include "flare/rpc/http_client/http_connections.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <new>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/task.h"
#include "flare/rpc/extension.h"
#include "flare/rpc/http_client/connect_tunnel.h"
#include "flare/rpc/naming/list_resolution.h"

namespace flare::rpc {
namespace {

flare::Status ShutDownError() {
  return flare::Status(ERROR_SHUTDOWN, ShutDownStatus().message());
}

// After a connection couldn't be made, requests that find no room queue at
// those that there are, for so long.
constexpr std::int64_t kOpeningPauseNs = 1'000'000'000;

std::vector<std::string> AlpnOf(HttpClientHttp2 http2) {
  switch (http2) {
    case HttpClientHttp2::kOff:
      break;
    case HttpClientHttp2::kAlpn:
      return {"h2", "http/1.1"};
    case HttpClientHttp2::kPriorKnowledge:
      return {"h2"};
  }
  return {"http/1.1"};
}

}  // namespace

std::shared_ptr<HttpConnections> HttpConnections::Create(
    HttpClientOptions options) {
  std::shared_ptr<HttpConnections> made(
      new HttpConnections(std::move(options)));
  OpenClientSide();
  JoinClientSide(made);
  return made;
}

HttpConnections::HttpConnections(HttpClientOptions options)
    : options_(std::move(options)),
      proxies_(HttpProxies::Create(options_.proxy)) {
  if (!options_.extensions) return;
  for (const auto& extension : InstalledExtensions()) {
    if (extension->http_client_interceptor != nullptr) {
      interceptors_.push_back(extension->http_client_interceptor);
    }
  }
}

HttpConnections::~HttpConnections() {
  for (const Connection& connection : AllOpen()) {
    connection->Close(flare::Status(ERROR_CANCELLED, "the client is gone"));
  }
}

void HttpConnections::Shutdown() {
  for (const Connection& connection : AllOpen()) {
    connection->Close(ShutDownError());
  }
}

std::vector<HttpConnections::Connection> HttpConnections::AllOpen() {
  std::vector<Connection> all;
  ScopedLock guard(mutex_);
  for (const auto& [key, open] : open_) all.push_back(open.connection);
  return all;
}

// --- leases ------------------------------------------------------------------

Expected<HttpConnections::Lease, flare::Status> HttpConnections::Acquire(
    const HttpOrigin& origin, Wanted wanted, const HttpWaitLimit& limit) {
  // Its end must find no other reference to the host (ForgetIfUnused).
  Lease lease(shared_from_this(), HostOf(origin));
  const bool shares = wanted != Wanted::kOwn &&
                      options_.http2 != HttpClientHttp2::kOff &&
                      (origin.tls || options_.http2 != HttpClientHttp2::kAlpn);
  flare::Status status = shares ? TakeShared(&lease, wanted, limit)
                                : TakeOne(&lease, wanted, limit);
  if (!status.ok()) return status;
  return lease;
}

flare::Status HttpConnections::TakeOne(Lease* lease, Wanted wanted,
                                       const HttpWaitLimit& limit) {
  Host* const host = lease->host_.get();
  if (!lease->has_place_ && !host->places.try_acquire()) {
    CloseOneIdle(host);
  } else {
    lease->has_place_ = true;
  }
  if (!lease->has_place_ &&
      !host->places.try_acquire_until(limit.stop, limit.at)) {
    return limit.Exceeded("waiting for one of the " +
                          std::to_string(options_.max_connections_per_host) +
                          " connections to its host");
  }
  lease->has_place_ = true;
  if (wanted != Wanted::kOwn) {
    lease->connection_ = TakeKept(host, wanted == Wanted::kFresh);
    lease->reused_ = lease->connection_ != nullptr;
    if (lease->reused_) return {};
  }
  auto made = Connect(
      lease->host_,
      wanted == Wanted::kOwn ? HttpClientHttp2::kOff : options_.http2, limit);
  if (!made) return made.error();
  if ((*made)->speaks_http2()) return Share(lease, *made);
  lease->connection_ = *std::move(made);
  ScopedLock guard(mutex_);
  if (wanted != Wanted::kOwn) host->chose_http1 = true;
  return {};
}

HttpConnections::Lease::~Lease() {
  if (all_ == nullptr) return;
  if (connection_ != nullptr) all_->Keep(host_.get(), connection_);
  if (http2_ != nullptr) all_->LeaveShared(host_.get(), http2_.Get());
  if (has_place_) host_->places.release();
  all_->ForgetIfUnused(std::move(host_));
}

std::shared_ptr<HttpConnections::Host> HttpConnections::HostOf(
    const HttpOrigin& origin) {
  ScopedLock guard(mutex_);
  std::weak_ptr<Host>& known = hosts_[origin];
  std::shared_ptr<Host> host = known.lock();
  if (host == nullptr) {
    host = std::make_shared<Host>(
        origin, std::max<std::size_t>(1, options_.max_connections_per_host));
    known = host;
  }
  return host;
}

void HttpConnections::ForgetIfUnused(std::shared_ptr<Host> host) {
  ScopedLock guard(mutex_);
  const auto it = hosts_.find(host->origin);
  host.reset();
  if (it != hosts_.end() && it->second.expired()) hosts_.erase(it);
}

HttpConnections::Connection HttpConnections::TakeKept(Host* host, bool fresh) {
  for (;;) {
    Connection connection;
    {
      ScopedLock guard(mutex_);
      if (host->kept.empty()) return nullptr;
      connection = std::move(host->kept.back());
      host->kept.pop_back();
      --kept_count_;
    }
    if (!connection->EndIdle()) continue;
    if (!fresh) return connection;
    connection->Close(flare::Status(ERROR_CONNECTION, "a new one replaces it"));
    return nullptr;
  }
}

void HttpConnections::Keep(Host* host, const Connection& connection) {
  bool kept = false;
  if (connection->reusable()) {
    ScopedLock guard(mutex_);
    // From BeginIdle() on OnGone() is to come, and waits for mutex_.
    if (kept_count_ < options_.max_idle_connections &&
        connection->BeginIdle(IdleEnd())) {
      try {
        host->kept.push_back(connection);
        ++kept_count_;
        kept = true;
      } catch (const std::bad_alloc&) {  // Then it isn't kept.
      }
    }
  }
  // Without a text, for which there may be no memory.
  if (!kept) connection->Close(flare::Status(ERROR_CONNECTION));
}

void HttpConnections::OnGone(HttpClientConnection* connection) {
  Open gone;
  RefPtr<Http2ClientConnection> http2;  // Goes without mutex_.
  {
    ScopedLock guard(mutex_);
    const auto it = open_.find(connection);
    if (it == open_.end()) return;
    gone = std::move(it->second);
    open_.erase(it);
    kept_count_ -= std::erase(gone.host->kept, gone.connection);
    std::vector<Shared>& all = gone.host->shared;
    const auto shared =
        std::find_if(all.begin(), all.end(), [&](const Shared& one) {
          return one.connection->connection() == gone.connection;
        });
    if (shared != all.end()) {
      if (shared->requests == 0) --kept_count_;
      http2 = std::move(shared->connection);
      all.erase(shared);
    }
  }
  if (gone.has_place) gone.host->places.release();
  ForgetIfUnused(std::move(gone.host));
}

// --- sharing -----------------------------------------------------------------

flare::Status HttpConnections::TakeShared(Lease* lease, Wanted wanted,
                                          const HttpWaitLimit& limit) {
  Host* const host = lease->host_.get();
  for (;;) {
    std::shared_ptr<Opening> opening;
    bool opens = false;
    {
      ScopedLock guard(mutex_);
      if (Join(lease, /*queue=*/false)) return {};
      if (host->chose_http1) break;
      if (host->opening == nullptr) {
        if (NowNs() < host->pause_end_ns && Join(lease, /*queue=*/true)) {
          return {};
        }
        FreePlacesOfLeaving(host);
        lease->has_place_ = host->places.try_acquire();
        if (!lease->has_place_ && Join(lease, /*queue=*/true)) return {};
        host->opening = std::make_shared<Opening>();
        opens = true;
      } else {
        ++host->opening->waiting;
      }
      opening = host->opening;
    }
    if (opens) return OpenShared(lease, wanted, limit);
    const bool heard = opening->news.try_acquire_until(limit.stop, limit.at);
    {
      ScopedLock guard(mutex_);
      --opening->waiting;
      if (heard && !opening->failure.ok()) {
        return Join(lease, /*queue=*/true) ? flare::Status() : opening->failure;
      }
    }
    if (!heard) return limit.Exceeded("waiting for a connection to its host");
  }
  return TakeOne(lease, wanted, limit);
}

flare::Status HttpConnections::OpenShared(Lease* lease, Wanted wanted,
                                          const HttpWaitLimit& limit) {
  Host* const host = lease->host_.get();
  const auto end = [&](const flare::Status& failure) {
    std::shared_ptr<Opening> opening;
    std::size_t waiting = 0;
    {
      ScopedLock guard(mutex_);
      opening = std::move(host->opening);
      opening->failure = failure;
      waiting = opening->waiting;
    }
    opening->news.release(static_cast<std::ptrdiff_t>(waiting));
  };
  flare::Status status;
  try {
    status = TakeOne(lease, wanted, limit);
  } catch (...) {  // Without memory.
    end({});
    throw;
  }
  if (!status.ok() && status.code() != ERROR_CANCELLED) {
    ScopedLock guard(mutex_);
    host->pause_end_ns = NowNs() + kOpeningPauseNs;
  }
  // If its own time is over another one may try.
  const bool is_own =
      status.code() == ERROR_TIMEOUT || status.code() == ERROR_CANCELLED;
  end(is_own ? flare::Status() : status);
  if (status.ok()) return status;
  if (std::exchange(lease->has_place_, false)) host->places.release();
  if (is_own) return status;
  ScopedLock guard(mutex_);
  return Join(lease, /*queue=*/true) ? flare::Status() : status;
}

flare::Status HttpConnections::Share(Lease* lease,
                                     const Connection& connection) {
  Host* const host = lease->host_.get();
  try {
    auto http2 = Http2ClientConnection::Begin(connection);
    if (http2 == nullptr) return connection->failure();
    ScopedLock guard(mutex_);
    const auto it = open_.find(connection.Get());
    if (it == open_.end()) return connection->failure();  // It is gone.
    host->shared.push_back({http2, 1});
    host->chose_http1 = false;
    it->second.has_place = std::exchange(lease->has_place_, false);
    lease->http2_ = std::move(http2);
    return {};
  } catch (...) {  // Without memory. A text would take some.
    connection->Close(flare::Status(ERROR_CANCELLED));
    throw;
  }
}

void HttpConnections::FreePlacesOfLeaving(Host* host) {
  for (const Shared& one : host->shared) {
    if (one.connection->max_requests()) continue;
    const auto open = open_.find(one.connection->connection().Get());
    if (open == open_.end()) continue;
    if (std::exchange(open->second.has_place, false)) host->places.release();
  }
}

bool HttpConnections::Join(Lease* lease, bool queue) {
  std::vector<Shared>& all = lease->host_->shared;
  for (;;) {
    auto best = all.end();
    for (auto it = all.begin(); it != all.end(); ++it) {
      const auto max = it->connection->max_requests();
      if (!max || (!queue && it->requests >= *max)) continue;
      if (best == all.end() || it->requests < best->requests) best = it;
      if (!queue) break;  // So that others get idle.
    }
    if (best == all.end()) return false;
    if (best->requests == 0) {
      --kept_count_;
      if (!best->connection->connection()->EndIdle()) {  // It closes.
        all.erase(best);
        continue;
      }
    }
    ++best->requests;
    lease->http2_ = best->connection;
    lease->reused_ = true;
    return true;
  }
}

void HttpConnections::LeaveShared(Host* host,
                                  const Http2ClientConnection* http2) {
  const Connection connection = http2->connection();
  std::shared_ptr<Opening> opening;  // With a waiter that there is room for.
  const bool closes = EndShare(host, http2, &opening);
  if (opening != nullptr) opening->news.release();
  if (closes) connection->Close(flare::Status(ERROR_CONNECTION));
}

bool HttpConnections::EndShare(Host* host, const Http2ClientConnection* http2,
                               std::shared_ptr<Opening>* opening) {
  ScopedLock guard(mutex_);
  const auto it = std::find_if(
      host->shared.begin(), host->shared.end(),
      [&](const Shared& one) { return one.connection.Get() == http2; });
  if (it == host->shared.end()) return false;
  if (host->opening != nullptr && host->opening->waiting != 0) {
    *opening = host->opening;
  }
  if (--it->requests != 0) return false;
  // From BeginIdle() on OnGone() is to come, and waits for mutex_.
  if (kept_count_ < options_.max_idle_connections &&
      http2->max_requests().value_or(0) != 0 &&
      http2->connection()->BeginIdle(IdleEnd())) {
    ++kept_count_;
    return false;
  }
  host->shared.erase(it);
  return true;
}

void HttpConnections::CloseOneIdle(Host* host) {
  Connection connection;
  {
    ScopedLock guard(mutex_);
    const auto it =
        std::find_if(host->shared.begin(), host->shared.end(),
                     [](const Shared& one) { return one.requests == 0; });
    if (it == host->shared.end()) return;
    connection = it->connection->connection();
    connection->EndIdle();
    --kept_count_;
    host->shared.erase(it);
  }
  connection->Close(flare::Status(ERROR_CONNECTION));  // OnGone() is to come.
}

// --- looking up --------------------------------------------------------------

Expected<std::vector<Endpoint>, flare::Status> HttpConnections::LookUp(
    const std::shared_ptr<Host>& host, const HttpWaitLimit& limit) {
  const std::string& address = host->origin.connects_to();
  if (auto literal = EndpointFromString(address)) {
    return std::vector<Endpoint>{*std::move(literal)};
  }
  std::shared_ptr<Lookup> lookup = LookupUnderWay(host.get());
  if (lookup == nullptr) {
    // First, as there may be no memory for it.
    auto own = std::make_shared<Lookup>(address);
    if (!lookups_.try_acquire_until(limit.stop, limit.at)) {
      return limit.Exceeded("waiting for other look-ups to look up " + address);
    }
    lookup = BeginLookup(host, std::move(own));
  }
  if (!lookup->done.WaitUntil(limit.stop, limit.at)) {
    return limit.Exceeded("looking up " + address);
  }
  if (!lookup->found) {
    return flare::Status(ERROR_FAIL_TO_RESOLVE_ADDRESS,
                         lookup->found.error().message());
  }
  return *lookup->found;
}

std::shared_ptr<HttpConnections::Lookup> HttpConnections::LookupUnderWay(
    Host* host) {
  ScopedLock guard(mutex_);
  return host->lookup;
}

std::shared_ptr<HttpConnections::Lookup> HttpConnections::BeginLookup(
    const std::shared_ptr<Host>& host, std::shared_ptr<Lookup> lookup) {
  std::shared_ptr<Lookup> other;
  {
    ScopedLock guard(mutex_);
    other = host->lookup;
    if (other == nullptr) host->lookup = lookup;
  }
  if (other != nullptr) {
    lookups_.release();
    return other;
  }
  // It can't be ended, so it isn't part of a call. Requests that wait for it
  // hold this object; without any, kept connections close before it ends.
  const auto look = [all = weak_from_this(), host, lookup]() mutable {
    try {
      lookup->found = LookUpHost(lookup->address);
    } catch (const std::bad_alloc&) {  // As below.
    }
    if (const auto self = all.lock()) {
      self->EndLookup(std::move(host), lookup.get());
    }
  };
  try {
    fiber::Spawn(look);
  } catch (const std::bad_alloc&) {  // `found` says so.
    EndLookup(host, lookup.get());
  }
  return lookup;
}

void HttpConnections::EndLookup(std::shared_ptr<Host> host, Lookup* lookup) {
  {
    ScopedLock guard(mutex_);
    host->lookup = nullptr;
  }
  lookup->done.Set();
  lookups_.release();
  ForgetIfUnused(std::move(host));
}

// --- connecting --------------------------------------------------------------

Expected<HttpConnections::Connection, flare::Status> HttpConnections::Connect(
    const std::shared_ptr<Host>& host, HttpClientHttp2 http2,
    const HttpWaitLimit& limit) {
  auto peers = LookUp(host, limit);
  if (!peers) return peers.error();
  flare::Status failure;
  for (const Endpoint& peer : *peers) {
    auto connection = ConnectTo(peer, host, http2, limit);
    if (connection) return connection;
    failure = connection.error();
    if (limit.stop.stop_requested() || ReadSteadyClock() >= limit.at) break;
  }
  return failure;
}

Expected<HttpConnections::Connection, flare::Status> HttpConnections::ConnectTo(
    const Endpoint& peer, const std::shared_ptr<Host>& host,
    HttpClientHttp2 http2, const HttpWaitLimit& limit) {
  const bool known = http2 == HttpClientHttp2::kPriorKnowledge;
  std::unique_ptr<io::Transport> transport;
  if (const HttpOrigin& origin = host->origin; origin.tls) {
    auto tls = Tls(http2);
    if (!tls) return tls.error();
    transport =
        (*tls)->NewTransport(origin.host, origin.host + ' ' + origin.address);
    if (transport == nullptr) {
      return flare::Status(
          ERROR_SSL, "TLS: there is no host name to verify, or no memory");
    }
  }
  if (const HttpProxy* const proxy = host->origin.tunnel) {
    transport = std::make_unique<ConnectTunnel>(
        host->origin.address, proxy->lines, std::move(transport));
  }
  const Connection connection = HttpClientConnection::Make(
      peer, std::move(transport), weak_from_this(), known && !host->origin.tls);
  try {
    flare::Status status = Establish(connection, host, limit);
    if (!status.ok()) return status;
    if (known && !connection->speaks_http2()) {
      status = flare::Status(
          ERROR_SSL, "TLS: the server doesn't agree to speak HTTP/2 (ALPN)");
      connection->Close(status);
      return status;
    }
    return connection;
  } catch (...) {  // Without memory. A text would take some.
    connection->Close(flare::Status(ERROR_CANCELLED));
    throw;
  }
}

flare::Status HttpConnections::Establish(const Connection& connection,
                                         const std::shared_ptr<Host>& host,
                                         const HttpWaitLimit& limit) {
  bool counted = false;
  IfClientSideIsOpen([&] {
    ScopedLock guard(mutex_);
    open_[connection.Get()] = {connection, host};
    counted = true;
  });
  if (!counted) {
    connection->Close(ShutDownError());
    return ShutDownError();
  }
  connection->Start();
  return connection->AwaitConnected(limit, options_.connect_timeout);
}

Expected<HttpConnections::TlsContext, flare::Status> HttpConnections::Tls(
    HttpClientHttp2 http2) {
  const auto index = static_cast<std::size_t>(http2);
  {
    ScopedLock guard(mutex_);
    if (tls_[index] != nullptr) return tls_[index];
  }
  auto made = io::TlsClientContext::Get(options_.tls, AlpnOf(http2));
  if (!made) return flare::Status(ERROR_SSL, made.error().message());
  ScopedLock guard(mutex_);
  tls_[index] = *made;
  return *made;
}

}  // namespace flare::rpc
