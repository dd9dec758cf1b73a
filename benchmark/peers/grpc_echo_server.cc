// An echo server on gRPC's callback interface, for the tables that compare us
// with gRPC. Serves EchoService of example/rpc; compiled by tools/peers.
//
//   grpc_echo_server --port=5571
//
// Logs the address once it listens; SIGTERM and SIGINT end it with status 0.

#include <gflags/gflags.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>

#include "example/rpc/echo_service.grpc.pb.h"
#include "grpcpp/grpcpp.h"

DEFINE_int32(port, 5571, "port of 127.0.0.1 to listen on; 0: a free one");

namespace {

namespace echo = example::protobuf_echo;

class EchoService final : public echo::EchoService::CallbackService {
 public:
  // Runs on the thread that has read the request, and answers from there.
  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* context,
                                 const echo::EchoRequest* request,
                                 echo::EchoResponse* response) override {
    response->set_body(request->body());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

}  // namespace

int main(int argc, char** argv) {
  gflags::SetUsageMessage("echoes by gRPC; see docs/peers.md");
  gflags::SetVersionString("gRPC " + grpc::Version());
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  if (argc > 1) {
    std::fprintf(stderr, "grpc_echo_server: not a flag: %s\n", argv[1]);
    return 2;
  }
  // Blocked before gRPC starts threads, which inherit that.
  sigset_t quit;
  sigemptyset(&quit);
  sigaddset(&quit, SIGINT);
  sigaddset(&quit, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &quit, nullptr);

  EchoService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:" + std::to_string(FLAGS_port),
                           grpc::InsecureServerCredentials(), &port);
  // Somebody else's server must not get a part of the connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  if (server == nullptr) {
    std::fprintf(stderr, "grpc_echo_server: can't listen on 127.0.0.1:%d\n",
                 FLAGS_port);
    return 2;
  }
  std::fprintf(stderr, "grpc_echo_server listens on 127.0.0.1:%d\n", port);
  int signal = 0;
  sigwait(&quit, &signal);
  server->Shutdown(std::chrono::system_clock::now());
}
