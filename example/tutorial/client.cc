// Asks one carrier for a price.

#include <gflags/gflags.h>

#include <chrono>
#include <iostream>

#include "fares.flare.pb.h"
#include "flare/init.h"
#include "flare/init/override_flag.h"

DEFINE_string(carrier, "flare://127.0.0.1:5601", "The carrier's server.");
DEFINE_string(from, "Oslo", "Where the trip begins.");
DEFINE_string(to, "Rome", "Where the trip ends.");
DEFINE_int32(timeout_ms, 1000, "Milliseconds to wait for the answer.");

// The log goes to standard error, and only its errors.
FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(minloglevel, 2);

int Entry(int, char**) {
  const fares::Carrier_SyncStub carrier(FLAGS_carrier);
  fares::Trip trip;
  trip.set_from(FLAGS_from);
  trip.set_to(FLAGS_to);
  flare::RpcClientController call;
  call.SetTimeout(std::chrono::milliseconds(FLAGS_timeout_ms));
  auto price = carrier.Ask(trip, &call);  // Suspends this fiber.
  if (!price) {
    std::cout << "failed: " << price.error().ToString() << '\n';
    return 1;
  }
  std::cout << price->carrier() << ": " << price->cents() << " cents\n";
  return 0;
}

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
