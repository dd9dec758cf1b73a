// Datagrams that an echo over UDP answers, by the ways to write it: a thread or
// an epoll loop over bare system calls, and UdpSocket; one by one, and in
// batches (docs/sockets.md has results).
//
// A round: one thread sends 64 datagrams of 64 bytes by one system call, and
// takes the answers by few. The echo runs on another thread, or a worker.
// echo_ns is the CPU time that it takes for a datagram, and per_cpu how many
// one CPU would answer in a second: on a noisy machine the elapsed time says
// little.

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "benchmark/benchmark.h"
#include "flare/base/endpoint.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "flare/io/datagram_batch.h"
#include "flare/io/fd.h"
#include "flare/io/socket_options.h"
#include "flare/io/udp_socket.h"
#include "glog/logging.h"

namespace flare::io {
namespace {

constexpr std::size_t kInFlight = 64;
constexpr std::size_t kSize = 64;
constexpr std::size_t kRoom = 2048;  // For each that comes.

// Bare sockets, with the datagrams of one system call.
class BareBatch {
 public:
  BareBatch() {
    for (std::size_t i = 0; i != kInFlight; ++i) {
      pieces_[i] = {bytes_[i].data(), kRoom};
      headers_[i].msg_hdr.msg_iov = &pieces_[i];
      headers_[i].msg_hdr.msg_iovlen = 1;
      headers_[i].msg_hdr.msg_name = &addresses_[i];
    }
  }

  std::size_t Receive(int fd) {
    for (std::size_t i = 0; i != kInFlight; ++i) {
      pieces_[i].iov_len = kRoom;
      headers_[i].msg_hdr.msg_namelen = sizeof(addresses_[i]);
    }
    const int count =
        ::recvmmsg(fd, headers_.data(), kInFlight, MSG_WAITFORONE, nullptr);
    for (int i = 0; i < count; ++i) {
      const auto n = static_cast<std::size_t>(i);
      pieces_[n].iov_len = headers_[n].msg_len;
    }
    return count < 0 ? 0 : static_cast<std::size_t>(count);
  }
  void Send(int fd, std::size_t count) {
    for (std::size_t done = 0; done < count;) {
      const int sent = ::sendmmsg(fd, &headers_[done],
                                  static_cast<unsigned>(count - done), 0);
      PCHECK(sent > 0) << "sendmmsg";
      done += static_cast<std::size_t>(sent);
    }
  }
  void SendAllTo(int fd) {  // To the connected peer.
    for (std::size_t i = 0; i != kInFlight; ++i) {
      pieces_[i].iov_len = kSize;
      headers_[i].msg_hdr.msg_namelen = 0;
    }
    Send(fd, kInFlight);
  }
  std::size_t size(std::size_t i) const { return pieces_[i].iov_len; }

 private:
  std::array<std::array<char, kRoom>, kInFlight> bytes_{};
  std::array<sockaddr_in, kInFlight> addresses_{};
  std::array<iovec, kInFlight> pieces_{};
  std::array<mmsghdr, kInFlight> headers_{};
};

UniqueFd BareSocket(int flags = 0) {
  UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | flags, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  PCHECK(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address),
                sizeof(address)) == 0);
  return fd;
}

// An empty datagram ends an echo.
bool EchoOne(int fd, ssize_t* size) {
  std::array<char, kRoom> bytes;
  sockaddr_in from;
  socklen_t length = sizeof(from);
  auto* const generic = reinterpret_cast<sockaddr*>(&from);
  *size = ::recvfrom(fd, bytes.data(), bytes.size(), 0, generic, &length);
  if (*size <= 0) return false;
  PCHECK(::sendto(fd, bytes.data(), static_cast<std::size_t>(*size), 0, generic,
                  length) == *size);
  return true;
}

double CpuNs(clockid_t clock) {
  timespec now;
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) * 1e9 +
         static_cast<double>(now.tv_nsec);
}

// The CPU time of all threads but this one.
double OthersCpuNs() {
  return CpuNs(CLOCK_PROCESS_CPUTIME_ID) - CpuNs(CLOCK_THREAD_CPUTIME_ID);
}

