#include "example/rpc/rpc_call.h"

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "example/rpc/any_call.h"
#include "example/rpc/echo_service.flare.pb.h"
#include "example/rpc/replay_call.h"
#include "flare/fiber/runtime.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/tls_names.h"

namespace example {
namespace {

using protobuf_echo::EchoRequest;
using protobuf_echo::EchoResponse;
using protobuf_echo::EchoService_Stub;
using protobuf_echo::RelayRequest;
using protobuf_echo::RelayResponse;
using protobuf_echo::RelayService_Stub;

// The name of the method in stubs.
void Invoke(EchoService_Stub* stub, flare::RpcClientController* controller,
            const EchoRequest* request, EchoResponse* response,
            google::protobuf::Closure* done) {
  stub->Echo(controller, request, response, done);
}
void Invoke(RelayService_Stub* stub, flare::RpcClientController* controller,
            const RelayRequest* request, RelayResponse* response,
            google::protobuf::Closure* done) {
  stub->Relay(controller, request, response, done);
}

template <class Stub, class Request, class Response>
class RpcCall final : public Call {
 public:
  RpcCall(const LoadOptions& options, flare::RpcChannel* channel)
      : options_(options), stub_(channel) {
    // The controller keeps these from call to call.
    controller_.SetTimeout(options.timeout);
    controller_.SetCompressionAlgorithm(options.compression);
    controller_.SetRequestAttachment(options.attachment);
  }

  void Start(const CallPlan& plan, google::protobuf::Closure* done) override {
    if (plan.body_size != request_.body().size()) {
      request_.mutable_body()->assign(options_.body, 0, plan.body_size);
    }
    if (plan.tail != tail_) Mark(plan.tail);
    Invoke(&stub_, &controller_, &request_, &response_, done);
  }

  int status() const override { return controller_.ErrorCode(); }
  std::string error() const override { return controller_.ErrorText(); }
  bool FailedByService() const override {
    return flare::rpc::IsFromService(status());
  }

  bool ReplyIsEcho() const override {
    return response_.body() == request_.body() &&
           flare::FlattenSlow(controller_.GetResponseAttachment()) ==
               flare::FlattenSlow(options_.attachment);
  }

 private:
  void Mark(bool tail) {
    const Work work = tail ? options_.tail_work : Work();
    request_.set_work(static_cast<protobuf_echo::Work>(work.kind));
    request_.set_work_us(static_cast<std::uint32_t>(work.length.count()));
    tail_ = tail;
  }

  const LoadOptions& options_;
  Stub stub_;
  flare::RpcClientController controller_;
  bool tail_ = false;
  Request request_;
  Response response_;
};

using EchoCall = RpcCall<EchoService_Stub, EchoRequest, EchoResponse>;
using RelayCall = RpcCall<RelayService_Stub, RelayRequest, RelayResponse>;

class RpcTarget final : public Target {
 public:
  explicit RpcTarget(const LoadOptions& options) : options_(options) {}

  flare::Status Open() {
    if (auto carried = CheckAttachment(); !carried.ok()) return carried;
    const flare::RpcChannel::Options channel_options{
        .override_nslb = options_.override_nslb,
        .connection_kind = options_.connection_kind,
        // As many as calls, and a part of that for each scheduling group.
        .max_dedicated_connections_per_server =
            (options_.max_pending + 1) *
            flare::fiber::GetSchedulingGroupCount(),
        .tls = options_.tls,
        .health_check = options_.health_check};
    for (std::size_t i = 0; i != flare::fiber::GetSchedulingGroupCount(); ++i) {
      auto channel = std::make_unique<flare::RpcChannel>();
      if (!channel->Open(options_.server_addr, channel_options)) {
        return channel->status();
      }
      channels_.push_back(std::move(channel));
    }
    return flare::Status();
  }

  std::unique_ptr<Call> NewCall(std::size_t group) const override {
    flare::RpcChannel* const channel = channels_[group].get();
    if (options_.any_method != nullptr) return NewAnyCall(options_, channel);
    if (options_.replay != nullptr) return NewReplayCall(options_, channel);
    if (options_.relay_stub) {
      return std::make_unique<RelayCall>(options_, channel);
    }
    return std::make_unique<EchoCall>(options_, channel);
  }

 private:
  // Each call would fail.
  flare::Status CheckAttachment() const {
    if (options_.attachment.empty()) return {};
    const auto protocol = ProtocolOf(options_.server_addr);
    if (protocol == nullptr || protocol->traits().attachments) return {};
    return flare::Status(EINVAL, "the protocol " +
                                     std::string(protocol->name()) +
                                     " carries no attachments");
  }

  const LoadOptions& options_;
  std::vector<std::unique_ptr<flare::RpcChannel>> channels_;  // By group.
};

}  // namespace

std::unique_ptr<flare::rpc::ClientProtocol> ProtocolOf(
    const std::string& server_addr) {
  std::string scheme = server_addr.substr(0, server_addr.find("://"));
  if (scheme.starts_with(flare::rpc::kTlsPrefix)) {
    scheme.erase(0, flare::rpc::kTlsPrefix.size());
  }
  auto protocol = flare::rpc::NewClientProtocol(scheme, {}, "");
  return protocol ? *std::move(protocol) : nullptr;
}

flare::Expected<std::unique_ptr<Target>, flare::Status> OpenRpcTarget(
    const LoadOptions& options) {
  auto target = std::make_unique<RpcTarget>(options);
  if (auto opened = target->Open(); !opened.ok()) return opened;
  return std::unique_ptr<Target>(std::move(target));
}

}  // namespace example
