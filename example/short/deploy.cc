// A deploy that no caller notices. Start the next version beside the one that
// serves: it takes over the port, and the older one answers the calls it has,
// and ends.
//
//   deploy 1 8080 /tmp/deploy.socket &
//   curl http://127.0.0.1:8080/version        # 1
//   deploy 2 8080 /tmp/deploy.socket &
//   curl http://127.0.0.1:8080/version        # 2

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "flare/fiber/this_fiber.h"
#include "flare/init.h"
#include "flare/rpc/hand_over.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/server.h"
#include "glog/logging.h"

namespace {

// /version answers at once, /slow after a second: a call that is in progress
// when the next version takes over.
class Version : public flare::HttpHandler {
 public:
  explicit Version(std::string version) : version_(std::move(version)) {}

  void OnGet(const flare::HttpRequest& request, flare::HttpResponse* response,
             flare::HttpServerContext*) override {
    if (request.path() == "/slow") {
      flare::this_fiber::SleepFor(std::chrono::seconds(1));
    }
    response->set_body(version_ + "\n");
  }

 private:
  const std::string version_;
};

int Entry(int argc, char** argv) {
  if (argc != 4) return 2;
  const auto address = flare::EndpointFromIpv4(
      "127.0.0.1", static_cast<std::uint16_t>(std::atoi(argv[2])));

  // From here on SIGTERM ends this in good order, however early it comes.
  (void)flare::CheckForQuitSignal();

  // Connects to the version that serves, if there is one, and gets its sockets.
  auto hand_over = flare::HandOver::Begin(argv[3], address);
  if (!hand_over) {
    LOG(ERROR) << hand_over.error().message();
    return 1;
  }
  flare::Server server;
  for (const char* path : {"/version", "/slow"}) {
    server.AddHttpHandler(path, std::make_unique<Version>(argv[1]));
  }
  // Load caches, open databases: do all that may fail, or takes long, here. The
  // older version serves, and goes on if this one ends.
  if (!(*hand_over)->ListenOn(&server) || !server.Start()) return 1;

  // Now the older version stops. This one is told in the same way when it has
  // been replaced itself.
  const flare::Status ready =
      (*hand_over)->Ready([] { ::kill(::getpid(), SIGTERM); });
  if (!ready.ok()) {
    LOG(ERROR) << ready.message();
    return 1;
  }
  std::cout << "version " << argv[1] << " serves" << std::endl;

  flare::WaitForQuitSignal();
  hand_over->reset();  // Offers the sockets no longer.
  server.Stop();       // No more calls: clients are told to go elsewhere.
  const std::size_t abandoned = server.Join();  // Drains: answers those it has.
  std::cout << "version " << argv[1] << " ends, " << abandoned
            << " calls abandoned" << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
