// [CH1] A channel's lock guards its lists, its slots and the members written in
//       operations that are in its lists. A value goes from the one side's
//       memory (or a slot) to the other's under that lock.
// [CH2] Several may want to end a wait: the other side of each channel, Close,
//       the timer, a stop request. The first to write winner_ does; the others
//       find it written and leave the waiter alone. Where only one channel's
//       lock holder can want to, the lock is enough and no exchange is needed.
// [CH3] The thread that has decided a wait wakes the waiter, once, after having
//       let go of all locks, and touches neither it nor the channel after that.
//       Until then the waiter can't go: its operations stay valid.
// [CH4] Operations are tried and put into lists with all channels' locks held
//       (taken by address, each once), so that nothing becomes possible in
//       between unseen. A fiber lets go of them only after its registers are
//       saved (after-switch hook).
// [CH5] The hook reads the waiter while it releases one lock after the other,
//       and through the first of them the waiter may be woken already. So a
//       waiter of several channels takes every lock again, in the same order,
//       before it leaves: the hook's last look precedes its last release. It
//       takes its other operations off their lists then. A waiter of one
//       channel needs this only if it wasn't woken through that channel.
// [CH6] Timer and stop callbacks may come before the waiter is suspended, even
//       on its own thread while it registers them. guard_ tells: they decide
//       under it, and wake only a waiter that has marked itself as suspended
//       under it. A fiber holds it until its registers are saved. A waiter that
//       finds the wait decided when it is about to suspend doesn't suspend.
#include "flare/fiber/sync/channel_base.h"

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <optional>
#include <ostream>
#include <stop_token>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/worker.h"
#include "flare/fiber/task.h"
#include "glog/logging.h"

namespace flare::fiber {

const char* ToString(ChannelResult result) {
  switch (result) {
    case ChannelResult::kDone:
      return "done";
    case ChannelResult::kClosed:
      return "closed";
    case ChannelResult::kWouldBlock:
      return "would block";
    case ChannelResult::kTimedOut:
      return "timed out";
    case ChannelResult::kStopped:
      return "stopped";
  }
  return "?";
}

std::ostream& operator<<(std::ostream& out, ChannelResult result) {
  return out << ToString(result);
}

void ChannelList::PushBack(ChannelOperation* operation) {
  operation->linked_ = true;
  operation->prev_ = tail_;
  operation->next_ = nullptr;
  (tail_ != nullptr ? tail_->next_ : head_) = operation;
  tail_ = operation;
}

void ChannelList::Remove(ChannelOperation* operation) {
  ChannelOperation* const prev = operation->prev_;
  ChannelOperation* const next = operation->next_;
  (prev != nullptr ? prev->next_ : head_) = next;
  (next != nullptr ? next->prev_ : tail_) = prev;
  operation->linked_ = false;
}

// One blocked fiber or thread with its operations; on its stack.
class ChannelWaiter {
 public:
  // `channels`: those of the operations, sorted, each once; all locked.
  ChannelWaiter(std::span<ChannelOperation> operations,
                std::span<ChannelBase* const> channels)
      : operations_(operations),
        channels_(channels),
        carrier_(CurrentCarrier()) {}

  // Returns once the wait is decided, with nothing locked.
  SelectResult Wait(const WaitLimit& limit);

  // True: this call decides the wait [CH2].
  bool Decide(ChannelOperation* winner) {
    if (!contested_) {
      // relaxed: nobody else writes it; the waiter reads it after the wake-up.
      winner_.store(winner, std::memory_order_relaxed);
      return true;
    }
    // relaxed: only decides which side ends the wait; its actions reach the
    // waiter by the wake-up.
    ChannelOperation* expected = nullptr;
    return winner_.compare_exchange_strong(expected, winner,
                                           std::memory_order_relaxed);
  }

  void Wake() {
    if (carrier_ != nullptr) {
      ResumeFiber(carrier_);
      return;
    }
    thread_wait_.Wake();  // From here on the waiter may be gone [CH3].
  }

 private:
  struct TimeoutTimer : Timer {
    ChannelWaiter* waiter = nullptr;
  };
  struct StopThis {
    ChannelWaiter* waiter;
    void operator()() const { waiter->GiveUp(&stopped_mark_); }
  };

