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

#include <type_traits>
#include <utility>

#include "flare/base/future.h"
#include "flare/base/ref_ptr.h"
#include "flare/rpc/stream/call_stream.h"
#include "flare/rpc/stream/stream_side.h"

namespace flare {
namespace rpc {

// The part of StreamWriter that is the same for all types of messages.
class MessageWriter : public StreamSide<&CallStream::DropWriter> {
 public:
  // Whether messages are compressed from now on, as the call's controller says
  // by SetCompressionAlgorithm(), which is asked before the first one. True at
  // first. Only over gRPC; a message that doesn't get smaller goes
  // uncompressed.
  void SetCompressed(bool compressed);

  // No message follows. The peer reads all of them, and then its end. Doesn't
  // wait for that.
  void Close();

 protected:
  MessageWriter() = default;
  explicit MessageWriter(RefPtr<CallStream> stream);

  bool WriteNext(const google::protobuf::Message& message, bool last);
  // Would WriteNext() return at once?
  bool ReadyToWrite() const;
};

}  // namespace rpc

// Not thread-safe; a StreamReader of the same call may be used at the same
// time. Only writes block: the fiber, or a plain thread.
//
// SetExpiration() (stream_side.h) limits how long writes wait.
template <class T>
class StreamWriter : public rpc::MessageWriter {
  static_assert(std::is_base_of_v<google::protobuf::Message, T>);

 public:
  // Without a stream: each write returns false.
  StreamWriter() = default;

  // For generated code and for tests.
  explicit StreamWriter(RefPtr<rpc::CallStream> stream)
      : MessageWriter(std::move(stream)) {}

  // Queues a message for the peer; `message` isn't used after the return. Waits
  // while the peer reads more slowly than this side writes. False: the call is
  // over, the expiration has passed, or the writer was closed. Messages written
  // before may then not have arrived.
  bool Write(const T& message) { return WriteNext(message, false); }

  // Write() and Close(), which takes one frame in place of two.
  bool WriteLast(const T& message) { return WriteNext(message, true); }

 private:
  template <class Side>
  friend class rpc::AsyncStreamSide;

  // Would Write() return at once?
  bool Ready() const { return ReadyToWrite(); }
};

// A StreamWriter whose writes are futures. A write that the peer has room for
// is ready at once, as a rule; else a fiber waits for it.
//
// Not thread-safe. Until a future is ready no other function may be called: a
// second write fails (debug builds end the process). The writer may be dropped
// meanwhile, which cancels the call and makes the future ready. Nothing blocks.
// Writes need a running fiber runtime.
template <class T>
class AsyncStreamWriter : public rpc::AsyncStreamSide<StreamWriter<T>> {
  using Base = rpc::AsyncStreamSide<StreamWriter<T>>;

 public:
  AsyncStreamWriter() = default;
  explicit AsyncStreamWriter(RefPtr<rpc::CallStream> stream)
      : Base(StreamWriter<T>(std::move(stream))) {}

  // As those of StreamWriter, as are Close() and SetExpiration().
  Future<bool> Write(T message) { return Run(std::move(message), false); }
  Future<bool> WriteLast(T message) { return Run(std::move(message), true); }

 private:
  Future<bool> Run(T message, bool last) {
    return Base::template Run<bool>(
        "Write", false,
        [message = std::move(message), last](StreamWriter<T>* writer) {
          return last ? writer->WriteLast(message) : writer->Write(message);
        });
  }
};

}  // namespace flare

#endif  // FLARE_RPC_STREAM_WRITER_H_
