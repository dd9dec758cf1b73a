// Begins streaming calls on a channel. For generated code; users call their
// stubs.
#ifndef FLARE_RPC_OPEN_STREAM_H_
#define FLARE_RPC_OPEN_STREAM_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/service.h>

#include "flare/base/ref_ptr.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/stream/call_stream.h"

namespace flare::rpc {

// Begins a call of `method`. `request` is the only message of methods whose
// clients don't stream, null for others. Never null: if the call can't begin,
// the first read fails, and status() and the controller say why. `controller`
// must live until the last read has failed or ended; null: none.
//
// May suspend the fiber (or thread) as calls do while a connection is opened.
RefPtr<CallStream> OpenStream(google::protobuf::RpcChannel* channel,
                              const google::protobuf::MethodDescriptor* method,
                              RpcClientController* controller,
                              const google::protobuf::Message* request);

}  // namespace flare::rpc

#endif  // FLARE_RPC_OPEN_STREAM_H_