  // By the timer or a stop request.
  void GiveUp(ChannelOperation* mark);
  void Suspend(const WaitLimit& limit);
  void SleepThread(std::int64_t deadline_ns);
  void ReleaseLocks();
  void LeaveLists();

  // Winners that are no operation.
  static inline ChannelOperation timed_out_mark_;
  static inline ChannelOperation stopped_mark_;

  const std::span<ChannelOperation> operations_;
  const std::span<ChannelBase* const> channels_;
  Carrier* const carrier_;  // nullptr: a plain thread.
  bool contested_ = false;
  bool limited_ = false;
  Spinlock guard_;  // Used if limited_ [CH6].
  bool suspended_ FLARE_GUARDED_BY(guard_) = false;
  std::atomic<ChannelOperation*> winner_{nullptr};
  ThreadWait thread_wait_;  // If it is a plain thread.
  TimeoutTimer timer_;
};

void ChannelWaiter::GiveUp(ChannelOperation* mark) {
  bool wake;
  {
    ScopedLock guard(guard_);
    wake = Decide(mark) && suspended_;
  }
  if (wake) Wake();
}

SelectResult ChannelWaiter::Wait(const WaitLimit& limit) {
  const bool stoppable = limit.stop != nullptr && limit.stop->stop_possible();
  const bool timed = limit.deadline_ns != kNoDeadline;
  limited_ = stoppable || timed;
  contested_ = limited_ || operations_.size() > 1;
  {
    std::optional<std::stop_callback<StopThis>> on_stop;
    if (stoppable) on_stop.emplace(*limit.stop, StopThis{this});
    if (timed && carrier_ != nullptr) {
      timer_.waiter = this;
      timer_.set_callback([](Timer* timer) {
        static_cast<TimeoutTimer*>(timer)->waiter->GiveUp(&timed_out_mark_);
      });
      ArmTimer(&timer_, limit.deadline_ns);
    }
    for (ChannelOperation& operation : operations_) {
      if (operation.channel_ == nullptr) continue;
      operation.waiter_ = this;
      operation.channel_->ListOf(&operation)->PushBack(&operation);
    }
    Suspend(limit);
    if (timed && carrier_ != nullptr) CancelTimer(&timer_);
  }  // Here no callback runs any more.
  // relaxed: ordered by the wake-up, or guard_.
  ChannelOperation* const winner = winner_.load(std::memory_order_relaxed);
  const bool given_up = winner == &timed_out_mark_ || winner == &stopped_mark_;
  if (given_up || operations_.size() > 1) LeaveLists();  // [CH5]
  if (given_up) {
    return {SelectResult::kNone, winner == &stopped_mark_
                                     ? ChannelResult::kStopped
                                     : ChannelResult::kTimedOut};
  }
  return {static_cast<std::size_t>(winner - operations_.data()),
          winner->result_};
}

// ReleaseLocks() lets go of the locks, in the end in the code that runs next.
void ChannelWaiter::Suspend(const WaitLimit& limit)
    FLARE_NO_THREAD_SAFETY_ANALYSIS {
  if (limited_) {
    guard_.lock();
    // relaxed: under guard_ [CH6].
    if (winner_.load(std::memory_order_relaxed) != nullptr) {
      ReleaseLocks();
      return;
    }
    suspended_ = true;
  }
  if (carrier_ == nullptr) {
    ReleaseLocks();
    SleepThread(limit.deadline_ns);
    return;
  }
  SuspendFiber(
      {operations_.size() == 1 ? "Channel" : "Select",
       channels_.empty() ? nullptr : channels_.front()},
      [](void* self) { static_cast<ChannelWaiter*>(self)->ReleaseLocks(); },
      this);
}

// [CH5]
void ChannelWaiter::ReleaseLocks() FLARE_NO_THREAD_SAFETY_ANALYSIS {
  const std::span<ChannelBase* const> channels = channels_;
  const std::size_t size = channels.size();
  if (size == 1) {
    // Read before guard_ is let go: `channels` lies with the waiter.
    ChannelBase* const channel = channels.front();
    if (limited_) guard_.unlock();
    channel->lock_.unlock();
    return;
  }
  if (size == 0) {
    if (limited_) guard_.unlock();
    return;
  }
  if (limited_) guard_.unlock();
  for (std::size_t i = 0; i < size; ++i) channels[i]->lock_.unlock();
}

void ChannelWaiter::SleepThread(std::int64_t deadline_ns) {
  while (!thread_wait_.Until(deadline_ns)) {
    if (Decide(&timed_out_mark_)) return;
    deadline_ns = kNoDeadline;  // Somebody is about to wake us.
  }
}

void ChannelWaiter::LeaveLists() {
  for (ChannelBase* const channel : channels_) {
    ScopedLock guard(channel->lock_);
    for (ChannelOperation& operation : operations_) {
      if (operation.channel_ == channel && operation.linked_) {
        channel->ListOf(&operation)->Remove(&operation);
      }
    }
  }
}

// Multiples of the golden ratio are spread evenly, also every second or third
// of them: so that no case starves, however selectors take turns.
std::uint64_t ChannelBase::NextTurn() {
  turn_ += 0x9e3779b9;
  return turn_;
}

ChannelBase::~ChannelBase() {
  // Nobody else may be here: no lock.
  CHECK(senders_.empty() && receivers_.empty())
      << "a Channel is destroyed while somebody waits for it";
}

ChannelOperation* ChannelBase::DecideFirst(ChannelList* list,
                                           ChannelResult result) {
  while (ChannelOperation* const operation = list->head_) {
    list->Remove(operation);
    if (operation->waiter_->Decide(operation)) {
      operation->result_ = result;
      return operation;
    }
  }
  return nullptr;
}

void ChannelBase::Wake(ChannelOperation* decided) { decided->waiter_->Wake(); }

ChannelResult ChannelBase::Block(ChannelOperation* operation,
                                 const WaitLimit& limit)
    FLARE_NO_THREAD_SAFETY_ANALYSIS {
  ChannelBase* const channels[] = {this};
  ChannelWaiter waiter(std::span(operation, 1), channels);
  return waiter.Wait(limit).result;
}

bool ChannelBase::CloseAndWake() {
  ChannelOperation* decided = nullptr;  // Linked by next_.
  {
    ScopedLock guard(lock_);
    if (closed_) return false;
    closed_ = true;
    for (ChannelList* const list : {&senders_, &receivers_}) {
      while (auto* operation = Decide(list, ChannelResult::kClosed)) {
        operation->next_ = decided;
        decided = operation;
      }
    }
  }
  while (decided != nullptr) {
    ChannelOperation* const next = decided->next_;  // [CH3]
    Wake(decided);
    decided = next;
  }
  return true;
}

SelectResult ChannelSelector::Select(std::span<ChannelOperation> operations,
                                     bool wait, const WaitLimit& limit)
    FLARE_NO_THREAD_SAFETY_ANALYSIS {
  constexpr std::size_t kInline = 16;
  std::array<ChannelBase*, kInline> few;
  std::vector<ChannelBase*> many;
  ChannelBase** channels = few.data();
  if (operations.size() > kInline) {
    many.resize(operations.size());
    channels = many.data();
  }
  ChannelBase** end = channels;
  for (const ChannelOperation& operation : operations) {
    if (operation.channel_ != nullptr) *end++ = operation.channel_;
  }
  std::sort(channels, end, std::less<ChannelBase*>());
  end = std::unique(channels, end);
  for (ChannelBase** c = channels; c != end; ++c) (*c)->lock_.lock();  // [CH4]

  const std::size_t size = operations.size();
  const std::size_t first =
      channels == end ? 0 : (*channels)->NextTurn() * size >> 32;
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t index = first + i < size ? first + i : first + i - size;
    ChannelOperation* const operation = &operations[index];
    if (operation->channel_ == nullptr) continue;
    ChannelOperation* decided = nullptr;
    const ChannelResult result =
        operation->channel_->TryLocked(operation, &decided);
    if (result == ChannelResult::kWouldBlock) continue;
    for (ChannelBase** c = channels; c != end; ++c) (*c)->lock_.unlock();
    if (decided != nullptr) ChannelBase::Wake(decided);
    return {index, result};
  }
  if (!wait) {
    for (ChannelBase** c = channels; c != end; ++c) (*c)->lock_.unlock();
    return {SelectResult::kNone, ChannelResult::kWouldBlock};
  }
  ChannelWaiter waiter(operations, {channels, end});
  return waiter.Wait(limit);
}

}  // namespace flare::fiber
