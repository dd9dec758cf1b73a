// Descriptions of a server's services that the server itself gives, by
// grpc.reflection.v1 or v1alpha.
//
//   ReflectionClient client(&channel, &controller);
//   auto set = client.Fetch("example.protobuf_echo.EchoService");

#ifndef EXAMPLE_RPC_REFLECTION_CLIENT_H_
#define EXAMPLE_RPC_REFLECTION_CLIENT_H_

#include <google/protobuf/descriptor.pb.h>

#include <memory>
#include <string>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"

namespace grpc::reflection::v1 {
class ServerReflectionRequest;
class ServerReflectionResponse;
}  // namespace grpc::reflection::v1

namespace example {

// One conversation with a server. All functions block the fiber; not
// thread-safe. Their failures have codes as of RpcClientController and texts
// that say what to do.
class ReflectionClient {
 public:
  template <class T>
  using Result = flare::Expected<T, flare::Status>;

  // Both must outlive it. The controller has time-out and metadata.
  ReflectionClient(flare::RpcChannel* channel,
                   flare::RpcClientController* controller);
  ~ReflectionClient();
  ReflectionClient(const ReflectionClient&) = delete;
  ReflectionClient& operator=(const ReflectionClient&) = delete;

  // Full names of all services, in order.
  Result<std::vector<std::string>> ListServices();

  // The file that defines `symbol`, the full name of a service, a method, a
  // message or an enum, and all that it imports.
  Result<google::protobuf::FileDescriptorSet> Fetch(const std::string& symbol);

 private:
  class Conversation;
  using Request = grpc::reflection::v1::ServerReflectionRequest;
  using Response = grpc::reflection::v1::ServerReflectionResponse;

  Result<Response> Ask(const Request& request);
  flare::Status AddFiles(const Request& request,
                         google::protobuf::FileDescriptorSet* set);
  flare::Status AddImports(google::protobuf::FileDescriptorSet* set);

  flare::RpcChannel* const channel_;
  flare::RpcClientController* const controller_;
  std::unique_ptr<Conversation> conversation_;  // Null: not begun.
};

}  // namespace example

#endif  // EXAMPLE_RPC_REFLECTION_CLIENT_H_
