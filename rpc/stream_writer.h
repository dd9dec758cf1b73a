// Writes the messages of a streaming call: in a service those for the client,
// in a client those for the service.
//
//   void Count(const CountRequest& request, flare::StreamWriter<Number> writer,
//              flare::RpcServerController*) override {
//     Number number;
//     for (int i = 0; i != request.numbers(); ++i) {
//       number.set_value(i);
//       if (!writer.Write(number)) return;  // The client has gone.
//     }
//     writer.Close();
//   }
//
// A writer must be closed, by Close() or WriteLast(), so that the peer can't
// take a part of the messages for all. A client's that is dropped before
// cancels its call. A service's makes the call fail when the method has ended,
// with the method's own failure if there is one.
//
// AsyncStreamWriter<T> does the same with futures.

#ifndef FLARE_RPC_STREAM_WRITER_H_
#define FLARE_RPC_STREAM_WRITER_H_

#include <google/protobuf/message.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/future.h"
#include "flare/base/ref_ptr.h"
#include "flare/fiber/async.h"
#include "flare/rpc/stream/call_stream.h"
#include "flare/rpc/stream/nesting_bound.h"
#include "glog/logging.h"

namespace flare {

// Not thread-safe; a StreamReader of the same call may be used at the same
// time. Only writes block: the fiber, or a plain thread.
template <class T>
class StreamWriter {
  static_assert(std::is_base_of_v<google::protobuf::Message, T>);

 public:
  // Without a stream: each write returns false.
  StreamWriter() = default;

  // For generated code and for tests.
  explicit StreamWriter(RefPtr<rpc::CallStream> stream)
      : stream_(std::move(stream)) {}

  StreamWriter(StreamWriter&& other) noexcept { Take(&other); }
  StreamWriter& operator=(StreamWriter&& other) noexcept {
    if (this == &other) return *this;
    Drop();
    Take(&other);
    return *this;
  }
  ~StreamWriter() { Drop(); }

  // Is there a stream?
  explicit operator bool() const { return stream_ != nullptr; }

  // Queues a message for the peer; `message` isn't used after the return. Waits
  // while the peer reads more slowly than this side writes. False: the call is
  // over, the expiration has passed, or the writer was closed. What was written
  // before may then not have arrived.
  bool Write(const T& message) {
    return CanWrite() && stream_->WriteMessage(message, false, expires_at_ns_);
  }

  // Write() and Close(), which takes one frame in place of two.
  bool WriteLast(const T& message) {
    if (!CanWrite()) return false;
    closed_ = stream_->WriteMessage(message, true, expires_at_ns_);
    return closed_;
  }

  // No message follows. The peer reads all of them, and then its end. Doesn't
  // wait for that.
  void Close() {
    if (!CanWrite()) return;
    closed_ = true;
    stream_->CloseWriting();
  }

  // Writes give up at this time (of any clock), or so far from now. It may be
  // changed between writes. Without it they wait as long as the call lives.
  template <class Clock, class Duration>
  void SetExpiration(std::chrono::time_point<Clock, Duration> expires_at) {
    expires_at_ns_ = ToSteadyNs(expires_at);
  }
  template <class Rep, class Period>
  void SetExpiration(std::chrono::duration<Rep, Period> expires_in) {
    expires_at_ns_ = ToSteadyNs(expires_in);
  }

 private:
  template <class U>
  friend class AsyncStreamWriter;

  bool CanWrite() const { return stream_ != nullptr && !closed_; }

  void Take(StreamWriter* other) {
    stream_ = std::move(other->stream_);
    expires_at_ns_ = other->expires_at_ns_;
    closed_ = other->closed_;
  }

  void Drop() {
    if (CanWrite()) stream_->DropWriter();
  }

  // Would Write() return at once?
  bool ReadyToWrite() const { return !CanWrite() || stream_->ReadyToWrite(); }

  RefPtr<rpc::CallStream> stream_;
  std::int64_t expires_at_ns_ = kNoDeadline;
  bool closed_ = false;
};

// A StreamWriter whose writes are futures. A write that the peer has room for
// is ready at once, as a rule; else a fiber waits for it.
//
// Not thread-safe. Until a future is ready no other function may be called: a
// second write fails (debug builds end the process). The writer may be dropped
// meanwhile, which cancels the call and makes the future ready. Nothing blocks.
// Writes need a running fiber runtime.
template <class T>
class AsyncStreamWriter {
 public:
  AsyncStreamWriter() = default;
  explicit AsyncStreamWriter(RefPtr<rpc::CallStream> stream)
      : state_(MakeRefCounted<State>()) {
    state_->writer = StreamWriter<T>(std::move(stream));
  }
  AsyncStreamWriter(AsyncStreamWriter&&) noexcept = default;
  AsyncStreamWriter& operator=(AsyncStreamWriter&& other) noexcept {
    if (this == &other) return *this;
    Drop();
    state_ = std::move(other.state_);
    return *this;
  }
  ~AsyncStreamWriter() { Drop(); }

  explicit operator bool() const {
    return state_ != nullptr && static_cast<bool>(state_->writer);
  }

  // As those of StreamWriter.
  Future<bool> Write(T message) { return Run(std::move(message), false); }
  Future<bool> WriteLast(T message) { return Run(std::move(message), true); }
  Future<> Close() {
    if (state_ != nullptr && state_->Begin("Close")) {
      state_->writer.Close();
      state_->End();
    }
    return MakeReadyFuture<>();
  }

  template <class When>
  void SetExpiration(When when) {
    if (state_ != nullptr) state_->writer.SetExpiration(when);
  }

 private:
  // Lives until the last write is over.
  struct State : RefCounted<State> {
    bool Begin(const char* what) {
      // acq_rel: pairs with End() of the write before, so that this one sees
      // how it left the writer [ASW1].
      if (!busy.exchange(true, std::memory_order_acq_rel)) return true;
      LOG(DFATAL) << what << "() of an AsyncStreamWriter that is still writing";
      return false;
    }
    // release: pairs with Begin(), and with Drop() [ASW1].
    void End() { busy.store(false, std::memory_order_release); }

    bool Write(const T& message, bool last) {
      const bool written =
          last ? writer.WriteLast(message) : writer.Write(message);
      End();
      return written;
    }

    StreamWriter<T> writer;
    rpc::NestingBound nesting;
    std::atomic<bool> busy{false};
  };

  Future<bool> Run(T message, bool last) {
    if (state_ == nullptr || !state_->Begin("Write")) {
      return MakeReadyFuture(false);
    }
    const bool nested = state_->nesting.Exceeded();
    if (!nested && state_->writer.ReadyToWrite()) {
      return MakeReadyFuture(state_->Write(message, last));
    }
    return fiber::Async(
        [state = state_, message = std::move(message), last, nested] {
          if (nested) rpc::NestingBound::LetCallerLeave();
          return state->Write(message, last);
        });
  }

  void Drop() {
    if (state_ == nullptr) return;
    // acquire: pairs with End() [ASW1]. A write that is under way ends by the
    // cancellation, and its fiber drops the writer.
    if (state_->busy.load(std::memory_order_acquire)) {
      state_->writer.stream_->Cancel();
    }
    state_ = nullptr;
  }

  RefPtr<State> state_;
};

}  // namespace flare

#endif  // FLARE_RPC_STREAM_WRITER_H_
