// Lets replies that become ready in any order leave a connection in the order
// of their requests, as HTTP/1.1 demands, and closes it when its last reply has
// left.
//
//   // The reader, for each request:
//   std::optional<std::uint64_t> place = replies.Enter();
//   ...
//   // Any thread, once:
//   replies.Send(*place, std::move(bytes), /*close=*/false);
//
// A connection costs nothing but this object until replies are ready out of
// order. Nothing blocks; locks are held for a few instructions.
#ifndef FLARE_RPC_HTTP_ORDERED_REPLIES_H_
#define FLARE_RPC_HTTP_ORDERED_REPLIES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

class OrderedReplies {
 public:
  // At most `max_pending` places are taken at a time, and at most `max_bytes`
  // wait for an earlier reply; an eighth of that is much, see AskToSend. `sink`
  // must outlive this object.
  OrderedReplies(std::size_t max_pending, std::size_t max_bytes,
                 ReplySink* sink)
      : max_pending_(max_pending), max_bytes_(max_bytes), sink_(sink) {}
  ~OrderedReplies();

  // The result of EnterUnordered() if closing(): the request gets no reply.
  static constexpr std::uint64_t kClosed = ~std::uint64_t{0};

  // Called by the reader: the next place in the order; nullopt if closing(), or
  // if too many are pending. `forced` takes one in spite of their number, for
  // the last reply of a connection.
  std::optional<std::uint64_t> Enter(bool forced = false);

  // Called by the reader: counts a request whose reply needs no place; or gives
  // it one after all, because a reply in parts is on its way, which no other
  // may interrupt.
  std::optional<std::uint64_t> EnterUnordered();

  // A caller that can wait asks before Send(), while the sink was told that
  // much is held back. kLater: the waiter is told when `place` is the next.
  // `patient`: on it no earlier reply can depend.
  ReplyTurn AskToSend(std::uint64_t place, ReplyTurnWaiter* waiter,
                      bool patient);
  // After AskToSend said kLater, and for long nothing came of it: the waiter
  // isn't told any more, and until less is held back only the patient are asked
  // to wait. False: it is being told.
  bool StopWaiting(std::uint64_t place);

  // The reply at `place`. With `close` it is the connection's last: it leaves
  // when no request is pending any more, and the connection closes behind it;
  // replies at later places are dropped. Held back bytes beyond the limit abort
  // the connection.
  void Send(std::uint64_t place, Buffer&& bytes, bool close);

  // The reply of a request entered by EnterUnordered. Leaves at once, or, with
  // `close`, as Send() says.
  void SendUnordered(Buffer&& bytes, bool close);

  // The reply at `place` in parts, instead of Send(). AskForTurn until it says
  // kNow; then SendPart (false: the connection is closed), and EndParts. Other
  // replies wait meanwhile. After kNever Send() is due.
  ReplyTurn AskForTurn(std::uint64_t place, ReplyTurnWaiter* waiter);
  bool SendPart(Buffer&& bytes) { return sink_->Write(std::move(bytes)); }
  void EndParts(std::uint64_t place, bool close);

  // Something that leaves before the reply of the request entered next, in its
  // turn, and is no reply itself (100 Continue).
  void SendInterim(Buffer&& bytes);

  // Called by the reader, as the last thing: no request follows. The last reply
  // is made to say so (SayClose), unless it is on its way, and the connection
  // closes behind it.
  void EndInput();

  // The input is to end soon: the first reply behind which no request has been
  // entered says so, none is from then on, and the connection closes behind it.
  // Replies without a place all say so; the client closes, or EndInput() comes.
  // Any thread.
  void ExpectEnd();

  // After AskForTurn said kNow: nothing follows the reply at `place`, so that
  // its first part may say "close".
  bool IsLast(std::uint64_t place);

  // The connection is closed, and some reply isn't sent at all: a waiter for a
  // turn is told, and gets none. Doesn't throw.
  void GiveUp();

  // A reply with `close` has been sent (or waits for its turn): there is no
  // point in reading more requests.
  bool closing() const;

 private:
  static constexpr std::uint64_t kNotEnded = ~std::uint64_t{0};

