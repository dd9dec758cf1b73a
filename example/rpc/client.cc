// One call to an echo server.
//
//   client --server_addr=http+pb://127.0.0.1:5567 --body="Hello."
//
// Exit status: 0 if it was answered, 1 if not.

#include <gflags/gflags.h>

#include "example/rpc/echo_service.flare.pb.h"
#include "example/rpc/flag_errors.h"
#include "flare/init/override_flag.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "glog/logging.h"

DEFINE_string(server_addr, "flare://127.0.0.1:5567",
              "Whom to call: protocol://address:port[,address:port...]");
DEFINE_string(body, "Hello there.", "The text to send.");

FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(logbufsecs, 0);
FLARE_OVERRIDE_FLAG(flare_fiber_scheduling_optimize_for, "io-heavy");

namespace example::protobuf_echo {
namespace {

int Entry(int argc, char** argv) {
  if (!HasOnlyFlags(argc, argv)) return kBadFlags;
  flare::RpcChannel channel;
  if (!channel.Open(FLAGS_server_addr)) {
    LOG(ERROR) << "Bad --server_addr: " << channel.status().message();
    return kBadFlags;
  }
  EchoService_SyncStub stub(&channel);
  EchoRequest request;
  request.set_body(FLAGS_body);
  flare::RpcClientController controller;
  const auto reply = stub.Echo(request, &controller);
  if (!reply) {
    LOG(ERROR) << "Failed: " << reply.error().ToString();
    return 1;
  }
  LOG(INFO) << "Received: " << reply->body();
  return 0;
}

}  // namespace
}  // namespace example::protobuf_echo

int main(int argc, char** argv) {
  return example::StartProgram(argc, argv,
                               "calls an echo server; see docs/press.md",
                               example::protobuf_echo::Entry);
}
