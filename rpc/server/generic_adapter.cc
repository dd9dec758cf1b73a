#include "flare/rpc/server/generic_adapter.h"

#include <google/protobuf/empty.pb.h>

#include <utility>

#include "flare/rpc/generic_method.h"
#include "flare/rpc/rpc_server_controller.h"

namespace flare::rpc {

const google::protobuf::ServiceDescriptor* GenericAdapter::GetDescriptor() {
  return GenericServiceDescriptor();
}

void GenericAdapter::CallMethod(
    const google::protobuf::MethodDescriptor* /*method*/,
    google::protobuf::RpcController* controller,
    const google::protobuf::Message* /*request*/,
    google::protobuf::Message* /*response*/, google::protobuf::Closure* done) {
  auto* const ours = static_cast<RpcServerController*>(controller);
  auto& parts = ours->ForMetadata();
  Buffer response;
  service_->Call(parts.generic_method,
                 std::exchange(parts.generic_request, Buffer()), &response,
                 ours);
  ours->SetResponseRawBytes(std::move(response));
  done->Run();
}

const google::protobuf::Message& GenericAdapter::GetRequestPrototype(
    const google::protobuf::MethodDescriptor* /*method*/) const {
  return google::protobuf::Empty::default_instance();
}

const google::protobuf::Message& GenericAdapter::GetResponsePrototype(
    const google::protobuf::MethodDescriptor* /*method*/) const {
  return google::protobuf::Empty::default_instance();
}

}  // namespace flare::rpc
