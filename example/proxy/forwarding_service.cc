#include "example/proxy/forwarding_service.h"

#include <google/protobuf/message.h>

#include <chrono>
#include <new>
#include <string>
#include <utility>

#include "flare/base/object_pool.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/rpc_status.h"

namespace example::proxy {
namespace {

using google::protobuf::Closure;

// A call under way: the closure that the channel runs at its end, and the
// controller that must live until then. One pooled piece of memory.
class ForwardedCall final : public Closure {
 public:
  // Ends, and is freed, by itself.
  static void Start(const ForwardingService::Target& target,
                    const google::protobuf::MethodDescriptor* method,
                    flare::RpcServerController* caller,
                    const google::protobuf::Message* request,
                    google::protobuf::Message* response, Closure* done) {
    auto* const call = new (flare::PoolAllocate<sizeof(ForwardedCall)>())
        ForwardedCall(method, caller, response, done);
    flare::RpcClientController& forwarding = call->forwarding_;
    if (const auto deadline = caller->GetTimeout()) {
      forwarding.SetTimeout(*deadline);
    }
    if (!caller->GetRequestAttachment().empty()) {
      forwarding.SetRequestAttachment(caller->GetRequestAttachment());
    }
    if (target.metadata) ForwardMetadata(*caller, &forwarding);
    target.channel->CallMethod(method, &forwarding, request, response, call);
  }

  void Run() override {
    try {
      PassOutcome();
    } catch (const std::bad_alloc&) {
      // Nobody above would catch it. The text is short enough for no memory.
      response_->Clear();
      caller_->SetFailed(flare::rpc::STATUS_FAILED, "out of memory");
    }
    Closure* const done = done_;
    this->~ForwardedCall();
    flare::PoolFree<sizeof(ForwardedCall)>(this);
    done->Run();
  }

 private:
  ForwardedCall(const google::protobuf::MethodDescriptor* method,
                flare::RpcServerController* caller,
                google::protobuf::Message* response, Closure* done)
      : method_(method), caller_(caller), response_(response), done_(done) {}
  ~ForwardedCall() override = default;

  void PassOutcome() {
    for (const auto [name, value] : forwarding_.GetResponseMetadata()) {
      caller_->AddResponseMetadata(name, value);
    }
    if (forwarding_.Failed()) {
      // A reply that could not be parsed has left something in it.
      response_->Clear();
      caller_->SetFailed(forwarding_.ErrorCode(), FailureText());
    } else if (!forwarding_.GetResponseAttachment().empty()) {
      caller_->SetResponseAttachment(
          std::move(*forwarding_.MutableResponseAttachment()));
    }
  }

  // A failure of the route is no fault of the caller's protocol.
  std::string FailureText() const {
    const bool unsent = forwarding_.GetTimestampSent().time_since_epoch() ==
                        std::chrono::nanoseconds(0);
    if (!unsent || forwarding_.ErrorCode() != flare::rpc::STATUS_NOT_SUPPORTED)
      return forwarding_.ErrorText();
    return "the proxy's route of " + std::string(method_->full_name()) + ": " +
           forwarding_.ErrorText();
  }

  const google::protobuf::MethodDescriptor* const method_;
  flare::RpcServerController* const caller_;
  google::protobuf::Message* const response_;
  Closure* const done_;
  flare::RpcClientController forwarding_;
};

}  // namespace

ForwardingService::ForwardingService(
    std::shared_ptr<const google::protobuf::DescriptorPool> pool,
    const google::protobuf::ServiceDescriptor* descriptor, Channels channels,
    std::function<void()> on_call)
    : messages_(std::make_shared<Messages>(std::move(pool))),
      descriptor_(descriptor),
      channels_(std::move(channels)),
      on_call_(std::move(on_call)) {}

void ForwardingService::CallMethod(
    const google::protobuf::MethodDescriptor* method,
    google::protobuf::RpcController* controller,
    const google::protobuf::Message* request,
    google::protobuf::Message* response, Closure* done) {
  on_call_();
  auto* const caller = static_cast<flare::RpcServerController*>(controller);
  const auto found = channels_.find(method);
  if (found == channels_.end()) {
    caller->SetFailed(
        flare::rpc::STATUS_METHOD_NOT_FOUND,
        "There is no route for " + std::string(method->full_name()) + ".");
    return done->Run();
  }
  const Target& target = found->second;
  if (method->client_streaming() || method->server_streaming()) {
    ForwardStream(target.channel.get(), method, messages_, target.metadata,
                  caller, request, response);
    return done->Run();
  }
  ForwardedCall::Start(target, method, caller, request, response, done);
}

const google::protobuf::Message& ForwardingService::GetRequestPrototype(
    const google::protobuf::MethodDescriptor* method) const {
  return *messages_->factory.GetPrototype(method->input_type());
}

const google::protobuf::Message& ForwardingService::GetResponsePrototype(
    const google::protobuf::MethodDescriptor* method) const {
  return *messages_->factory.GetPrototype(method->output_type());
}

}  // namespace example::proxy
