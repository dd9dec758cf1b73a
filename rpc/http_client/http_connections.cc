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
    const HttpOrigin& origin, bool fresh, const HttpWaitLimit& limit) {
  std::shared_ptr<Host> host = HostOf(origin);
  if (!host->places.try_acquire_until(limit.stop, limit.at)) {
    ForgetIfUnused(std::move(host));
    return limit.Exceeded("waiting for one of the " +
                          std::to_string(options_.max_connections_per_host) +
                          " connections to its host");
  }
  // The lease's end must find no other reference (ForgetIfUnused).
  Lease lease(shared_from_this(), std::move(host));
  lease.connection_ = TakeKept(lease.host_.get(), fresh);
  if (lease.connection_ != nullptr) {
    lease.reused_ = true;
    return lease;
  }
  auto made = Connect(lease.host_, limit);
  if (!made) return made.error();
  lease.connection_ = *std::move(made);
  return lease;
}

HttpConnections::Lease::~Lease() {
  if (all_ == nullptr) return;
  if (connection_ != nullptr) all_->Keep(host_.get(), connection_);
  host_->places.release();
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
    const std::int64_t until_ns =
        SaturatingAdd(NowNs(), ToNs(options_.max_idle));
    ScopedLock guard(mutex_);
    // From BeginIdle() on OnGone() is to come, and waits for mutex_.
    if (kept_count_ < options_.max_idle_connections &&
        connection->BeginIdle(until_ns)) {
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
  {
    ScopedLock guard(mutex_);
    const auto it = open_.find(connection);
    if (it == open_.end()) return;
    gone = std::move(it->second);
    open_.erase(it);
    kept_count_ -= std::erase(gone.host->kept, gone.connection);
  }
  ForgetIfUnused(std::move(gone.host));
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
    const std::shared_ptr<Host>& host, const HttpWaitLimit& limit) {
  auto peers = LookUp(host, limit);
  if (!peers) return peers.error();
  flare::Status failure;
  for (const Endpoint& peer : *peers) {
    auto connection = ConnectTo(peer, host, limit);
    if (connection) return connection;
    failure = connection.error();
    if (limit.stop.stop_requested() || ReadSteadyClock() >= limit.at) break;
  }
  return failure;
}

Expected<HttpConnections::Connection, flare::Status> HttpConnections::ConnectTo(
    const Endpoint& peer, const std::shared_ptr<Host>& host,
    const HttpWaitLimit& limit) {
  std::unique_ptr<io::Transport> transport;
  if (const HttpOrigin& origin = host->origin; origin.tls) {
    auto tls = Tls();
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
  const Connection connection =
      HttpClientConnection::Make(peer, std::move(transport), weak_from_this());
  try {
    flare::Status status = Establish(connection, host, limit);
    if (!status.ok()) return status;
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

Expected<HttpConnections::TlsContext, flare::Status> HttpConnections::Tls() {
  {
    ScopedLock guard(mutex_);
    if (tls_ != nullptr) return tls_;
  }
  auto made = io::TlsClientContext::Get(options_.tls, {"http/1.1"});
  if (!made) return flare::Status(ERROR_SSL, made.error().message());
  ScopedLock guard(mutex_);
  tls_ = *made;
  return *made;
}

}  // namespace flare::rpc
