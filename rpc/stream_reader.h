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
// closed, cancels its call. A service's reader closes, as by Close().
//
// AsyncStreamReader<T> does the same with futures.

#ifndef FLARE_RPC_STREAM_READER_H_
#define FLARE_RPC_STREAM_READER_H_

#include <google/protobuf/message.h>

#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "flare/base/expected.h"
#include "flare/base/future.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/rpc/stream/call_stream.h"
#include "flare/rpc/stream/stream_side.h"

namespace flare {
namespace rpc {

// The part of StreamReader that is the same for all types of messages.
class MessageReader : public StreamSide<&CallStream::DropReader> {
 public:
  // The message that was read last came compressed.
  bool compressed() const {
    return stream_ != nullptr && stream_->read_compressed();
  }

  // Why the last read gave no message, or EndOfStream after Close(). Only
  // meaningful then.
  StreamError error() const { return error_; }

  // In a client: the outcome of the call, once a read has returned EndOfStream
  // or IoError. OK as long as the call goes on.
  flare::Status status() const;

 protected:
  MessageReader() = default;
  MessageReader(RefPtr<CallStream> stream, bool only_one);

  bool ReadNext(google::protobuf::Message* message);
  void CloseReading();
  // Would ReadNext() return at once?
  bool ReadyToRead() const;

 private:
  bool EndAfterMessage(google::protobuf::Message* message);

  bool only_one_ = false;
  // The only message, whose read expired before its call ended.
  std::unique_ptr<google::protobuf::Message> kept_;
  // The error of all reads, once it is over.
  StreamError error_ = StreamError::IoError;
};

}  // namespace rpc

// Not thread-safe; a StreamWriter of the same call may be used at the same
// time. Only reads block: the fiber, or a plain thread.
//
// SetExpiration() (stream_side.h) limits how long reads wait.
template <class T>
class StreamReader : public rpc::MessageReader {
  static_assert(std::is_base_of_v<google::protobuf::Message, T>);

 public:
  using Result = Expected<T, StreamError>;

  // Without a stream: each read fails with IoError.
  StreamReader() = default;

  // For generated code and for tests. `only_one`: the peer's single message is
  // handed out once its call has succeeded.
  explicit StreamReader(RefPtr<rpc::CallStream> stream, bool only_one = false)
      : MessageReader(std::move(stream), only_one) {}

  // The next message, or the reason why there is none:
  //   EndOfStream  the peer has sent all; a client's call has succeeded
  //   IoError      the call has failed or was cancelled, or its connection was
  //                lost; in a client status() says which
  //   Timeout      the expiration came first, and the reader can still be used;
  //                or the call's deadline has passed (status() isn't OK)
  // After EndOfStream and IoError all reads give the same again.
  Result Read() {
    T message;
    if (!Read(&message)) return Unexpected(error());
    return message;
  }

  // Reads into an object that is used again, which saves allocations. False:
  // error() says why, and the object's contents are unspecified.
  bool Read(T* message) {
    if (peeked_ == nullptr) return ReadNext(message);
    const auto peeked = std::move(peeked_);
    if (*peeked) *message = *std::move(*peeked);
    return peeked->has_value();
  }

  // Returns the result of the next Read(), which leaves it here. Blocks, too.
  // Valid until the next call of a function that isn't const.
  Result* Peek() {
    if (peeked_ == nullptr) {
      T message;
      peeked_ = ReadNext(&message)
                    ? std::make_unique<Result>(std::move(message))
                    : std::make_unique<Result>(Unexpected(error()));
    }
    return peeked_.get();
  }

  // Reads no more: further messages are dropped. The call goes on as long as
  // somebody writes.
  void Close() {
    peeked_ = nullptr;
    CloseReading();
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
  template <class Side>
  friend class rpc::AsyncStreamSide;

  // Would Read() return at once?
  bool Ready() const { return peeked_ != nullptr || ReadyToRead(); }

  std::unique_ptr<Result> peeked_;
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
class AsyncStreamReader : public rpc::AsyncStreamSide<StreamReader<T>> {
  using Base = rpc::AsyncStreamSide<StreamReader<T>>;

 public:
  using Result = Expected<T, StreamError>;

  AsyncStreamReader() = default;
  explicit AsyncStreamReader(RefPtr<rpc::CallStream> stream,
                             bool only_one = false)
      : Base(StreamReader<T>(std::move(stream), only_one)) {}

  // As those of StreamReader, as are Close() and SetExpiration().
  Future<Result> Read() {
    return Base::template Run<Result>(
        "Read", Result(StreamError::IoError),
        [](StreamReader<T>* reader) { return reader->Read(); });
  }
  // Null for a reader without a stream.
  Future<Result*> Peek() {
    return Base::template Run<Result*>(
        "Peek", nullptr,
        [](StreamReader<T>* reader) { return reader->Peek(); });
  }

  // When no read is under way.
  StreamError error() const {
    return this->side() != nullptr ? this->side()->error()
                                   : StreamError::IoError;
  }
  Status status() const {
    return this->side() != nullptr ? this->side()->status()
                                   : StreamReader<T>().status();
  }
};

}  // namespace flare

#endif  // FLARE_RPC_STREAM_READER_H_
