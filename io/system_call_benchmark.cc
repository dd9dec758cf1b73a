// The cost of a connection's system calls, by the ways to make them: one piece
// by recv and send or by readv and sendmsg, and a look for events by epoll_wait
// or by epoll_pwait2 (docs/decisions/0033-calls-for-one-piece.md). And of reads
// of a file (docs/files.md).
//
// A round is 64 bytes there and back between two sockets of loopback TCP, by
// one thread: two sends and two receives, and no waiting. A read of a file is
// 4 KiB that are in memory, in /var/tmp.

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <string>

#include "benchmark/benchmark.h"
#include "flare/fiber/blocking_region.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "flare/io/fd.h"
#include "flare/io/file.h"
#include "flare/io/socket_options.h"
#include "glog/logging.h"

namespace flare::io {
namespace {

constexpr std::size_t kSize = 64;
using Bytes = std::array<char, kSize>;

struct Pair {
  UniqueFd here;
  UniqueFd there;
};

Pair Connect() {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  PCHECK(::bind(listener.get(), generic, length) == 0);
  PCHECK(::listen(listener.get(), 1) == 0);
  PCHECK(::getsockname(listener.get(), generic, &length) == 0);
  Pair pair;
  pair.here = UniqueFd(::socket(AF_INET, SOCK_STREAM, 0));
  PCHECK(::connect(pair.here.get(), generic, length) == 0);
  pair.there = UniqueFd(::accept(listener.get(), nullptr, nullptr));
  PCHECK(pair.there.get() >= 0);
  for (const int fd : {pair.here.get(), pair.there.get()}) SetTcpNoDelay(fd);
  return pair;
}

ssize_t Send(int fd, Bytes* bytes) {
  return ::send(fd, bytes->data(), kSize, MSG_NOSIGNAL);
}

ssize_t SendMsg(int fd, Bytes* bytes) {
  iovec piece{bytes->data(), kSize};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  return ::sendmsg(fd, &message, MSG_NOSIGNAL);
}

ssize_t Recv(int fd, Bytes* bytes) {
  return ::recv(fd, bytes->data(), kSize, 0);
}

ssize_t ReadV(int fd, Bytes* bytes) {
  iovec piece{bytes->data(), kSize};
  return ::readv(fd, &piece, 1);
}

using Call = ssize_t (*)(int fd, Bytes* bytes);

void Rounds(benchmark::State& state, Call send, Call receive) {
  const Pair pair = Connect();
  Bytes bytes{};
  const auto whole = static_cast<ssize_t>(kSize);
  for (auto _ : state) {
    PCHECK(send(pair.here.get(), &bytes) == whole);
    PCHECK(receive(pair.there.get(), &bytes) == whole);
    PCHECK(send(pair.there.get(), &bytes) == whole);
    PCHECK(receive(pair.here.get(), &bytes) == whole);
  }
}

BENCHMARK_CAPTURE(Rounds, sendmsg_readv, SendMsg, ReadV);
BENCHMARK_CAPTURE(Rounds, send_readv, Send, ReadV);
BENCHMARK_CAPTURE(Rounds, sendmsg_recv, SendMsg, Recv);
BENCHMARK_CAPTURE(Rounds, send_recv, Send, Recv);

int EpollWait(int epoll, epoll_event* events, int max) {
  return ::epoll_wait(epoll, events, max, 0);
}

int EpollPwait2(int epoll, epoll_event* events, int max) {
  const timespec timeout{};
  return static_cast<int>(
      ::syscall(SYS_epoll_pwait2, epoll, events, max, &timeout, nullptr, 0));
}

using Look = int (*)(int epoll, epoll_event* events, int max);

// There is nothing to find.
void Looks(benchmark::State& state, Look look) {
  const Pair pair = Connect();
  const UniqueFd epoll(::epoll_create1(0));
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  PCHECK(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, pair.here.get(), &event) == 0);
  std::array<epoll_event, 64> events;
  const int max = static_cast<int>(events.size());
  for (auto _ : state) {
    PCHECK(look(epoll.get(), events.data(), max) == 0);
  }
}

BENCHMARK_CAPTURE(Looks, epoll_pwait2, EpollPwait2);
BENCHMARK_CAPTURE(Looks, epoll_wait, EpollWait);

using Page = std::array<char, 4096>;

// Read by `read(file, page)` on the only worker.
template <class Read>
void FileReads(benchmark::State& state, Read read) {
  std::string path = "/var/tmp/system_call_benchmark_XXXXXX";
  UniqueFd(::mkostemp(path.data(), O_CLOEXEC)).Reset();
  fiber::RuntimeOptions options;
  options.concurrency = 1;
  PCHECK(fiber::StartRuntime(options).ok());
  Fiber([&] {
    auto file = File::Open(path, O_RDWR);
    Page page{};
    PCHECK(file && file->WriteAt(0, {page.data(), page.size()}).ok());
    for (auto _ : state) {
      PCHECK(read(*file, page) == page.size());
    }
  }).join();
  fiber::TerminateRuntime();
  ::unlink(path.c_str());
}

std::size_t Pread(const File& file, Page& page) {
  return static_cast<std::size_t>(
      ::pread(file.fd(), page.data(), page.size(), 0));
}

std::size_t ReadAt(const File& file, Page& page) {
  return file.ReadAt(0, page).value_or(0);
}

std::size_t ReadInPool(const File& file, Page& page) {
  return fiber::RunBlocking([&] { return Pread(file, page); });
}

BENCHMARK_CAPTURE(FileReads, pread, Pread)->UseRealTime();
BENCHMARK_CAPTURE(FileReads, File, ReadAt)->UseRealTime();
BENCHMARK_CAPTURE(FileReads, RunBlocking, ReadInPool)->UseRealTime();

}  // namespace
}  // namespace flare::io
