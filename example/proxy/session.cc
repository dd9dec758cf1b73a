// Rules:
//  [SE1] `events_` holds what has happened and not been looked at, and kQueued
//        while the session is queued or running. Who sets kQueued queues it;
//        the running session takes all events at once, and clears kQueued as
//        the very last thing, if no more have come; afterwards it may be
//        running elsewhere, or gone.
//  [SE2] A session that is over leaves kQueued set for ever, so that late
//        events, of a timer, the poller or Cut(), queue nothing.
//  [SE3] Its own reference, which it is born with, is dropped when it is over.
//        The sides that the poller knows hold others, so that events which were
//        fetched before a side was retired find a live session.
#include "example/proxy/session.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include "example/proxy/proxy_protocol.h"
#include "flare/base/clock.h"
#include "flare/io/epoll_poller.h"
#include "flare/io/socket_options.h"
#include "flare/rpc/log_throttle.h"
#include "glog/logging.h"

namespace example::proxy {
namespace {

// A server that is down fails once per client, and there are many clients.
flare::rpc::LogThrottle connect_log;

void LogConnectFailure(const Upstream& upstream, int error) {
  if (const auto left_out = connect_log.Admit()) {
    LOG(WARNING) << "Can't connect to upstream " << upstream.name() << ": "
                 << std::system_category().message(error)
                 << flare::rpc::LogThrottle::Note(*left_out);
  }
}

using flare::NowNs;
using flare::RefPtr;
using flare::SaturatingAdd;
using flare::io::EpollPoller;
using flare::io::UniqueFd;

// Of `events_`: the lower six bits of a side's EPOLL* events, EPOLLRDHUP moved
// to the last of them, for the client and the upstream; and our own.
constexpr std::uint32_t kEventMask = 0x3f;
constexpr std::uint32_t kMovedRdhup = 0x20;
constexpr unsigned kClientShift = 0;
constexpr unsigned kUpstreamShift = 6;
constexpr std::uint32_t kStart = 1U << 12;
constexpr std::uint32_t kTime = 1U << 13;
constexpr std::uint32_t kCutAsked = 1U << 14;
constexpr std::uint32_t kQueued = 1U << 15;
static_assert((EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLERR | EPOLLHUP) <
              kMovedRdhup);

std::uint32_t PackEvents(std::uint32_t events, unsigned shift) {
  return ((events & (kMovedRdhup - 1)) |
          ((events & EPOLLRDHUP) != 0 ? kMovedRdhup : 0))
         << shift;
}

std::uint32_t UnpackEvents(std::uint32_t events, unsigned shift) {
  const std::uint32_t packed = (events >> shift) & kEventMask;
  return (packed & (kMovedRdhup - 1)) |
         ((packed & kMovedRdhup) != 0 ? std::uint32_t{EPOLLRDHUP} : 0);
}

// Bytes of a connection that aren't in the statistics yet, at most.
constexpr std::uint64_t kAccountingStep = 256 << 10;

// Closing will then reset the connection instead of ending it in order.
void MakeCloseReset(int fd) {
  const linger now{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

void SetOptions(int fd, const ProxyConfig& config) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(
      config.tcp_user_timeout);
  if (ms.count() > 0) {
    flare::io::SetTcpUserTimeout(fd, static_cast<int>(ms.count()));
  }
}

// Of ours rather than of the upstream's.
bool IsShortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS ||
         error == ENOMEM || error == EADDRNOTAVAIL || error == ENOSPC;
}

// A port to which nobody listens, and which the kernel has picked for our own
// end of the connection: two halves of one socket have shaken hands.
bool IsConnectedToItself(int fd, const flare::Endpoint& peer) {
  return peer.family() != AF_UNIX && peer.IsLoopback() &&
         flare::io::GetLocalEndpoint(fd) == peer;
}

}  // namespace

// One of the two sockets, as the poller knows it.
class Session::Side final : public flare::io::Descriptor {
 public:
  Side(UniqueFd fd, unsigned shift, Session* session)
      : Descriptor(std::move(fd)),
        shift_(shift),
        session_(flare::ref_ptr, session) {}

  void OnEvents(std::uint32_t events, flare::fiber::TaskList* ready) override {
    if (session_->Signal(PackEvents(events, shift_))) {
      ready->PushBack(session_.Get());
    }
  }

  flare::Status Register() {
    flare::Status status =
        EpollPoller::OfGroup(session_->home_)->Register(this);
    registered_ = status.ok();
    return status;
  }

