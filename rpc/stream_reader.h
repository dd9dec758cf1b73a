// Reads the messages of a streaming call: in a service those of the client, in
// a client those of the service.
//
//   void Sum(flare::StreamReader<Number> reader, Total* response,
//            flare::RpcServerController*) override {
//     for (const Number& number : reader) Add(number, response);
//   }
//
//   while (auto reply = reader.Read()) Use(*reply);
//   if (reader.error() != flare::StreamError::EndOfStream) {
//     return reader.status();                       // in a client
//   }
//
// A client's reader that is dropped before it has come to its end, or was
// closed, cancels its call. A service's does as Close().
//
// AsyncStreamReader<T> does the same with futures.

#ifndef FLARE_RPC_STREAM_READER_H_
#define FLARE_RPC_STREAM_READER_H_

#include <google/protobuf/message.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/expected.h"
#include "flare/base/future.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/fiber/async.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream/call_stream.h"
#include "flare/rpc/stream/nesting_bound.h"
#include "glog/logging.h"

namespace flare {

// Not thread-safe; a StreamWriter of the same call may be used at the same
// time. Only reads block: the fiber, or a plain thread.
template <class T>
class StreamReader {
  static_assert(std::is_base_of_v<google::protobuf::Message, T>);

 public:
  using Result = Expected<T, StreamError>;

  // Without a stream: each read fails with IoError.
  StreamReader() = default;

  // For generated code and for tests. `only_one`: the peer's single message is
  // handed out once its call has succeeded.
  explicit StreamReader(RefPtr<rpc::CallStream> stream, bool only_one = false)
      : stream_(std::move(stream)), only_one_(only_one) {}

  StreamReader(StreamReader&& other) noexcept { Take(&other); }
  StreamReader& operator=(StreamReader&& other) noexcept {
    if (this == &other) return *this;
    Drop();
    Take(&other);
    return *this;
  }
  ~StreamReader() { Drop(); }

  // Is there a stream?
  explicit operator bool() const { return stream_ != nullptr; }

  // The next message, or the reason why there is none:
  //   EndOfStream  the peer has sent all; a client's call has succeeded
  //   IoError      the call has failed or was cancelled, or its connection was
  //                lost; in a client status() says which
  //   Timeout      the expiration came first, and the reader can still be used;
  //                or the call's deadline has passed (status() isn't OK)
  // After EndOfStream and IoError all reads give the same again.
  Result Read() {
    T message;
    if (!Read(&message)) return Unexpected(error_);
    return message;
  }

  // The same into an object that is used again, which saves allocations. False:
  // error() says why, and the object's contents are unspecified.
  bool Read(T* message) {
    if (peeked_ == nullptr) return ReadStream(message);
    const auto peeked = std::move(peeked_);
    if (*peeked) *message = *std::move(*peeked);
    return peeked->has_value();
  }

  // What the next Read() will return, which leaves it here. Blocks, too. Valid
  // until the next call of a function that isn't const.
  Result* Peek() {
    if (peeked_ == nullptr) {
      T message;
      peeked_ = ReadStream(&message)
                    ? std::make_unique<Result>(std::move(message))
                    : std::make_unique<Result>(Unexpected(error_));
    }
    return peeked_.get();
  }

  // Reads no more: further messages are dropped. The call goes on as long as
  // somebody writes.
  void Close() {
    peeked_ = nullptr;
    if (stream_ == nullptr || ended_) return;
    ended_ = true;
    error_ = StreamError::EndOfStream;
    stream_->CloseReading();
  }

  // Reads give up at this time (of any clock), or so far from now. It may be
  // changed between reads. Without it they wait as long as the call lives.
  template <class Clock, class Duration>
  void SetExpiration(std::chrono::time_point<Clock, Duration> expires_at) {
    expires_at_ns_ = ToSteadyNs(expires_at);
  }
  template <class Rep, class Period>
  void SetExpiration(std::chrono::duration<Rep, Period> expires_in) {
    expires_at_ns_ = ToSteadyNs(expires_in);
  }

  // Why the last read gave no message, or EndOfStream after Close(). Only
  // meaningful then.
  StreamError error() const { return error_; }

  // In a client: the outcome of the call, once a read has returned EndOfStream
  // or IoError. OK as long as the call goes on.
  Status status() const {
    if (stream_ == nullptr) {
      return Status(rpc::STATUS_INVALID_CHANNEL, "There is no stream.");
    }
    return stream_->status();
  }

  // For range-based loops, which end with the first read that gives no message:
  // error() says why it gave none. The loop's message is one object, which each
  // turn overwrites.
  class Iterator {
   public:
    explicit Iterator(StreamReader* reader) : reader_(reader) { ++*this; }

    T& operator*() { return message_; }
    T* operator->() { return &message_; }
    Iterator& operator++() {
      if (!reader_->Read(&message_)) reader_ = nullptr;
      return *this;
    }
    bool operator==(std::default_sentinel_t) const {
      return reader_ == nullptr;
    }

   private:
    StreamReader* reader_;
    T message_;
  };

  Iterator begin() { return Iterator(this); }
  std::default_sentinel_t end() { return std::default_sentinel; }

 private:
  template <class U>
  friend class AsyncStreamReader;

  void Take(StreamReader* other) {
    stream_ = std::move(other->stream_);
    peeked_ = std::move(other->peeked_);
    expires_at_ns_ = other->expires_at_ns_;
    only_one_ = other->only_one_;
    ended_ = other->ended_;
    error_ = other->error_;
  }

