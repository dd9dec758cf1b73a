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

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <new>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "example/proxy/client_hello.h"
#include "example/proxy/proxy_protocol.h"
#include "example/proxy/session_side.h"
#include "flare/base/clock.h"
#include "flare/base/string.h"
#include "flare/fiber/long_task.h"
#include "flare/io/socket_options.h"
#include "flare/io/tls_context.h"
#include "flare/io/transport.h"
#include "flare/rpc/checks/probe.h"
#include "flare/rpc/log_throttle.h"
#include "glog/logging.h"

namespace example::proxy {
namespace {

using flare::NowNs;
using flare::RefPtr;
using flare::SaturatingAdd;
using flare::io::Transport;
using flare::io::UniqueFd;

// Bytes of a connection that aren't in the statistics yet, at most.
constexpr std::uint64_t kAccountingStep = 256 << 10;

// When one connection has broken, the other one has so much time to take some
// of the bytes that wait for it, again and again.
constexpr std::int64_t kBrokenPatienceNs = flare::kNsPerSecond;

// Before a Unix socket whose backlog is full is tried again.
constexpr std::int64_t kFirstPauseNs = 5'000'000;

// For an upstream to be connected to, once the client has ended its direction
// without a byte. It may only want to listen, but more likely it has gone.
constexpr std::int64_t kEndedClientPatienceNs = 250'000'000;

// A server that is down fails once per client, and there are many clients.
flare::rpc::LogThrottle connect_log;
flare::rpc::LogThrottle handshake_log;

void LogHandshakeFailure(const flare::Endpoint& client,
                         const std::string& why) {
  if (const auto left_out = handshake_log.Admit()) {
    LOG(WARNING) << "Client " << flare::OneLine(client.ToString())
                 << " was turned away: " << why
                 << flare::rpc::LogThrottle::NoteOthers(*left_out);
  }
}

// The host that an upstream's certificate must be for. Empty: it has none.
std::string HostOf(const Upstream& upstream) {
  if (upstream.address().family() == AF_UNIX) return "";
  return upstream.name().substr(0, upstream.name().find('@'));
}

void LogConnectFailure(const Upstream& upstream, int error,
                       const std::string& why) {
  if (const auto left_out = connect_log.Admit()) {
    LOG(WARNING) << "Can't connect to upstream " << upstream.name() << ": "
                 << (why.empty() ? std::system_category().message(error) : why)
                 << flare::rpc::LogThrottle::Note(*left_out);
  }
}

// A port to which nobody listens, and which the kernel has picked for our own
// end of the connection: two halves of one socket have shaken hands.
bool IsConnectedToItself(int fd, const flare::Endpoint& peer) {
  return peer.family() != AF_UNIX && flare::io::GetLocalEndpoint(fd) == peer;
}

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

// --- before bytes can pass: PROXY header, TLS, connecting ------------------

void Session::ReadHeader() {
  // Behind the header is TLS, which reads the socket itself.
  if (serving_->config->tls != nullptr) return TakeHeader();
  std::array<char, kMaxProxyHeader> bytes;
  for (;;) {
    // Never more than a header may have, so that this can't go on for long.
    const ssize_t n =
        ::recv(client_->fd(), bytes.data(), bytes.size() - received_.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) return EndAs(SessionEnd::kClientAborted, errno);
    if (n == 0) return EndAs(SessionEnd::kBadHeader, 0);
    received_.append(bytes.data(), static_cast<std::size_t>(n));
    ParsedProxyHeader header = ParseProxyHeader(received_);
    if (header.outcome == ParsedProxyHeader::Outcome::kMalformed) {
      return EndAs(SessionEnd::kBadHeader, EPROTO);
    }
    if (header.outcome == ParsedProxyHeader::Outcome::kComplete) {
      received_.erase(0, header.size);
      destination_ = std::move(header.destination);
      if (!header.source.empty()) report_.source = std::move(header.source);
      return BeginHandshake();
    }
  }
}

// Reads the header and nothing behind it.
void Session::TakeHeader() {
  std::array<char, kMaxProxyHeader> bytes;
  const ssize_t n = ::recv(client_->fd(), bytes.data(), bytes.size(), MSG_PEEK);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n < 0) return EndAs(SessionEnd::kClientAborted, errno);
  if (n == 0) return EndAs(SessionEnd::kBadHeader, 0);
  const std::string_view begin(bytes.data(), static_cast<std::size_t>(n));
  ParsedProxyHeader header = ParseProxyHeader(begin);
  if (header.outcome == ParsedProxyHeader::Outcome::kMalformed) {
    return EndAs(SessionEnd::kBadHeader, EPROTO);
  }
  if (header.outcome != ParsedProxyHeader::Outcome::kComplete) return;
  if (::recv(client_->fd(), bytes.data(), header.size, 0) !=
      static_cast<ssize_t>(header.size)) {
    return EndAs(SessionEnd::kClientAborted, errno);
  }
  destination_ = std::move(header.destination);
  if (!header.source.empty()) report_.source = std::move(header.source);
  BeginHandshake();
}

void Session::BeginHandshake() {
  const auto& tls = serving_->config->tls;
  if (tls == nullptr) return Choose();
  client_tls_ = tls->NewTransport();
  if (client_tls_ == nullptr) return EndAs(SessionEnd::kOverLimit, 0);
  client_tls_->Attach(client_->fd());
  SetDeadline(SaturatingAdd(NowNs(), client_tls_->handshake_timeout_ns()));
  handshake_.all = client_tls_->handshakes();
  handshake_.all->Begin(&handshake_);
  phase_ = Phase::kHandshake;
}

// False: it runs again when it has its turn, behind others that wait.
bool Session::TakeTurn() {
  switch (handshake_.turn) {
    case Turn::kHeld:
      return true;
    case Turn::kAwaited:
      return false;
    case Turn::kNone:
      break;
  }
  if (handshake_.all->BeginStep(&handshake_)) {
    handshake_.turn = Turn::kHeld;
    run_again_ = run_last_ = true;
  } else {
    handshake_.turn = Turn::kAwaited;
  }
  return false;
}

void Session::Handshake() {
  if (!TakeTurn()) return;
  const Transport::Progress progress = client_tls_->Handshake();
  handshake_.turn = Turn::kNone;
  handshake_.all->EndStep();
  switch (progress) {
    case Transport::Progress::kDone:
      EndHandshake();
      return Choose();
    case Transport::Progress::kWaiting:
      return;
    case Transport::Progress::kFailed:
      return HandshakeFailed(client_tls_->failure().code(),
                             client_tls_->failure().message());
  }
}

void Session::HandshakeFailed(int error, const std::string& why) {
  LogHandshakeFailure(report_.client, why);
  EndAs(SessionEnd::kTlsFailed, error);
}

void Session::EndHandshake() {
  flare::io::Handshakes* const all = std::exchange(handshake_.all, nullptr);
  if (all == nullptr) return;
  if (handshake_.turn == Turn::kHeld) all->EndStep();  // It came to nothing.
  all->End(&handshake_);
}

void Session::OwnHandshake::OnTurn() {
  // Called after the step of another one.
  if (session->Signal(kTurn)) {
    flare::fiber::SubmitToLast(session->home_, session);
  }
}

std::function<void()> Session::OwnHandshake::MakeWay() {
  return [session = flare::RefPtr(flare::ref_ptr, session)] {
    session->SignalAndSubmit(kMakeWay);
  };
}

void Session::Choose() {
  if (!serving_->config->routes_by_host) return ConnectToNext();
  phase_ = Phase::kHello;
}

// Reads no more than it takes to know the host. The upstream gets it all.
void Session::ReadHello() {
  std::array<char, 4096> bytes;
  for (;;) {
    const ParsedClientHello hello = ParseClientHello(received_);
    if (hello.outcome == ParsedClientHello::Outcome::kMalformed) {
      return EndAs(SessionEnd::kNoRoute, EPROTO);
    }
    if (hello.outcome == ParsedClientHello::Outcome::kComplete) {
      choices_ = serving_->SetFor(hello.server_name);
      if (choices_ == nullptr) return EndAs(SessionEnd::kNoRoute, 0);
      return ConnectToNext();
    }
    const std::size_t room =
        std::min(bytes.size(), kMaxClientHello - received_.size());
    const ssize_t n = ::recv(client_->fd(), bytes.data(), room, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) return EndAs(SessionEnd::kClientAborted, errno);
    if (n == 0) return EndAs(SessionEnd::kNoRoute, 0);
    received_.append(bytes.data(), static_cast<std::size_t>(n));
  }
}

void Session::ConnectToNext() {
  phase_ = Phase::kConnecting;
  const ProxyConfig& config = *serving_->config;
  for (;;) {
    const std::int64_t now = NowNs();
    RefPtr<Upstream> next;
    if (client_ended_) return EndAs(SessionEnd::kClientAborted, 0);
    if (!out_of_means_ && report_.attempts < config.connect_attempts) {
      next = choices_->Acquire(report_.source, tried_, now);
    }
    if (!next) {
      return EndAs(SessionEnd::kNoUpstream,
                   connect_error_ != 0 ? connect_error_ : EBUSY);
    }
    if (++report_.attempts > 1) registry_->CountRetry();
    tried_.push_back(next.Get());
    report_.upstream = std::move(next);
    counted_by_upstream_ = true;
    connect_began_ns_ = now;
    if (BeginOrWait()) return;
  }
}

// False: the upstream can't be connected to, and is left.
bool Session::BeginOrWait() {
  const std::int64_t end = SaturatingAdd(
      connect_began_ns_, serving_->config->connect_timeout.count());
  const int error = BeginConnecting();
  if (error == 0) {
    SetDeadline(end);
  } else if (error == EAGAIN) {
    // The backlog of a Unix socket is full. No event tells when it isn't; the
    // longer that lasts, the longer are the pauses. OnTime() tries again.
    const std::int64_t now = NowNs();
    const std::int64_t pause =
        std::max(kFirstPauseNs, (now - connect_began_ns_) / 4);
    SetDeadline(std::min(now + pause, end));
  } else {
    LeaveUpstream(error);
    return false;
  }
  return true;
}

// 0, or the errno of why it can't even begin.
int Session::BeginConnecting() {
  const flare::Endpoint& address = report_.upstream->address();
  auto fd = flare::io::CreateStreamSocket(address.family());
  if (!fd) return fd.error().code();
  flare::io::SetTcpNoDelay(fd->get());
  flare::io::SetUrgentInline(fd->get());
  SetSocketOptions(fd->get(), *serving_->config);
  sockaddr_storage storage;
  const socklen_t length = address.ToSockaddr(&storage);
  if (::connect(fd->get(), reinterpret_cast<const sockaddr*>(&storage),
                length) != 0 &&
      errno != EINPROGRESS) {
    return errno;
  }
  upstream_ = flare::MakeRefCounted<Side>(std::move(*fd), kUpstreamShift, this);
  return upstream_->Register().code();
}

// A client that has gone is not to wait for an upstream, nor to take a place.
void Session::OnClientWhileConnecting(std::uint32_t events) {
  const std::uint32_t client = UnpackEvents(events, kClientShift);
  if ((client & EPOLLERR) != 0) {
    return EndAs(SessionEnd::kClientAborted,
                 flare::io::TakeSocketError(client_->fd()));
  }
  if ((client & (EPOLLRDHUP | EPOLLHUP)) == 0 || !received_.empty()) return;
  // TLS may have read the earlier bytes.
  if (client_tls_) return;
  char byte;
  if (::recv(client_->fd(), &byte, 1, MSG_PEEK) != 0) return;
  // A Unix socket that is closed; those of TCP don't tell that from an end of
  // one direction.
  if ((client & EPOLLHUP) != 0) return EndAs(SessionEnd::kClientAborted, 0);
  client_ended_ = true;
  SetDeadline(
      std::min(deadline_ns_, SaturatingAdd(NowNs(), kEndedClientPatienceNs)));
}

void Session::OnConnecting(std::uint32_t events) {
  if (!upstream_ || UnpackEvents(events, kUpstreamShift) == 0) return;
  if (upstream_tls_) return UpstreamHandshake();
  const int fd = upstream_->fd();
  if (const int error = flare::io::TakeSocketError(fd); error != 0) {
    return ConnectFailed(error);
  }
  // The event may have been meant for the upstream that was tried before.
  const flare::Endpoint peer = flare::io::GetRemoteEndpoint(fd);
  if (peer.empty()) return;
  if (IsConnectedToItself(fd, peer)) return ConnectFailed(ECONNREFUSED);
  if (serving_->config->upstream_tls != nullptr) {
    return BeginUpstreamHandshake();
  }
  OnConnected();
}

// Within the time for connecting.
void Session::BeginUpstreamHandshake() {
  // In front of TLS, as other proxies do. A new socket has room for it.
  const std::string header = HeaderForUpstream();
  if (::send(upstream_->fd(), header.data(), header.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(header.size())) {
    return ConnectFailed(errno);
  }
  const Upstream& upstream = *report_.upstream;
  upstream_tls_ = serving_->config->upstream_tls->NewTransport(HostOf(upstream),
                                                               upstream.name());
  if (upstream_tls_ == nullptr) return ConnectFailed(ENOMEM);
  upstream_tls_->Attach(upstream_->fd());
  UpstreamHandshake();
}

void Session::UpstreamHandshake() {
  switch (upstream_tls_->Handshake()) {
    case Transport::Progress::kDone:
      return OnConnected();
    case Transport::Progress::kWaiting:
      return;
    case Transport::Progress::kFailed: {
      const flare::Status failure = upstream_tls_->failure();
      return ConnectFailed(failure.code(), failure.message());
    }
  }
}

// The time is over for connecting, or for waiting until there is room.
void Session::OnConnectTime(std::int64_t now) {
  if (client_ended_) return EndAs(SessionEnd::kClientAborted, 0);
  const std::int64_t taken = now - connect_began_ns_;
  if (upstream_ || taken >= serving_->config->connect_timeout.count()) {
    return ConnectFailed(ETIMEDOUT);
  }
  if (!BeginOrWait()) ConnectToNext();
}

void Session::ConnectFailed(int error, const std::string& why) {
  LeaveUpstream(error, why);
  ConnectToNext();
}

void Session::LeaveUpstream(int error, const std::string& why) {
  upstream_tls_.reset();
  if (upstream_) upstream_->Close();
  upstream_.Reset();
  connect_error_ = error;
  if (flare::rpc::IsShortage(error)) {
    out_of_means_ = true;
  } else {
    const ProxyConfig& config = *serving_->config;
    LogConnectFailure(*report_.upstream, error, why);
    registry_->CountConnectFailure();
    report_.upstream->ReportFailure(config.max_failures,
                                    config.failure_pause.count(), NowNs());
  }
  ReleaseUpstream();
}

void Session::OnConnected() {
  const ProxyConfig& config = *serving_->config;
  report_.upstream->ReportConnected();
  report_.connected_ns = last_activity_ns_ = NowNs();
  relay_.emplace(client_->fd(), upstream_->fd(),
                 Relay::Options{.high_watermark = config.high_watermark,
                                .low_watermark = config.low_watermark,
                                .copy_mode = config.copy_mode,
                                .client_tls = client_tls_.get(),
                                .upstream_tls = upstream_tls_.get()});
  if (!upstream_tls_) relay_->SendFirst(Relay::kUpstream, HeaderForUpstream());
  relay_->AddReceived(Relay::kClient, received_);
  phase_ = Phase::kRelaying;
  received_ = std::string();
  tried_ = std::vector<const Upstream*>();
  if (const std::int64_t idle_ns = config.idle_timeout.count(); idle_ns != 0) {
    SetDeadline(SaturatingAdd(last_activity_ns_, idle_ns));
  }
}

// Empty: it wants none.
std::string Session::HeaderForUpstream() {
  const ProxyProtocol version = serving_->config->send_proxy_protocol;
  if (version == ProxyProtocol::kNone) return "";
  if (destination_.empty()) {
    destination_ = flare::io::GetLocalEndpoint(client_->fd());
  }
  return version == ProxyProtocol::kV1
             ? FormatProxyHeaderV1(report_.source, destination_)
             : FormatProxyHeaderV2(report_.source, destination_);
}

void Session::ReleaseUpstream() {
  if (!counted_by_upstream_) return;
  counted_by_upstream_ = false;
  report_.upstream->Release();
}

}  // namespace example::proxy
