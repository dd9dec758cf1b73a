// Passes each call on to an echo server and answers with its answer, including
// attachments and errors. The call to the backend blocks the fiber, not the
// thread.
//
//   relay_server --port=5569 --forward_to=flare://127.0.0.1:5567

#include <memory>
#include <utility>

#include "example/rpc/echo_service.flare.pb.h"
#include "example/rpc/serving.h"
#include "flare/init.h"
#include "flare/init/override_flag.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/server.h"
#include "gflags/gflags.h"
#include "glog/logging.h"

DEFINE_string(ip, "127.0.0.1", "Address to listen on.");
DEFINE_int32(port, 5569, "Port to listen on; 0: one that is free.");
DEFINE_string(forward_to, "flare://127.0.0.1:5567",
              "The server that calls are passed on to.");
DEFINE_bool(always_succeed, false,
            "Answer with success, and no body, where the backend failed.");

FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(logbufsecs, 0);
FLARE_OVERRIDE_FLAG(flare_fiber_scheduling_optimize_for, "io-heavy");

namespace example::protobuf_echo {
namespace {

RequestCounter requests;

class RelayServiceImpl : public SyncRelayService {
 public:
  // The channel is shared by all calls and outlives this.
  explicit RelayServiceImpl(flare::RpcChannel* backend) : stub_(backend) {}

  void Relay(const RelayRequest& request, RelayResponse* response,
             flare::RpcServerController* controller) override {
    requests.Add();
    flare::RpcClientController forwarding;
    // The caller's deadline, if it gave one, holds for the backend, too.
    if (const auto deadline = controller->GetTimeout()) {
      forwarding.SetTimeout(*deadline);
    }
    forwarding.SetRequestAttachment(controller->GetRequestAttachment());

    EchoRequest echo;
    echo.set_body(request.body());
    echo.set_work(request.work());  // It's the backend that takes its time.
    echo.set_work_us(request.work_us());
    auto reply = stub_.Echo(echo, &forwarding);
    if (!reply) {
      if (!FLAGS_always_succeed) {
        controller->SetFailed(reply.error().code(), reply.error().message());
      }
      return;
    }
    response->set_body(std::move(*reply->mutable_body()));
    if (const auto& attachment = forwarding.GetResponseAttachment();
        !attachment.Empty()) {
      controller->SetResponseAttachment(attachment);
    }
  }

 private:
  EchoService_SyncStub stub_;
};

int Entry(int, char**) {
  const auto address = ParseListenAddress(FLAGS_ip, FLAGS_port);
  if (!address) {
    LOG(ERROR) << "Bad --ip or --port: " << address.error().message();
    return 2;
  }
  flare::RpcChannel backend;
  if (!backend.Open(FLAGS_forward_to)) {
    LOG(ERROR) << "Bad --forward_to: " << backend.status().message();
    return 2;
  }
  flare::Server server;
  server.AddProtocols({"flare", "http+pb", "http+proto3-json", "http+pb-text",
                       "baidu-std", "trpc", "bolt"});
  server.AddService(std::make_unique<RelayServiceImpl>(&backend));
  server.ListenOn(*address);
  return ServeUntilQuitSignal(&server, requests);
}

}  // namespace
}  // namespace example::protobuf_echo

int main(int argc, char** argv) {
  return flare::Start(argc, argv, example::protobuf_echo::Entry);
}
