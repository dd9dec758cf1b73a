// One thread that waits for events of its descriptors and handles them: the
// base of all baselines.
//
//   class Connection : public Watched {
//     void OnEvents(std::uint32_t events) override { ...read and write... }
//   };
//   EventLoop loop;
//   std::thread thread([&] { loop.Run(); });
//   loop.Adopt(std::make_unique<Connection>(std::move(fd)));
//   ...
//   loop.Stop();
//   thread.join();
//
// Descriptors are watched edge-triggered, for reading and writing at once: no
// system call is ever made to change the awaited events. A round of the loop is
// one epoll_wait, the events that it gave, tasks that other threads posted, and
// then the callbacks for the end of the round, where output that came together
// leaves.
//
// Post, Adopt, Stop and connections() may be called from any thread, all else
// in the loop's only. Nothing blocks but Run, and none of it knows fibers.

#ifndef BENCHMARK_BASELINE_EVENT_LOOP_H_
#define BENCHMARK_BASELINE_EVENT_LOOP_H_

#include <sys/epoll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "flare/base/intrusive_list.h"
#include "flare/base/spin_policy.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/io/fd.h"

namespace baseline {

// Unless `has`, which errno then belongs to, ends the program with 1 and a line
// in the log: a baseline without a descriptor for `what` is none.
void MustHaveDescriptor(bool has, const char* what);

class EventLoop;

// Something that is done in the loop's thread, once for each time it's posted.
class LoopTask {
 public:
  virtual void RunInLoop() = 0;

  LoopTask* next_task = nullptr;  // The queue's, while it is in one.

 protected:
  ~LoopTask() = default;
};
using LoopTaskQueue = flare::IntrusiveQueue<LoopTask, &LoopTask::next_task>;

struct AllWatched;
struct ToReadAgain;
struct AtRoundEnd;

// A descriptor and the handler of its events. Owned by its loop once adopted.
class Watched : public LoopTask,
                public flare::IntrusiveListNode<AllWatched>,
                public flare::IntrusiveListNode<ToReadAgain>,
                public flare::IntrusiveListNode<AtRoundEnd> {
 public:
  explicit Watched(flare::io::UniqueFd fd) : fd_(std::move(fd)) {}
  virtual ~Watched() = default;
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  // EPOLL... bits. Edges: input or room that isn't used up isn't told of again,
  // unless AskAgain() is called.
  virtual void OnEvents(std::uint32_t events) = 0;
  // Once for each round in which AskRoundEnd() was called.
  virtual void OnRoundEnd() {}
  // It has been adopted; OnEvents may follow.
  virtual void OnAdopted() {}

  int fd() const { return fd_.get(); }
  EventLoop* loop() const { return loop_; }
  bool is_closed() const { return !fd_; }

 protected:
  // In the next round OnEvents(EPOLLIN) is called, whatever the kernel says.
  void AskAgain();
  void AskRoundEnd();
  // Closes the descriptor. None of the functions above is called afterwards.
  void CloseFd();
  // The loop destroys this at the end of the round. After CloseFd().
  void Discard();

 private:
  friend class EventLoop;
  void RunInLoop() final;

  flare::io::UniqueFd fd_;
  EventLoop* loop_ = nullptr;
  bool discarded_ = false;
};

// Called now and then, for deadlines.
class Ticker {
 public:
  static constexpr int kIntervalMs = 10;

  // Whether OnTick is needed; asked before each wait.
  virtual bool WantsTicks() const = 0;
  // At least kIntervalMs after the last time.
  virtual void OnTick(std::int64_t now_ns) = 0;

 protected:
  ~Ticker() = default;
};

class EventLoop {
 public:
  EventLoop();
  // Runs tasks posted in the meantime, and destroys all watched objects. After
  // Run() has returned.
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Until Stop() is called, before or meanwhile.
  void Run();
  void Stop();

  // The tasks run in order. The destructor runs those that Run() leaves.
  void Post(LoopTask* task);
  // Begins to watch. If the kernel refuses that is logged and `watched` gone.
  void Adopt(std::unique_ptr<Watched> watched);
  // Adopts it in the loop's thread and at once.
  void AdoptHere(std::unique_ptr<Watched> watched);

  // How many descriptors were adopted and aren't closed: a hint.
  std::size_t connections() const {
    // relaxed: a hint.
    return connections_.load(std::memory_order_relaxed);
  }

  // Before Run(). `ticker` must outlive it.
  void SetTicker(Ticker* ticker) { ticker_ = ticker; }

 private:
  friend class Watched;

  // Until when (NowNs()) the next wait may last.
  std::int64_t BeginWait();
  void EndWait();
  void HandleEvents(std::int64_t deadline_ns);
  int WaitForEvents(epoll_event* events, std::int64_t deadline_ns);
  void RunPosted();
  void Tick();
  void EndRound();
  void Wake();

  flare::io::UniqueFd epoll_;
  flare::io::UniqueFd wake_up_;  // An eventfd.
  flare::SpinPolicy spin_;
  Ticker* ticker_ = nullptr;
  std::int64_t next_tick_ns_ = 0;
  std::atomic<std::size_t> connections_{0};

  flare::IntrusiveList<Watched, AllWatched> watched_;
  flare::IntrusiveList<Watched, AllWatched> discarded_;
  flare::IntrusiveList<Watched, ToReadAgain> again_;
  flare::IntrusiveList<Watched, AtRoundEnd> round_end_;

  flare::ThreadMutex mutex_;
  LoopTaskQueue posted_ FLARE_GUARDED_BY(mutex_);
  // Whether a Post() has to wake the loop.
  bool waiting_ FLARE_GUARDED_BY(mutex_) = false;
  bool stopped_ FLARE_GUARDED_BY(mutex_) = false;
  // Posted tasks, taken out; and whether to stop. The loop's own.
  LoopTaskQueue to_run_;
  bool stopping_ = false;
};

}  // namespace baseline

#endif  // BENCHMARK_BASELINE_EVENT_LOOP_H_
