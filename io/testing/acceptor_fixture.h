// A runtime with epoll pollers, and a receiver of its acceptors' connections,
// for tests.
//
//   class MyTest : public testing::AcceptorTest {};
//   FLARE_INSTANTIATE_RUNTIME_TEST(MyTest);
//   TEST_P(MyTest, Accepts) {
//     auto acceptor = MustListen(address, greeter_.Callback());
//     const UniqueFd client = PlainConnect(acceptor->local_endpoint());
//     EXPECT_EQ(Receive(client.get(), 2), "hi");
//   }

#ifndef FLARE_IO_TESTING_ACCEPTOR_FIXTURE_H_
#define FLARE_IO_TESTING_ACCEPTOR_FIXTURE_H_

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/fiber/runtime.h"
#include "flare/io/acceptor.h"
#include "flare/io/fd.h"
#include "flare/io/socket_options.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace flare::io::testing {

// After how many seconds the kernel asks its silent peer, and how often then.
// Zeros: it doesn't ask.
inline std::pair<int, int> KeepAliveOf(int fd) {
  const auto get = [fd](int level, int name) {
    int value = 0;
    socklen_t length = sizeof(value);
    EXPECT_EQ(::getsockopt(fd, level, name, &value, &length), 0);
    return value;
  };
  if (get(SOL_SOCKET, SO_KEEPALIVE) == 0) return {0, 0};
  return {get(IPPROTO_TCP, TCP_KEEPIDLE), get(IPPROTO_TCP, TCP_KEEPINTVL)};
}

// Greets each connection and keeps it. Thread-safe.
class Greeter {
 public:
  Acceptor::OnAccept Callback() {
    return [this](UniqueFd fd, const Endpoint& peer, std::size_t group) {
      EXPECT_TRUE(fiber::IsFiberWorker());
      EXPECT_LT(group, fiber::GetSchedulingGroupCount());
      EXPECT_NE(::fcntl(fd.get(), F_GETFL) & O_NONBLOCK, 0);
      EXPECT_NE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
      if (peer.family() == AF_INET) {
        EXPECT_EQ(peer, GetRemoteEndpoint(fd.get()));
        EXPECT_TRUE(HasOption(fd.get(), IPPROTO_TCP, TCP_NODELAY));
        EXPECT_TRUE(HasOption(fd.get(), SOL_SOCKET, SO_OOBINLINE));
      }
      std::scoped_lock guard(mutex_);
      fds_.push_back(std::move(fd));
      // Fails for a client that only looked whether somebody listens.
      static_cast<void>(SendAll(fds_.back().get(), "hi"));
    };
  }

  std::size_t count() {
    std::scoped_lock guard(mutex_);
    return fds_.size();
  }

 private:
  static bool HasOption(int fd, int level, int name) {
    int value = 0;
    socklen_t length = sizeof(value);
    EXPECT_EQ(::getsockopt(fd, level, name, &value, &length), 0);
    return value != 0;
  }

  std::mutex mutex_;
  std::vector<UniqueFd> fds_;
};

class AcceptorTest : public IoTest {
 protected:
  std::unique_ptr<Acceptor> MustListen(const Endpoint& address,
                                       Acceptor::OnAccept on_accept) {
    auto acceptor = Acceptor::Listen(address, {}, std::move(on_accept));
    EXPECT_TRUE(acceptor.has_value()) << acceptor.error().message();
    return std::move(*acceptor);
  }

  Greeter greeter_;
};

}  // namespace flare::io::testing

#endif  // FLARE_IO_TESTING_ACCEPTOR_FIXTURE_H_
