// Channel<T>: a bounded queue between fibers (or threads) that waits at both
// ends, and Select(), which does one of several such operations.
//
//   fiber::Channel<Job> jobs(16);                 // 0: no room, see below
//   fiber::Spawn([&] {
//     while (auto job = jobs.Receive()) Do(*job);  // until closed and empty
//   });
//   if (jobs.Send(MakeJob()) == fiber::ChannelResult::kClosed) ...
//   jobs.Close();
//
//   std::optional<Job> job;
//   switch (fiber::Select(jobs.Receiving(&job), quit.Receiving(&q)).index) {
//     case 0: if (job) Do(*job); break;           // no job: closed
//     case 1: return;
//   }
//
// Rules
//  * Values come out in the order they went in; the one that has waited
//    longest is served first, on either side.
//  * With capacity n, n values lie in the channel without anybody waiting. With
//    capacity 0 (a rendezvous) each Send() waits for a receiver to take it.
//  * Actions before a send are visible to the receiver of that value; with
//    capacity 0 also the other way round.
//  * Close(): senders, waiting or to come, get kClosed and keep their value.
//    Receivers get the values in the channel, then kClosed. Closing twice is
//    fine.
//  * An operation that can be done at once is done, though its deadline may
//    have passed or its stop been requested. One that gives up has done
//    nothing: no value is lost, a value that wasn't sent stays where it was.
//  * Select() does exactly one operation, or none. If several are possible, it
//    begins to look with a varying one, so that none starves that stays
//    possible. Closed channels are always "possible".
//    The same channel may occur several times, but the sender and receiver of
//    one Select() never meet.
//
// Usable from fibers and from plain threads, thread-safe. Nothing allocates
// except the constructor (and Select() of more than 16 operations). T must be
// nothrow move constructible; it is moved with a spinlock held, so that should
// be short and must not suspend. A Channel may be destroyed when nobody waits
// for it: also by one that was just woken, though the other side has not
// returned.
//
// Use Future to hand over one value, and WorkQueue to run closures in order.

#ifndef FLARE_FIBER_CHANNEL_H_
#define FLARE_FIBER_CHANNEL_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <stop_token>
#include <type_traits>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/expected.h"
#include "flare/base/spinlock.h"
#include "flare/fiber/sync/channel_base.h"

namespace flare::fiber {

template <class T>
class Channel final : private ChannelBase {
  static_assert(std::is_nothrow_move_constructible_v<T> &&
                std::is_nothrow_destructible_v<T>);

 public:
  using Received = Expected<T, ChannelResult>;

  explicit Channel(std::size_t capacity = 0)
      : capacity_(capacity), slots_(new Slot[capacity]) {}
  ~Channel();

  // Sends `value`: waits until it has room, or a receiver. Returns kDone or
  // kClosed; with limits also kTimedOut, kStopped. `value` is moved from only
  // by kDone.
  ChannelResult Send(T&& value, const WaitLimit& limit = {}) {
    return SendFrom(&value, limit);
  }
  ChannelResult Send(T&& value, const std::stop_token& stop) {
    return SendFrom(&value, WaitLimit{kNoDeadline, &stop});
  }
  template <class Rep, class Period>
  ChannelResult SendFor(T&& value, std::chrono::duration<Rep, Period> length) {
    return SendFrom(&value, WaitLimit{ToSteadyNs(length)});
  }
  template <class Clock, class Duration>
  ChannelResult SendUntil(T&& value,
                          std::chrono::time_point<Clock, Duration> at) {
    return SendFrom(&value, WaitLimit{ToSteadyNs(at)});
  }
  // Sends `value` without waiting. Returns kDone, kClosed or kWouldBlock.
  ChannelResult TrySend(T&& value);

  // Send a copy in the same way.
  ChannelResult Send(const T& value, const WaitLimit& limit = {}) {
    return Send(T(value), limit);
  }
  ChannelResult Send(const T& value, const std::stop_token& stop) {
    return Send(T(value), stop);
  }
  template <class Rep, class Period>
  ChannelResult SendFor(const T& value,
                        std::chrono::duration<Rep, Period> length) {
    return SendFor(T(value), length);
  }
  template <class Clock, class Duration>
  ChannelResult SendUntil(const T& value,
                          std::chrono::time_point<Clock, Duration> at) {
    return SendUntil(T(value), at);
  }
  ChannelResult TrySend(const T& value) { return TrySend(T(value)); }

