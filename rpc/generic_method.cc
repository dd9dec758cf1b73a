#include "flare/rpc/generic_method.h"

#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/empty.pb.h>

#include <string>

#include "glog/logging.h"

namespace flare::rpc {
namespace {

google::protobuf::FileDescriptorProto MakeFile() {
  const google::protobuf::Descriptor& empty =
      *google::protobuf::Empty::descriptor();
  google::protobuf::FileDescriptorProto file;
  file.set_name("flare/rpc/generic_method");
  file.set_package("flare.rpc");
  file.add_dependency(std::string(empty.file()->name()));
  auto* const service = file.add_service();
  service->set_name("Generic");
  auto* const method = service->add_method();
  method->set_name("Call");
  method->set_input_type(std::string(empty.full_name()));
  method->set_output_type(std::string(empty.full_name()));
  return file;
}

}  // namespace

const google::protobuf::ServiceDescriptor* GenericServiceDescriptor() {
  static const google::protobuf::ServiceDescriptor* const service = [] {
    // Never destroyed: calls may end while the process does.
    auto* const pool = new google::protobuf::DescriptorPool(
        google::protobuf::DescriptorPool::generated_pool());
    const auto* const file = pool->BuildFile(MakeFile());
    CHECK(file != nullptr);
    return file->service(0);
  }();
  return service;
}

const google::protobuf::MethodDescriptor* GenericMethod() {
  return GenericServiceDescriptor()->method(0);
}

}  // namespace flare::rpc
