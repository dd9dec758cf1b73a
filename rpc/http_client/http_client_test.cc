// Requests to a server of this library.
#include "flare/rpc/http_client.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/future.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/call_cells.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/extension.h"
#include "flare/rpc/http_client/http_client_counters.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::literals;
using Handler =
    std::function<void(const HttpRequest&, HttpResponse*, HttpServerContext*)>;

class HttpClientTest : public testing::ServerTest {
 protected:
  void TearDown() override {
    go_.Set();
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  void On(const std::string& path, Handler handler) {
    server().AddHttpHandler(
        path,
        NewHttpHandler({HttpMethod::Get, HttpMethod::Post, HttpMethod::Put,
                        HttpMethod::Delete, HttpMethod::Patch},
                       std::move(handler)));
  }
  void OnText(const std::string& path, std::string text) {
    On(path, [text](auto&, HttpResponse* response, auto*) {
      response->set_body(text);
    });
  }

  std::string Url(const std::string& path) {
    return "http://" + endpoint().ToString() + path;
  }

  static int CodeOf(const HttpClient::Result& result) {
    return result ? 0 : result.error().code();
  }

  // "/slow" answers once go_ is set. Requests may come after their test.
  void OnSlow() {
    On("/slow", [this](auto&, auto*, auto*) {
      ++requests_;
      go_.Wait();
    });
  }
  void AwaitRequest() {
    while (requests_ == 0) std::this_thread::yield();
  }

  fiber::Event go_;
  std::atomic<int> requests_ = 0;
};

TEST_F(HttpClientTest, GetsAPage) {
  OnText("/page", "hello");
  StartServer();
  HttpClient client;
  HttpResponseInfo info;
  // On a plain thread, and on a fiber.
  const auto get = [&] {
    const auto response = client.Get(Url("/page"), {}, &info);
    ASSERT_TRUE(response) << response.error().ToString();
    EXPECT_EQ(response->status(), HttpStatus::OK);
    EXPECT_EQ(*response->body(), "hello");
    EXPECT_EQ(response->headers()->TryGet("content-length"), "5");
  };
  get();
  EXPECT_FALSE(info.connection_reused);
  EXPECT_EQ(info.effective_url, Url("/page"));
  EXPECT_GT(info.total_time_transfer.count(), 0);
  testing::OnFiber(get);
  EXPECT_TRUE(info.connection_reused);
}

// Requests to a server since it was made: counters are those of the process.
class CountedSince {
 public:
  explicit CountedSince(std::string server)
      : server_(std::move(server)), before_(Total()) {}

  CallCells::Values Total() const {
    return HttpClientCounters::Read()[server_];
  }
  std::map<int, std::uint64_t> Counts() const {
    auto counts = Total().counts;
    for (const auto& [status, count] : before_.counts) counts[status] -= count;
    std::erase_if(counts, [](const auto& each) { return each.second == 0; });
    return counts;
  }
  double Seconds() const { return Total().seconds.sum - before_.seconds.sum; }

