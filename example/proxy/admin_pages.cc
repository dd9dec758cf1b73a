#include "example/proxy/admin_pages.h"

#include <memory>
#include <string>
#include <utility>

#include "flare/rpc/http_handler.h"
#include "flare/rpc/http_message.h"

namespace example::proxy {
namespace {

constexpr char kIndex[] =
    "/stats        statistics as text\n"
    "/stats.json   the same as JSON\n"
    "/ready        200 while clients are accepted, 503 while draining\n"
    "/inspect      the runtime and this server\n";

constexpr char kText[] = "text/plain; charset=utf-8";

// A page whose text is made anew for each request.
void AddPage(const char* path, const char* type,
             std::function<std::string(flare::HttpResponse*)> write,
             flare::Server* server) {
  server->AddHttpHandler(
      path, flare::NewHttpGetHandler(
                [type, write = std::move(write)](const flare::HttpRequest&,
                                                 flare::HttpResponse* response,
                                                 flare::HttpServerContext*) {
                  response->headers()->Set("Content-Type", type);
                  response->headers()->Set("Cache-Control", "no-store");
                  response->set_body(write(response));
                }));
}

}  // namespace

void AddAdminPages(std::function<Snapshot()> take_snapshot,
                   flare::Server* server) {
  AddPage(
      "/", kText, [](auto*) { return std::string(kIndex); }, server);
  AddPage(
      "/stats", kText,
      [take_snapshot](auto*) { return StatisticsText(take_snapshot()); },
      server);
  AddPage(
      "/stats.json", "application/json",
      [take_snapshot](auto*) { return StatisticsJson(take_snapshot()); },
      server);
  AddPage(
      "/ready", kText,
      [take_snapshot](flare::HttpResponse* response) -> std::string {
        if (!take_snapshot().draining) return "ready\n";
        response->set_status(flare::HttpStatus::ServiceUnavailable);
        return "draining\n";
      },
      server);
}

}  // namespace example::proxy
