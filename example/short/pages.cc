// Pieces of code from the documents that belong to no program. CI compiles
// them here, and compares the documents with this file (tools/check_docs).

#include <gflags/gflags.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "example/streaming/demo.flare.pb.h"
#include "flare/base/backtrace.h"
#include "flare/fiber/fiber_list.h"
#include "flare/fiber/fiber_local.h"
#include "flare/init/override_flag.h"
#include "flare/rpc/changeable_flag.h"
#include "flare/rpc/generic_stub.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/http_client.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/memcached_client.h"
#include "flare/rpc/rate_limiter.h"
#include "flare/rpc/redis_client.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/server.h"
#include "flare/rpc/services/etcd_resolver.h"
#include "flare/rpc/services/health.h"
#include "flare/rpc/services/reflection.h"
#include "flare/rpc/websocket.h"
#include "glog/logging.h"

// docs/debugging.md
DEFINE_int32(cache_seconds, 60, "Seconds that an entry is kept.");
FLARE_CHANGEABLE_FLAG(cache_seconds);  // flare/rpc/changeable_flag.h

// docs/flags.md
FLARE_OVERRIDE_FLAG(flare_fiber_scheduling_optimize_for, "io-heavy");

namespace demo = example::streaming;
namespace fiber = flare::fiber;
using namespace std::chrono_literals;

