// Calls of a method that is found at run time, for loads.

#ifndef EXAMPLE_RPC_ANY_CALL_H_
#define EXAMPLE_RPC_ANY_CALL_H_

#include <google/protobuf/descriptor.h>

#include <memory>

#include "example/rpc/call.h"
#include "example/rpc/json_messages.h"
#include "example/rpc/method_source.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/rpc_channel.h"

namespace example {

// A method, with the requests and the metadata of each call.
struct AnyMethod {
  std::unique_ptr<MethodSource> source;
  // A method of `source`.
  const google::protobuf::MethodDescriptor* method = nullptr;
  Messages requests;  // Just one if the method's client doesn't stream.
  flare::Metadata metadata;

  bool streams() const {
    return method->client_streaming() || method->server_streaming();
  }
};

// A call of `options.any_method`, which there must be, to a server of
// `channel`. A streaming one sends all requests, and has ended when the last
// reply has come.
std::unique_ptr<Call> NewAnyCall(const LoadOptions& options,
                                 flare::RpcChannel* channel);

}  // namespace example

#endif  // EXAMPLE_RPC_ANY_CALL_H_
