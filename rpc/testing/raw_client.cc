#include "flare/rpc/testing/raw_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/wire/payload.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

constexpr int kServerPatienceMs = 20'000;

bool WaitFor(int fd, short events) {
  pollfd poll_fd{fd, events, 0};
  const int n = poll(&poll_fd, 1, kServerPatienceMs);
  EXPECT_EQ(n, 1) << "the server neither sends nor closes";
  return n == 1;
}

}  // namespace

void RawClient::Reply::ReportUnparsable() const {
  ADD_FAILURE() << "a reply of " << body.size() << " bytes, status " << status
                << " (" << description << "), can't be parsed";
}

RawClient::RawClient(const Endpoint& server, std::string_view scheme)
    : fd_(socket(server.family(), SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_storage address;
  const socklen_t length = server.ToSockaddr(&address);
  EXPECT_EQ(connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), length),
            0)
      << server.ToString() << ": " << strerror(errno);
  auto protocol = NewClientProtocol(scheme, Limits(), server.ToString());
  EXPECT_TRUE(protocol) << scheme;
  protocol_ = *std::move(protocol);
}

bool RawClient::TrySend(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

void RawClient::Send(std::string_view bytes) {
  EXPECT_TRUE(TrySend(bytes)) << strerror(errno);
}

std::string RawClient::Encode(OutboundRequest&& request) {
  BufferBuilder builder;
  const flare::Status written = protocol_->Write(std::move(request), &builder);
  EXPECT_TRUE(written.ok()) << written.ToString();
  return FlattenSlow(builder.DestructiveGet());
}

std::string RawClient::Encode(std::uint64_t id, std::string_view method,
                              const google::protobuf::Message& message,
                              std::uint32_t timeout_ms) {
  OutboundRequest request;
  request.correlation_id = id;
  request.method = method;
  request.timeout_ms = timeout_ms;
  const flare::Status written =
      SerializePayload(protocol_->format(), message, &request.body);
  EXPECT_TRUE(written.ok()) << written.ToString();
  return Encode(std::move(request));
}

bool RawClient::ReadMore() {
  if (!WaitFor(fd_.get(), POLLIN)) return false;
  char bytes[65536];
  const ssize_t n = read(fd_.get(), bytes, sizeof(bytes));
  if (n <= 0) return false;
  in_.Append(std::string_view(bytes, static_cast<std::size_t>(n)));
  return true;
}

std::optional<RawClient::Reply> RawClient::ReadReply() {
  InboundResponse response;
  std::string error;
  for (;;) {
    std::size_t need = 0;
    if (!in_.empty()) {
      const CutResult cut = protocol_->Cut(in_, &response, &need, &error);
      if (cut == CutResult::kMessage) break;
      if (cut == CutResult::kHandled) continue;
      if (cut != CutResult::kNeedMore) {
        ADD_FAILURE() << "the server sent a malformed reply: " << error;
        return std::nullopt;
      }
    }
    if (!ReadMore()) {
      EXPECT_TRUE(in_.empty()) << "the stream ends within a reply";
      return std::nullopt;
    }
  }
  EXPECT_NE(protocol_->Parse(&response), ParseResult::kClose)
      << response.description;
  Reply reply;
  reply.id = response.correlation_id;
  reply.status = response.status;
  reply.description = response.description;
  reply.compression = response.compression;
  reply.attachment_compressed = response.attachment_compressed;
  reply.body = FlattenSlow(response.body);
  reply.attachment = FlattenSlow(response.attachment);
  return reply;
}

std::string RawClient::ReadUntil(std::string_view end) {
  for (;;) {
    const std::string have = FlattenSlow(in_);
    const std::size_t at = have.find(end);
    const std::size_t n =
        at == std::string::npos ? have.size() : at + end.size();
    if (at != std::string::npos || !ReadMore()) {
      in_.Skip(n);
      return have.substr(0, n);
    }
  }
}

std::string RawClient::ReadExactly(std::size_t n) {
  while (in_.size() < n && ReadMore()) {
  }
  EXPECT_GE(in_.size(), n) << "the stream ends early";
  return FlattenSlow(in_.Cut(std::min(n, in_.size())));
}

std::string RawClient::ReadAll() {
  while (ReadMore()) {
  }
  return FlattenSlow(std::exchange(in_, Buffer()));
}

void RawClient::Shutdown() { shutdown(fd_.get(), SHUT_WR); }

}  // namespace flare::rpc::testing
