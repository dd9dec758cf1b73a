// A service that answers each call with another server's answer, over whatever
// protocol that one speaks.

#ifndef EXAMPLE_PROXY_FORWARDING_SERVICE_H_
#define EXAMPLE_PROXY_FORWARDING_SERVICE_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/service.h>

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "example/proxy/forwarded_stream.h"
#include "flare/rpc/rpc_channel.h"

namespace example::proxy {

// Request and reply keep their fields, known or not, their attachments, and
// their metadata; the caller's deadline holds for the other server, too; a
// failure is passed on with code and text, and without a reply. A call that
// waits holds no stack, except a streaming one.
// Each call is sent once; to another server of its channel if one can't be
// connected to. Thread-safe; must outlive its calls, as it does if a Server
// owns it.
class ForwardingService : public google::protobuf::Service {
 public:
  struct Target {
    Target(std::shared_ptr<flare::RpcChannel> to,  // NOLINT: implicit
           bool carries_metadata = true)
        : channel(std::move(to)), metadata(carries_metadata) {}

    std::shared_ptr<flare::RpcChannel> channel;
    bool metadata;  // Its protocol carries the caller's.
  };
  // Methods that aren't in it fail with STATUS_METHOD_NOT_FOUND.
  using Channels = std::map<const google::protobuf::MethodDescriptor*, Target>;

  // `descriptor` and the methods are of `pool`. `on_call` is called for each
  // call, on any worker; it must not block.
  ForwardingService(
      std::shared_ptr<const google::protobuf::DescriptorPool> pool,
      const google::protobuf::ServiceDescriptor* descriptor, Channels channels,
      std::function<void()> on_call);

  const google::protobuf::ServiceDescriptor* GetDescriptor() override {
    return descriptor_;
  }
  // Blocks the fiber for streaming methods alone.
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
  // Kept here because calls that a server has abandoned use them to their end.
  const std::shared_ptr<Messages> messages_;
  const google::protobuf::ServiceDescriptor* const descriptor_;
  const Channels channels_;
  const std::function<void()> on_call_;
};

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_FORWARDING_SERVICE_H_