  bool registered() const { return registered_; }

  void Close() {
    if (registered_) EpollPoller::OfGroup(session_->home_)->Retire(this);
    registered_ = false;
    CloseFd();
  }

 private:
  const unsigned shift_;
  const RefPtr<Session> session_;  // [SE3]
  bool registered_ = false;
};

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
  auto* const session = new Session(std::move(fd), home, std::move(serving),
                                    registry, std::move(report));
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
      report_(std::move(report)) {
  run = [](Task* self) { static_cast<Session*>(self)->Run(); };
  client_ = flare::MakeRefCounted<Side>(std::move(fd), kClientShift, this);
  timer_.session = this;
  timer_.set_callback([](flare::fiber::Timer* timer) {
    static_cast<SessionTimer*>(timer)->session->SignalAndSubmit(kTime);
  });
}

Session::~Session() = default;

void Session::Cut() { SignalAndSubmit(kCutAsked); }

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
  run_again_ = false;
  Handle(events);
  if (phase_ == Phase::kOver) return Finish();
  std::uint32_t expected = kQueued;
  // release: pairs with the acquire in Signal of who queues it next [SE1].
  // relaxed: on failure nothing is read; Run() takes what has come.
  if (run_again_ ||
      !events_.compare_exchange_strong(expected, 0, std::memory_order_release,
                                       std::memory_order_relaxed)) {
    flare::fiber::Submit(this);
  }
}

void Session::Handle(std::uint32_t events) {
  if (phase_ == Phase::kRelaying && (events & (kTime | kCutAsked)) == 0)
      [[likely]] {
    return RunRelay(events);
  }
  if ((events & kCutAsked) != 0) return EndAs(SessionEnd::kCut, 0);
  if ((events & kStart) != 0) OnStart();
  if (phase_ == Phase::kHeader) ReadHeader();
  if (phase_ == Phase::kConnecting) OnConnecting(events);
  if (phase_ == Phase::kRelaying) {
    // Edges that came earlier won't come again.
    RunRelay(events | std::exchange(early_events_, 0));
  } else {
    early_events_ |= events;
  }
  if (phase_ != Phase::kOver && (events & kTime) != 0) OnTime();
}

void Session::OnStart() {
  const ProxyConfig& config = *serving_->config;
  SetOptions(client_->fd(), config);
  if (!config.accept_proxy_protocol) return ConnectToNext();
  if (const flare::Status status = client_->Register(); !status.ok()) {
    return EndAs(SessionEnd::kNoUpstream, status.code());
  }
  SetDeadline(SaturatingAdd(NowNs(), config.connect_timeout.count()));
}

void Session::SetDeadline(std::int64_t deadline_ns) {
  if (timer_used_) flare::fiber::CancelTimer(&timer_);
  timer_used_ = true;
  deadline_ns_ = deadline_ns;
  flare::fiber::ArmTimer(&timer_, deadline_ns);
}

void Session::OnTime() {
  const std::int64_t now = NowNs();
  if (now < deadline_ns_) return;  // Of an earlier deadline.
  switch (phase_) {
    case Phase::kHeader:
      return EndAs(SessionEnd::kBadHeader, ETIMEDOUT);
    case Phase::kConnecting:
      return ConnectFailed(ETIMEDOUT);
    case Phase::kRelaying: {
      // Armed once per idle_timeout, not once per message: what has passed
      // meanwhile only moves the deadline.
      const std::int64_t idle_ns = serving_->config->idle_timeout.count();
      if (idle_ns == 0) return;  // Connecting's.
      const std::int64_t end = SaturatingAdd(last_activity_ns_, idle_ns);
      if (now >= end) return EndAs(SessionEnd::kIdle, 0);
      return SetDeadline(end);
    }
    case Phase::kOver:
      return;
  }
}

void Session::ReadHeader() {
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
      return ConnectToNext();
    }
  }
}

void Session::ConnectToNext() {
  phase_ = Phase::kConnecting;
  const ProxyConfig& config = *serving_->config;
  for (;;) {
    const std::int64_t now = NowNs();
    RefPtr<Upstream> next;
    if (report_.attempts < config.connect_attempts) {
      next = serving_->upstreams.Acquire(report_.source, tried_, now);
    }
    if (!next) {
      return EndAs(SessionEnd::kNoUpstream,
                   connect_error_ != 0 ? connect_error_ : EBUSY);
    }
    if (++report_.attempts > 1) registry_->CountRetry();
    tried_.push_back(next.Get());
    report_.upstream = std::move(next);
    counted_by_upstream_ = true;
    const int error = BeginConnecting();
    if (error == 0) {
      return SetDeadline(SaturatingAdd(now, config.connect_timeout.count()));
    }
    LeaveUpstream(error);
  }
}

