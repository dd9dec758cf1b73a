// A service that makes two calls for each of its own, side by side:
// docs/calls.md. Its backend is the server of this folder.

#include <cstddef>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/fiber/task_group.h"
#include "flare/init.h"
#include "flare/rpc/server.h"

namespace echo = example::protobuf_echo;

class FrontImpl : public echo::SyncEchoService {
  void Echo(const echo::EchoRequest& request, echo::EchoResponse* response,
            flare::RpcServerController* controller) override {
    std::vector<std::string> parts(2);
    flare::fiber::TaskGroup group;  // Ends before the things it uses.
    for (std::string& part : parts) {
      group.Spawn([&](const std::stop_token& stop) -> flare::Status {
        flare::RpcClientController call;
        call.SetMaxRetries(2);  // Attempts: an Echo may run twice.
        // If the other call fails, nobody waits for this one.
        std::stop_callback cancel(stop, [&] { call.StartCancel(); });
        auto reply = backend_.Echo(request, &call);
        if (!reply) return reply.error();
        part = reply->body();
        return {};
      });
    }
    if (flare::Status status = group.Wait(); !status.ok()) {
      // Our own code. One of the framework's would make our caller believe that
      // our server can't be reached.
      return controller->SetFailed(1001, "backend: " + status.ToString());
    }
    response->set_body(parts[0] + " " + parts[1]);
  }

  // Stubs are thread-safe, and share connections.
  const echo::EchoService_SyncStub backend_{"flare://127.0.0.1:5570"};
};

int Entry(int, char**) {
  flare::Server server;
  server.AddProtocols({"flare", "http+proto3-json"});
  server.AddService(std::make_unique<FrontImpl>());
  server.ListenOn(flare::EndpointFromIpv4("127.0.0.1", 5571));
  if (!server.Start()) return 1;
  flare::WaitForQuitSignal();
  server.Stop();
  server.Join();
  return 0;
}

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
