// Metrics of a program's own, on the page that every server has:
//
//   curl http://127.0.0.1:PORT/prices/north
//   curl http://127.0.0.1:PORT/metrics

#include "flare/rpc/metrics.h"

#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/init.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/server.h"
#include "glog/logging.h"

namespace metrics = flare::metrics;

namespace {

// Ends the program if a metric can't be made: the text says which, and why.
template <class T>
T Made(flare::Expected<T, flare::Status> metric) {
  CHECK(metric.has_value()) << metric.error().message();
  return *std::move(metric);
}

// All of the program's metrics, made once, as it starts.
struct ShopMetrics {
  // A counter for each pair of labels. `status` has few values, and none that
  // callers choose: each one takes memory.
  metrics::Family<metrics::Counter, 2> lookups = Made(metrics::NewCounterFamily(
      "shop_lookups_total", "Prices asked for.", {"interface", "status"}));
  // Looked up once, not for each request.
  metrics::Counter* found = lookups.With("http", "found");
  metrics::Counter* unknown = lookups.With("http", "unknown");

  metrics::Gauge* running =
      Made(metrics::NewGauge("shop_lookups_running", "Lookups in progress."));

  // In seconds; the bounds are the defaults, 100 us to 10 s.
  metrics::Histogram* seconds = Made(
      metrics::NewHistogram("shop_lookup_seconds", "How long lookups took."));
};

class Prices : public flare::HttpHandler {
 public:
  void OnGet(const flare::HttpRequest& request, flare::HttpResponse* response,
             flare::HttpServerContext*) override {
    const auto began = std::chrono::steady_clock::now();
    metrics_.running->Add(1);
    if (request.path() == "/prices/north") {
      metrics_.found->Add();
      response->set_body("4900\n");
    } else {
      metrics_.unknown->Add();
      FillHttpError(flare::HttpStatus::NotFound, "no such carrier", response);
    }
    metrics_.running->Subtract(1);
    metrics_.seconds->Observe(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began)
            .count());
  }

 private:
  const ShopMetrics metrics_{};
};

int Entry(int, char**) {
  // A value that is computed when somebody reads the page.
  const auto start = std::chrono::steady_clock::now();
  const flare::Status made = metrics::NewGaugeFunction(
      "shop_uptime_seconds", "Seconds since the start.", [start] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                             start)
            .count();
      });
  CHECK(made.ok()) << made.message();

  flare::Server server;
  server.AddHttpPrefixHandler("/prices/", std::make_unique<Prices>());
  server.ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
  if (!server.Start()) return 1;
  std::cout << "http://" << server.endpoint().ToString() << std::endl;
  flare::WaitForQuitSignal();
  server.Stop();
  server.Join();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
