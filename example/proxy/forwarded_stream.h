// One streaming call, passed on to another server.

#ifndef EXAMPLE_PROXY_FORWARDED_STREAM_H_
#define EXAMPLE_PROXY_FORWARDED_STREAM_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/message.h>

#include <memory>
#include <utility>

#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_server_controller.h"

namespace example::proxy {

// Makes messages of descriptors, which must not go before these.
struct Messages {
  explicit Messages(
      std::shared_ptr<const google::protobuf::DescriptorPool> descriptors)
      : pool(std::move(descriptors)) {}

  std::shared_ptr<const google::protobuf::DescriptorPool> pool;
  google::protobuf::DynamicMessageFactory factory;
};

// Adds the caller's metadata to those of a call.
void ForwardMetadata(const flare::RpcServerController& caller,
                     flare::RpcClientController* forwarding);

// Passes messages on both ways until the call is over, and its outcome to
// *caller. Each side is held back by the other. `request` is the only one of
// methods whose callers don't stream, `*response` gets the only one of methods
// whose servers don't; they are null for others. `metadata`: that of the caller
// goes along. Blocks the fiber.
void ForwardStream(flare::RpcChannel* channel,
                   const google::protobuf::MethodDescriptor* method,
                   std::shared_ptr<Messages> messages, bool metadata,
                   flare::RpcServerController* caller,
                   const google::protobuf::Message* request,
                   google::protobuf::Message* response);

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_FORWARDED_STREAM_H_
