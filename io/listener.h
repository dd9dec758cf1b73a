// One listening socket of an Acceptor, watched by one group's poller.

#ifndef FLARE_IO_LISTENER_H_
#define FLARE_IO_LISTENER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/status.h"
#include "flare/fiber/event.h"
#include "flare/fiber/task.h"
#include "flare/fiber/timer.h"
#include "flare/io/descriptor.h"
#include "flare/io/fd.h"
#include "flare/io/readiness.h"

namespace flare::io {

class Listener final : public Descriptor {
 public:
  // As Acceptor::OnAccept.
  using OnAccept =
      std::function<void(UniqueFd fd, Endpoint peer, std::size_t group)>;

  // `fd` listens and is non-blocking. `on_accept` must live until finished.
  // Watched in `group`, one of `groups`, among which connections are spread.
  Listener(UniqueFd fd, std::size_t group, std::vector<std::size_t> groups,
           const OnAccept* on_accept);

  // Begins to accept. Once; doesn't block. Errors as EpollPoller::Register;
  // Stop() and Join() work all the same.
  Status Start();

  // As Acceptor::SetBacklog().
  void SetBacklog(int backlog);

  // As Acceptor::LeaveSockets().
  void LeaveBacklog() {
    // relaxed: Stop() comes later; its hand-over of the role publishes this.
    leaves_backlog_.store(true, std::memory_order_relaxed);
  }

  // Accepts the connections that the kernel has completed, then closes the
  // socket. After Start(); any thread, any number of times; doesn't block.
  void Stop();

  // Waits for the end of the stop that Stop() began.
  void Join() { finished_.Wait(); }

  std::uint64_t accepted() const noexcept {
    // relaxed: a counter on its own.
    return accepted_.load(std::memory_order_relaxed);
  }

  void OnEvents(std::uint32_t events, fiber::TaskList* ready) override;

 private:
  enum class Outcome { kAccepted, kSkipped, kEmpty, kExhausted };
  struct Role : fiber::Task {
    Listener* listener = nullptr;
  };
  struct RetryTimer : fiber::Timer {
    Listener* listener = nullptr;
  };

  static void AcceptTask(fiber::Task* task);
  void Run();
  [[nodiscard]] bool AcceptSome();
  Outcome AcceptOne();
  void RetryLater(int error);
  void Finish();

  const std::size_t group_;
  const std::vector<std::size_t> groups_;
  const OnAccept& on_accept_;
  bool registered_ = false;
  Role task_;
  Readiness reader_;
  RetryTimer retry_;
  // The reader's own.
  bool retry_used_ = false;
  std::int64_t complain_at_ns_ = 0;
  std::atomic<std::uint64_t> accepted_{0};
  std::atomic<bool> leaves_backlog_{false};
  fiber::Event finished_;
};

}  // namespace flare::io

#endif  // FLARE_IO_LISTENER_H_