// 0, or the errno of why it can't even begin.
int Session::BeginConnecting() {
  const flare::Endpoint& address = report_.upstream->address();
  auto fd = flare::io::CreateStreamSocket(address.family());
  if (!fd) return fd.error().code();
  flare::io::SetTcpNoDelay(fd->get());
  flare::io::SetUrgentInline(fd->get());
  SetOptions(fd->get(), *serving_->config);
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

void Session::OnConnecting(std::uint32_t events) {
  if (UnpackEvents(events, kUpstreamShift) == 0) return;
  const int fd = upstream_->fd();
  if (const int error = flare::io::TakeSocketError(fd); error != 0) {
    return ConnectFailed(error);
  }
  // The event may have been meant for the upstream that was tried before.
  const flare::Endpoint peer = flare::io::GetRemoteEndpoint(fd);
  if (peer.empty()) return;
  if (IsConnectedToItself(fd, peer)) return ConnectFailed(ECONNREFUSED);
  OnConnected();
}

void Session::ConnectFailed(int error) {
  LeaveUpstream(error);
  ConnectToNext();
}

void Session::LeaveUpstream(int error) {
  if (upstream_) upstream_->Close();
  upstream_.Reset();
  connect_error_ = error;
  if (IsShortage(error)) {
    report_.attempts = serving_->config->connect_attempts;  // No use in more.
  } else {
    const ProxyConfig& config = *serving_->config;
    LogConnectFailure(*report_.upstream, error);
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
  if (!client_->registered()) {
    if (const flare::Status status = client_->Register(); !status.ok()) {
      return EndAs(SessionEnd::kNoUpstream, status.code());
    }
  }
  relay_.emplace(client_->fd(), upstream_->fd(),
                 Relay::Options{.high_watermark = config.high_watermark,
                                .low_watermark = config.low_watermark,
                                .copy_mode = config.copy_mode});
  SendHeader();
  relay_->AddReceived(Relay::kClient, received_);
  phase_ = Phase::kRelaying;
  received_ = std::string();
  tried_ = std::vector<const Upstream*>();
  if (const std::int64_t idle_ns = config.idle_timeout.count(); idle_ns != 0) {
    SetDeadline(SaturatingAdd(last_activity_ns_, idle_ns));
  }
}

void Session::SendHeader() {
  const ProxyProtocol version = serving_->config->send_proxy_protocol;
  if (version == ProxyProtocol::kNone) return;
  if (destination_.empty()) {
    destination_ = flare::io::GetLocalEndpoint(client_->fd());
  }
  relay_->SendFirst(Relay::kUpstream,
                    version == ProxyProtocol::kV1
                        ? FormatProxyHeaderV1(report_.source, destination_)
                        : FormatProxyHeaderV2(report_.source, destination_));
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
      if (result.reset_other) MakeCloseReset(upstream_->fd());
      return EndAs(SessionEnd::kClientAborted, result.error);
    case Relay::Result::End::kUpstreamBroke:
      if (result.reset_other) MakeCloseReset(client_->fd());
      return EndAs(SessionEnd::kUpstreamAborted, result.error);
  }
}

void Session::EndAs(SessionEnd end, int error) {
  phase_ = Phase::kOver;
  report_.end = end;
  report_.error = error;
}

// The last run's last act.
void Session::Finish() {
  if (timer_used_) flare::fiber::CancelTimer(&timer_);
  if (relay_) {
    AccountBytes();
    report_.bytes_to_upstream = relay_->bytes_to(Relay::kUpstream);
    report_.bytes_to_client = relay_->bytes_to(Relay::kClient);
    // Who is not told all must not take it for the end.
    if (relay_->pending_to(Relay::kUpstream) != 0) {
      MakeCloseReset(upstream_->fd());
    }
    if (relay_->pending_to(Relay::kClient) != 0) MakeCloseReset(client_->fd());
    relay_.reset();
  }
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

void Session::ReleaseUpstream() {
  if (!counted_by_upstream_) return;
  counted_by_upstream_ = false;
  report_.upstream->Release();
}

}  // namespace example::proxy
