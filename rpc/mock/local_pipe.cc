//  [LP1] A stream uses its wire with its own lock held, so nothing is passed on
//        there and then: the other stream's lock would follow, in the one order
//        here and in the other one there. News are queued, and a fiber tells
//        them, one at a time, in their order, with no lock held.
//  [LP2] There is at most one such fiber: the sender of the first news starts
//        it, under lock_, and it ends, under lock_, when there are none left.
//  [LP3] News wait until each end has begun or is gone: the other end still
//        gets all news of one that is gone early.
#include "flare/rpc/mock/local_pipe.h"

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/function.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/task.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/outbound_body.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {
namespace {

enum End : std::size_t { kServer, kClient };

End OtherThan(End end) { return end == kServer ? kClient : kServer; }

class Pipe : public RefCounted<Pipe> {
 public:
  using Tell = Function<void(StreamReceiver*)>;

  void Attach(End end, RefPtr<StreamReceiver> receiver) {
    ScopedLock guard(lock_);
    receivers_[end] = std::move(receiver);
    Settle(end);
  }

  void Detach(End end) {
    RefPtr<StreamReceiver> dropped;  // Without the lock.
    ScopedLock guard(lock_);
    dropped = std::move(receivers_[end]);
    Settle(end);
  }

  void Send(End to, Tell tell) {
    ScopedLock guard(lock_);
    news_.push_back({to, std::move(tell)});
    if (IsOpen()) StartTelling();
  }

 private:
  struct News {
    End to;
    Tell tell;
  };

  // [LP3]
  void Settle(End end) FLARE_REQUIRES(lock_) {
    settled_[end] = true;
    if (IsOpen() && !news_.empty()) StartTelling();
  }
  bool IsOpen() const FLARE_REQUIRES(lock_) {
    return settled_[kServer] && settled_[kClient];
  }

  void StartTelling() FLARE_REQUIRES(lock_) {
    if (std::exchange(telling_, true)) return;  // [LP2]
    fiber::Spawn([self = RefPtr<Pipe>(ref_ptr, this)] { self->TellAll(); });
  }

  void TellAll() {
    for (;;) {
      News next;
      RefPtr<StreamReceiver> receiver;
      {
        ScopedLock guard(lock_);
        if (news_.empty()) {
          telling_ = false;
          return;
        }
        next = std::move(news_.front());
        news_.pop_front();
        receiver = receivers_[next.to];
      }
      if (receiver != nullptr) next.tell(receiver.Get());  // [LP1]
    }
  }

  Spinlock lock_;
  std::array<RefPtr<StreamReceiver>, 2> receivers_ FLARE_GUARDED_BY(lock_);
  std::deque<News> news_ FLARE_GUARDED_BY(lock_);
  std::array<bool, 2> settled_ FLARE_GUARDED_BY(lock_) = {};
  bool telling_ FLARE_GUARDED_BY(lock_) = false;
};

class LocalWire final : public StreamWire {
 public:
  LocalWire(RefPtr<Pipe> pipe, End end) : pipe_(std::move(pipe)), end_(end) {}
  // A stream at its end is told in vain.
  ~LocalWire() override {
    pipe_->Detach(end_);
    Send([](StreamReceiver* receiver) {
      receiver->OnReset(
          flare::Status(STATUS_IO_ERROR, "the other end of the call is gone"));
    });
  }

  bool Begin(RefPtr<StreamReceiver> receiver) override {
    pipe_->Attach(end_, std::move(receiver));
    return true;
  }
  bool SendMessage(OutboundBody&& body, bool last) override {
    Send([bytes = std::move(body).ToBuffer(),
          last](StreamReceiver* receiver) mutable {
      receiver->OnMessage(std::move(bytes), last);
    });
    return true;
  }
  bool SendEnd(const flare::Status& status) override {
    Send([status](StreamReceiver* receiver) { receiver->OnEnd(status); });
    return true;
  }
  void SendReset(const flare::Status& why) override {
    Send([why](StreamReceiver* receiver) { receiver->OnReset(why); });
  }
  void SendCredit(std::size_t bytes) override {
    Send([bytes](StreamReceiver* receiver) { receiver->OnCredit(bytes); });
  }
  bool has_credits() const override { return true; }
  void HoldInput() override {}
  void ReleaseInput() override {}
  bool AddMetadata(MetadataPlace, const Metadata& metadata) override {
    Send([copy = std::make_unique<Metadata>(metadata)](
             StreamReceiver* receiver) mutable {
      receiver->OnMetadata(std::move(copy));
    });
    return true;
  }

 private:
  void Send(Pipe::Tell tell) { pipe_->Send(OtherThan(end_), std::move(tell)); }

  const RefPtr<Pipe> pipe_;
  const End end_;
};

}  // namespace

LocalPipe MakeLocalPipe() {
  const auto pipe = MakeRefCounted<Pipe>();
  return {.server = std::make_unique<LocalWire>(pipe, kServer),
          .client = std::make_unique<LocalWire>(pipe, kClient)};
}

}  // namespace flare::rpc