  struct Slot {
    Buffer bytes;
    bool ready = false;
    bool close = false;
    ReplyTurnWaiter* waiter = nullptr;  // of one not made, or in parts
  };

  // True: the last one has been emitted.
  bool SendInOrder(std::uint64_t place, Buffer&& bytes, bool close);
  [[gnu::noinline]] void SendUnorderedAtEnd(Buffer&& bytes, bool close);
  bool ShallSayClose(std::uint64_t unordered) FLARE_REQUIRES(lock_);
  [[gnu::noinline]] bool IsLastOrdered(const Buffer& bytes)
      FLARE_REQUIRES(lock_);
  bool CloseIfOnlyOne(std::uint64_t behind) FLARE_REQUIRES(lock_);
  bool TakeNext(Slot* slot) FLARE_REQUIRES(lock_);
  void CountHeld(std::size_t bytes) FLARE_REQUIRES(lock_);
  [[nodiscard]] bool Hold(std::uint64_t place, Buffer&& bytes, bool close)
      FLARE_REQUIRES(lock_);
  Slot& MakeSlot(std::uint64_t place) FLARE_REQUIRES(lock_);
  ReplyTurnWaiter* TakeWaiter() FLARE_REQUIRES(lock_);
  std::vector<Slot> End() FLARE_REQUIRES(lock_);
  static void TellAll(const std::vector<Slot>& dropped);
  void TellUnorderedAreGone();
  [[gnu::noinline]] std::uint64_t EnterAfterAll(std::uint64_t before);
  Slot& SlotOf(std::uint64_t place) FLARE_REQUIRES(lock_) {
    return slots_[place & (slots_.size() - 1)];
  }
  // A pending request is done; `count` is its share of pending_.
  void Leave(std::uint64_t count, bool close);
  std::uint64_t CountDown(std::uint64_t count);
  [[gnu::noinline]] void HandleLeft(std::uint64_t left);
  void Close();

  const std::size_t max_pending_;
  const std::size_t max_bytes_;
  ReplySink* const sink_;

  // Number of pending requests, of those without a place, and flags: see
  // ordered_replies.cc.
  std::atomic<std::uint64_t> pending_{0};

  // The reader's own.
  std::uint64_t entered_ = 0;   // places given out
  std::uint64_t requests_ = 0;  // ... up to the last request's

  // EndInput() or ExpectEnd() was called; set under lock_.
  std::atomic<bool> input_ended_{false};

  Spinlock lock_;
  std::uint64_t next_ FLARE_GUARDED_BY(lock_) = 0;  // whose turn it is
  bool emitting_ FLARE_GUARDED_BY(lock_) = false;   // somebody calls the sink
  bool ended_ FLARE_GUARDED_BY(lock_) = false;      // drop input
  Buffer last_ FLARE_GUARDED_BY(lock_);             // see [R4]
  // Behind the last request's place, once that is known [R7].
  std::uint64_t end_ FLARE_GUARDED_BY(lock_) = kNotEnded;
  // ExpectEnd() was called, and EndInput() not yet; end_ is 0.
  bool end_expected_ FLARE_GUARDED_BY(lock_) = false;
  bool say_close_ FLARE_GUARDED_BY(lock_) = false;      // last_ doesn't yet
  bool closed_ FLARE_GUARDED_BY(lock_) = false;         // see Close()
  std::uint64_t leaving_ FLARE_GUARDED_BY(lock_) = 0;   // see [R7]
  std::size_t held_bytes_ FLARE_GUARDED_BY(lock_) = 0;  // See CountHeld().
  bool much_held_ FLARE_GUARDED_BY(lock_) = false;      // As the sink was told.
  bool in_vain_ FLARE_GUARDED_BY(lock_) = false;        // Somebody waited so.
  ReplyTurnWaiter* unordered_waiter_ FLARE_GUARDED_BY(lock_) = nullptr;  // [R6]
  // A ring of replies that wait, indexed by the low bits of their place; its
  // size is a power of two, above how far each of them is from next_; 0 as long
  // as none waits.
  std::vector<Slot> slots_ FLARE_GUARDED_BY(lock_);
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_ORDERED_REPLIES_H_
