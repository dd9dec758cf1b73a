// Begins a streaming call on a connection of a route: behind the channel, and
// behind its interceptors.
#ifndef FLARE_RPC_CLIENT_STREAM_OPENER_H_
#define FLARE_RPC_CLIENT_STREAM_OPENER_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <memory>

#include "flare/base/function.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/fiber/execution_context.h"
#include "flare/rpc/client/route.h"
#include "flare/rpc/message_observer.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/stream/call_stream.h"
#include "flare/rpc/stream_wire.h"

namespace flare::rpc {

class ClientConnection;

class StreamOpener {
 public:
  struct Arguments {
    Route* route = nullptr;
    const google::protobuf::MethodDescriptor* method = nullptr;
    // Takes timeout, metadata and so on. Unused after Open().
    const RpcClientController* wishes = nullptr;
    // Learns of metadata and failure from the reader. May be null.
    RpcClientController* controller = nullptr;
    // The only message of methods whose clients don't stream; else null.
    const google::protobuf::Message* request = nullptr;
    MessageObserver observer = {};
    // Also gets the server's metadata (CallStream::Options).
    std::shared_ptr<Metadata> metadata = nullptr;
  };

  // Never null: one that could not begin has failed, and isn't started().
  // Blocks while a connection is opened.
  static RefPtr<CallStream> Open(Arguments arguments);

  // Opens on `wire`, which has credits, in place of a connection of the route.
  // Doesn't block.
  static RefPtr<CallStream> OpenOn(std::unique_ptr<StreamWire> wire,
                                   Arguments arguments);

  // One that has failed.
  static RefPtr<CallStream> Failed(const flare::Status& why,
                                   RpcClientController* controller);

 private:
  // News from the reader go to `controller`; nowhere, if that is null.
  static CallStream::News NewsFor(RpcClientController* controller);

  // The arguments that each tried connection shares.
  struct Call {
    const Arguments* arguments = nullptr;
    const Metadata* metadata = nullptr;  // Null: none.
    std::int64_t now_ns = 0;
    std::int64_t deadline_ns = 0;
  };
  // When the call has to be over. It belongs to *context, unless that is null.
  static std::int64_t DeadlineOf(const Arguments& arguments,
                                 std::int64_t now_ns,
                                 fiber::ExecutionContext** context);
  // `stream` has begun: StartCancel() and the context can end it, and its only
  // request is written, if the client doesn't stream.
  static void Follow(const RefPtr<CallStream>& stream,
                     const Arguments& arguments, std::int64_t deadline_ns,
                     fiber::ExecutionContext* context);
  // Open() without the counters.
  static RefPtr<CallStream> Begin(Arguments arguments, std::int64_t now_ns);

  // kNotHere: the server had ended the connection; another one may do.
  // kNotConnected: it couldn't be made.
  enum class Begun { kYes, kNo, kNotHere, kNotConnected };

  // The call's CallStream::Options::on_unprocessed on the server of `choice`.
  static Function<void(RefPtr<CallStream>)> BeginAgain(
      const Route::Choice& choice, const Call& call);
  static RefPtr<CallStream> BeginOn(ClientConnection* connection,
                                    const Route::Choice& choice,
                                    const Call& call, Begun* begun);
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_STREAM_OPENER_H_