  void Drop() {
    if (stream_ != nullptr && !ended_) stream_->DropReader();
  }

  bool ReadStream(T* message) {
    if (ended_ || stream_ == nullptr) return false;
    if (stream_->ReadMessage(message, expires_at_ns_, &error_)) {
      return !only_one_ || EndAfterMessage();
    }
    ended_ = error_ != StreamError::Timeout;
    return false;
  }

  // The only message has come: has its call succeeded?
  bool EndAfterMessage() {
    T none;
    ended_ = true;
    if (stream_->ReadMessage(&none, expires_at_ns_, &error_)) {
      error_ = StreamError::IoError;
    } else if (error_ == StreamError::EndOfStream) {
      return true;
    }
    stream_->Cancel();
    return false;
  }

  // Would Read() return at once?
  bool ReadyToRead() const {
    return peeked_ != nullptr || ended_ || stream_ == nullptr ||
           (!only_one_ && stream_->ReadyToRead());
  }

  RefPtr<rpc::CallStream> stream_;
  std::unique_ptr<Result> peeked_;
  std::int64_t expires_at_ns_ = kNoDeadline;
  bool only_one_ = false;
  bool ended_ = false;  // Reads give error_ from now on.
  StreamError error_ = StreamError::IoError;
};

// A StreamReader whose reads are futures. A read that finds a message is ready
// at once, as a rule; else a fiber waits for it.
//
//   void ReadNext() {  // Until `ended_`, a Promise<>, has its value.
//     static_cast<void>(reader_.Read().Then([this](auto message) {
//       if (!message) return ended_.SetValue();
//       Use(*message);
//       ReadNext();
//     }));
//   }
//
// Not thread-safe. Until a future is ready no other function may be called: a
// second read fails with IoError (debug builds end the process). The reader may
// be dropped meanwhile, which cancels the call and makes the future ready.
// Nothing blocks. Reads need a running fiber runtime.
template <class T>
class AsyncStreamReader {
 public:
  using Result = Expected<T, StreamError>;

  AsyncStreamReader() = default;
  explicit AsyncStreamReader(RefPtr<rpc::CallStream> stream,
                             bool only_one = false)
      : state_(MakeRefCounted<State>()) {
    state_->reader = StreamReader<T>(std::move(stream), only_one);
  }
  AsyncStreamReader(AsyncStreamReader&&) noexcept = default;
  AsyncStreamReader& operator=(AsyncStreamReader&& other) noexcept {
    if (this == &other) return *this;
    Drop();
    state_ = std::move(other.state_);
    return *this;
  }
  ~AsyncStreamReader() { Drop(); }

  explicit operator bool() const {
    return state_ != nullptr && static_cast<bool>(state_->reader);
  }

  // As those of StreamReader.
  Future<Result> Read() {
    return Run<Result>(Result(StreamError::IoError),
                       [](StreamReader<T>* reader) { return reader->Read(); });
  }
  // Null for a reader without a stream.
  Future<Result*> Peek() {
    return Run<Result*>(static_cast<Result*>(nullptr),
                        [](StreamReader<T>* reader) { return reader->Peek(); });
  }
  Future<> Close() {
    if (state_ != nullptr && state_->Begin("Close")) {
      state_->reader.Close();
      state_->End();
    }
    return MakeReadyFuture<>();
  }

  template <class When>
  void SetExpiration(When when) {
    if (state_ != nullptr) state_->reader.SetExpiration(when);
  }

  // When no read is under way.
  StreamError error() const {
    return state_ != nullptr ? state_->reader.error() : StreamError::IoError;
  }
  Status status() const {
    return state_ != nullptr ? state_->reader.status()
                             : StreamReader<T>().status();
  }

 private:
  // Lives until the last read is over.
  struct State : RefCounted<State> {
    bool Begin(const char* what) {
      // acq_rel: pairs with End() of the read before, so that this one sees how
      // it left the reader [ASR1].
      if (!busy.exchange(true, std::memory_order_acq_rel)) return true;
      LOG(DFATAL) << what << "() of an AsyncStreamReader that is still reading";
      return false;
    }
    // release: pairs with Begin(), and with Drop() [ASR1].
    void End() { busy.store(false, std::memory_order_release); }

    StreamReader<T> reader;
    rpc::NestingBound nesting;
    std::atomic<bool> busy{false};
  };

  template <class R, class F>
  Future<R> Run(R misuse, F read) {
    if (state_ == nullptr || !state_->Begin("Read")) {
      return MakeReadyFuture(std::move(misuse));
    }
    const bool nested = state_->nesting.Exceeded();
    if (!nested && state_->reader.ReadyToRead()) {
      R result = read(&state_->reader);
      state_->End();
      return MakeReadyFuture(std::move(result));
    }
    return fiber::Async([state = state_, read, nested] {
      if (nested) rpc::NestingBound::LetCallerLeave();
      R result = read(&state->reader);
      state->End();
      return result;
    });
  }

  void Drop() {
    if (state_ == nullptr) return;
    // acquire: pairs with End() [ASR1]. A read that is under way ends by the
    // cancellation, and its fiber drops the reader.
    if (state_->busy.load(std::memory_order_acquire)) {
      state_->reader.stream_->Cancel();
    }
    state_ = nullptr;
  }

  RefPtr<State> state_;
};

}  // namespace flare

#endif  // FLARE_RPC_STREAM_READER_H_
