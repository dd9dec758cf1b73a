// A GenericService as the one service that a server's calls know.
#ifndef FLARE_RPC_SERVER_GENERIC_ADAPTER_H_
#define FLARE_RPC_SERVER_GENERIC_ADAPTER_H_

#include <google/protobuf/service.h>

#include <memory>
#include <utility>

#include "flare/rpc/generic_service.h"

namespace flare::rpc {

// Its one method is GenericMethod(). Thread-safe, as the service is.
class GenericAdapter : public google::protobuf::Service {
 public:
  explicit GenericAdapter(std::unique_ptr<GenericService> service)
      : service_(std::move(service)) {}

  const google::protobuf::ServiceDescriptor* GetDescriptor() override;
  void CallMethod(const google::protobuf::MethodDescriptor* method,
                  google::protobuf::RpcController* controller,
                  const google::protobuf::Message* request,
                  google::protobuf::Message* response,
                  google::protobuf::Closure* done) override;
  const google::protobuf::Message& GetRequestPrototype(
      const google::protobuf::MethodDescriptor* method) const override;
  const google::protobuf::Message& GetResponsePrototype(
      const google::protobuf::MethodDescriptor* method) const override;

 private:
  const std::unique_ptr<GenericService> service_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_GENERIC_ADAPTER_H_
