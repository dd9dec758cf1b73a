// One call of a method that is found at run time, unary or streaming.

#ifndef EXAMPLE_RPC_METHOD_CALL_H_
#define EXAMPLE_RPC_METHOD_CALL_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <functional>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"

namespace example {

// Where requests come from, and replies go. All may block the fiber.
struct CallEnds {
  // The next request, which must live until the next one is asked for or
  // CallMethod() returns. Null: there is none. Called once if the method's
  // client doesn't stream; otherwise on a fiber of its own until it returns
  // null, fails, or the call is over.
  std::function<
      flare::Expected<const google::protobuf::Message*, flare::Status>()>
      next_request;
  // The call is over: next_request need not wait any more. May be null.
  std::function<void()> stop_requests;
  // A reply has been read into CallMethod()'s `reply`. A failure gives the call
  // up.
  std::function<flare::Status()> take_reply;
};

// How a call ended; the first that isn't OK is the reason.
struct CallOutcome {
  flare::Status input;   // The status of next_request.
  flare::Status output;  // The status of take_reply.
  flare::Status call;    // Codes as of RpcClientController.
};

// Makes the call, and blocks the fiber (or thread) until it is over.
// `controller` has its settings, and afterwards the metadata of the reply.
// `reply`, a message of the method's output, is where each reply is put.
CallOutcome CallMethod(flare::RpcChannel* channel,
                       const google::protobuf::MethodDescriptor* method,
                       flare::RpcClientController* controller,
                       google::protobuf::Message* reply, const CallEnds& ends);

}  // namespace example

#endif  // EXAMPLE_RPC_METHOD_CALL_H_
