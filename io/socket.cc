// Rules:
//  [SK1] The poller's last event may come after Retire(), and the task that it
//        queues later still: it has a reference, as the owner and the poller
//        have.
//  [SK2] Close() runs beside calls that are about to use the descriptor's
//        number, so it must not free that. It puts another file in the socket's
//        place, which no call on sockets works with; the destructor frees the
//        number. A call that fails looks at `closed_`, which was set before.
//        All closed sockets share that file, and it is there before the first
//        of them: when descriptors have run out Close() must work, too.
//  [SK3] The descriptor is retired once, by the first Close() or the
//        destructor, while its file is still the socket.
#include "flare/io/socket.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <string>

#include "flare/base/clock.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/fork_guard.h"
#include "flare/fiber/task.h"
#include "flare/io/descriptor.h"
#include "flare/io/epoll_poller.h"
#include "flare/io/socket_options.h"

namespace flare::io {
namespace {

// Returns the file that replaces closed sockets [SK2]: made once, and never
// closed. -1, and errno says why: it can't be made.
int Substitute() noexcept {
  static std::atomic<int> made{-1};
  // relaxed, also below: only the number counts, nothing is read through it.
  int fd = made.load(std::memory_order_relaxed);
  if (fd >= 0) return fd;
  UniqueFd own(::eventfd(0, EFD_CLOEXEC));
  if (!own ||
      !made.compare_exchange_strong(fd, own.get(), std::memory_order_relaxed)) {
    return fd;  // That of another thread, or none.
  }
  return own.Release();
}

}  // namespace

class Socket::Watched final : public Descriptor {
 public:
  explicit Watched(UniqueFd fd, EpollPoller* poller)
      : Descriptor(std::move(fd)), poller_(poller) {
    for (Side* const side : {&input_, &output_}) {
      side->socket = this;
      side->run = [](fiber::Task* task) {
        Side* const queued = static_cast<Side*>(task);
        const RefPtr<Watched> self(adopt_ref, queued->socket);  // [SK1]
        queued->wait.WakeQueued();
      };
    }
  }

  Status Register() { return poller_->Register(this); }

  void OnEvents(std::uint32_t events, fiber::TaskList* ready) override {
    constexpr std::uint32_t kBoth = EPOLLHUP | EPOLLERR;
    if ((events & (kBoth | EPOLLIN | EPOLLPRI | EPOLLRDHUP)) != 0) {
      OnEdge(&input_, ready);
    }
    if ((events & (kBoth | EPOLLOUT)) != 0) OnEdge(&output_, ready);
  }

  void Close();
  // No call is in progress.
  void Destroy();

  EdgeWait& wait_for(Direction direction) noexcept {
    return direction == Direction::kInput ? input_.wait : output_.wait;
  }
  bool closed() const noexcept {
    // acquire: pairs with the exchange in Retire [SK2].
    return closed_.load(std::memory_order_acquire);
  }

 private:
  struct Side : fiber::Task {
    Watched* socket = nullptr;
    EdgeWait wait;
  };

  void OnEdge(Side* side, fiber::TaskList* ready) {
    if (!side->wait.OnEdge()) return;
    Ref();  // [SK1]
    ready->PushBack(side);
  }

  bool Retire();

  EpollPoller* const poller_;
  std::atomic<bool> closed_{false};
  Side input_;
  Side output_;
};

// False: somebody has done it.
bool Socket::Watched::Retire() {
  // acq_rel: pairs with the load in closed() [SK2].
  if (closed_.exchange(true, std::memory_order_acq_rel)) return false;
  // The parent has the socket, too, and the epoll instance.
  if (fiber::IsForkedChild()) [[unlikely]] {
    fiber::DieAsForkedChild();
  }
  poller_->Retire(this);  // [SK3]
  return true;
}

void Socket::Watched::Close() {
  if (!Retire()) return;
  // [SK2]. It fails if the limit of descriptors was lowered below the number:
  // the port is taken a while longer.
  if (::dup3(Substitute(), fd(), O_CLOEXEC) < 0) {
    ::shutdown(fd(), SHUT_RDWR);
  }
  input_.wait.Close();
  output_.wait.Close();
}

void Socket::Watched::Destroy() {
  Retire();
  CloseFd();
}

Expected<Socket, Status> Socket::Watch(UniqueFd fd) noexcept try {
  if (Substitute() < 0) {
    return StatusFromErrno(fiber::GetLastError(), "create an eventfd");
  }
  auto watched = MakeRefCounted<Watched>(
      std::move(fd),
      EpollPoller::OfGroup(fiber::GetCurrentSchedulingGroupIndex()));
  Status status = watched->Register();
  if (!status.ok()) return status;
  return Socket(std::move(watched));
} catch (const std::bad_alloc&) {
  return OutOfMemory();
}

Status Socket::OutOfMemory() noexcept {
  return Status::Lenient(ENOMEM, "no memory for a socket");
}

Socket::Socket(RefPtr<Watched> watched) : watched_(std::move(watched)) {}

Socket::Socket(Socket&&) noexcept = default;

Socket::~Socket() {
  if (watched_) watched_->Destroy();
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this == &other) return *this;
  if (watched_) watched_->Destroy();
  watched_ = std::move(other.watched_);
  return *this;
}

void Socket::Close() { watched_->Close(); }

int Socket::fd() const noexcept { return watched_->fd(); }

Endpoint Socket::local_endpoint() const { return GetLocalEndpoint(fd()); }

EdgeWait& Socket::WaitFor(Direction direction) const noexcept {
  return watched_->wait_for(direction);
}

void Socket::WakeToRetry(Direction direction) const noexcept {
  EdgeWait& wait = WaitFor(direction);
  if (wait.OnEdge()) wait.WakeQueued();
}

Status Socket::Await(EdgeWait* wait, std::uint64_t seen,
                     const Operation& operation, const WaitLimit& limit) const {
  // One that only tries isn't suspended.
  const bool tries = limit.deadline_ns != kNoDeadline &&
                     limit.deadline_ns <= NowNs() && !watched_->closed();
  switch (tries ? EdgeWait::Outcome::kTimedOut : wait->Wait(seen, limit)) {
    case EdgeWait::Outcome::kEdge:
      return Status();
    case EdgeWait::Outcome::kTimedOut:
      return Failure(ETIMEDOUT, operation);
    case EdgeWait::Outcome::kStopped:
      return Failure(ECANCELED, operation);
    case EdgeWait::Outcome::kClosed:
      return Failure(EBADF, operation);
  }
  return Status();
}

Status Socket::Failure(int error, const Operation& operation) const noexcept {
  const bool closed = watched_->closed();  // [SK2]
  try {
    std::string text = operation.what;
    text += ' ';
    text += operation.whom.ToString();
    if (closed) {
      return Status(EBADF, text + ": the socket was closed by Close()");
    }
    return StatusFromErrno(error, std::move(text));
  } catch (const std::bad_alloc&) {
    return Status(closed ? EBADF : error);
  }
}

}  // namespace flare::io
