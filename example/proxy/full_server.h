// For tests of connections that wait for a server that is slow to accept.

#ifndef EXAMPLE_PROXY_FULL_SERVER_H_
#define EXAMPLE_PROXY_FULL_SERVER_H_

#include <sys/socket.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/io/fd.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace example::proxy {

// A Unix socket whose backlog is full: nobody else gets in until the server
// has accepted those who wait.
class FullServer {
 public:
  explicit FullServer(const flare::Endpoint& address)
      : listener_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_storage storage;
    const socklen_t length = address.ToSockaddr(&storage);
    auto* const generic = reinterpret_cast<sockaddr*>(&storage);
    EXPECT_EQ(::bind(listener_.get(), generic, length), 0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
    flare::io::testing::MakePlain(listener_.get());
    for (;;) {
      flare::io::UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
      if (::connect(fd.get(), generic, length) != 0) break;
      waiting_.push_back(std::move(fd));
    }
    EXPECT_EQ(errno, EAGAIN);
  }

  // The first one behind those who have waited.
  flare::io::UniqueFd AcceptNext() {
    for (; !waiting_.empty(); waiting_.pop_back())
      flare::io::testing::PlainAccept(listener_);
    return flare::io::testing::PlainAccept(listener_);
  }

 private:
  flare::io::UniqueFd listener_;
  std::vector<flare::io::UniqueFd> waiting_;
};

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_FULL_SERVER_H_
