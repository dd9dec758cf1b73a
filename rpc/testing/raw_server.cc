#include "flare/rpc/testing/raw_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/wire/flare_protocol.h"
#include "gtest/gtest.h"
#include "rpc/testing/test_service.pb.h"

namespace flare::rpc::testing {
using fiber::testing::Eventually;
namespace {

constexpr int kClientPatienceMs = 20'000;

bool Readable(int fd, int patience_ms) {
  pollfd poll_fd{fd, POLLIN, 0};
  return poll(&poll_fd, 1, patience_ms) == 1;
}

io::UniqueFd BoundSocket(std::uint16_t port, Endpoint* endpoint) {
  io::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  EXPECT_EQ(setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
  sockaddr_storage address;
  socklen_t length = EndpointFromIpv4("127.0.0.1", port).ToSockaddr(&address);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length), 0)
      << "port " << port << ": " << strerror(errno);
  length = sizeof(address);
  EXPECT_EQ(
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  *endpoint =
      Endpoint::FromSockaddr(reinterpret_cast<sockaddr*>(&address), length);
  return fd;
}

}  // namespace

class RawPeer::Sink final : public ReplySink {
 public:
  bool Write(Buffer&& bytes) override {
    text_ += FlattenSlow(bytes);
    return true;
  }
  void CloseAfterReplies() override {}
  void Abort(const flare::Status& why) override {
    ADD_FAILURE() << why.ToString();
  }
  std::string Take() { return std::exchange(text_, {}); }

 private:
  std::string text_;
};

RawPeer::RawPeer(io::UniqueFd fd)
    : fd_(std::move(fd)), sink_(std::make_unique<Sink>()) {
  auto protocols = ServerProtocolSet::FromNames({"flare"});
  EXPECT_TRUE(protocols);
  protocol_ = protocols->New(0, sink_.get());
}

RawPeer::~RawPeer() = default;

bool RawPeer::ReadMore() {
  if (!Readable(fd_.get(), kClientPatienceMs)) {
    ADD_FAILURE() << "the client neither sends nor closes";
    return false;
  }
  char bytes[65536];
  const ssize_t n = read(fd_.get(), bytes, sizeof(bytes));
  if (n <= 0) return false;
  in_.Append(std::string_view(bytes, static_cast<std::size_t>(n)));
  return true;
}

std::optional<RawPeer::Request> RawPeer::ReadRequest() {
  InboundRequest inbound;
  std::string error;
  for (std::size_t need = 0;
       in_.empty() ||
       protocol_->Cut(in_, &inbound, &need, &error) != CutResult::kMessage;) {
    EXPECT_EQ(error, "");
    if (!ReadMore()) return std::nullopt;
  }
  // It is a peer without our library's abilities: it doesn't answer requests
  // for them.
  static_cast<void>(sink_->Take());
  EXPECT_EQ(protocol_->Parse(&inbound), ParseResult::kOk)
      << inbound.reject_reason;
  Request request;
  request.id = inbound.ticket.As<FlareTicket>().correlation_id;
  request.method = inbound.head.method;
  request.timeout_ms = inbound.head.timeout_ms;
  request.compression = inbound.head.compression;
  request.attachment_compressed = inbound.head.attachment_compressed;
  request.body = FlattenSlow(inbound.body);
  request.attachment = FlattenSlow(inbound.attachment);
  return request;
}

bool RawPeer::HasInput() const {
  return !in_.empty() || Readable(fd_.get(), 0);
}

std::string RawPeer::Encode(std::uint64_t id, std::string_view text,
                            int status) {
  OutboundResponse response;
  response.status = status;
  if (status == 0) {
    TestResponse message;
    message.set_body(std::string(text));
    response.body = CreateBufferSlow(message.SerializeAsString());
  } else {
    response.description = text;
  }
  return Encode(id, std::move(response));
}

std::string RawPeer::Encode(std::uint64_t id, OutboundResponse&& response) {
  ReplyTicket ticket;
  ticket.Emplace<FlareTicket>().correlation_id = id;
  protocol_->Write(ticket, std::move(response));
  return sink_->Take();
}

void RawPeer::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // The client has gone.
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

std::string RawPeer::ReadUntil(std::string_view end) {
  for (;;) {
    const std::string have = FlattenSlow(in_);
    const std::size_t at = have.find(end);
    if (at != std::string::npos || !ReadMore()) {
      const std::size_t n =
          at == std::string::npos ? in_.size() : at + end.size();
      in_.Skip(n);
      return have.substr(0, n);
    }
  }
}

std::string RawPeer::ReadExactly(std::size_t n) {
  while (in_.size() < n && ReadMore()) {
  }
  EXPECT_GE(in_.size(), n) << "the stream ends early";
  return FlattenSlow(in_.Cut(std::min(n, in_.size())));
}

std::string RawPeer::ReadAll() {
  while (ReadMore()) {
  }
  return FlattenSlow(std::exchange(in_, Buffer()));
}

bool RawPeer::AtEnd() {
  const bool more = ReadMore();
  return !more && in_.empty();
}

RawServer::RawServer(std::uint16_t port, int backlog)
    : listener_(BoundSocket(port, &endpoint_)) {
  EXPECT_EQ(listen(listener_.get(), backlog), 0) << strerror(errno);
}

RawServer::RawServer(DeadAddress* address)
    : endpoint_(address->endpoint_), listener_(std::move(address->bound_)) {
  EXPECT_EQ(listen(listener_.get(), 128), 0) << strerror(errno);
}

bool RawServer::HasVisitor() { return Readable(listener_.get(), 0); }

std::unique_ptr<RawPeer> RawServer::Accept() {
  if (!Readable(listener_.get(), kClientPatienceMs)) {
    ADD_FAILURE() << "nobody connects";
    return nullptr;
  }
  io::UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_TRUE(fd) << strerror(errno);
  return std::make_unique<RawPeer>(std::move(fd));
}

DeadAddress::DeadAddress() : bound_(BoundSocket(0, &endpoint_)) {}

ConnectionInQueue::ConnectionInQueue(RawServer& server)
    : connection_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_storage address;
  const socklen_t length = server.endpoint().ToSockaddr(&address);
  EXPECT_EQ(
      connect(connection_.get(), reinterpret_cast<sockaddr*>(&address), length),
      0)
      << strerror(errno);
  // Before, the kernel would answer the next one, too.
  EXPECT_TRUE(Eventually([&] { return server.HasVisitor(); }));
}

}  // namespace flare::rpc::testing
