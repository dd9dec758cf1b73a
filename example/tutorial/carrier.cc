// A carrier, which sells each trip at one price.

#include <gflags/gflags.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "fares.flare.pb.h"
#include "flare/fiber/this_fiber.h"
#include "flare/init.h"
#include "flare/rpc/server.h"

DEFINE_string(name, "north", "Name of the carrier.");
DEFINE_int32(port, 5601, "Port to listen on.");
DEFINE_int32(cents, 4900, "Price of a trip.");
DEFINE_int32(think_ms, 0, "Milliseconds before each answer.");

class CarrierImpl : public fares::SyncCarrier {
  void Ask(const fares::Trip& trip, fares::Price* price,
           flare::RpcServerController* controller) override {
    if (trip.from() == trip.to()) {
      // Codes of your own begin at 1001.
      return controller->SetFailed(1001, "the trip ends where it begins");
    }
    // Suspends this fiber; its thread serves other calls meanwhile. False: the
    // caller has left, or its deadline has passed.
    if (!flare::this_fiber::SleepFor(
            controller->GetStopToken(),
            std::chrono::milliseconds(FLAGS_think_ms))) {
      return controller->SetFailed(1002, "nobody waits for the price");
    }
    price->set_carrier(FLAGS_name);
    price->set_cents(FLAGS_cents);
  }
};

int Entry(int, char**) {
  flare::Server server;
  server.AddProtocols({"flare", "http+proto3-json"});
  server.AddService(std::make_unique<CarrierImpl>());
  server.ListenOn(flare::EndpointFromIpv4(
      "127.0.0.1", static_cast<std::uint16_t>(FLAGS_port)));
  if (!server.Start()) return 1;  // The log says why.
  flare::WaitForQuitSignal();
  server.Stop();
  server.Join();  // Until accepted calls have been answered.
  return 0;
}

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
