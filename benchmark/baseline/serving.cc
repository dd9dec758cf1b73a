#include "benchmark/baseline/serving.h"

#include <gflags/gflags.h>
#include <poll.h>
#include <pthread.h>
#include <sys/signalfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <utility>

#include "benchmark/baseline/program.h"
#include "flare/base/clock.h"
#include "flare/io/socket_options.h"
#include "glog/logging.h"

DEFINE_string(ip, "127.0.0.1", "Address to listen on.");
DEFINE_int32(port, 5567, "Port to listen on; 0: one that is free.");

namespace baseline {
namespace {

constexpr int kBacklog = 4096;

sigset_t QuitSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGQUIT}) {
    sigaddset(&signals, number);
  }
  return signals;
}

flare::Expected<flare::io::UniqueFd, flare::Status> Listen(
    const flare::Endpoint& address) {
  auto fd = flare::io::CreateStreamSocket(address.family());
  if (!fd) return fd;
  flare::io::SetReuseAddress(fd->get());
  flare::io::SetTcpNoDelay(fd->get());  // Connections inherit it.
  sockaddr_storage storage;
  const socklen_t length = address.ToSockaddr(&storage);
  const auto* const generic = reinterpret_cast<const sockaddr*>(&storage);
  if (::bind(fd->get(), generic, length) != 0 ||
      ::listen(fd->get(), kBacklog) != 0) {
    return flare::StatusFromErrno(errno,
                                  "can't listen on " + address.ToString());
  }
  return fd;
}

}  // namespace

void BlockQuitSignals() {
  const sigset_t signals = QuitSignals();
  PCHECK(::pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0);
}

flare::Expected<flare::Endpoint, flare::Status> ListenAddressFromFlags() {
  auto address = example::ParseListenAddress(FLAGS_ip, FLAGS_port);
  if (address) return *address;
  return flare::Status(
      EINVAL, "Bad --ip or --port: " + address.error().message() + ".");
}

// The part of Run() that the calling thread does while the loops run.
class LoopServer::Acceptor {
 public:
  Acceptor(LoopServer* server, flare::io::UniqueFd listening,
           const NewConnection& new_connection)
      : server_(server),
        listening_(std::move(listening)),
        new_connection_(new_connection) {
    const sigset_t signals = QuitSignals();
    signals_.Reset(::signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC));
    MustHaveDescriptor(static_cast<bool>(signals_), "signalfd");
  }

  void RunUntilSignal(const example::RequestCounter& requests) {
    std::uint64_t before = 0;
    std::int64_t next = flare::NowNs() + flare::kNsPerSecond;
    while (WaitUntil(next)) {
      if (flare::NowNs() < next) continue;
      next += flare::kNsPerSecond;
      const std::uint64_t now = requests.Total();
      LOG(INFO) << "Processed " << now - before << " request(s) in 1 second.";
      before = now;
    }
  }

 private:
  // False: a signal has come.
  bool WaitUntil(std::int64_t deadline_ns) {
    pollfd fds[] = {{signals_.get(), POLLIN, 0}, {listening_.get(), POLLIN, 0}};
    const std::int64_t left =
        std::max<std::int64_t>(deadline_ns - flare::NowNs(), 0);
    const int n = ::poll(fds, 2, static_cast<int>(left / 1'000'000 + 1));
    if (n <= 0) return true;
    if (fds[0].revents != 0) return false;
    AcceptAll();
    return true;
  }

  void AcceptAll() {
    for (;;) {
      flare::io::UniqueFd fd(::accept4(listening_.get(), nullptr, nullptr,
                                       SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (fd) {
        const std::size_t index = server_->PickLoop();
        server_->loop(index)->Adopt(new_connection_(std::move(fd), index));
        continue;
      }
      if (errno == EMFILE || errno == ENFILE) {
        PLOG_EVERY_N(ERROR, 100) << "accept: raise the limit (ulimit -n)";
        // It is told of again and again as long as it waits: others first.
        ::poll(nullptr, 0, 10);
      }
      if (errno != EINTR && errno != ECONNABORTED) return;
    }
  }

  LoopServer* const server_;
  const flare::io::UniqueFd listening_;
  const NewConnection& new_connection_;
  flare::io::UniqueFd signals_;
};

LoopServer::LoopServer(std::string name, std::size_t loops)
    : name_(std::move(name)) {
  for (std::size_t i = 0; i != loops; ++i) {
    loops_.push_back(std::make_unique<EventLoop>());
  }
}

LoopServer::~LoopServer() = default;

int LoopServer::Run(const flare::Endpoint& address,
                    const NewConnection& new_connection,
                    const example::RequestCounter& requests) {
  BlockQuitSignals();
  auto listening = Listen(address);
  if (!listening) {
    LOG(ERROR) << name_ << ": " << listening.error().message();
    return kBadFlags;
  }
  for (const auto& loop : loops_) {
    threads_.emplace_back([it = loop.get()] { it->Run(); });
    ::pthread_setname_np(threads_.back().native_handle(), "loop");
  }
  LOG(INFO) << name_ << " listens on "
            << flare::io::GetLocalEndpoint(listening->get()) << ": "
            << loops_.size() << " event loop(s).";
  Acceptor(this, *std::move(listening), new_connection)
      .RunUntilSignal(requests);
  for (const auto& loop : loops_) loop->Stop();
  for (std::thread& thread : threads_) thread.join();
  LOG(INFO) << "Processed " << requests.Total() << " request(s) in total.";
  return 0;
}

std::size_t LoopServer::PickLoop() {
  std::size_t best = last_picked_;
  for (std::size_t i = 0; i != loops_.size(); ++i) {
    // From the next one on, so that those with equally few take turns.
    const std::size_t index = (last_picked_ + 1 + i) % loops_.size();
    if (i == 0 || loops_[index]->connections() < loops_[best]->connections()) {
      best = index;
    }
  }
  return last_picked_ = best;
}

}  // namespace baseline
