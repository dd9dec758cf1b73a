// A REST interface with JSON: prices by their carriers.
//
//   curl -X PUT -d '{"cents": 4900}' http://127.0.0.1:PORT/prices/north
//   curl http://127.0.0.1:PORT/prices/north
//   curl -X DELETE http://127.0.0.1:PORT/prices/north
//
// JSON calls of protobuf services need no handlers: docs/http_calls.md.

#include <google/protobuf/util/json_util.h>

#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "example/tutorial/fares.pb.h"
#include "flare/fiber/mutex.h"
#include "flare/init.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/server.h"

namespace {

constexpr char kPrefix[] = "/prices/";

class Prices : public flare::HttpHandler {
 public:
  void OnGet(const flare::HttpRequest& request, flare::HttpResponse* response,
             flare::HttpServerContext*) override {
    const std::lock_guard lock(mutex_);
    const auto found = prices_.find(Name(request));
    if (found == prices_.end()) return NotFound(response);
    Answer(found->second, response);
  }

  void OnPut(const flare::HttpRequest& request, flare::HttpResponse* response,
             flare::HttpServerContext*) override {
    fares::Price price;
    const auto status =
        google::protobuf::util::JsonStringToMessage(*request.body(), &price);
    if (!status.ok()) {
      return FillHttpError(flare::HttpStatus::BadRequest, status.ToString(),
                           response);
    }
    price.set_carrier(Name(request));
    const std::lock_guard lock(mutex_);
    prices_[price.carrier()] = price;
    Answer(price, response);
  }

  void OnDelete(const flare::HttpRequest& request,
                flare::HttpResponse* response,
                flare::HttpServerContext*) override {
    const std::lock_guard lock(mutex_);
    if (prices_.erase(Name(request)) == 0) return NotFound(response);
    response->set_status(flare::HttpStatus::NoContent);
  }

 private:
  static std::string Name(const flare::HttpRequest& request) {
    return std::string(request.path().substr(sizeof(kPrefix) - 1));
  }

  static void Answer(const fares::Price& price, flare::HttpResponse* response) {
    std::string json;
    static_cast<void>(
        google::protobuf::util::MessageToJsonString(price, &json));
    response->headers()->Set("Content-Type", "application/json");
    response->set_body(json + "\n");
  }

  static void NotFound(flare::HttpResponse* response) {
    FillHttpError(flare::HttpStatus::NotFound, "no such carrier", response);
  }

  flare::fiber::Mutex mutex_;
  std::map<std::string, fares::Price> prices_;
};

int Entry(int, char**) {
  flare::Server server;
  server.AddHttpPrefixHandler(kPrefix, std::make_unique<Prices>());
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
