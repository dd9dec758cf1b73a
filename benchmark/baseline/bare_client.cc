#include "benchmark/baseline/bare_client.h"

#include <utility>

#include "benchmark/baseline/call.h"
#include "example/rpc/echo_service.pb.h"
#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/wire/payload.h"

namespace baseline {

bool BareLoad::Begin() {
  // relaxed, all: see Stop() and under_way(); a count is only a number.
  if (stopped_.load(std::memory_order_relaxed)) return false;
  std::uint64_t left = left_.load(std::memory_order_relaxed);
  do {
    if (left == kNoLimit) break;
    if (left == 0) return false;
  } while (
      !left_.compare_exchange_weak(left, left - 1, std::memory_order_relaxed));
  under_way_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

flare::Expected<BareRequests, flare::Status> BareRequests::Encode(
    const ServerAddress& server, std::size_t slots, std::size_t body_size) {
  BareRequests requests;
  if (server.scheme == "http") {
    requests.ids = false;
    requests.heads.assign(
        slots, "GET / HTTP/1.1\r\nHost: " + server.host + "\r\n\r\n");
    return requests;
  }
  auto protocol = flare::rpc::NewClientProtocol(server.scheme, {}, server.host);
  if (!protocol) return protocol.error();
  example::protobuf_echo::EchoRequest echo;
  echo.set_body(std::string(body_size, 'a'));
  requests.body = echo.SerializeAsString();
  for (std::size_t i = 0; i != slots; ++i) {
    flare::rpc::OutboundRequest request;
    request.correlation_id = i + 1;
    request.method = kEchoMethod;
    request.body = flare::CreateBufferSlow(requests.body);
    flare::BufferBuilder builder;
    const flare::Status written =
        (*protocol)->Write(std::move(request), &builder);
    if (!written.ok()) return written;
    // The body comes last in all protocols that are spoken here.
    std::string bytes = flare::FlattenSlow(builder.DestructiveGet());
    bytes.resize(bytes.size() - requests.body.size());
    requests.heads.push_back(std::move(bytes));
  }
  return requests;
}

BareClientConnection::BareClientConnection(flare::io::UniqueFd fd,
                                           const BareRequests* requests,
                                           std::size_t slots, BareLoad* load)
    : BareStream(std::move(fd)),
      requests_(requests),
      load_(load),
      slots_(slots) {}

void BareClientConnection::OnAdopted() {
  const std::int64_t now = flare::NowNs();
  for (std::size_t i = 0; i != slots_.size(); ++i) Begin(i, now);
  SendOutput();
}

void BareClientConnection::Begin(std::size_t slot, std::int64_t now_ns) {
  if (!load_->Begin()) return;
  slots_[slot] = {true, now_ns};
  output()->text()->append(requests_->heads[slot]);
  output()->Append(requests_->body);
}

std::size_t BareClientConnection::OnInput(char* data, std::size_t size,
                                          std::size_t* need) {
  const std::string_view in(data, size);
  // The bytes of one read count as having come at one time.
  const std::int64_t now = flare::NowNs();
  std::size_t at = 0;
  while (at != size) {
    BareMessage message;
    const Scan result = ScanResponse(in.substr(at), &message, need);
    if (result == Scan::kBad) return kBadInput;
    if (result == Scan::kNeedMore) break;
    if (!Finish(message, now)) return kBadInput;
    at += message.size;
  }
  return at;
}

bool BareClientConnection::Finish(const BareMessage& response,
                                  std::int64_t now_ns) {
  std::size_t index = oldest_;
  if (requests_->ids) {
    if (!response.has_id) return false;
    index = static_cast<std::size_t>(response.id) - 1;
  }
  if (index >= slots_.size() || !slots_[index].used) return false;
  oldest_ = (index + 1) % slots_.size();
  Slot& slot = slots_[index];
  const std::int64_t latency_ns = now_ns - slot.sent_ns;
  slot.used = false;
  // The next one first: none under way means that the run is over.
  Begin(index, now_ns);
  if (response.status == 0) {
    load_->Succeeded(latency_ns);
  } else {
    load_->Failed(response.status);
  }
  return true;
}

void BareClientConnection::OnClosed() {
  for (Slot& slot : slots_) {
    if (std::exchange(slot.used, false)) {
      load_->Failed(flare::rpc::STATUS_IO_ERROR);
    }
  }
}

}  // namespace baseline
