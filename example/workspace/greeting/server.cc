// bazel run -c opt //greeting:server

#include "flare/rpc/server.h"

#include <memory>

#include "flare/init.h"
#include "greeting/greeting_impl.h"

namespace example::greeting {
namespace {

int Entry(int, char**) {
  flare::Server server;
  server.AddProtocols({"flare", "http+proto3-json"});
  server.AddService(std::make_unique<GreetingImpl>());
  server.ListenOn(flare::EndpointFromIpv4("127.0.0.1", 5580));
  if (!server.Start()) return 1;
  flare::WaitForQuitSignal();
  server.Stop();
  server.Join();
  return 0;
}

}  // namespace
}  // namespace example::greeting

int main(int argc, char** argv) {
  return flare::Start(argc, argv, example::greeting::Entry);
}
