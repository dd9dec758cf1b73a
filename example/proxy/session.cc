// Rules:
//  [SE1] `events_` holds the events that have happened and not been looked at,
//        and kQueued while the session is queued or running. The thread that
//        sets kQueued queues it; the running session takes all events at once,
//        and clears kQueued as the very last thing, if no more have come;
//        afterwards it may be running elsewhere, or gone.
//  [SE2] A session that is over leaves kQueued set for ever, so that late
//        events, of a timer, the poller or Cut(), queue nothing.
//  [SE3] Its own reference, which it is born with, is dropped when it is over.
//        The sides that the poller knows hold others, so that events which were
//        fetched before a side was retired find a live session.
//  [SE4] While its handshake awaits its turn (flare/io/handshakes.h) it isn't
//        over, whatever has ended it: the turn would be lost.
#include "example/proxy/session.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <set>
#include <utility>

#include "example/proxy/client_hello.h"
#include "example/proxy/session_side.h"
#include "flare/base/clock.h"
#include "flare/fiber/long_task.h"
#include "flare/io/socket_options.h"

namespace example::proxy {
namespace {

using flare::NowNs;
using flare::SaturatingAdd;
using flare::io::UniqueFd;

// Bytes of a connection that aren't in the statistics yet, at most.
constexpr std::uint64_t kAccountingStep = 256 << 10;

// When one connection has broken, the other one has so much time to take some
// of the bytes that wait for it, again and again.
constexpr std::int64_t kBrokenPatienceNs = flare::kNsPerSecond;

}  // namespace

// --- routes ----------------------------------------------------------------

ServingState::ServingState(std::shared_ptr<const ProxyConfig> settings,
                           std::vector<flare::RefPtr<Upstream>> servers)
    : config(std::move(settings)),
      upstreams(std::move(servers), config->lb,
                config->max_connections_per_upstream) {
  if (!config->routes_by_host) return;
  std::set<std::string> hosts;
  for (const UpstreamConfig& upstream : config->upstreams) {
    hosts.insert(upstream.hosts.begin(), upstream.hosts.end());
  }
  for (const std::string& host : hosts) {
    routes_.push_back({host, SetOf([&host](const UpstreamConfig& upstream) {
                         return std::find(upstream.hosts.begin(),
                                          upstream.hosts.end(),
                                          host) != upstream.hosts.end();
                       })});
  }
  std::stable_partition(routes_.begin(), routes_.end(), [](const Route& route) {
    return !route.host.starts_with('*');
  });
  others_ = SetOf([](const UpstreamConfig& u) { return u.is_default; });
}

std::unique_ptr<const UpstreamSet> ServingState::SetOf(
    const std::function<bool(const UpstreamConfig&)>& is_in) const {
  std::vector<flare::RefPtr<Upstream>> servers;
  for (std::size_t i = 0; i != config->upstreams.size(); ++i) {
    if (!is_in(config->upstreams[i])) continue;
    servers.push_back(upstreams.upstreams()[i]);
  }
  if (servers.empty()) return nullptr;
  return std::make_unique<const UpstreamSet>(
      std::move(servers), config->lb, config->max_connections_per_upstream);
}

const UpstreamSet* ServingState::SetFor(std::string_view host) const {
  for (const Route& route : routes_) {
    if (MatchesHost(route.host, host)) return route.upstreams.get();
  }
  return others_.get();
}

// --- sessions --------------------------------------------------------------

void Session::Begin(UniqueFd fd, flare::Endpoint client,
                    const flare::Endpoint& listener, std::size_t group,
                    std::shared_ptr<const ServingState> serving,
                    const std::shared_ptr<SessionRegistry>& registry) {
  SessionReport report;
  report.accepted_ns = NowNs();
  report.source = client;
  report.client = std::move(client);
  report.listener = listener;
  std::size_t home;
  if (!registry->Enter(serving->config->max_connections, group, &home)) {
    report.end = SessionEnd::kOverLimit;
    report.ended_ns = report.accepted_ns;
    fd.Reset();
    return registry->ReportRefused(report);
  }
  Session* session;
  try {
    session = new Session(std::move(fd), home, std::move(serving), registry,
                          std::move(report));
  } catch (const std::bad_alloc&) {
    return registry->LeaveUnbegun(home);  // Whatever has `fd` closes it.
  }
  registry->Add(session, home);
  flare::fiber::SubmitTo(home, session);
}

// Queued from the start [SE1].
Session::Session(UniqueFd fd, std::size_t home,
                 std::shared_ptr<const ServingState> serving,
                 std::shared_ptr<SessionRegistry> registry,
                 SessionReport report)
    : serving_(std::move(serving)),
      registry_(std::move(registry)),
      home_(home),
      events_(kQueued | kStart),
      choices_(&serving_->upstreams),
      report_(std::move(report)) {
  run = [](Task* self) { static_cast<Session*>(self)->Run(); };
  client_ = flare::MakeRefCounted<Side>(std::move(fd), kClientShift, this);
  handshake_.session = this;
  timer_.session = this;
  timer_.set_callback([](flare::fiber::Timer* timer) {
    static_cast<SessionTimer*>(timer)->session->SignalAndSubmit(kTime);
  });
}

Session::~Session() = default;

void Session::Cut() { SignalAndSubmit(kCutAsked); }

void Session::LookAtUpstream() { SignalAndSubmit(kLookAsked); }

bool Session::Signal(std::uint32_t events) noexcept {
  // acq_rel: release pairs with the exchange in Run, acquire with the exchange
  // by which the last run has left [SE1].
  return (events_.fetch_or(events | kQueued, std::memory_order_acq_rel) &
          kQueued) == 0;
}

void Session::SignalAndSubmit(std::uint32_t events) {
  if (Signal(events)) flare::fiber::SubmitTo(home_, this);
}

void Session::Run() {
  // acquire: pairs with the release in Signal [SE1].
  const std::uint32_t events =
      events_.exchange(kQueued, std::memory_order_acquire);
  run_again_ = run_last_ = false;
  try {
    Handle(events);
  } catch (const std::bad_alloc&) {
    EndForWantOfMemory();
  }
  if (phase_ == Phase::kOver && handshake_.turn != Turn::kAwaited) {
    return Finish();
  }
  std::uint32_t expected = kQueued;
  // release: pairs with the acquire in Signal of the thread that queues it next
  // [SE1]. relaxed: on failure nothing is read; Run() takes the new events.
  if (run_again_ ||
      !events_.compare_exchange_strong(expected, 0, std::memory_order_release,
                                       std::memory_order_relaxed)) {
    if (!run_last_ || !flare::fiber::SubmitLast(this)) {
      flare::fiber::Submit(this);
    }
  }
}

void Session::Handle(std::uint32_t events) {
  if (phase_ == Phase::kRelaying &&
      (events & (kTime | kCutAsked | kLookAsked)) == 0) [[likely]] {
    return RunRelay(events);
  }
  if ((events & kTurn) != 0) handshake_.turn = Turn::kHeld;
  if (phase_ == Phase::kOver) return;  // [SE4]
  if ((events & kCutAsked) != 0) return EndAs(SessionEnd::kCut, 0);
  if ((events & kMakeWay) != 0 && phase_ == Phase::kHandshake) {
    return HandshakeFailed(ECONNABORTED,
                           "TLS: the handshake made way for a newer one");
  }
  if ((events & kStart) != 0) OnStart();
  if (phase_ == Phase::kHeader) ReadHeader();
  if (phase_ == Phase::kHandshake) Handshake();
  if (phase_ == Phase::kHello) ReadHello();
  if (phase_ == Phase::kConnecting) OnClientWhileConnecting(events);
  if (phase_ == Phase::kConnecting) OnConnecting(events);
  if (phase_ == Phase::kRelaying) {
    // Edges that came earlier won't come again.
    RunRelay(events | std::exchange(early_events_, 0));
  } else {
    // The client's only: the upstream's are those of one that was given up, or
    // would have led to a relay.
    early_events_ |= events & (kEventMask << kClientShift);
  }
  if ((events & kLookAsked) != 0) EndIfUpstreamIsSilent();
  if (phase_ != Phase::kOver && (events & kTime) != 0) OnTime();
}

void Session::OnStart() {
  const ProxyConfig& config = *serving_->config;
  SetSocketOptions(client_->fd(), config);
  // From the start: it may go before there is an upstream.
  if (const flare::Status status = client_->Register(); !status.ok()) {
    return EndAs(SessionEnd::kNoUpstream, status.code());
  }
  if (config.accept_proxy_protocol || config.routes_by_host) {
    SetDeadline(SaturatingAdd(NowNs(), config.connect_timeout.count()));
  }
  if (!config.accept_proxy_protocol) BeginHandshake();
}

void Session::SetDeadline(std::int64_t deadline_ns) {
  if (timer_used_) flare::fiber::CancelTimer(&timer_);
  timer_used_ = true;
  deadline_ns_ = deadline_ns;
  flare::fiber::ArmTimer(&timer_, deadline_ns);
}

void Session::OnTime() {
  const std::int64_t now = NowNs();
  if (now < deadline_ns_) return;  // Fired for an earlier deadline.
  switch (phase_) {
    case Phase::kHeader:
      return EndAs(SessionEnd::kBadHeader, ETIMEDOUT);
    case Phase::kHandshake:
      return EndAs(SessionEnd::kTlsFailed, ETIMEDOUT);
    case Phase::kHello:
      return EndAs(SessionEnd::kNoRoute, ETIMEDOUT);
    case Phase::kConnecting:
      return OnConnectTime(now);
    case Phase::kRelaying:
      return OnRelayTime(now);
    case Phase::kOver:
      return;
  }
}

// How long no byte may pass; 0: for ever.
std::int64_t Session::RelayPatienceNs() const {
  const std::int64_t idle_ns = serving_->config->idle_timeout.count();
  if (!relay_->broken()) return idle_ns;
  return idle_ns == 0 ? kBrokenPatienceNs
                      : std::min(idle_ns, kBrokenPatienceNs);
}

void Session::OnRelayTime(std::int64_t now) {
  // Armed once per idle_timeout, not once per message: bytes that pass
  // meanwhile only move the deadline.
  const std::int64_t patience_ns = RelayPatienceNs();
  if (patience_ns == 0) return;  // Connecting's.
  const std::int64_t end = SaturatingAdd(last_activity_ns_, patience_ns);
  if (now < end) return SetDeadline(end);
  if (!relay_->broken()) return EndAs(SessionEnd::kIdle, 0);
  relay_->GiveUp();
  EndRelay();
}

// The health check has had no answer from it for as long as it takes to call
// it unhealthy; nor has this session.
void Session::EndIfUpstreamIsSilent() {
  if (phase_ != Phase::kRelaying) return;
  const std::int64_t since_ns = report_.upstream->silent_since_ns();
  if (since_ns == 0 || last_activity_ns_ >= since_ns) return;
  flare::io::SetResetOnClose(client_->fd());
  EndAs(SessionEnd::kUpstreamAborted, ETIMEDOUT);
}

void Session::RunRelay(std::uint32_t events) {
  const std::uint64_t before =
      relay_->bytes_to(Relay::kUpstream) + relay_->bytes_to(Relay::kClient);
  const Relay::Outcome outcome = relay_->Run(
      UnpackEvents(events, kClientShift), UnpackEvents(events, kUpstreamShift));
  const std::uint64_t after =
      relay_->bytes_to(Relay::kUpstream) + relay_->bytes_to(Relay::kClient);
  if (after != before) {
    last_activity_ns_ = NowNs();
    if (after - accounted_to_upstream_ - accounted_to_client_ >=
        kAccountingStep) {
      AccountBytes();
    }
  }
  if (outcome == Relay::Outcome::kEnded) return EndRelay();
  run_again_ = outcome == Relay::Outcome::kMore;
  if (!run_again_ && relay_->broken() && !relay_broken_) [[unlikely]] {
    relay_broken_ = true;
    OnRelayTime(NowNs());
  }
}

void Session::AccountBytes() {
  const std::uint64_t to_upstream =
      relay_->bytes_to(Relay::kUpstream) - accounted_to_upstream_;
  const std::uint64_t to_client =
      relay_->bytes_to(Relay::kClient) - accounted_to_client_;
  accounted_to_upstream_ += to_upstream;
  accounted_to_client_ += to_client;
  registry_->CountBytes(to_upstream, to_client);
  report_.upstream->AddBytes(to_upstream, to_client);
}

void Session::EndRelay() {
  const Relay::Result& result = relay_->result();
  switch (result.end) {
    case Relay::Result::End::kFinished:
      return EndAs(SessionEnd::kFinished, 0);
    case Relay::Result::End::kClientBroke:
      if (result.reset_other) flare::io::SetResetOnClose(upstream_->fd());
      return EndAs(SessionEnd::kClientAborted, result.error);
    case Relay::Result::End::kUpstreamBroke:
      if (result.reset_other) flare::io::SetResetOnClose(client_->fd());
      return EndAs(SessionEnd::kUpstreamAborted, result.error);
  }
}

void Session::EndAs(SessionEnd end, int error) {
  phase_ = Phase::kOver;
  report_.end = end;
  report_.error = error;
}

// Bytes received and not passed on are lost: a reset tells both sides.
void Session::EndForWantOfMemory() {
  flare::io::SetResetOnClose(client_->fd());
  if (upstream_) flare::io::SetResetOnClose(upstream_->fd());
  EndAs(SessionEnd::kNoMemory, ENOMEM);
}

// Those of connections that are closed in order, though before their ends. A
// relay that has come to the ends has told them.
void Session::SayTlsEnds() {
  if (report_.end != SessionEnd::kIdle && report_.end != SessionEnd::kCut) {
    return;
  }
  if (client_tls_ && relay_->pending_to(Relay::kClient) == 0) {
    static_cast<void>(client_tls_->SendEnd());
  }
  if (upstream_tls_ && relay_->pending_to(Relay::kUpstream) == 0) {
    static_cast<void>(upstream_tls_->SendEnd());
  }
}

// The last run's last act.
void Session::Finish() {
  if (timer_used_) flare::fiber::CancelTimer(&timer_);
  if (relay_) {
    AccountBytes();
    report_.bytes_to_upstream = relay_->bytes_to(Relay::kUpstream);
    report_.bytes_to_client = relay_->bytes_to(Relay::kClient);
    // A side that misses bytes must not take it for the end.
    if (relay_->pending_to(Relay::kUpstream) != 0) {
      flare::io::SetResetOnClose(upstream_->fd());
    }
    if (relay_->pending_to(Relay::kClient) != 0)
      flare::io::SetResetOnClose(client_->fd());
    SayTlsEnds();
    relay_.reset();
  }
  EndHandshake();
  upstream_tls_.reset();
  client_tls_.reset();
  if (upstream_) upstream_->Close();
  upstream_.Reset();
  client_->Close();
  client_.Reset();
  ReleaseUpstream();
  report_.ended_ns = NowNs();
  // Kept here, as the last reference may be this session's.
  const std::shared_ptr<SessionRegistry> registry = registry_;
  registry->Leave(this, home_, report_);
  Deref();  // [SE3]
}

}  // namespace example::proxy