  // Waits for a value. Its absence is explained by error(): kClosed; with
  // limits also kTimedOut, kStopped.
  Received Receive(const WaitLimit& limit = {});
  Received Receive(const std::stop_token& stop) {
    return Receive(WaitLimit{kNoDeadline, &stop});
  }
  template <class Rep, class Period>
  Received ReceiveFor(std::chrono::duration<Rep, Period> length) {
    return Receive(WaitLimit{ToSteadyNs(length)});
  }
  template <class Clock, class Duration>
  Received ReceiveUntil(std::chrono::time_point<Clock, Duration> at) {
    return Receive(WaitLimit{ToSteadyNs(at)});
  }
  // Receives without waiting. Returns a value, kClosed or kWouldBlock.
  Received TryReceive();

  // Make operations for Select(). The object pointed to must outlive that.
  // `*value` is moved from only if this operation is the one that was done.
  // `*out` is emptied here, and filled if it is.
  ChannelOperation Sending(T* value) { return Operation(this, value, true); }
  ChannelOperation Receiving(std::optional<T>* out) {
    out->reset();
    return Operation(this, out, false);
  }

  // Closes the channel. Never blocks. False: it was closed already.
  bool Close() { return CloseAndWake(); }

  // Say how the channel was at some moment during the call.
  bool closed() const;
  std::size_t size() const;
  std::size_t capacity() const noexcept { return capacity_; }

 private:
  struct Slot {
    alignas(T) std::byte memory[sizeof(T)];
    T* value() { return std::launder(reinterpret_cast<T*>(memory)); }
  };

  ChannelResult TryLocked(ChannelOperation* operation,
                          ChannelOperation** decided) override;
  ChannelResult TrySendLocked(T* value, ChannelOperation** decided)
      FLARE_REQUIRES(lock_);
  ChannelResult TryReceiveLocked(std::optional<T>* out,
                                 ChannelOperation** decided)
      FLARE_REQUIRES(lock_);
  ChannelResult SendFrom(T* value, const WaitLimit& limit);
  void PushSlot(T* value) FLARE_REQUIRES(lock_);
  void PopSlot(std::optional<T>* out) FLARE_REQUIRES(lock_);

  static std::optional<T>* Target(const ChannelOperation* operation) {
    return static_cast<std::optional<T>*>(ElementOf(operation));
  }
  static T* Source(const ChannelOperation* operation) {
    return static_cast<T*>(ElementOf(operation));
  }

