// Passes each call on to an echo server and answers with its answer, including
// attachments and errors. The call to the backend blocks the fiber, not the
// thread; by --callbacks it blocks neither.
//
//   relay_server --port=5569 --forward_to=flare://127.0.0.1:5567

#include <gflags/gflags.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "example/rpc/echo_service.flare.pb.h"
#include "example/rpc/flag_errors.h"
#include "example/rpc/serving.h"
#include "flare/base/object_pool.h"
#include "flare/init/override_flag.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/server.h"
#include "glog/logging.h"

DEFINE_string(ip, "127.0.0.1", "Address to listen on.");
DEFINE_int32(port, 5569, "Port to listen on; 0: one that is free.");
DEFINE_string(forward_to, "flare://127.0.0.1:5567",
              "The server that calls are passed on to.");
DEFINE_bool(always_succeed, false,
            "Answer with success, and no body, where the backend failed.");
DEFINE_bool(callbacks, false,
            "Go on in a callback when the backend has answered, instead of "
            "having a fiber wait for it: faster, but more to write.");

FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(logbufsecs, 0);
FLARE_OVERRIDE_FLAG(flare_fiber_scheduling_optimize_for, "io-heavy");

namespace example::protobuf_echo {
namespace {

RequestCounter requests;

// The request to the backend, and its options.
void Prepare(const RelayRequest& request,
             const flare::RpcServerController& controller, EchoRequest* echo,
             flare::RpcClientController* forwarding) {
  // The caller's deadline, if it gave one, holds for the backend, too.
  if (const auto deadline = controller.GetTimeout()) {
    forwarding->SetTimeout(*deadline);
  }
  forwarding->SetRequestAttachment(controller.GetRequestAttachment());
  echo->set_body(request.body());
  echo->set_work(request.work());  // It's the backend that takes its time.
  echo->set_work_us(request.work_us());
}

void AnswerWithError(const flare::RpcClientController& forwarding,
                     flare::RpcServerController* controller) {
  if (FLAGS_always_succeed) return;
  controller->SetFailed(forwarding.ErrorCode(), forwarding.ErrorText());
}

void AnswerWith(EchoResponse* reply,
                const flare::RpcClientController& forwarding,
                RelayResponse* response,
                flare::RpcServerController* controller) {
  response->set_body(std::move(*reply->mutable_body()));
  if (const auto& attachment = forwarding.GetResponseAttachment();
      !attachment.Empty()) {
    controller->SetResponseAttachment(attachment);
  }
}

class RelayServiceImpl : public SyncRelayService {
 public:
  // The channel is shared by all calls and outlives this.
  explicit RelayServiceImpl(flare::RpcChannel* backend) : stub_(backend) {}

  void Relay(const RelayRequest& request, RelayResponse* response,
             flare::RpcServerController* controller) override {
    requests.Add();
    EchoRequest echo;
    flare::RpcClientController forwarding;
    Prepare(request, *controller, &echo, &forwarding);
    auto reply = stub_.Echo(echo, &forwarding);
    if (!reply) return AnswerWithError(forwarding, controller);
    AnswerWith(&*reply, forwarding, response, controller);
  }

 private:
  EchoService_SyncStub stub_;
};

// A call that waits for its backend without a fiber. Pooled, so that its
// messages keep their memory, unless they are large.
class PendingRelay final : public google::protobuf::Closure {
 public:
  void Begin(EchoService::Stub* backend, const RelayRequest& request,
             RelayResponse* response, flare::RpcServerController* controller,
             google::protobuf::Closure* done) {
    response_ = response;
    controller_ = controller;
    done_ = done;
    Prepare(request, *controller, &echo_, &forwarding_);
    backend->Echo(&forwarding_, &echo_, &reply_, this);
  }

  // The backend has answered, or won't.
  void Run() override {
    if (forwarding_.Failed()) {
      AnswerWithError(forwarding_, controller_);
    } else {
      AnswerWith(&reply_, forwarding_, response_, controller_);
    }
    google::protobuf::Closure* const done = done_;
    forwarding_.Reset();
    if (echo_.body().size() > kMostKept) {
      echo_ = EchoRequest();
      reply_ = EchoResponse();
    }
    flare::ObjectPool<PendingRelay>::Put(this);
    done->Run();
  }

 private:
  static constexpr std::size_t kMostKept = 4096;

  RelayResponse* response_;
  flare::RpcServerController* controller_;
  google::protobuf::Closure* done_;
  EchoRequest echo_;
  EchoResponse reply_;
  flare::RpcClientController forwarding_;
};

class CallbackRelayServiceImpl : public RelayService {
 public:
  // As RelayServiceImpl.
  explicit CallbackRelayServiceImpl(flare::RpcChannel* backend)
      : stub_(backend) {}

  void Relay(google::protobuf::RpcController* controller,
             const RelayRequest* request, RelayResponse* response,
             google::protobuf::Closure* done) override {
    requests.Add();
    flare::ObjectPool<PendingRelay>::Get()->Begin(
        &stub_, *request, response,
        static_cast<flare::RpcServerController*>(controller), done);
  }

 private:
  EchoService::Stub stub_;
};

std::unique_ptr<google::protobuf::Service> MakeService(
    flare::RpcChannel* backend) {
  if (FLAGS_callbacks) {
    return std::make_unique<CallbackRelayServiceImpl>(backend);
  }
  return std::make_unique<RelayServiceImpl>(backend);
}

int Entry(int argc, char** argv) {
  if (!HasOnlyFlags(argc, argv)) return kBadFlags;
  const auto address = ParseListenAddress(FLAGS_ip, FLAGS_port);
  if (!address) {
    LOG(ERROR) << "Bad --ip or --port: " << address.error().message();
    return kBadFlags;
  }
  flare::RpcChannel backend;
  if (!backend.Open(FLAGS_forward_to)) {
    LOG(ERROR) << "Bad --forward_to: " << backend.status().message();
    return kBadFlags;
  }
  flare::Server server;
  server.AddProtocols({"flare", "http+pb", "http+proto3-json", "http+pb-text",
                       "baidu-std", "trpc", "bolt"});
  server.AddService(MakeService(&backend));
  server.ListenOn(*address);
  return ServeUntilQuitSignal(&server, requests);
}

}  // namespace
}  // namespace example::protobuf_echo

int main(int argc, char** argv) {
  return example::StartProgram(
      argc, argv, "asks another echo server for each reply; see docs/press.md",
      example::protobuf_echo::Entry);
}
