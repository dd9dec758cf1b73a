// Serves Fares.

#include <gflags/gflags.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "fares_impl.h"
#include "flare/init.h"
#include "flare/rpc/server.h"

DEFINE_string(carriers, "flare://127.0.0.1:5601",
              "The carriers' servers, separated by blanks.");
DEFINE_int32(patience_ms, 1000, "Milliseconds to wait for each carrier.");
DEFINE_int32(port, 5600, "Port to listen on.");

int Entry(int, char**) {
  flare::Server server;
  server.AddProtocols({"flare", "http+proto3-json"});
  server.AddService(std::make_unique<FaresImpl>(
      FLAGS_carriers, std::chrono::milliseconds(FLAGS_patience_ms)));
  server.ListenOn(flare::EndpointFromIpv4(
      "127.0.0.1", static_cast<std::uint16_t>(FLAGS_port)));
  if (!server.Start()) return 1;
  flare::WaitForQuitSignal();
  server.Stop();
  server.Join();
  return 0;
}

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
