// Answers every HTTP request with the same body: the server of the tables
// `http-size` and `http-slow`.
//
//   server --ip=0.0.0.0 --port=8080 --body_size=1024
//   curl http://127.0.0.1:8080/any/path
//
// Some paths take their time before they answer alike: /long_req/ sleeps,
// /long_req/block blocks the thread it runs on, /long_req/spin computes. See
// docs/http_server.md.

#include "flare/rpc/server.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "example/rpc/flag_errors.h"
#include "example/rpc/serving.h"
#include "example/rpc/tls_server_flags.h"
#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/fiber/this_fiber.h"
#include "flare/init/override_flag.h"
#include "flare/rpc/http_handler.h"
#include "glog/logging.h"

DEFINE_string(ip, "127.0.0.1", "Address to listen on.");
DEFINE_int32(port, 8080, "Port to listen on; 0: one that is free.");
DEFINE_int32(body_size, 64, "Bytes in the body of every reply.");
DEFINE_int32(long_req_us, 5000,
             "How long requests for /long_req/... take, in microseconds.");

FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(logbufsecs, 0);
FLARE_OVERRIDE_FLAG(flare_fiber_scheduling_optimize_for, "io-heavy");

namespace example::http {
namespace {

constexpr int kMaxBodySize = 64 << 20;
constexpr int kMaxDelayUs = 60'000'000;

RequestCounter requests;

std::string RandomText(std::size_t size) {
  std::minstd_rand random(std::random_device{}());
  std::uniform_int_distribution<int> letter('!', '~');
  std::string text(size, ' ');
  std::ranges::generate(text,
                        [&] { return static_cast<char>(letter(random)); });
  return text;
}

// Answers with `body` once `delay` has returned. Takes every method.
class FixedBody : public flare::HttpHandler {
 public:
  explicit FixedBody(
      flare::Buffer body, void (*delay)() = [] {})
      : body_(std::move(body)), delay_(delay) {}

  void HandleRequest(const flare::HttpRequest&, flare::HttpResponse* response,
                     flare::HttpServerContext*) override {
    requests.Add();
    delay_();
    response->headers()->Append("Content-Type", "text/plain; charset=UTF-8");
    response->set_body(body_);  // Shares the bytes.
  }

 private:
  const flare::Buffer body_;
  void (*const delay_)();
};

std::chrono::microseconds Delay() {
  return std::chrono::microseconds(FLAGS_long_req_us);
}

// The fiber waits; its worker serves others.
void SleepFiber() { flare::this_fiber::SleepFor(Delay()); }

// The worker waits, as in a call that knows nothing of fibers.
void SleepThread() { std::this_thread::sleep_for(Delay()); }

// The worker is busy.
void Spin() {
  const auto end = flare::ReadSteadyClock() + Delay();
  while (flare::ReadSteadyClock() < end) {
  }
}

void AddHandlers(const flare::Buffer& body, flare::Server* server) {
  const std::pair<const char*, void (*)()> slow[] = {
      {"/long_req/", SleepFiber},
      {"/long_req/block", SleepThread},
      {"/long_req/spin", Spin},
  };
  for (const auto& [path, delay] : slow) {
    server->AddHttpHandler(path, std::make_unique<FixedBody>(body, delay));
  }
  server->SetDefaultHttpHandler(std::make_unique<FixedBody>(body));
}

// Logs the fault of a number given as a flag.
bool IsWithin(const char* flag, int value, int max) {
  if (value >= 0 && value <= max) return true;
  LOG(ERROR) << "Bad --" << flag << ": " << value << " isn't between 0 and "
             << max;
  return false;
}

int Entry(int argc, char** argv) {
  if (!HasOnlyFlags(argc, argv)) return kBadFlags;
  const auto address = ParseListenAddress(FLAGS_ip, FLAGS_port);
  if (!address) {
    LOG(ERROR) << "Bad --ip or --port: " << address.error().message();
    return kBadFlags;
  }
  if (!IsWithin("body_size", FLAGS_body_size, kMaxBodySize) ||
      !IsWithin("long_req_us", FLAGS_long_req_us, kMaxDelayUs)) {
    return kBadFlags;
  }
  auto tls = TlsFromServerFlags();
  if (!tls) {
    LOG(ERROR) << tls.error().message();
    return kBadFlags;
  }
  flare::Server::Options options;
  options.no_builtin_pages = true;  // Those paths are answered like others.
  options.tls = *std::move(tls);
  flare::Server server(options);
  server.AddProtocol("http");
  AddHandlers(flare::MakeForeignBuffer(
                  RandomText(static_cast<std::size_t>(FLAGS_body_size))),
              &server);
  server.ListenOn(*address);
  return ServeUntilQuitSignal(&server, requests);
}

}  // namespace
}  // namespace example::http

int main(int argc, char** argv) {
  return example::StartProgram(argc, argv,
                               "answers HTTP; see docs/http_server.md",
                               example::http::Entry);
}
