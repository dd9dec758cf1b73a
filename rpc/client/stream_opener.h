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
#include "flare/rpc/client/route.h"
#include "flare/rpc/message_observer.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/stream/call_stream.h"

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
