// The epoll side of fiber::Poller: idle workers of a scheduling group sleep in
// it, and the tasks of ready descriptors come out of it.
//
//   if (Status s = fiber::StartRuntime(); !s.ok()) { ... }
//   ...
//   Status s = io::EpollPoller::OfGroup(group)->Register(descriptor);
//
// A program that links this has it in each runtime, unless
// RuntimeOptions::make_poller says otherwise: give that Factory() with options.
//
// One epoll instance per scheduling group, edge-triggered. A descriptor is
// registered once, for everything, and never modified: its own state says which
// events it currently cares about, so waiting for output costs no system call.
//
// Many events are fetched by one system call, but handed out one by one, so
// that the bytes which a worker reads are still in its cache when they are
// answered (docs/decisions/0019-one-event-at-a-time.md).

#ifndef FLARE_IO_EPOLL_POLLER_H_
#define FLARE_IO_EPOLL_POLLER_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "flare/base/cpu.h"
#include "flare/base/expected.h"
#include "flare/base/spin_policy.h"
#include "flare/base/status.h"
#include "flare/fiber/scheduler/poller.h"
#include "flare/io/descriptor.h"
#include "flare/io/fd.h"

namespace flare::io {

class EpollPoller : public fiber::Poller {
 public:
  // Room for so many takes half a MiB of kernel memory.
  static constexpr std::size_t kDescriptors = 65536;

  struct Options {
    // For how long to look for events again and again before a worker sleeps,
    // when that has paid lately (spin_policy.h). 0: never.
    std::chrono::nanoseconds spin{0};
  };

  // Errors: the process is out of file descriptors or of memory.
  static Expected<std::unique_ptr<EpollPoller>, Status> Create(
      const Options& options);
  static auto Create() { return Create(Options()); }

  // For RuntimeOptions::make_poller. Errors: as Create(), with what to do. With
  // the first poller comes room for kDescriptors (fd.h: ReserveDescriptors).
  static std::function<
      Expected<std::unique_ptr<fiber::Poller>, Status>(std::size_t)>
  Factory(const Options& options);
  static auto Factory() { return Factory(Options()); }

  // The group's poller. Ends the process if it has none; one that isn't of
  // this class is a mistake that only debug builds notice.
  static EpollPoller* OfGroup(std::size_t group);

  // All descriptors must have been retired by now.
  ~EpollPoller() override;

  // Watches `descriptor` for input, output and hang-up from now on; readiness
  // that exists already counts as an event. The poller takes a reference. Any
  // thread; one system call; doesn't block. Errors: ENOMEM, ENOSPC (the user's
  // limit on watches), or a descriptor that can't be polled: a regular file. On
  // error no reference is kept.
  [[nodiscard]] Status Register(Descriptor* descriptor);

  // Stops watching. To be called once per successful Register(), before the
  // file descriptor is closed. No event is fetched after it returns, but one
  // fetched before may still be delivered; the reference is dropped by the
  // next Poll() call. Any thread; one system call; doesn't block.
  void Retire(Descriptor* descriptor);

  // Descriptors being watched. Approximate while others register or retire.
  std::size_t size() const noexcept {
    // relaxed: an estimate, orders nothing.
    return size_.load(std::memory_order_relaxed);
  }

  // A flush that may wait for any number of events reports whether more output
  // has come since it first let other tasks go first. Any thread.
  void NoteFlushWaited(bool paid) noexcept;

  // That has paid lately, in more than one case of four: then a flush should
  // wait until all events that were fetched have been dealt with. Any thread.
  bool waiting_pays() const noexcept {
    // relaxed: a choice that orders nothing.
    return waits_paid_.load(std::memory_order_relaxed) >= kMostWaitsPaid / 2;
  }
  // It has paid at all lately, so that it may do so more often. Any thread.
  bool waiting_may_pay() const noexcept {
    // relaxed: a choice that orders nothing.
    return waits_paid_.load(std::memory_order_relaxed) >= kMostWaitsPaid / 8;
  }
  static constexpr int kMaxEvents = 128;  // Events of one system call.

  // Returns how often events have been fetched: steps between two fetches are
  // done at about the same time. Any thread.
  std::uint64_t fetches() const noexcept {
    return fetches_.load(std::memory_order_relaxed);  // Only the number.
  }

  // All events fetched lately were of one descriptor: its peer alone keeps the
  // group busy. A hint. Any thread.
  bool serves_one() const noexcept {
    // relaxed: a hint.
    return serves_one_.load(std::memory_order_relaxed);
  }
  static constexpr int kFetchesOfOne = 16;  // The bound of "lately".

  // Somebody stands by (StandBy()); a hint. Any thread.
  bool has_standby() const noexcept {
    // relaxed: a hint.
    return standing_by_.load(std::memory_order_relaxed);
  }

  // For the runtime.
  void Poll(std::int64_t deadline_ns, fiber::TaskList* ready) override;
  std::size_t pending() const noexcept override {
    // relaxed: a hint.
    return static_cast<std::size_t>(pending_.load(std::memory_order_relaxed));
  }
  void Wake() override;
  void StandBy(std::int64_t deadline_ns) override;
  bool can_stand_by() const noexcept override { return true; }
  bool standby_is_alert() const noexcept override {
    // relaxed: a hint.
    return alert_.load(std::memory_order_relaxed) && has_standby();
  }
  void WakeStandby() override;

 private:
  // Eventfds, which are edge-triggered and never read.
  struct Fds {
    UniqueFd epoll;
    UniqueFd wakeup;
    UniqueFd standby_epoll;  // Watches `epoll`, sometimes [EP6].
    UniqueFd standby_wakeup;
  };
  EpollPoller(Fds fds, const Options& options);

  // Sets whether the next event wakes the standby.
  void Alert(bool on);
  bool ChangeAlert(int operation, bool on);

  int Wait(std::int64_t deadline_ns);
  void NoteFetched();
  void HandOut(fiber::TaskList* ready);
  void PushRetired(Descriptor* descriptor);
  void DropRetired();

  const Fds fds_;
  struct Events;
  const std::unique_ptr<Events> events_;  // Poll()'s.
  // Each flush reads some of these, which seldom change.
  std::atomic<bool> serves_one_{false};
  std::atomic<bool> alert_{false};        // [EP6]
  std::atomic<bool> standing_by_{false};  // Somebody is in StandBy().
  // StandBy()'s: the standby's epoll instance has been given the other one.
  bool can_be_alerted_ = false;
  // Three for each that paid, less one for each that didn't.
  static constexpr int kMostWaitsPaid = 64;
  std::atomic<int> waits_paid_{0};
  // How many of the fetched events, the last ones, aren't handed out. Written
  // for each event, so it is on another cache line than the members above.
  alignas(kCacheLine) std::atomic<int> pending_{0};
  int fetched_ = 0;  // Poll()'s: how many events_ holds.
  // Written for each fetch.
  alignas(kCacheLine) std::atomic<std::uint64_t> fetches_{0};
  // NoteFetched()'s: only compared, for it may be gone.
  const void* fetched_last_ = nullptr;
  int fetches_of_last_ = 0;
  SpinPolicy spin_;  // Poll()'s.
  alignas(kCacheLine) std::atomic<Descriptor*> retired_{nullptr};
  std::atomic<std::size_t> size_{0};
};

}  // namespace flare::io

#endif  // FLARE_IO_EPOLL_POLLER_H_
