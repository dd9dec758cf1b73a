// Effects of a security policy on a listener: no connection is accepted, or not
// before it is changed.
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "flare/base/clock.h"
#include "flare/io/acceptor.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace {

std::atomic<bool> forbidden{false};
std::atomic<int> refusals{0};

}  // namespace

// Instead of the C library's.
extern "C" int accept4(int fd, sockaddr* address, socklen_t* length,
                       int flags) {
  if (!forbidden) {
    return static_cast<int>(::syscall(SYS_accept4, fd, address, length, flags));
  }
  ++refusals;
  errno = EACCES;
  return -1;
}

namespace flare::io {
namespace {

class AcceptForbiddenTest : public testing::IoTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(AcceptForbiddenTest);

// It doesn't keep a worker busy, and goes on once it is allowed to.
TEST_P(AcceptForbiddenTest, IsTriedNowAndThen) {
  forbidden = true;
  std::atomic<int> accepted{0};
  auto acceptor = Acceptor::Listen(
      EndpointFromIpv4("127.0.0.1", 0), Acceptor::Options(),
      [&](UniqueFd, const Endpoint&, std::size_t) { ++accepted; });
  ASSERT_TRUE(acceptor.has_value()) << acceptor.error().message();
  const UniqueFd client = testing::PlainConnect((*acceptor)->local_endpoint());
  ASSERT_TRUE(client);
  const std::int64_t start_ns = NowNs();
  refusals = 0;
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const std::int64_t deadline = testing::Deadline();
  while (refusals == 0 && NowNs() < deadline) std::this_thread::yield();
  // 64 at a time, each 50 ms.
  const int seen = refusals;
  EXPECT_LE(seen, 64 * ((NowNs() - start_ns) / 50'000'000 + 2));
  EXPECT_GE(seen, 1);
  forbidden = false;
  EXPECT_EQ(testing::Receive(client.get(), 1), "");  // It was closed.
  EXPECT_EQ(accepted, 1);
}

TEST_P(AcceptForbiddenTest, StoppingEnds) {
  forbidden = true;
  auto acceptor = Acceptor::Listen(
      EndpointFromIpv4("127.0.0.1", 0), Acceptor::Options(),
      [](UniqueFd, const Endpoint&, std::size_t) { ADD_FAILURE(); });
  ASSERT_TRUE(acceptor.has_value()) << acceptor.error().message();
  const UniqueFd client = testing::PlainConnect((*acceptor)->local_endpoint());
  (*acceptor)->Stop();
  (*acceptor)->Join();
  forbidden = false;
}

}  // namespace
}  // namespace flare::io
