// Helpers that tests of io/ share: a runtime with epoll pollers in several
// shapes, plain blocking sockets for the other end of a connection, and a
// handler that records the events it is told of. Nothing here waits without a
// limit.

#ifndef FLARE_IO_TESTING_LOOPBACK_H_
#define FLARE_IO_TESTING_LOOPBACK_H_

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/base/endpoint.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/fiber/event.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/io/acceptor.h"
#include "flare/io/descriptor.h"
#include "flare/io/epoll_poller.h"
#include "flare/io/fd.h"
#include "flare/io/socket_options.h"
#include "flare/io/stream_connection.h"
#include "gtest/gtest.h"

namespace flare::io::testing {

// Long enough for a loaded machine under a sanitizer.
inline constexpr std::chrono::seconds kLimit{60};
inline std::int64_t Deadline() { return ToSteadyNs(kLimit); }

// For a connection that waits for the end of a peer for as long as its test.
inline StreamConnection::Options PatientOptions() {
  StreamConnection::Options options;
  options.linger_ns = ToNs(kLimit);
  return options;
}

// Says when it is destroyed; its events are nothing.
class DescriptorWithEnd final : public Descriptor {
 public:
  explicit DescriptorWithEnd(std::promise<void> end)
      : Descriptor(UniqueFd(::eventfd(0, EFD_CLOEXEC))), end_(std::move(end)) {}
  ~DescriptorWithEnd() override { end_.set_value(); }

  void OnEvents(std::uint32_t, fiber::TaskList*) override {}

 private:
  std::promise<void> end_;
};

// Waits until the pollers have dropped their references of descriptors that
// were retired before, and have delivered the events that had come by then.
// Blocks the thread: not for fibers, which the worker would have to run that it
// waits for.
inline void DrainPollers() {
  // Retired descriptors are dropped in any order. So those that the first
  // descriptor was dropped with are certainly gone when the second one is.
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < fiber::GetSchedulingGroupCount(); ++i) {
      EpollPoller* const poller = EpollPoller::OfGroup(i);
      std::promise<void> end;
      const std::future<void> ended = end.get_future();
      auto probe = MakeRefCounted<DescriptorWithEnd>(std::move(end));
      const Status status = poller->Register(probe.Get());
      ASSERT_TRUE(status.ok()) << status.message();
      poller->Retire(probe.Get());
      probe.Reset();
      poller->Wake();  // It may sleep, which isn't ended by Retire().
      ASSERT_EQ(ended.wait_for(kLimit), std::future_status::ready);
    }
  }
}

class IoTest : public ::testing::TestWithParam<fiber::testing::RuntimeShape> {
 protected:
  void SetUp() override {
    fiber::RuntimeOptions options;
    options.concurrency = GetParam().workers;
    options.group_size = GetParam().group_size;
    options.optimize_for = GetParam().optimize_for;
    // Half of the shapes spin before they sleep.
    options.make_poller =
        EpollPoller::Factory({.spin = std::chrono::microseconds(
                                  GetParam().group_size == 2 ? 50 : 0)});
    const Status status = fiber::StartRuntime(options);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  // Everything that was registered has been retired.
  void TearDown() override {
    if (!fiber::IsRuntimeRunning()) return;
    DrainPollers();
    for (std::size_t i = 0; i < fiber::GetSchedulingGroupCount(); ++i) {
      EXPECT_EQ(EpollPoller::OfGroup(i)->size(), 0U);
    }
    fiber::TerminateRuntime();
  }
};

// After OnClosed: waits until `connection` is the only reference left, and the
// socket is closed.
inline void ExpectGone(const RefPtr<StreamConnection>& connection) {
  DrainPollers();
  const std::int64_t deadline = Deadline();
  while (connection->UnsafeRefCount() != 1 && NowNs() < deadline) {
    std::this_thread::yield();  // A thread is on the way out of its role.
  }
  EXPECT_EQ(connection->UnsafeRefCount(), 1U);
  // Dropping a reference orders us after those that dropped theirs.
  RefPtr<StreamConnection>(connection).Reset();
  EXPECT_EQ(connection->fd(), -1);
  EXPECT_EQ(connection->Write(CreateBufferSlow("late")), WriteResult::kClosed);
}

// A blocking socket whose operations fail after kLimit.
inline void MakePlain(int fd) {
  timeval limit{.tv_sec = kLimit.count(), .tv_usec = 0};
  EXPECT_EQ(::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)),
            0);
  EXPECT_EQ(::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)),
            0);
}

// A plain listening socket on a free port of 127.0.0.1.
inline UniqueFd PlainListener(Endpoint* address, int receive_buffer = 0) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (receive_buffer > 0) SetReceiveBuffer(fd.get(), receive_buffer);
  sockaddr_storage storage;
  const socklen_t length =
      EndpointFromIpv4("127.0.0.1", 0).ToSockaddr(&storage);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&storage), length), 0);
  EXPECT_EQ(::listen(fd.get(), 128), 0);
  MakePlain(fd.get());
  *address = GetLocalEndpoint(fd.get());
  return fd;
}

inline UniqueFd PlainAccept(const UniqueFd& listener) {
  UniqueFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_TRUE(fd) << StatusFromErrno(errno, "accept").message();
  MakePlain(fd.get());
  return fd;
}

// Blocking; an empty UniqueFd (and errno) on failure.
inline UniqueFd PlainConnect(const Endpoint& to) {
  UniqueFd fd(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  MakePlain(fd.get());
  sockaddr_storage storage;
  const socklen_t length = to.ToSockaddr(&storage);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length) != 0) {
    fd.Reset();
  }
  return fd;
}

inline bool SendAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