// Sends rounds to `server`, and an empty datagram at the end.
void SendRounds(benchmark::State& state, const Endpoint& server) {
  const UniqueFd fd = BareSocket();
  sockaddr_storage address;
  const socklen_t length = server.ToSockaddr(&address);
  PCHECK(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) ==
         0);
  const auto batch = std::make_unique<BareBatch>();
  const double begin_ns = OthersCpuNs();
  for (auto _ : state) {
    batch->SendAllTo(fd.get());
    for (std::size_t had = 0; had < kInFlight;) had += batch->Receive(fd.get());
  }
  const double echo_ns = OthersCpuNs() - begin_ns;
  PCHECK(::send(fd.get(), "", 0, 0) == 0);
  const auto datagrams =
      static_cast<double>(state.iterations()) * static_cast<double>(kInFlight);
  state.counters["echo_ns"] = echo_ns / datagrams;
  state.counters["per_cpu"] = datagrams / echo_ns * 1e9;
  state.SetItemsProcessed(state.iterations() *
                          static_cast<std::int64_t>(kInFlight));
}

void BareThread(benchmark::State& state) {
  const UniqueFd fd = BareSocket();
  std::thread echo([&] {
    for (ssize_t size; EchoOne(fd.get(), &size);) continue;
  });
  SendRounds(state, GetLocalEndpoint(fd.get()));
  echo.join();
}

void BareEpoll(benchmark::State& state) {
  const UniqueFd fd = BareSocket(SOCK_NONBLOCK);
  std::thread echo([&] {
    const UniqueFd epoll(::epoll_create1(0));
    epoll_event event{.events = EPOLLIN | EPOLLET, .data = {}};
    PCHECK(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd.get(), &event) == 0);
    for (ssize_t size = -1; size != 0;) {
      PCHECK(::epoll_wait(epoll.get(), &event, 1, -1) >= 0);
      while (EchoOne(fd.get(), &size)) continue;
    }
  });
  SendRounds(state, GetLocalEndpoint(fd.get()));
  echo.join();
}

void BareBatches(benchmark::State& state) {
  const UniqueFd fd = BareSocket();
  std::thread echo([&] {
    const auto batch = std::make_unique<BareBatch>();
    std::size_t count;
    do {
      count = batch->Receive(fd.get());
      batch->Send(fd.get(), count);
    } while (batch->size(count - 1) != 0);
  });
  SendRounds(state, GetLocalEndpoint(fd.get()));
  echo.join();
}

// On a fiber, with one worker.
void OnFiber(benchmark::State& state,
             const std::function<void(UdpSocket*)>& f) {
  fiber::RuntimeOptions options;
  options.concurrency = 1;
  const Status status = fiber::StartRuntime(options);
  CHECK(status.ok()) << status;
  {
    auto socket = UdpSocket::Bind(MustParseEndpoint("127.0.0.1:0"));
    CHECK(socket.has_value()) << socket.error();
    Fiber echo([&] { f(&*socket); });
    SendRounds(state, socket->local_endpoint());
    echo.join();
  }
  fiber::TerminateRuntime();
}

void Fibers(benchmark::State& state) {
  OnFiber(state, [](UdpSocket* socket) {
    std::array<char, kRoom> bytes;
    for (;;) {
      const auto got = socket->Receive(bytes);
      if (!got || got->size == 0) return;
      const Status sent = socket->SendTo(got->from, {bytes.data(), got->size});
      CHECK(sent.ok()) << sent;
    }
  });
}

void FiberBatches(benchmark::State& state) {
  OnFiber(state, [](UdpSocket* socket) {
    DatagramBatch batch(kInFlight, kRoom);
    while (socket->Receive(&batch)) {
      CHECK(socket->Send(batch).has_value());
      if (batch.data(batch.size() - 1).empty()) return;
    }
  });
}

BENCHMARK(BareThread)->UseRealTime();
BENCHMARK(BareEpoll)->UseRealTime();
BENCHMARK(Fibers)->UseRealTime();
BENCHMARK(BareBatches)->UseRealTime();
BENCHMARK(FiberBatches)->UseRealTime();

}  // namespace
}  // namespace flare::io
