// The client of the README: as short as a call can be.

#include <chrono>
#include <iostream>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/init.h"
#include "flare/init/override_flag.h"

namespace echo = example::protobuf_echo;

int Entry(int, char**) {
  echo::EchoService_SyncStub stub("flare://127.0.0.1:5570");
  echo::EchoRequest request;
  request.set_body("Hello, fibers.");
  flare::RpcClientController controller;
  controller.SetTimeout(std::chrono::seconds(5));
  auto reply = stub.Echo(request, &controller);  // Blocks this fiber.
  if (!reply) {
    std::cerr << reply.error().ToString() << '\n';
    return 1;
  }
  std::cout << reply->body() << '\n';
  return 0;
}

// Warnings and errors alone, on stderr; servers have files (docs/debugging.md).
FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(minloglevel, 1);

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
