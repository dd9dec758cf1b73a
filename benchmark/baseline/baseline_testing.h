// The other end of a connection, and a loop that runs: for the tests of this
// folder.

#ifndef BENCHMARK_BASELINE_BASELINE_TESTING_H_
#define BENCHMARK_BASELINE_BASELINE_TESTING_H_

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "benchmark/baseline/call.h"
#include "benchmark/baseline/event_loop.h"
#include "example/rpc/echo_service.pb.h"
#include "flare/base/buffer.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/io/fd.h"
#include "flare/rpc/client_protocol.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/protocol_registry.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

namespace baseline {

inline constexpr std::int64_t kPatienceNs = 30'000'000'000;

using flare::fiber::testing::Eventually;

struct Reply {
  int status = -1;
  std::string body;
  std::string attachment;
};

// The other end: writes blockingly, reads with a deadline.
class Peer {
 public:
  // With SOCK_SEQPACKET each write of the server is one read here.
  explicit Peer(const std::string& scheme = "flare", int type = SOCK_STREAM)
      : protocol_(*flare::rpc::NewClientProtocol(scheme, Limits(), "host")) {
    int fds[2];
    PCHECK(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds) == 0);
    ours_.Reset(fds[0]);
    theirs_.Reset(fds[1]);
    const int flags = ::fcntl(theirs_.get(), F_GETFL);
    PCHECK(::fcntl(theirs_.get(), F_SETFL, flags | O_NONBLOCK) == 0);
  }

  static flare::rpc::Limits Limits() {
    flare::rpc::Limits limits;
    limits.max_packet_size = 64 << 20;
    return limits;
  }

  // For the server.
  flare::io::UniqueFd TakeOtherEnd() { return std::move(theirs_); }

  std::string Encode(std::uint64_t id, const std::string& body,
                     std::string_view method = kEchoMethod,
                     const std::string& attachment = "") const {
    example::protobuf_echo::EchoRequest echo;
    echo.set_body(body);
    return Encode(id, echo, method, attachment);
  }
  std::string Encode(std::uint64_t id,
                     const example::protobuf_echo::EchoRequest& echo,
                     std::string_view method = kEchoMethod,
                     const std::string& attachment = "") const {
    flare::rpc::OutboundRequest request;
    request.correlation_id = id;
    request.method = method;
    request.body = flare::CreateBufferSlow(echo.SerializeAsString());
    request.attachment = flare::CreateBufferSlow(attachment);
    flare::BufferBuilder builder;
    CHECK(protocol_->Write(std::move(request), &builder).ok());
    return flare::FlattenSlow(builder.DestructiveGet());
  }

  void Send(std::string_view bytes) { SendAll(ours_.get(), bytes); }
  // Blocks until they are sent, or the other end is closed.
  static void SendAll(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0 && errno == EAGAIN) {
        pollfd state{fd, POLLOUT, 0};
        ::poll(&state, 1, -1);
        continue;
      }
      if (n <= 0) return;  // The test will see.
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
  }

  // Up to `n` replies, by id; fewer if the connection ends.
  std::map<std::uint64_t, Reply> Receive(std::size_t n) {
    std::map<std::uint64_t, Reply> replies;
    while (replies.size() != n) {
      flare::rpc::InboundResponse response;
      std::size_t need = 0;
      std::string error;
      const flare::rpc::CutResult cut =
          protocol_->Cut(input_, &response, &need, &error);
      if (cut == flare::rpc::CutResult::kNeedMore) {
        if (!ReadSome()) break;
        continue;
      }
      EXPECT_EQ(cut, flare::rpc::CutResult::kMessage) << error;
      if (cut != flare::rpc::CutResult::kMessage) break;
      EXPECT_NE(protocol_->Parse(&response), flare::rpc::ParseResult::kClose);
      Reply& reply = replies[response.correlation_id];
      EXPECT_EQ(reply.status, -1) << "answered twice";
      reply.status = response.status;
      example::protobuf_echo::EchoResponse echo;
      EXPECT_TRUE(echo.ParseFromString(flare::FlattenSlow(response.body)));
      reply.body = echo.body();
      reply.attachment = flare::FlattenSlow(response.attachment);
    }
    return replies;
  }

  // The next read brings that many whole replies.
  std::size_t CountInOneRead() {
    if (!ReadSome()) return 0;
    std::size_t n = 0;
    for (;; ++n) {
      flare::rpc::InboundResponse response;
      std::size_t need = 0;
      std::string error;
      if (protocol_->Cut(input_, &response, &need, &error) !=
          flare::rpc::CutResult::kMessage) {
        return n;
      }
    }
  }

  bool IsClosedByServer() {
    while (ReadSome()) {
    }
    return ended_;
  }
  void EndOutput() { ::shutdown(ours_.get(), SHUT_WR); }
  void Close() { ours_.Reset(); }

 private:
  bool ReadSome() {
    pollfd state{ours_.get(), POLLIN, 0};
    if (::poll(&state, 1, static_cast<int>(kPatienceNs / 1'000'000)) != 1) {
      ADD_FAILURE() << "nothing comes";
      return false;
    }
    char bytes[65536];
    const ssize_t n = ::read(ours_.get(), bytes, sizeof(bytes));
    ended_ = n <= 0;
    if (ended_) return false;
    input_.Append(std::string_view(bytes, static_cast<std::size_t>(n)));
    return true;
  }

  const std::unique_ptr<flare::rpc::ClientProtocol> protocol_;
  flare::io::UniqueFd ours_;
  flare::io::UniqueFd theirs_;
  bool ended_ = false;
  flare::Buffer input_;
};

// Runs until it is joined, or destroyed.
class RunningLoop {
 public:
  RunningLoop() : thread_([this] { loop_.Run(); }) {}
  // For settings before it runs.
  template <class Prepare>
  explicit RunningLoop(Prepare&& prepare) {
    prepare(&loop_);
    thread_ = std::thread([this] { loop_.Run(); });
  }
  ~RunningLoop() { Join(); }
  void Join() {
    if (!thread_.joinable()) return;
    loop_.Stop();
    thread_.join();
  }
  EventLoop* operator->() { return &loop_; }
  EventLoop* get() { return &loop_; }

 private:
  EventLoop loop_;
  std::thread thread_;
};

}  // namespace baseline

#endif  // BENCHMARK_BASELINE_BASELINE_TESTING_H_
