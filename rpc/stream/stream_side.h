// The common part of StreamReader, StreamWriter and their Async forms: a hold
// on a call's stream for one direction, which is dropped with its owner, and
// the time at which waiting ends. For these four classes alone.
#ifndef FLARE_RPC_STREAM_STREAM_SIDE_H_
#define FLARE_RPC_STREAM_STREAM_SIDE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/future.h"
#include "flare/base/ref_ptr.h"
#include "flare/fiber/async.h"
#include "flare/rpc/stream/call_stream.h"
#include "flare/rpc/stream/nesting_bound.h"
#include "glog/logging.h"

namespace flare::rpc {

// `kDrop` is called for one that isn't over when it is dropped.
template <void (CallStream::*kDrop)()>
class StreamSide {
 public:
  // Is there a stream?
  explicit operator bool() const { return stream_ != nullptr; }

  // Reads or writes give up at this time (of any clock), or so far from now. It
  // may be changed between them. Without it they wait as long as the call
  // lives.
  template <class Clock, class Duration>
  void SetExpiration(std::chrono::time_point<Clock, Duration> expires_at) {
    expires_at_ns_ = ToSteadyNs(expires_at);
  }
  template <class Rep, class Period>
  void SetExpiration(std::chrono::duration<Rep, Period> expires_in) {
    expires_at_ns_ = ToSteadyNs(expires_in);
  }

 protected:
  StreamSide() = default;
  explicit StreamSide(RefPtr<CallStream> stream) : stream_(std::move(stream)) {}
  StreamSide(StreamSide&& other) noexcept { Take(&other); }
  StreamSide& operator=(StreamSide&& other) noexcept {
    if (this == &other) return *this;
    Drop();
    Take(&other);
    return *this;
  }
  ~StreamSide() { Drop(); }

  bool open() const { return stream_ != nullptr && !over_; }

  RefPtr<CallStream> stream_;
  std::int64_t expires_at_ns_ = kNoDeadline;
  bool over_ = false;  // By its own doing, or as the call is over.

 private:
  template <class Side>
  friend class AsyncStreamSide;

  void Take(StreamSide* other) {
    stream_ = std::move(other->stream_);
    expires_at_ns_ = other->expires_at_ns_;
    over_ = other->over_;
  }
  void Drop() {
    if (open()) (stream_.Get()->*kDrop)();
  }
};

// `Side` is a StreamReader or a StreamWriter, which makes this its friend.
template <class Side>
class AsyncStreamSide {
 public:
  explicit operator bool() const {
    return state_ != nullptr && static_cast<bool>(state_->side);
  }

  Future<> Close() {
    if (state_ != nullptr && state_->Begin("Close")) {
      state_->side.Close();
      state_->End();
    }
    return MakeReadyFuture<>();
  }

  template <class When>
  void SetExpiration(When when) {
    if (state_ != nullptr) state_->side.SetExpiration(when);
  }

 protected:
  AsyncStreamSide() = default;
  explicit AsyncStreamSide(Side side) : state_(MakeRefCounted<State>()) {
    state_->side = std::move(side);
  }
  AsyncStreamSide(AsyncStreamSide&&) noexcept = default;
  AsyncStreamSide& operator=(AsyncStreamSide&& other) noexcept {
    if (this == &other) return *this;
    Drop();
    state_ = std::move(other.state_);
    return *this;
  }
  ~AsyncStreamSide() { Drop(); }

  // Null without a stream.
  const Side* side() const {
    return state_ != nullptr ? &state_->side : nullptr;
  }

  // The result of `use` for the side: at once, if that doesn't wait, else by a
  // fiber. `misuse` while another one is under way. `what` is for the log.
  template <class R, class F>
  Future<R> Run(const char* what, R misuse, F use) {
    if (state_ == nullptr || !state_->Begin(what)) {
      return MakeReadyFuture(std::move(misuse));
    }
    const bool nested = state_->nesting.Exceeded();
    if (!nested && state_->side.Ready()) {
      R result = use(&state_->side);
      state_->End();
      return MakeReadyFuture(std::move(result));
    }
    return fiber::Async([state = state_, use = std::move(use), nested] {
      if (nested) NestingBound::LetCallerLeave();
      R result = use(&state->side);
      state->End();
      return result;
    });
  }

 private:
  // Lives until the last use is over.
  struct State : RefCounted<State> {
    bool Begin(const char* what) {
      // acq_rel: pairs with End() of the use before, so that this one sees how
      // it left the side [ASS1].
      if (!busy.exchange(true, std::memory_order_acq_rel)) return true;
      LOG(DFATAL) << what << "() of a stream's side that is still in use";
      return false;
    }
    // release: pairs with Begin(), and with Drop() [ASS1].
    void End() { busy.store(false, std::memory_order_release); }

    Side side;
    NestingBound nesting;
    std::atomic<bool> busy{false};
  };

  void Drop() {
    if (state_ == nullptr) return;
    // acquire: pairs with End() [ASS1]. A use that is under way ends by the
    // cancellation, and its fiber drops the side.
    if (state_->busy.load(std::memory_order_acquire)) {
      state_->side.stream_->Cancel();
    }
    state_ = nullptr;
  }

  RefPtr<State> state_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_STREAM_STREAM_SIDE_H_