// Up to `size` bytes; fewer at the end of the stream or on an error.
inline std::string Receive(int fd, std::size_t size) {
  std::string bytes(size, '\0');
  std::size_t have = 0;
  while (have < size) {
    const ssize_t n = ::recv(fd, bytes.data() + have, size - have, 0);
    if (n <= 0) break;
    have += static_cast<std::size_t>(n);
  }
  bytes.resize(have);
  return bytes;
}

// 0 at the end of the stream, else an errno value; fails if there are bytes.
inline int ReceiveEnd(int fd) {
  char byte;
  const ssize_t n = ::recv(fd, &byte, 1, 0);
  EXPECT_LE(n, 0) << "there is more";
  return n == 0 ? 0 : errno;
}

// Reads whatever comes. The error at the end; 0: it ends in order.
inline int ReceiveRest(int fd) {
  std::array<char, 65536> bytes;
  for (;;) {
    const ssize_t n = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (n <= 0) return n == 0 ? 0 : errno;
  }
}

// Makes close() reset the connection instead of ending it.
inline void ResetOnClose(int fd) {
  linger on{.l_onoff = 1, .l_linger = 0};
  EXPECT_EQ(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &on, sizeof(on)), 0);
}

// A connected pair over 127.0.0.1: `ours` non-blocking, as from an Acceptor.
struct SocketPair {
  UniqueFd ours;
  UniqueFd peer;
};
inline SocketPair TcpPair(int our_send_buffer = 0,
                          int peer_receive_buffer = 0) {
  Endpoint address;
  const UniqueFd listener = PlainListener(&address, peer_receive_buffer);
  SocketPair pair;
  pair.ours = PlainConnect(address);
  pair.peer = PlainAccept(listener);
  if (our_send_buffer > 0) SetSendBuffer(pair.ours.get(), our_send_buffer);
  EXPECT_EQ(::fcntl(pair.ours.get(), F_SETFL, O_NONBLOCK), 0);
  return pair;
}

// Bytes that show when something is lost, doubled or swapped.
inline std::string Pattern(std::size_t size, unsigned seed = 0) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<char>((i * 2654435761U + seed) >> 13);
  }
  return bytes;
}

// Takes all input and remembers it. `on_data` and the others may be set before
// the connection starts. Must outlive OnClosed: WaitClosed() in the test.
class RecordingHandler : public StreamHandler {
 public:
  std::function<bool(Buffer& in, std::size_t* need, std::string* error)>
      on_data;
  std::function<void()> on_connected;
  std::function<bool()> on_end_of_input;

  void OnConnected() override {
    Enter();
    if (on_connected) on_connected();
    connected_.Set();
    Exit();
  }

  bool OnData(Buffer& in, std::size_t* need, std::string* error) override {
    Enter();
    bool ok = true;
    if (on_data) {
      ok = on_data(in, need, error);
    } else {
      std::scoped_lock guard(mutex_);
      received_ += FlattenSlow(in);
      in.Clear();
      changed_.notify_all();
    }
    Exit();
    return ok;
  }

  bool OnEndOfInput() override {
    Enter();
    const bool keep = on_end_of_input && on_end_of_input();
    Exit();
    return keep;
  }

  void OnClosed(const Status& why) override {
    Enter();
    {
      std::scoped_lock guard(mutex_);
      why_ = why;
      ++times_closed_;
    }
    Exit();
    closed_.Set();  // The last act: the test may now destroy this.
  }

  void WaitConnected() { ASSERT_TRUE(connected_.WaitUntil(Deadline())); }

  const Status& WaitClosed() {
    EXPECT_TRUE(closed_.WaitUntil(Deadline())) << "never closed";
    std::scoped_lock guard(mutex_);
    EXPECT_EQ(times_closed_, 1);
    return why_;
  }

  bool closed() const { return closed_.IsSet(); }

  // Blocks the thread until there are `size` bytes.
  std::string WaitReceived(std::size_t size) {
    std::unique_lock guard(mutex_);
    EXPECT_TRUE(changed_.wait_for(guard, kLimit,
                                  [&] { return received_.size() >= size; }))
        << "only " << received_.size() << " of " << size << " bytes came";
    return received_;
  }

 private:
  // Callbacks never overlap, nor come after OnClosed. A plain variable on
  // purpose: the thread sanitizer checks that they are ordered, too.
  void Enter() {
    EXPECT_FALSE(inside_) << "two callbacks at once";
    EXPECT_EQ(times_closed_, 0) << "a callback after OnClosed";
    inside_ = true;
  }
  void Exit() { inside_ = false; }

  bool inside_ = false;
  fiber::Event connected_;
  fiber::Event closed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string received_;
  Status why_;
  int times_closed_ = 0;
};

// Sends back its input, and deletes itself when closed.
class EchoHandler : public StreamHandler {
 public:
  // `on_closed` is called last, on a worker.
  explicit EchoHandler(std::function<void(const Status&)> on_closed = nullptr)
      : on_closed_(std::move(on_closed)) {}

  // Before Start().
  void Serve(RefPtr<StreamConnection> connection) {
    connection_ = std::move(connection);
    connection_->Start();
  }

  bool OnData(Buffer& in, std::size_t*, std::string*) override {
    static_cast<void>(connection_->Write(std::exchange(in, Buffer())));
    return true;
  }
  bool OnEndOfInput() override {
    connection_->CloseAfterFlush();
    return true;
  }
  void OnClosed(const Status& why) override {
    auto on_closed = std::move(on_closed_);
    delete this;
    if (on_closed) on_closed(why);
  }

 private:
  RefPtr<StreamConnection> connection_;
  std::function<void(const Status&)> on_closed_;
};

}  // namespace flare::io::testing

#endif  // FLARE_IO_TESTING_LOOPBACK_H_
