// Serves Fares, as it is deployed: with a log of calls and with health checks.

#include <gflags/gflags.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "call_log.h"
#include "fares_impl.h"
#include "flare/init.h"
#include "flare/rpc/server.h"
#include "flare/rpc/services/health.h"

DEFINE_string(carriers, "flare://127.0.0.1:5601",
              "The carriers' servers, separated by blanks.");
DEFINE_int32(patience_ms, 1000, "Milliseconds to wait for each carrier.");
DEFINE_string(ip, "127.0.0.1", "Address to listen on.");
DEFINE_int32(port, 5600, "Port to listen on.");

int Entry(int, char**) {
  flare::Server server;
  server.AddProtocols({"flare", "http+proto3-json", "grpc"});
  server.AddInterceptor(std::make_shared<CallLog>());
  server.AddService(std::make_unique<FaresImpl>(
      FLAGS_carriers, std::chrono::milliseconds(FLAGS_patience_ms)));
  flare::AddHealthService(&server);  // grpc.health.v1.
  server.ListenOn(flare::EndpointFromIpv4(
      FLAGS_ip, static_cast<std::uint16_t>(FLAGS_port)));
  if (!server.Start()) return 1;
  flare::WaitForQuitSignal();  // SIGTERM, SIGINT or SIGQUIT.
  server.Stop();
  // 0: no call was abandoned at the end of the drain timeout.
  return server.Join() == 0 ? 0 : 1;
}

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
