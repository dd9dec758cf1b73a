// The stream of a streaming call that a server serves: begun by the request, or
// by the server to answer a single request. Used by the call's task, then by
// the end of the call.
#ifndef FLARE_RPC_SERVER_SERVED_STREAM_H_
#define FLARE_RPC_SERVER_SERVED_STREAM_H_

#include <chrono>
#include <cstdint>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/fiber/execution_context.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server/call_connection.h"
#include "flare/rpc/server/method_table.h"
#include "flare/rpc/server_protocol.h"
#include "flare/rpc/stream/call_stream.h"

namespace flare::rpc {

class ServedStream {
 public:
  ServedStream() = default;
  ServedStream(const ServedStream&) = delete;
  ServedStream& operator=(const ServedStream&) = delete;

  // A new call. `expected`: its request is a stream.
  void Prepare(bool expected) { expected_ = counted_ = expected; }
  // It has turned into one that its connection counts as a streaming call.
  void NoteCounted() { counted_ = true; }
  // The call is a streaming one; its stream may not be there yet.
  bool expected() const { return expected_; }
  // Its connection counts it as such a one.
  bool counted() const { return counted_; }

  // The messages; null: there is no stream, or not yet.
  CallStream* Get() const { return stream_.Get(); }
  CallStream* operator->() const { return stream_.Get(); }

  // Why `method` can't be called by such a request, as the rest of a sentence
  // that begins with its name; of the two the one streams and the other
  // doesn't. Empty: the method answers a single request by a stream.
  struct Mismatch {
    std::string_view why;
    FailureDetail detail = FailureDetail::kNone;
  };
  static Mismatch MismatchOf(const Method& method,
                             const ServerProtocol& protocol,
                             const ReplyTicket& ticket);

  // The request is this stream.
  void Take(RefPtr<StreamReceiver> stream);
  // Takes the message of a client that sends one. Blocks the fiber, for so long
  // at most; 0: as long as the call lives.
  flare::Status ReadSingle(std::chrono::nanoseconds timeout, Buffer* message);

  // The request was a single message, and the reply is a stream: waits for its
  // turn on the connection, which blocks the fiber. kRefused: nothing is sent
  // on that any more, but the call is answered. kClosed: it can't be.
  enum class Opened { kOpen, kRefused, kClosed };
  Opened OpenReply(CallConnection* connection, ServerProtocol* protocol,
                   const ReplyTicket& ticket, PayloadFormat format,
                   std::int64_t deadline_ns);

  // From here on `context` stops when the caller gives the call up.
  void StopOnFailure(RefPtr<fiber::ExecutionContext> context);

  // The connection isn't needed any more.
  void Detach() {
    if (stream_ != nullptr) stream_->Detach();
  }
  void Reset() { stream_.Reset(); }

 private:
  RefPtr<CallStream> stream_;
  bool expected_ = false;
  bool counted_ = false;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_SERVED_STREAM_H_
