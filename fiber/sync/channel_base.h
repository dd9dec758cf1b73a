// The part of channels that doesn't depend on the type of the values: the
// waiters, and how one operation of several is decided. Use channel.h.

#ifndef FLARE_FIBER_CHANNEL_BASE_H_
#define FLARE_FIBER_CHANNEL_BASE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <span>

#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/sync/wait_list.h"
#include "flare/fiber/timer.h"

namespace flare::fiber {

class Carrier;
class ChannelBase;
class ChannelWaiter;

// How an operation on a channel has ended.
enum class [[nodiscard]] ChannelResult : std::uint8_t{
    kDone,        // A value was handed over.
    kClosed,      // None was: the channel is closed (for receivers: and empty).
    kWouldBlock,  // None was: it would have had to wait, and wasn't to.
    kTimedOut,    // None was: the deadline passed.
    kStopped,     // None was: a stop was requested.
};
// "done", "closed", "would block", "timed out", "stopped".
const char* ToString(ChannelResult result);
std::ostream& operator<<(std::ostream& out, ChannelResult result);

// One thing that a Select() may do; made by Channel<T>::Sending() and
// Receiving(). Default-constructed, it is never ready: to leave out a case and
// keep the numbers of the others.
class ChannelOperation {
 public:
  ChannelOperation() = default;

 private:
  friend class ChannelBase;
  friend class ChannelList;
  friend class ChannelWaiter;
  friend struct ChannelSelector;

  ChannelOperation(ChannelBase* channel, void* element, bool sends)
      : channel_(channel), element_(element), sends_(sends) {}

  ChannelBase* channel_ = nullptr;
  void* element_ = nullptr;  // T* to send from, std::optional<T>* to fill.
  bool sends_ = false;

  // While waiting; guarded by the channel's lock [CH1].
  bool linked_ = false;
  ChannelResult result_ = ChannelResult::kWouldBlock;
  ChannelWaiter* waiter_ = nullptr;
  ChannelOperation* prev_ = nullptr;
  ChannelOperation* next_ = nullptr;
};

// Operations that wait at a channel, first in, first out.
class ChannelList {
 public:
  bool empty() const { return head_ == nullptr; }
  void PushBack(ChannelOperation* operation);
  void Remove(ChannelOperation* operation);

 private:
  friend class ChannelBase;
  ChannelOperation* head_ = nullptr;
  ChannelOperation* tail_ = nullptr;
};

class ChannelBase {
 public:
  ChannelBase(const ChannelBase&) = delete;
  ChannelBase& operator=(const ChannelBase&) = delete;

 protected:
  ChannelBase() = default;
  ~ChannelBase();

  static ChannelOperation Operation(ChannelBase* channel, void* element,
                                    bool sends) {
    return ChannelOperation(channel, element, sends);
  }
  static void* ElementOf(const ChannelOperation* operation) {
    return operation->element_;
  }
  static bool Sends(const ChannelOperation* operation) {
    return operation->sends_;
  }

  // Does `operation` if that is possible at once; kWouldBlock if not. Where
  // that ended another's wait, `*decided` is that operation: Wake() it after
  // the lock was released.
  virtual ChannelResult TryLocked(ChannelOperation* operation,
                                  ChannelOperation** decided)
      FLARE_REQUIRES(lock_) = 0;

  // Takes the first of `list` whose waiter still waits off it and decides that
  // it ends with `result`; nullptr: there is none.
  static ChannelOperation* Decide(ChannelList* list, ChannelResult result) {
    return list->empty() ? nullptr : DecideFirst(list, result);
  }
  static void Wake(ChannelOperation* decided);

  // Waits for `operation`, which can't be done at once. Releases lock_, which
  // the caller holds.
  ChannelResult Block(ChannelOperation* operation, const WaitLimit& limit)
      FLARE_RELEASE(lock_);

  // Marks it closed and ends all waits; false: it was.
  bool CloseAndWake();

  mutable Spinlock lock_;
  bool closed_ FLARE_GUARDED_BY(lock_) = false;
  ChannelList senders_ FLARE_GUARDED_BY(lock_);
  ChannelList receivers_ FLARE_GUARDED_BY(lock_);

 private:
  friend class ChannelWaiter;
  friend struct ChannelSelector;

  static ChannelOperation* DecideFirst(ChannelList* list, ChannelResult result);
  // The next of a sequence in [0, 2^32): where a Select() begins to look.
  std::uint64_t NextTurn() FLARE_REQUIRES(lock_);

  ChannelList* ListOf(const ChannelOperation* operation) {
    return operation->sends_ ? &senders_ : &receivers_;
  }

  std::uint32_t turn_ FLARE_GUARDED_BY(lock_) = 0;
};

// The result of Select().
struct SelectResult {
  // Which operation, counted from 0; kNone if `result` is kWouldBlock,
  // kTimedOut or kStopped.
  std::size_t index = kNone;
  ChannelResult result = ChannelResult::kWouldBlock;

  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
};

// The engine of Select().
struct ChannelSelector {
  // Does one of the operations; waits for that if none can be done and `wait`.
  static SelectResult Select(std::span<ChannelOperation> operations, bool wait,
                             const WaitLimit& limit);
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_CHANNEL_BASE_H_
