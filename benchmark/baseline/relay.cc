#include "benchmark/baseline/relay.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string>
#include <utility>

#include "example/rpc/echo_service.pb.h"
#include "flare/base/clock.h"
#include "flare/io/socket_options.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/wire/payload.h"
#include "glog/logging.h"

namespace baseline {

using example::protobuf_echo::EchoRequest;
using example::protobuf_echo::EchoResponse;
using flare::rpc::CutResult;
using flare::rpc::ParseResult;

namespace {

constexpr std::int64_t kMillisecondNs = 1'000'000;
constexpr std::int64_t kRetryDelayNs = 10 * kMillisecondNs;
constexpr std::size_t kMaxCalls = std::numeric_limits<std::uint16_t>::max();

// The payload of the call that is made on behalf of `call`.
flare::Expected<flare::rpc::OutboundBody, flare::Status> EncodeRequest(
    flare::rpc::PayloadFormat format, Call* call) {
  auto* const echo = call->message<EchoRequest>();
  echo->mutable_body()->swap(*call->body());
  const example::Work& work = call->requested_work();
  echo->set_work(
      static_cast<example::protobuf_echo::Work>(static_cast<int>(work.kind)));
  echo->set_work_us(static_cast<std::uint32_t>(work.length.count()));
  flare::rpc::OutboundBody body;
  const flare::Status status =
      flare::rpc::SerializePayload(format, *echo, &body);
  if (!status.ok()) return status;
  return body;
}

}  // namespace

// --- Downstream ------------------------------------------------------------

Downstream::Downstream(flare::io::UniqueFd fd,
                       std::unique_ptr<flare::rpc::ClientProtocol> protocol,
                       Relay* relay)
    : Stream(std::move(fd)), protocol_(std::move(protocol)), relay_(relay) {
  SetConnecting();
}

Downstream::~Downstream() {
  for (const Slot& slot : slots_) {
    if (slot.call != nullptr) slot.call->Recycle();
  }
}

void Downstream::Forward(Call* call, std::uint32_t timeout_ms) {
  auto body = EncodeRequest(protocol_->format(), call);
  if (!body) {
    call->Fail(body.error());
    return call->Reply();
  }
  flare::rpc::OutboundRequest request;
  request.correlation_id = Enter(call, timeout_ms);
  if (request.correlation_id == 0) {
    return FailCall(call, flare::rpc::STATUS_OVERLOADED,
                    "too many calls wait for the server behind this relay");
  }
  request.method = kEchoMethod;
  request.timeout_ms = timeout_ms;
  request.body = *std::move(body);
  request.attachment = std::move(call->request.attachment);
  flare::BufferBuilder builder;
  const std::uint64_t id = request.correlation_id;
  const flare::Status written = protocol_->Write(std::move(request), &builder);
  if (!written.ok()) {
    Leave(id);
    call->Fail(written);
    return call->Reply();
  }
  Send(builder.DestructiveGet());
}

bool Downstream::OnData(flare::Buffer& in, std::size_t* need) {
  std::string error;
  while (!in.empty() && !is_closed()) {
    response_.Clear();
    const CutResult cut = protocol_->Cut(in, &response_, need, &error);
    if (cut == CutResult::kNeedMore) break;
    if (cut == CutResult::kHandled) continue;
    if (cut != CutResult::kMessage) {
      LOG_FIRST_N(WARNING, 10) << "the server behind this relay: " << error;
      return false;
    }
    const ParseResult parsed = protocol_->Parse(&response_);
    if (parsed == ParseResult::kClose) return false;
    const bool last = response_.last_on_connection;
    if (Call* const call = Leave(response_.correlation_id)) FinishCall(call);
    if (last) Close();
  }
  return true;
}

void Downstream::FinishCall(Call* call) {
  if (response_.status != flare::rpc::STATUS_SUCCESS) {
    call->Fail(
        flare::Status(response_.status, std::string(response_.description)));
    return call->Reply();
  }
  auto* const echo = call->message<EchoResponse>();
  const flare::Status parsed =
      flare::rpc::ParsePayload(protocol_->format(), response_.body, echo);
  if (parsed.ok()) {
    call->Answer(echo->body());
    call->response.attachment = std::move(response_.attachment);
  } else {
    call->Fail(parsed);
  }
  call->Reply();
}

std::uint32_t Downstream::Enter(Call* call, std::uint32_t timeout_ms) {
  if (free_slots_.empty()) {
    if (slots_.size() == kMaxCalls) return 0;
    free_slots_.push_back(slots_.size());
    slots_.emplace_back();
  }
  const std::size_t index = free_slots_.back();
  free_slots_.pop_back();
  Slot& slot = slots_[index];
  slot.call = call;
  slot.deadline_ns = flare::NowNs() + timeout_ms * kMillisecondNs;
  ++slot.use;
  ++calls_;
  return static_cast<std::uint32_t>((index + 1) << 16 | slot.use);
}

Call* Downstream::Leave(std::uint64_t id) {
  const std::size_t index = (id >> 16) - 1;
  if (index >= slots_.size()) return nullptr;
  const Slot& slot = slots_[index];
  if (slot.call == nullptr || slot.use != (id & 0xffff)) return nullptr;
  return Take(index);
}

Call* Downstream::Take(std::size_t index) {
  --calls_;
  free_slots_.push_back(index);
  return std::exchange(slots_[index].call, nullptr);
}

void Downstream::FailCall(Call* call, int status, const char* text) {
  call->Fail(flare::Status(status, text));
  call->Reply();
}

void Downstream::FailOverdue(std::int64_t now_ns) {
  for (std::size_t i = 0; i != slots_.size(); ++i) {
    if (slots_[i].call == nullptr || slots_[i].deadline_ns > now_ns) continue;
    FailCall(Take(i), flare::rpc::STATUS_TIMEOUT,
             "the server behind this relay didn't answer in time");
  }
}

void Downstream::OnClosed() {
  relay_->Forget(this, connected_);
  for (std::size_t i = 0; i != slots_.size(); ++i) {
    if (slots_[i].call == nullptr) continue;
    FailCall(Take(i),
             connected_ ? flare::rpc::STATUS_CHANNEL_SHUTDOWN
                        : flare::rpc::STATUS_FAIL_TO_CONNECT,
             connected_ ? "the connection to the server behind this relay "
                          "broke"
                        : "can't connect to the server behind this relay");
  }
  Discard();
}

// --- Relay -----------------------------------------------------------------

Relay::Relay(EventLoop* loop, const RelayOptions& options)
    : loop_(loop),
      options_(options),
      connections_(std::max<std::size_t>(options.connections, 1)) {
  loop->SetTicker(this);
}

void Relay::Handle(Call* call) {
  if (!call->Parse(Call::Methods::kEchoAndRelay)) return call->Reply();
  Downstream* const connection = PickConnection();
  if (connection == nullptr) {
    call->Fail(flare::Status(flare::rpc::STATUS_FAIL_TO_CONNECT,
                             "can't connect to " + options_.server.host));
    return call->Reply();
  }
  if (connection->waiting_output() > options_.max_waiting) {
    call->Fail(
        flare::Status(flare::rpc::STATUS_OVERLOADED,
                      "the server behind this relay doesn't take requests"));
    return call->Reply();
  }
  const std::uint32_t asked = call->request.head.timeout_ms;
  connection->Forward(call, asked == 0 ? options_.timeout_ms
                                       : std::min(asked, options_.timeout_ms));
}

Downstream* Relay::PickConnection() {
  next_ = (next_ + 1) % connections_.size();
  Downstream*& connection = connections_[next_];
  if (connection == nullptr) connection = Connect();
  return connection;
}

Downstream* Relay::Connect() {
  const std::int64_t now = flare::NowNs();
  if (now < retry_at_ns_) return nullptr;
  retry_at_ns_ = now + kRetryDelayNs;  // Unless it succeeds.
  auto protocol = flare::rpc::NewClientProtocol(options_.server.scheme, {},
                                                options_.server.host);
  CHECK(protocol) << protocol.error();
  const flare::Endpoint& address = options_.server.endpoint;
  auto fd = flare::io::CreateStreamSocket(address.family());
  if (!fd) return nullptr;
  flare::io::SetTcpNoDelay(fd->get());
  sockaddr_storage storage;
  const socklen_t length = address.ToSockaddr(&storage);
  if (::connect(fd->get(), reinterpret_cast<const sockaddr*>(&storage),
                length) != 0 &&
      errno != EINPROGRESS) {
    PLOG_EVERY_N(WARNING, 100) << "can't connect to " << options_.server.host;
    return nullptr;
  }
  auto connection =
      std::make_unique<Downstream>(*std::move(fd), *std::move(protocol), this);
  Downstream* const it = connection.get();
  loop_->AdoptHere(std::move(connection));
  if (it->is_closed()) return nullptr;
  retry_at_ns_ = 0;
  return it;
}

void Relay::Forget(Downstream* connection, bool connected) {
  std::replace(connections_.begin(), connections_.end(), connection,
               static_cast<Downstream*>(nullptr));
  if (!connected) retry_at_ns_ = flare::NowNs() + kRetryDelayNs;
}

bool Relay::WantsTicks() const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [](const Downstream* connection) {
                       return connection != nullptr && connection->has_calls();
                     });
}

void Relay::OnTick(std::int64_t now_ns) {
  for (Downstream* const connection : connections_) {
    if (connection != nullptr) connection->FailOverdue(now_ns);
  }
}

}  // namespace baseline
