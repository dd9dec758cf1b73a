#include "example/proxy/proxy.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "example/proxy/own_address.h"
#include "example/proxy/session.h"
#include "example/proxy/session_registry.h"
#include "flare/base/clock.h"
#include "flare/fiber/runtime.h"
#include "flare/io/acceptor.h"
#include "flare/io/socket_options.h"

namespace example::proxy {
namespace {

// Those of `before` that stay are shared; their state lives on.
std::shared_ptr<const ServingState> MakeServingState(
    std::shared_ptr<const ProxyConfig> config, const ServingState* before) {
  std::vector<flare::RefPtr<Upstream>> upstreams;
  for (const UpstreamConfig& wanted : config->upstreams) {
    flare::RefPtr<Upstream> upstream;
    if (before != nullptr) {
      for (const auto& known : before->upstreams.upstreams()) {
        if (known->name() == wanted.name &&
            known->address() == wanted.address) {
          upstream = known;
        }
      }
    }
    if (!upstream) {
      upstream = flare::MakeRefCounted<Upstream>(wanted.name, wanted.address);
    }
    upstreams.push_back(std::move(upstream));
  }
  return std::make_shared<const ServingState>(std::move(config),
                                              std::move(upstreams));
}

}  // namespace

struct Proxy::Listening {
  flare::Endpoint wanted;  // Its port may be 0.
  std::shared_ptr<flare::io::Acceptor> acceptor;
};

flare::Expected<std::unique_ptr<Proxy>> Proxy::Start(
    const std::shared_ptr<const ProxyConfig>& config, OnSessionEnd on_end) {
  std::unique_ptr<Proxy> proxy(
      new Proxy(MakeServingState(config, nullptr), std::move(on_end)));
  if (flare::Status status = proxy->OpenListeners(*config); !status.ok()) {
    return status;
  }
  return proxy;
}

Proxy::Proxy(std::shared_ptr<const ServingState> serving, OnSessionEnd on_end)
    : sessions_(std::make_shared<SessionRegistry>(std::move(on_end))),
      serving_(std::move(serving)) {}

Proxy::~Proxy() {
  StopListening();
  CutAll();
  WaitUntilIdle(flare::kNoDeadline);
}

// Says so if it is one of `own` that is in the way of `wanted`.
flare::Status Proxy::WithOwnListener(const flare::Status& status,
                                     const flare::Endpoint& wanted,
                                     const std::vector<Listening>& own) {
  if (status.code() != EADDRINUSE) return status;
  for (const Listening& it : own) {
    const flare::Endpoint address = it.acceptor->local_endpoint();
    if (!LeadsTo(wanted, address) && !LeadsTo(address, wanted)) continue;
    return flare::Status(
        EADDRINUSE, status.message() + "; it is this proxy, which listens on " +
                        address.ToString() + ": it can't have both at a time");
  }
  return status;
}

// Changes `listeners_` to those of `config`, or leaves them as they are.
flare::Status Proxy::OpenListeners(const ProxyConfig& config) {
  std::vector<Listening> listeners;
  // With port 0 there may be several of one address.
  std::vector<Listening> left = listeners_;
  for (const ListenerConfig& wanted : config.listeners) {
    const auto known = std::find_if(
        left.begin(), left.end(),
        [&](const Listening& it) { return it.wanted == wanted.address; });
    if (known != left.end()) {
      listeners.push_back(std::move(*known));
      left.erase(known);
      continue;
    }
    auto acceptor = Listen(wanted, config.backlog);
    if (!acceptor) {
      return WithOwnListener(
          WithOwnListener(acceptor.error(), wanted.address, listeners_),
          wanted.address, listeners);
    }
    listeners.push_back({wanted.address, std::move(*acceptor)});
  }
  std::vector<flare::Endpoint> addresses;
  addresses.reserve(listeners.size());
  for (const Listening& it : listeners) {
    addresses.push_back(it.acceptor->local_endpoint());
  }
  {
    flare::ScopedLock guard(lock_);
    addresses_.swap(addresses);
  }
  // Nothing can fail any more.
  for (const Listening& it : listeners) {
    it.acceptor->SetBacklog(config.backlog);
  }
  listeners_.swap(listeners);  // Those that only `listeners` has now end.
  return flare::Status();
}

flare::Expected<std::shared_ptr<flare::io::Acceptor>> Proxy::Listen(
    const ListenerConfig& listener, int backlog) {
  auto acceptor = flare::io::Acceptor::Listen(
      // Each address is taken literally: [::] and 0.0.0.0 may both be listed.
      listener.address, {.backlog = backlog, .ipv6_only = true},
      [this, where = listener.address](
          flare::io::UniqueFd fd, flare::Endpoint peer, std::size_t group) {
        // Which port the system has picked is known only when it listens.
        const bool picked = where.port() == 0 && where.family() != AF_UNIX;
        const flare::Endpoint local =
            picked ? flare::io::GetLocalEndpoint(fd.get()) : where;
        Session::Begin(std::move(fd), std::move(peer), local, group, serving(),
                       sessions_);
      });
  if (!acceptor) {
    return flare::Status(acceptor.error().code(),
                         listener.where + ": " + acceptor.error().message());
  }
  return std::shared_ptr<flare::io::Acceptor>(std::move(*acceptor));
}

flare::Status Proxy::Reload(const std::shared_ptr<const ProxyConfig>& config) {
  const std::shared_ptr<const ServingState> before = serving();
  auto next = MakeServingState(config, before.get());
  if (flare::Status status = OpenListeners(*config); !status.ok()) {
    return status;
  }
  flare::ScopedLock guard(lock_);
  serving_ = std::move(next);
  return flare::Status();
}

void Proxy::StopListening() {
  for (const Listening& it : listeners_) it.acceptor->Stop();
  for (const Listening& it : listeners_) it.acceptor->Join();
}

bool Proxy::WaitUntilIdle(std::int64_t deadline_ns) {
  return sessions_->WaitUntilEmpty(deadline_ns);
}

void Proxy::CutAll() { sessions_->CutAll(); }

void Proxy::CutSilent() { sessions_->LookAtUpstreams(); }

std::vector<flare::Endpoint> Proxy::listening() const {
  flare::ScopedLock guard(lock_);
  return addresses_;
}

std::shared_ptr<const ServingState> Proxy::serving() const {
  flare::ScopedLock guard(lock_);
  return serving_;
}

std::shared_ptr<const ProxyConfig> Proxy::config() const {
  return serving()->config;
}

std::vector<flare::RefPtr<Upstream>> Proxy::upstreams() const {
  return serving()->upstreams.upstreams();
}

ProxyStatistics Proxy::statistics() const { return sessions_->statistics(); }

std::vector<std::uint64_t> Proxy::sessions_per_group() const {
  return sessions_->sizes();
}

}  // namespace example::proxy