 private:
  const std::string server_;
  const CallCells::Values before_;
};

TEST_F(HttpClientTest, RequestsAreCounted) {
  OnText("/page", "hello");
  On("/there", [](auto&, HttpResponse* response, auto*) {
    response->set_status(HttpStatus::Found);
    response->headers()->Set("Location", "/page");
  });
  OnSlow();
  StartServer();
  const std::string server = "http://" + endpoint().ToString();
  const CountedSince counted(server);
  HttpClient client;
  EXPECT_TRUE(client.Get(Url("/page")));
  EXPECT_TRUE(client.Get(Url("/there"), {.max_redirection_count = 1}));
  EXPECT_TRUE(client.Get(Url("/none")));
  EXPECT_EQ(CodeOf(client.Get(Url("/slow"), {.timeout = 20ms})),
            HttpClient::ERROR_TIMEOUT);
  EXPECT_FALSE(client.Get(Url("/a b")));  // To no server.
  EXPECT_THAT(counted.Counts(),
              ::testing::UnorderedElementsAre(
                  ::testing::Pair(200, 2), ::testing::Pair(404, 1),
                  ::testing::Pair(int{HttpClient::ERROR_TIMEOUT}, 1)));
  EXPECT_GE(counted.Seconds(), 0.02);
  const auto counts = counted.Total().counts;
  const auto page = client.Get(Url("/metrics"));
  ASSERT_TRUE(page) << page.error().ToString();
  for (const std::string& line :
       {"flare_client_http_requests_total{server=\"" + server +
            "\",status=\"200\"} " + std::to_string(counts.at(200)) + "\n",
        "flare_client_http_requests_total{server=\"" + server +
            "\",status=\"ERROR_TIMEOUT\"} " +
            std::to_string(counts.at(HttpClient::ERROR_TIMEOUT)) + "\n",
        "flare_client_http_latency_seconds_count{server=\"" + server +
            "\"} "}) {
    EXPECT_THAT(*page->body(), ::testing::HasSubstr(line));
  }
}

TEST_F(HttpClientTest, InventedServersShareTheirCounters) {
  const testing::DeadAddress dead;
  const CountedSince others("(other)");
  const std::string url = "http://" + dead.endpoint().ToString();
  EXPECT_FALSE(HttpClient().Get(url));
  EXPECT_THAT(others.Counts(),
              ::testing::ElementsAre(::testing::Pair(
                  int{HttpClient::ERROR_FAIL_TO_CONNECT_SERVER}, 1)));
  EXPECT_FALSE(HttpClientCounters::Read().contains(url));
}

TEST_F(HttpClientTest, RequestsElsewhereCountAsThoseToTheirAddress) {
  OnText("/page", "hello");
  StartServer();
  const CountedSince counted("http://" + endpoint().ToString());
  HttpClient client;
  for (const char* const url : {"http://one.test/page", "http://two.test/page"})
    EXPECT_TRUE(client.Get(url, {.connect_to = endpoint().ToString()}));
  EXPECT_THAT(counted.Counts(),
              ::testing::ElementsAre(::testing::Pair(200, 2)));
  EXPECT_FALSE(HttpClientCounters::Read().contains("http://one.test"));
}

// They mustn't be taken for statuses of responses, or make a series twice.
TEST_F(HttpClientTest, ResultsOfInterceptorsAreToldApart) {
  struct Interceptor : HttpClientInterceptor {
    Expected<HttpResponse> Intercept(const std::string&, HttpRequest*,
                                     const HttpClientNext& next) override {
      auto response = next();
      if (code != 0) return flare::Status(code, "on purpose");
      if (response) response->set_status(static_cast<HttpStatus>(1002));
      return response;
    }
    int code = 0;
  };
  const auto interceptor = std::make_shared<Interceptor>();
  const InstalledExtension extension({.http_client_interceptor = interceptor});
  OnText("/page", "hello");
  StartServer();
  const std::string server = "http://" + endpoint().ToString();
  const CountedSince counted(server);
  HttpClient client;
  EXPECT_TRUE(client.Get(Url("/page")));
  for (int code : {200, 77, 78}) {
    interceptor->code = code;
    EXPECT_EQ(CodeOf(client.Get(Url("/page"))), code);
  }
  EXPECT_THAT(counted.Counts(), ::testing::ElementsAre(::testing::Pair(
                                    HttpClientCounters::kUnknown, 4)));
  const auto page =
      HttpClient(HttpClientOptions{.extensions = false}).Get(Url("/metrics"));
  ASSERT_TRUE(page) << page.error().ToString();
  const std::string line = "flare_client_http_requests_total{server=\"" +
                           server + "\",status=\"ERROR_UNKNOWN\"}";
  const std::string text = *page->body();
  EXPECT_NE(text.find(line), text.npos);
  EXPECT_EQ(text.find(line), text.rfind(line));
}

TEST_F(HttpClientTest, SendsMethodsFieldsAndBodies) {
  On("/echo", [](const HttpRequest& request, HttpResponse* response, auto*) {
    response->headers()->Set("Method", ToStringView(request.method()));
    response->headers()->Set("Target", request.uri());
    for (const char* name : {"Host", "X-Field", "Content-Type", "User-Agent"}) {
      response->headers()->Set(
          "Got-" + std::string(name),
          request.headers()->TryGet(name).value_or("none"));
    }
    response->set_body(*request.noncontiguous_body());
  });
  StartServer();
  HttpClient client;
  const HttpRequestOptions options = {.content_type = "text/x",
                                      .headers = {"X-Field: value"}};
  const auto check = [&](const HttpClient::Result& result,
                         std::string_view method, std::string_view body) {
    ASSERT_TRUE(result) << result.error().ToString();
    const HttpHeaders& fields = *result->headers();
    EXPECT_EQ(fields.TryGet("Method"), method);
    EXPECT_EQ(fields.TryGet("Target"), "/echo?a=b");
    EXPECT_EQ(fields.TryGet("Got-Host"), endpoint().ToString());
    EXPECT_EQ(fields.TryGet("Got-X-Field"), "value");
    EXPECT_EQ(fields.TryGet("Got-Content-Type"), "text/x");
    EXPECT_TRUE(fields.TryGet("Got-User-Agent")->starts_with("flare/"));
    EXPECT_EQ(*result->body(), body);
  };
  const std::string url = Url("/echo?a=b");
  const std::string large(3'000'000, 'x');
  check(client.Get(url, options), "GET", "");
  check(client.Head(url, options), "HEAD", "");
  check(client.Delete(url, options), "DELETE", "");
  check(client.Post(url, "posted", options), "POST", "posted");
  check(client.Put(url, large, options), "PUT", large);
  HttpRequest patch;
  patch.set_method(HttpMethod::Patch);
  patch.set_uri("/echo?a=b");
  patch.set_body("patched");
  check(client.Request("http", endpoint().ToString(), patch, options), "PATCH",
        "patched");
  check(fiber::BlockingGet(client.AsyncGet(url, options)), "GET", "");
  check(fiber::BlockingGet(client.AsyncPost(url, "p", options)), "POST", "p");
  check(fiber::BlockingGet(
            client.AsyncRequest("http", endpoint().ToString(), patch, options)),
        "PATCH", "patched");
}

TEST_F(HttpClientTest, EachStatusIsAResponse) {
  StartServer();
  HttpClient client;
  const auto response = client.Get(Url("/nowhere"));
  ASSERT_TRUE(response) << response.error().ToString();
  EXPECT_EQ(response->status(), HttpStatus::NotFound);
}

TEST_F(HttpClientTest, RefusesWhatItCantSend) {
  On("/", [this](auto&, auto*, auto*) { ++requests_; });
  StartServer();
  HttpClient client;
  EXPECT_EQ(CodeOf(client.Get(Url("/a b"))),
            HttpClient::ERROR_INVALID_URI_ADDRESS);
  EXPECT_EQ(CodeOf(client.Get("ftp://a/")),
            HttpClient::ERROR_PROTOCOL_NOT_SUPPORTED);
  // It would be a socket "80" in the working directory.
  EXPECT_EQ(CodeOf(client.Get("http://unix/")),
            HttpClient::ERROR_INVALID_URI_ADDRESS);
  for (const char* field : {"X: a\r\nEvil: b", "Content-Length: 1", "X"}) {
    EXPECT_EQ(CodeOf(client.Get(Url("/"), {.headers = {field}})),
              HttpClient::ERROR_INVALID_REQUEST);
  }
  EXPECT_EQ(CodeOf(client.Post(Url("/"), "", {.content_type = "a\r\nEvil: b"})),
            HttpClient::ERROR_INVALID_REQUEST);
  HttpRequest request;
  request.set_method(HttpMethod::Get);
  request.set_uri(".example.com/");  // Another host.
  EXPECT_EQ(CodeOf(client.Request("http", "127.0.0.1", request)),
            HttpClient::ERROR_INVALID_URI_ADDRESS);
  request.set_uri("/");
  EXPECT_EQ(CodeOf(client.Request("http", "127.0.0.1/x", request)),
            HttpClient::ERROR_INVALID_URI_ADDRESS);
  request.set_method(HttpMethod::Connect);
  EXPECT_EQ(CodeOf(client.Request("http", endpoint().ToString(), request)),
            HttpClient::ERROR_INVALID_REQUEST);
  EXPECT_EQ(requests_, 0);
}

TEST_F(HttpClientTest, ErrorsHaveACause) {
  OnSlow();
  StartServer();
  HttpClient client;

  testing::DeadAddress dead;
  auto failed = client.Get("http://" + dead.endpoint().ToString() + "/");
  EXPECT_EQ(CodeOf(failed), HttpClient::ERROR_FAIL_TO_CONNECT_SERVER);
  EXPECT_NE(failed.error().message().find("refused"), std::string::npos)
      << failed.error().ToString();

  SetHostLookupForTesting(
      [](std::string_view) -> Expected<std::vector<Endpoint>, flare::Status> {
        return flare::Status(EHOSTUNREACH, "no such host");
      });
  failed = client.Get("http://nowhere.test/");
  SetHostLookupForTesting(nullptr);
  EXPECT_EQ(CodeOf(failed), HttpClient::ERROR_FAIL_TO_RESOLVE_ADDRESS);
  EXPECT_EQ(failed.error().message(), "http://nowhere.test: no such host");

  failed = client.Get(Url("/slow"), {.timeout = 50ms});
  EXPECT_EQ(CodeOf(failed), HttpClient::ERROR_TIMEOUT);

  const testing::SilentAddress silent;
  failed = HttpClient({.connect_timeout = 50ms})
               .Get("http://" + silent.endpoint().ToString() + "/");
  EXPECT_EQ(CodeOf(failed), HttpClient::ERROR_FAIL_TO_CONNECT_SERVER);
  EXPECT_NE(failed.error().message().find("50 ms"), std::string::npos);
  failed = client.Get("http://" + silent.endpoint().ToString() + "/",
                      {.timeout = 50ms});
  EXPECT_EQ(CodeOf(failed), HttpClient::ERROR_TIMEOUT);

  EXPECT_STREQ(HttpClient::ErrorCodeToString(HttpClient::ERROR_TIMEOUT),
               "ERROR_TIMEOUT");
  EXPECT_STREQ(HttpClient::ErrorCodeToString(77), "ERROR_UNKNOWN");
}

TEST_F(HttpClientTest, LooksHostsUpWithinTheTimeout) {
  OnText("/", "hello");
  StartServer();
  std::atomic<int> lookups = 0;
  std::atomic<int> ended = 0;
  SetHostLookupForTesting(
      [&, server = endpoint()](
          std::string_view) -> Expected<std::vector<Endpoint>, flare::Status> {
        ++lookups;
        go_.Wait();
        ++ended;
        return std::vector<Endpoint>{server};
      });
  HttpClient client;
  const std::string url =
      "http://some.test:" + std::to_string(endpoint().port()) + "/";
  for (int i = 0; i != 3; ++i) {
    EXPECT_EQ(CodeOf(client.Get(url, {.timeout = 20ms})),
              HttpClient::ERROR_TIMEOUT);
  }
  while (lookups == 0) std::this_thread::yield();
  EXPECT_EQ(lookups, 1);  // It goes on, for all of them.
  go_.Set();
  EXPECT_EQ(CodeOf(client.Get(url)), 0);
  const int needed = lookups;
  EXPECT_LE(needed, 2);
  EXPECT_EQ(CodeOf(client.Get(url)), 0);  // Over the kept connection.
  EXPECT_EQ(lookups, needed);
  SetHostLookupForTesting(nullptr);
  while (ended != lookups) std::this_thread::yield();
}

TEST_F(HttpClientTest, TriesEachAddress) {
  OnText("/", "hello");
  StartServer();
  testing::DeadAddress dead;
  SetHostLookupForTesting(
      [&](std::string_view) -> Expected<std::vector<Endpoint>, flare::Status> {
        return std::vector<Endpoint>{dead.endpoint(), endpoint()};
      });
  EXPECT_EQ(CodeOf(HttpClient().Get("http://some.test/")), 0);
  SetHostLookupForTesting(nullptr);
}

TEST_F(HttpClientTest, BoundsBodies) {
  OnText("/page", std::string(1000, 'x'));
  StartServer();
  HttpClient client;
  EXPECT_EQ(CodeOf(client.Get(Url("/page"), {.max_body_size = 1000})), 0);
  const auto failed = client.Get(Url("/page"), {.max_body_size = 999});
  EXPECT_EQ(CodeOf(failed), HttpClient::ERROR_RESPONSE_TOO_LARGE);
  EXPECT_NE(failed.error().message().find("max_body_size"), std::string::npos);
}

TEST_F(HttpClientTest, UnpacksWithinTheBound) {
  const std::string page(100'000, 'x');
  On("/page", [&](const HttpRequest& request, HttpResponse* response, auto*) {
    const auto accepts = request.headers()->TryGet("Accept-Encoding");
    response->headers()->Set("Accepts", accepts.value_or("none"));
    response->headers()->Set("Content-Encoding", "gzip");
    response->set_body(
        Compress(CompressionAlgorithm::kGzip, CreateBufferSlow(page)).value());
  });
  On("/broken", [&](auto&, HttpResponse* response, auto*) {
    response->headers()->Set("Content-Encoding", "gzip");
    response->set_body("no gzip");
  });
  StartServer();
  HttpClient client;
  auto response = client.Get(Url("/page"));
  ASSERT_TRUE(response) << response.error().ToString();
  EXPECT_EQ(*response->body(), page);
  EXPECT_FALSE(response->headers()->contains("Content-Encoding"));
  EXPECT_FALSE(response->headers()->contains("Content-Length"));
  EXPECT_EQ(response->headers()->TryGet("Accepts"), "gzip");

  EXPECT_EQ(CodeOf(client.Get(Url("/page"), {.max_body_size = 99'999})),
            HttpClient::ERROR_RESPONSE_TOO_LARGE);
  EXPECT_EQ(CodeOf(client.Get(Url("/broken"))),
            HttpClient::ERROR_DECOMPRESS_RESPONSE);
  EXPECT_EQ(CodeOf(client.Head(Url("/page"))), 0);

  // A request that asks by itself gets the packed body.
  response = client.Get(Url("/page"), {.headers = {"Accept-Encoding: gzip"}});
  ASSERT_TRUE(response);
  EXPECT_EQ(response->headers()->TryGet("Content-Encoding"), "gzip");
  EXPECT_LT(response->body_size(), 1000u);
  response = HttpClient({.use_builtin_compression = false}).Get(Url("/page"));
  ASSERT_TRUE(response);
  EXPECT_EQ(response->headers()->TryGet("Accepts"), "none");
  EXPECT_LT(response->body_size(), 1000u);
}

TEST_F(HttpClientTest, FollowsRedirectionsIfAsked) {
  On("/from", [](auto&, HttpResponse* response, auto*) {
    response->set_status(HttpStatus::Found);
    response->headers()->Set("Location", "to?x");
    response->set_body("moved");
  });
  On("/broken", [](auto&, HttpResponse* response, auto*) {
    response->set_status(HttpStatus::Found);
    response->headers()->Set("Location", "to?x");
    response->headers()->Set("Content-Encoding", "gzip");
    response->set_body("no gzip");
  });
  On("/to", [](const HttpRequest& request, HttpResponse* response, auto*) {
    response->set_body(
        std::string(ToStringView(request.method())) + " " + request.uri() +
        " " +
        std::string(
            request.headers()->TryGet("Authorization").value_or("nobody")));
  });
  On("/loop", [](auto&, HttpResponse* response, auto*) {
    response->set_status(HttpStatus::TemporaryRedirect);
    response->headers()->Set("Location", "/loop");
  });
  On("/lost", [](auto&, HttpResponse* response, auto*) {
    response->set_status(HttpStatus::Found);
  });
  StartServer();
  HttpClient client;
  auto response = client.Get(Url("/from"));
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status(), HttpStatus::Found);
  EXPECT_EQ(*response->body(), "moved");

  HttpResponseInfo info;
  response = client.Post(
      Url("/from"), "body",
      {.max_redirection_count = 1, .headers = {"Authorization: me"}}, &info);
  ASSERT_TRUE(response) << response.error().ToString();
  EXPECT_EQ(*response->body(), "GET /to?x me");
  EXPECT_EQ(info.effective_url, Url("/to?x"));

  EXPECT_EQ(CodeOf(client.Get(Url("/broken"), {.max_redirection_count = 1})),
            0);
  EXPECT_EQ(CodeOf(client.Get(Url("/loop"), {.max_redirection_count = 5})),
            HttpClient::ERROR_TOO_MANY_REDIRECTS);
  EXPECT_EQ(CodeOf(client.Get(Url("/lost"), {.max_redirection_count = 5})),
            HttpClient::ERROR_REDIRECT_LOCATION_NOT_FOUND);
}

TEST_F(HttpClientTest, RedirectionsToOtherServersLoseCredentials) {
  testing::RawServer other;
  On("/away", [&](auto&, HttpResponse* response, auto*) {
    response->set_status(HttpStatus::PermanentRedirect);
    response->headers()->Set("Location",
                             "//" + other.endpoint().ToString() + "/x");
  });
  StartServer();
  HttpClient client;
  // The first server is found by `connect_to`, the other one isn't.
  auto future = client.AsyncGet(
      "http://some.test/away",
      {.max_redirection_count = 1,
       .headers = {"Authorization: secret", "Cookie: secret", "X: y"},
       .connect_to = endpoint().ToString()});
  auto peer = other.Accept();
  const std::string request = peer->ReadUntil("\r\n\r\n");
  EXPECT_EQ(request.find("secret"), std::string::npos) << request;
  EXPECT_NE(request.find("X: y"), std::string::npos);
  EXPECT_NE(request.find("Host: " + other.endpoint().ToString()),
            std::string::npos);
  peer->Send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
  EXPECT_EQ(CodeOf(fiber::BlockingGet(std::move(future))), 0);
}

TEST_F(HttpClientTest, HandsLongBodiesOverInPieces) {
  constexpr std::size_t kPiece = 100'000;
  constexpr int kPieces = 100;
  On("/long", [](auto&, auto*, HttpServerContext* context) {
    for (int i = 0; i != kPieces; ++i) {
      if (!context->body->Write(CreateBufferSlow(std::string(kPiece, 'x')))
               .ok()) {
        return;
      }
    }
  });
  On("/from", [](auto&, HttpResponse* response, auto*) {
    response->set_status(HttpStatus::Found);
    response->headers()->Set("Location", "/long");
    response->set_body("not to be seen");
  });
  StartServer();
  HttpClient client;
  std::size_t bytes = 0;
  int calls = 0;
  HttpRequestOptions options;
  options.max_redirection_count = 1;
  options.max_body_size = 1;  // Doesn't concern it.
  options.on_body = [&](const HttpResponse& response, Buffer piece) {
    EXPECT_EQ(response.status(), HttpStatus::OK);
    EXPECT_EQ(FlattenSlow(piece).find_first_not_of('x'), std::string::npos);
    bytes += piece.size();
    if (++calls % 10 == 0) this_fiber::SleepFor(1ms);
    return true;
  };
  testing::OnFiber([&] {
    const auto response = client.Get(Url("/from"), options);
    ASSERT_TRUE(response) << response.error().ToString();
    EXPECT_EQ(response->body_size(), 0u);
  });
  EXPECT_EQ(bytes, kPiece * kPieces);
  EXPECT_GT(calls, 1);

  options.on_body = [](auto&, Buffer) { return false; };
  EXPECT_EQ(CodeOf(client.Get(Url("/long"), options)),
            HttpClient::ERROR_CANCELLED);

  const CountedSince counted("http://" + endpoint().ToString());
  options.on_body = [](auto&, Buffer) -> bool {
    throw std::runtime_error("on purpose");
  };
  EXPECT_THROW(static_cast<void>(client.Get(Url("/long"), options)),
               std::runtime_error);
  EXPECT_THAT(counted.Counts(), ::testing::ElementsAre(::testing::Pair(
                                    int{HttpClient::ERROR_CANCELLED}, 1)));
}

TEST_F(HttpClientTest, ConnectsToUnixSockets) {
  OnText("/page", "hello");
  const std::string path =
      "/tmp/flare_http_client_" + std::to_string(::getpid());
  server().AddProtocol("http");
  server().ListenOn(EndpointFromUnix(path));
  ASSERT_TRUE(server().Start()) << server().error().ToString();
  const auto response =
      HttpClient().Get("http://unix/page", {.connect_to = "unix:" + path});
  ASSERT_TRUE(response) << response.error().ToString();
  EXPECT_EQ(*response->body(), "hello");
}

TEST_F(HttpClientTest, RequestsWaitForConnections) {
  std::atomic<int> running = 0;
  std::atomic<int> most = 0;
  On("/slow", [&](auto&, auto*, auto*) {
    const int now = ++running;
    int seen = most;
    while (now > seen && !most.compare_exchange_weak(seen, now)) {
    }
    go_.Wait();
    --running;
  });
  StartServer();
  HttpClient client({.max_connections_per_host = 2});
  std::vector<Future<HttpClient::Result>> futures;
  for (int i = 0; i != 6; ++i) futures.push_back(client.AsyncGet(Url("/slow")));
  while (running != 2) std::this_thread::yield();
  const auto failed = client.Get(Url("/slow"), {.timeout = 20ms});
  EXPECT_EQ(CodeOf(failed), HttpClient::ERROR_TIMEOUT);
  EXPECT_NE(failed.error().message().find("2 connections"), std::string::npos)
      << failed.error().ToString();
  go_.Set();
  for (const auto& result : fiber::BlockingGet(WhenAll(std::move(futures)))) {
    EXPECT_EQ(CodeOf(result), 0);
  }
  EXPECT_EQ(most, 2);
}

TEST_F(HttpClientTest, EndsWithTheCallThatItIsPartOf) {
  OnSlow();
  StartServer();
  HttpClient client;
  const auto context = fiber::ExecutionContext::Create();
  auto future = context->Execute([&] { return client.AsyncGet(Url("/slow")); });
  AwaitRequest();
  context->RequestStop(fiber::StopCause::kCallerGone);
  const auto failed = fiber::BlockingGet(std::move(future));
  EXPECT_EQ(CodeOf(failed), HttpClient::ERROR_CANCELLED);
  EXPECT_NE(failed.error().message().find("the caller is gone"),
            std::string::npos);
  // A stop by the deadline may come before the end of the wait.
  const auto late = fiber::ExecutionContext::Create();
  late->RequestStop(fiber::StopCause::kDeadline);
  late->Execute([&] {
    EXPECT_EQ(CodeOf(client.Get(Url("/slow"))), HttpClient::ERROR_TIMEOUT);
  });
  // And takes no longer than that.
  fiber::ExecutionContext::Create(NowNs() + 20'000'000)->Execute([&] {
    EXPECT_EQ(CodeOf(client.Get(Url("/slow"))), HttpClient::ERROR_TIMEOUT);
  });
  go_.Set();
}

TEST_F(HttpClientTest, EndsWithTheClientSide) {
  OnSlow();
  StartServer();
  HttpClient client;
  auto future = client.AsyncGet(Url("/slow"));
  AwaitRequest();
  ShutdownClientSide();
  EXPECT_EQ(CodeOf(fiber::BlockingGet(std::move(future))),
            HttpClient::ERROR_SHUTDOWN);
  EXPECT_EQ(CodeOf(client.Get(Url("/slow"))), HttpClient::ERROR_SHUTDOWN);
  go_.Set();
  // Another one begins it anew.
  HttpClient again;
  EXPECT_EQ(CodeOf(again.Get(Url("/"))), 0);
}

TEST_F(HttpClientTest, OutlivesItsClient) {
  OnSlow();
  OnText("/page", "hello");
  StartServer();
  auto future = HttpClient().AsyncGet(Url("/slow"));
  AwaitRequest();
  go_.Set();
  EXPECT_EQ(CodeOf(fiber::BlockingGet(std::move(future))), 0);
  // Within a request that blocks, too.
  auto client = std::make_unique<HttpClient>();
  HttpRequestOptions options;
  options.on_body = [&](auto&, auto&&) {
    client = nullptr;
    return true;
  };
  EXPECT_EQ(CodeOf(client->Get(Url("/page"), options)), 0);
}

}  // namespace
}  // namespace flare::rpc