namespace pages {

// docs/security.md

void ServeTls() {
  flare::Server::Options options;
  options.tls = flare::TlsServerOptions{
      .certificates = {{"server.crt", "server.key"}},  // More: chosen by SNI.
      .client_ca = "clients.crt",
      .client_certificates = flare::ClientCertificates::kRequire};
  flare::Server server(options);
}

void CallTls() {
  flare::RpcChannel channel(
      "tls+flare://10.0.0.1:5567",
      {.tls = flare::TlsClientOptions{.ca = "roots.crt"}});
}

void AskIdentity(flare::RpcServerController* controller) {
  const flare::PeerIdentity* peer = controller->peer_identity();
  if (peer == nullptr || !peer->verified ||
      peer->spiffe_id != "spiffe://example.org/billing") {
    return controller->SetFailed(1403, "not for you");
  }
}

// docs/http_compression.md

std::string PricesAsCsv();

void CompressPages() {
  flare::Server server({.compress_http_handlers_from = 1024});
  server.AddHttpHandler(
      "/prices.csv",
      flare::NewHttpGetHandler([](const flare::HttpRequest&,
                                  flare::HttpResponse* response,
                                  flare::HttpServerContext* context) {
        context->compress_from = 512;
        response->headers()->Set("Content-Type", "text/csv");
        response->set_body(PricesAsCsv());
      }));
}

std::string PricesAsCsv() { return "name,price\n"; }

// docs/grpc_server.md

void AddServices(flare::Server& server) {
  auto health = flare::AddHealthService(&server);  // Before Start().
  flare::AddReflection(&server);
}

// docs/grpc.md

int CallGrpc(const demo::Text& request, const std::string& token) {
  flare::RpcChannel channel;
  if (!channel.Open("grpc://10.0.0.1:50051")) return 1;
  demo::Demo_SyncStub stub(&channel);

  flare::RpcClientController controller;
  controller.SetTimeout(std::chrono::milliseconds(500));  // In grpc-timeout.
  controller.AddMetadata("authorization", "Bearer " + token);
  auto reply = stub.Echo(request, &controller);
  if (!reply &&
      controller.ErrorCode() ==
          flare::rpc::StatusFromGrpc(flare::rpc::GrpcCode::kNotFound)) {
    LOG(INFO) << "not there: " << reply.error().message();
  }
  return 0;
}

bool AskSilentServers() {
  flare::RpcChannel channel("grpc://10.0.0.1:50051",
                            {.keep_alive = std::chrono::seconds(30)});
  return channel.status().ok();
}

// docs/fiber_rules.md

fiber::FiberLocal<std::string> user;  // static, or as long-lived

void Use(const demo::Text& request) {
  *user = request.text();  // This fiber's.
}

// docs/debugging.md

void ListFibers() {
  flare::fiber::DumpFibers(std::cerr);  // fiber/fiber_list.h
}

void LogPlace() {
  LOG(WARNING) << "took the slow path\n"
               << flare::CurrentBacktrace().ToString();
}

bool IsTooOld(std::chrono::steady_clock::time_point entry_time,
              std::chrono::steady_clock::time_point now) {
  // Read at each use.
  const int seconds = flare::ReadFlag(FLAGS_cache_seconds);
  return now - entry_time > std::chrono::seconds(seconds);
}

// docs/resilience.md

void CheckHealth() {
  flare::RpcChannel channel(
      "flare://10.0.0.1:5567,10.0.0.2:5567",
      {.health_check = {.kind = flare::HealthCheckKind::kHttp,
                        .target = "/health"}});
}

// docs/balancing.md

void PreferZone() {
  flare::RpcChannel channel("flare://10.0.0.1:5567;zone=a,10.1.0.1:5567;zone=b",
                            {.zone = "a"});
}

void UseCanary() {
  flare::RpcChannel canary(
      "flare:///etc/echo.servers",
      {.override_nslb = "file+rr", .tags = {{"env", "new"}}});
}

// docs/discovery.md

void ResolveByEtcd() {
  flare::RegisterEtcdResolver();  // Once, before the channels are opened.
  flare::RpcChannel::Options options;
  options.override_nslb = "etcd+rr";
  flare::RpcChannel channel(
      "flare://10.0.0.1:2379,10.0.0.2:2379/services/echo/", options);
}

void LogInAtEtcd(const std::string& password) {
  flare::RegisterEtcdResolver(
      {.tls = flare::TlsClientOptions{.ca = "/etc/etcd/ca.pem"},
       .user = flare::EtcdUser{.name = "reader", .password = password}});
}

// docs/admission.md

flare::Status LimitRates(flare::Server& server) {
  auto limiter = flare::RateLimiter::Create(
      {.limits = {{.name = "all", .rate = 10'000, .burst = 500},
                  {.name = "search",
                   .methods = {"shop.Catalog.Search", "/search"},
                   .per = flare::RateLimit::Per::kCaller,
                   .rate = 20}}});
  if (!limiter) return limiter.error();
  server.AddInterceptor(*limiter);
  return {};
}

void LimitAdaptively() {
  flare::Server server(
      {.admission = {.limit = flare::AdmissionOptions::Mode::kRefuse,
                     .late = flare::AdmissionOptions::Mode::kCount}});
}

void SetPriority(flare::RpcClientController& controller) {
  controller.AddMetadata("x-priority", "sheddable");
}

// docs/interceptors.md

class CountBytes : public flare::ServerInterceptor {
  void Intercept(flare::InterceptedCall& call,
                 flare::ServerNext& next) override {
    std::atomic<std::size_t> bytes = 0;
    call.ObserveMessages([&bytes](const flare::ObservedMessage& message) {
      bytes += message.bytes;  // message.direction: kReceived or kSent.
    });
    next.Run();
    LOG(INFO) << call.method() << ": " << bytes << " bytes in "
              << call.elapsed() / 1ms << " ms, status " << call.status();
  }
};

void Count(flare::Server& server) {
  server.AddInterceptor(std::make_shared<CountBytes>());
}

// docs/calls.md

void ReplyInKind(flare::RpcServerController* controller) {
  controller->SetResponseAttachment(controller->GetRequestAttachment());
  controller->SetCompressionAlgorithm(  // Among those that the caller can read.
      controller->GetPreferredCompressionAlgorithm());
}

// docs/streaming.md

void TakeStream(google::protobuf::RpcController* controller) {
  auto* server = static_cast<flare::RpcServerController*>(controller);
  auto reader = server->GetStreamReader<demo::Number>();
}

// docs/http_client.md

void Pay(const flare::HttpClient& client, const std::string& token) {
  auto response =
      client.Post("http://payments:8080/orders/7", R"({"cents": 9})",
                  {.timeout = 500ms,
                   .content_type = "application/json",
                   .headers = {"Authorization: Bearer " + token}});
  if (!response) {
    LOG(ERROR) << response.error().ToString();  // Why there is no response.
  } else if (response->status() != flare::HttpStatus::Created) {
    LOG(ERROR) << *response->body();
  }
}

void Patch(const flare::HttpClient& client) {
  flare::HttpRequest request;
  request.set_method(flare::HttpMethod::Patch);
  request.set_uri("/orders/7");
  request.headers()->Set("If-Match", "\"1\"");
  request.set_body("{}");
  auto response = client.Request("https", "payments", request);
  if (!response) LOG(ERROR) << response.error().ToString();
}

flare::HttpClient::Result Upload(const flare::HttpClient& client,
                                 std::ifstream* file) {
  flare::HttpRequestOptions options;
  options.timeout = 60s;
  options.body_source.next = [file]() -> flare::Expected<flare::Buffer> {
    std::string piece(64 << 10, '\0');
    file->read(piece.data(), static_cast<std::streamsize>(piece.size()));
    piece.resize(static_cast<std::size_t>(file->gcount()));
    if (!file->is_open() || file->bad()) {
      return flare::Status(1, "the file can't be read");
    }
    return flare::CreateBufferSlow(piece);  // Empty at the end.
  };
  return client.Put("http://10.0.0.1/backups/today", "", options);
}

flare::HttpClient NewClient() {
  return flare::HttpClient(
      {.proxy = flare::HttpProxyOptions::FromEnvironment()});
}

flare::HttpClient NewHttp2Client() {
  return flare::HttpClient({.http2 = flare::HttpClientHttp2::kAlpn});
}

void AskDocker(const flare::HttpClient& client) {
  auto response = client.Get("http://docker/v1.43/info",
                             {.connect_to = "unix:/run/docker.sock"});
  if (!response) LOG(ERROR) << response.error().ToString();
}

// docs/redis.md

flare::Status StorePrice(const flare::RedisClient& client,
                         const std::string& item, int cents) {
  auto reply = client.Execute({"SET", "price:" + item, std::to_string(cents)},
                              {.timeout = 100ms});
  if (!reply) return reply.error();                    // Why there is no reply.
  if (reply->is_error()) LOG(ERROR) << reply->text();  // By the server.
  return {};
}

flare::RedisClient OpenWithTls(const std::string& password) {
  flare::RedisClient client;
  flare::Status opened = client.Open("rediss://cache.example.com/1",
                                     {.tls = {.ca = "/etc/ssl/company.pem"},
                                      .user = "shop",
                                      .password = password});
  if (!opened.ok()) LOG(FATAL) << opened.ToString();  // A malformed URI.
  return client;
}

flare::RedisClient OpenCluster() {
  flare::RedisClient client;
  flare::Status opened =
      client.Open("redis-cluster://10.0.0.1,10.0.0.2:7000,cache.example.com",
                  {.read_from_replicas = true});
  if (!opened.ok()) LOG(FATAL) << opened.ToString();
  return client;
}

// Keys with the tag {4711} are in one slot, so one server has them.
flare::RedisClient::Result Pay(const flare::RedisClient& client) {
  return client.Transact(
      {{"DECRBY", "{4711}:balance", "30"}, {"RPUSH", "{4711}:log", "30 paid"}});
}

std::int64_t CountKeys(const flare::RedisClient& client) {
  std::int64_t keys = 0;
  auto masters = client.Masters();
  if (!masters) return keys;
  for (const flare::RedisClient& master : *masters) {
    if (auto reply = master.Execute({"DBSIZE"})) keys += reply->integer();
  }
  return keys;
}

// docs/memcached.md

std::string MakePage(const std::string& user) { return "Hello " + user; }

std::string PageOf(const flare::MemcachedClient& cache,
                   const std::string& user) {
  const std::string key = "page:" + user;
  auto cached = cache.Get(key, {.timeout = 50ms});
  if (cached && cached->ok()) return cached->value;
  // Not found, or the cache can't be asked: the page is made without it.
  std::string page = MakePage(user);
  static_cast<void>(cache.Set(key, page, {.ttl = 5min}));
  return page;
}

flare::Status AddMember(const flare::MemcachedClient& cache,
                        const std::string& name) {
  for (;;) {
    auto list = cache.Get("members");
    if (!list) return list.error();
    auto stored = list->ok() ? cache.Set("members", list->value + ',' + name,
                                         {.cas = list->cas})
                             : cache.Add("members", name);
    if (!stored) return stored.error();
    if (stored->ok()) return {};
  }  // Somebody else was faster.
}

flare::MemcachedClient OpenCache() {
  flare::MemcachedClient cache;
  flare::Status opened =
      cache.Open("10.0.0.1,10.0.0.2,cache.example.com:11212", {.timeout = 1s});
  if (!opened.ok()) LOG(FATAL) << opened.ToString();  // A malformed list.
  return cache;
}

// docs/websocket.md

void ServeEcho(flare::Server* server) {
  server->AddWebSocketHandler(
      "/echo", [](flare::WebSocket& socket, const flare::HttpRequest& request) {
        LOG(INFO) << "someone came by " << request.uri();
        while (auto message = socket.Read()) {
          if (!socket.Write(*std::move(message)).ok()) return;
        }
        LOG(INFO) << "and left: " << socket.close_code();
      });
}

void ServePrices(flare::Server* server) {
  flare::WebSocketServerOptions options;
  options.subprotocols = {"prices.v2", "prices.v1"};
  options.origins = {"https://shop.example"};
  options.accept = [](const flare::HttpRequest& request,
                      flare::HttpResponse* response) {
    if (request.query() == "of=tea") return true;
    response->set_status(flare::HttpStatus::NotFound);
    return false;
  };
  options.limits.max_message_size = 4096;
  options.compress_from = 1024;
  server->AddWebSocketHandler(
      "/prices",
      [](flare::WebSocket& socket, const flare::HttpRequest&) {
        const bool old = socket.subprotocol() != "prices.v2";
        static_cast<void>(socket.WriteText(old ? "300" : R"({"cents": 300})"));
      },
      options);
}

flare::Expected<std::string> FindByName(const std::string& request) {
  flare::RpcClientController controller;
  controller.SetTimeout(200ms);
  flare::GenericStub stub("flare://10.0.0.1:5567");
  auto reply = stub.Call("example.Shop.Find", flare::CreateBufferSlow(request),
                         &controller);
  if (!reply) return reply.error();
  return flare::FlattenSlow(*reply);
}

flare::Status Ask(const flare::HttpClient& client) {
  auto socket = client.OpenWebSocket(
      "wss://shop.example/prices?of=tea",
      {.subprotocols = {"prices.v2"},
       .request = {.timeout = 2s, .headers = {"Authorization: Bearer token"}}});
  if (!socket) return socket.error();
  while (auto message = socket->Read()) {
    LOG(INFO) << flare::FlattenSlow(message->data);
  }
  LOG(INFO) << socket->close_code() << " " << socket->close_reason();
  return {};
}

}  // namespace pages