  const std::size_t capacity_;
  // A ring: size_ values from first_ on.
  std::size_t first_ FLARE_GUARDED_BY(lock_) = 0;
  std::size_t size_ FLARE_GUARDED_BY(lock_) = 0;
  const std::unique_ptr<Slot[]> slots_;
};

// Waits until one of the operations can be done, and does it.
template <class... Operations>
requires(std::is_same_v<Operations, ChannelOperation>&&...) SelectResult
    Select(Operations... operations) {
  std::array<ChannelOperation, sizeof...(operations)> all{operations...};
  return ChannelSelector::Select(all, true, WaitLimit());
}

// Waits in the same way, with limits: kTimedOut or kStopped if none could be
// done before.
template <class... Operations>
requires(std::is_same_v<Operations, ChannelOperation>&&...) SelectResult
    Select(const WaitLimit& limit, Operations... operations) {
  std::array<ChannelOperation, sizeof...(operations)> all{operations...};
  return ChannelSelector::Select(all, true, limit);
}
template <class... Operations>
SelectResult Select(const std::stop_token& stop, Operations... operations) {
  return Select(WaitLimit{kNoDeadline, &stop}, operations...);
}
template <class Rep, class Period, class... Operations>
SelectResult SelectFor(std::chrono::duration<Rep, Period> length,
                       Operations... operations) {
  return Select(WaitLimit{ToSteadyNs(length)}, operations...);
}
template <class Clock, class Duration, class... Operations>
SelectResult SelectUntil(std::chrono::time_point<Clock, Duration> at,
                         Operations... operations) {
  return Select(WaitLimit{ToSteadyNs(at)}, operations...);
}

// Does one of the operations without waiting: kWouldBlock if none can be done.
template <class... Operations>
requires(std::is_same_v<Operations, ChannelOperation>&&...) SelectResult
    TrySelect(Operations... operations) {
  std::array<ChannelOperation, sizeof...(operations)> all{operations...};
  return ChannelSelector::Select(all, false, WaitLimit());
}

// Select() for a number of operations known only at run time; `operations` is
// used during the call. Make those that receive anew for each call: that
// empties their `*out`.
inline SelectResult SelectOf(std::span<ChannelOperation> operations,
                             const WaitLimit& limit = {}) {
  return ChannelSelector::Select(operations, true, limit);
}
inline SelectResult TrySelectOf(std::span<ChannelOperation> operations) {
  return ChannelSelector::Select(operations, false, WaitLimit());
}

template <class T>
Channel<T>::~Channel() {
  ScopedLock guard(lock_);  // Nobody is inside any more.
  for (; size_ > 0; --size_) {
    std::destroy_at(slots_[first_].value());
    if (++first_ == capacity_) first_ = 0;
  }
}

template <class T>
void Channel<T>::PushSlot(T* value) {
  const std::size_t end = first_ + size_;
  Slot& slot = slots_[end < capacity_ ? end : end - capacity_];
  ::new (slot.memory) T(std::move(*value));
  ++size_;
}

template <class T>
void Channel<T>::PopSlot(std::optional<T>* out) {
  T* const value = slots_[first_].value();
  out->emplace(std::move(*value));
  std::destroy_at(value);
  if (++first_ == capacity_) first_ = 0;
  --size_;
}

template <class T>
ChannelResult Channel<T>::TrySendLocked(T* value, ChannelOperation** decided) {
  if (closed_) return ChannelResult::kClosed;
  if (ChannelOperation* const receiver =
          Decide(&receivers_, ChannelResult::kDone)) {
    Target(receiver)->emplace(std::move(*value));
    *decided = receiver;
    return ChannelResult::kDone;
  }
  if (size_ == capacity_) return ChannelResult::kWouldBlock;
  PushSlot(value);
  return ChannelResult::kDone;
}

template <class T>
ChannelResult Channel<T>::TryReceiveLocked(std::optional<T>* out,
                                           ChannelOperation** decided) {
  if (size_ > 0) {
    PopSlot(out);
    if (ChannelOperation* const sender =
            Decide(&senders_, ChannelResult::kDone)) {
      PushSlot(Source(sender));
      *decided = sender;
    }
    return ChannelResult::kDone;
  }
  if (ChannelOperation* const sender =
          Decide(&senders_, ChannelResult::kDone)) {
    out->emplace(std::move(*Source(sender)));
    *decided = sender;
    return ChannelResult::kDone;
  }
  return closed_ ? ChannelResult::kClosed : ChannelResult::kWouldBlock;
}

template <class T>
ChannelResult Channel<T>::TryLocked(ChannelOperation* operation,
                                    ChannelOperation** decided) {
  return Sends(operation) ? TrySendLocked(Source(operation), decided)
                          : TryReceiveLocked(Target(operation), decided);
}

template <class T>
ChannelResult Channel<T>::SendFrom(T* value, const WaitLimit& limit)
    FLARE_NO_THREAD_SAFETY_ANALYSIS {
  ChannelOperation* decided = nullptr;
  lock_.lock();
  const ChannelResult result = TrySendLocked(value, &decided);
  if (result == ChannelResult::kWouldBlock) {
    ChannelOperation operation = Sending(value);
    return Block(&operation, limit);
  }
  lock_.unlock();
  if (decided != nullptr) Wake(decided);
  return result;
}

// Inlined, as a small Expected is returned in a register: putting it together
// there from its parts in memory stalls the processor for as long as a lock.
template <class T>
[[gnu::always_inline]] inline typename Channel<T>::Received Channel<T>::Receive(
    const WaitLimit& limit) FLARE_NO_THREAD_SAFETY_ANALYSIS {
  ChannelOperation* decided = nullptr;
  std::optional<T> value;
  lock_.lock();
  ChannelResult result = TryReceiveLocked(&value, &decided);
  if (result == ChannelResult::kWouldBlock) {
    ChannelOperation operation = Receiving(&value);
    result = Block(&operation, limit);
  } else {
    lock_.unlock();
    if (decided != nullptr) Wake(decided);
  }
  if (!value) return Unexpected(result);
  return *std::move(value);
}

template <class T>
ChannelResult Channel<T>::TrySend(T&& value) {
  ChannelOperation* decided = nullptr;
  ChannelResult result;
  {
    ScopedLock guard(lock_);
    result = TrySendLocked(&value, &decided);
  }
  if (decided != nullptr) Wake(decided);
  return result;
}

template <class T>
typename Channel<T>::Received Channel<T>::TryReceive() {
  ChannelOperation* decided = nullptr;
  std::optional<T> value;
  ChannelResult result;
  {
    ScopedLock guard(lock_);
    result = TryReceiveLocked(&value, &decided);
  }
  if (decided != nullptr) Wake(decided);
  if (!value) return Unexpected(result);
  return *std::move(value);
}

template <class T>
bool Channel<T>::closed() const {
  ScopedLock guard(lock_);
  return closed_;
}

template <class T>
std::size_t Channel<T>::size() const {
  ScopedLock guard(lock_);
  return size_;
}

}  // namespace flare::fiber

#endif  // FLARE_FIBER_CHANNEL_H_
