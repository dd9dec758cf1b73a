#include "flare/rpc/stub.h"

#include "flare/rpc/server/handler_exception.h"
#include "glog/logging.h"

namespace flare::rpc {

const google::protobuf::ServiceDescriptor* FindGeneratedService(
    const std::string& full_name) {
  const auto* service =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
          full_name);
  CHECK(service != nullptr)
      << "The code that protoc generated for service " << full_name
      << " (its .pb.cc file) is not linked into this program. If it is in a "
         "static library, link that one as a whole.";
  return service;
}

StubBase::StubBase(google::protobuf::RpcChannel* channel) : channel_(channel) {
  CHECK(channel != nullptr) << "a stub needs a channel, not nullptr";
}

void FailByException(const google::protobuf::MethodDescriptor* method,
                     google::protobuf::RpcController* controller) {
  const std::string name(method->full_name());
  const std::string what = TakeHandlerException("method " + name);
  if (controller == nullptr) return;
  controller->SetFailed("Method " + name + " has thrown " + what);
}

void DieOfForeignMethod(const google::protobuf::MethodDescriptor* method,
                        const google::protobuf::ServiceDescriptor* service) {
  LOG(FATAL) << "Method " << method->full_name()
             << " was called on an object of service " << service->full_name()
             << '.';
  __builtin_unreachable();
}

void UnreachableMethod(const google::protobuf::MethodDescriptor* method) {
  LOG(FATAL) << "The code generated for method " << method->full_name()
             << " is older than its .proto file: build everything again.";
  __builtin_unreachable();
}

}  // namespace flare::rpc
