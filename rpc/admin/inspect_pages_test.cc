// The pages under /inspect, as a browser gets them.
#include "flare/rpc/admin/inspect_pages.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/endpoint.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/http/http_routes.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/policy/call_policies.h"
#include "flare/rpc/policy/retry_budget.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

class InspectPagesTest : public ServerTest {
 protected:
  // The whole reply.
  std::string Get(const std::string& path) {
    RawClient client(endpoint());
    client.Send("GET " + path +
                " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    return client.ReadAll();
  }

  // Again and again until `part` is in it, for at most 30 s.
  void GetUntil(const std::string& path, const std::string& part,
                std::string* page) {
    const std::int64_t deadline = NowNs() + 30'000'000'000;
    do {
      *page = Get(path);
    } while (page->find(part) == page->npos && NowNs() < deadline);
  }
};

// For tests with channels.
class InspectChannelsTest : public InspectPagesTest {
 protected:
  void TearDown() override {
    ShutdownClientSide();
    InspectPagesTest::TearDown();
  }

  // The words of the line of that server; none: there is none.
  std::vector<std::string> RowOf(const Endpoint& server);

  static int Call(RpcChannel* channel) {
    TestedCall call;
    call.controller.SetTimeout(std::chrono::seconds(2));
    return call.Start(channel)->Await();
  }
};

std::vector<std::string> Words(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

Strict MakeStrict(std::string body) {
  Strict message;
  message.set_body(std::move(body));
  return message;
}

::testing::AssertionResult Has(const std::string& text,
                               const std::string& part) {
  if (text.find(part) != std::string::npos) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "no \"" << part << "\" in:\n" << text;
}

std::vector<std::string> InspectChannelsTest::RowOf(const Endpoint& server) {
  std::istringstream page(Get("/inspect/channels"));
  for (std::string line; std::getline(page, line);) {
    const std::vector<std::string> words = Words(line);
    if (words.size() == 11 && words[9] == server.ToString()) return words;
  }
  return {};
}

TEST_F(InspectChannelsTest, ChannelsHaveServersAndTheirHealth) {
  StartServer();
  RawServer hole;  // Nobody answers.
  DeadAddress dead;
  const std::string uri = "flare://" + endpoint().ToString() +
                          ";weight=3;zone=a," + hole.endpoint().ToString() +
                          "," + dead.endpoint().ToString();
  RpcChannel::Options options;
  options.health.consecutive_failures = 1;
  options.health.first_ejection = std::chrono::seconds(300);
  RpcChannel channel(uri, options);
  EXPECT_TRUE(RowOf(endpoint()).empty());  // No call, no servers.
  ASSERT_TRUE(fiber::testing::Eventually([&] {
    Call(&channel);
    const auto row = RowOf(hole.endpoint());
    return !row.empty() && row[0] == "ejected:timeouts";
  }));
  ASSERT_TRUE(fiber::testing::Eventually([&] {
    return Call(&channel) == STATUS_SUCCESS &&
           RowOf(dead.endpoint())[0] == "down";
  }));
  const auto ejected = RowOf(hole.endpoint());
  EXPECT_GT(std::stoi(ejected[1]), 0);
  EXPECT_LE(std::stoi(ejected[1]), 300'000);
  EXPECT_EQ(ejected[2], "1");
  EXPECT_EQ(ejected[3], "-");
  EXPECT_EQ(ejected[4], "0");
  EXPECT_NE(ejected[6], "0");
  EXPECT_EQ(ejected[7], "1");
  EXPECT_EQ(ejected[10], uri);
  const auto well = RowOf(endpoint());
  EXPECT_EQ(well[0], "well");
  EXPECT_EQ(well[1], "0");
  EXPECT_EQ(well[2], "3");
  EXPECT_EQ(well[3], "a");
  EXPECT_EQ(well[4], "0");
  EXPECT_NE(well[5], "0");
  EXPECT_NE(well[8], "-");
  EXPECT_TRUE(
      Has(Get("/inspect/channels"), "\n# " + uri + " by list+rr: 3 servers\n"));
  EXPECT_TRUE(Has(Get("/metrics"),
                  "\nflare_client_server_ejections_total{channel=\"" + uri +
                      "\",server=\"" + hole.endpoint().ToString() + "\"} 1\n"));
}

// A counter that falls looks like a restart to Prometheus.
TEST_F(InspectChannelsTest, CountersKeepTheCallsOfEndedChannels) {
  StartServer();
  const DeadAddress dead;
  const std::string uri = dead.uri() + "," + endpoint().ToString();
  const std::string line = "\nflare_client_server_calls_total{channel=\"" +
                           uri + "\",server=\"" + endpoint().ToString() +
                           "\"} ";
  for (int total = 1; total != 3; ++total) {
    RpcChannel channel(uri);
    TestedCall call;
    EXPECT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS)
        << call.controller.ErrorText();
    EXPECT_TRUE(Has(Get("/metrics"), line + std::to_string(total) + "\n"));
  }
  EXPECT_TRUE(Has(Get("/metrics"), line + "2\n"));
}

TEST_F(InspectChannelsTest, RetriesAreCounted) {
  StartServer();
  auto policies = std::make_shared<CallPolicies>();
  EXPECT_TRUE(policies->Set("", {.retry = RetryPolicy()}).ok());
  RpcChannel channel("flare://" + endpoint().ToString(),
                     RpcChannel::Options{.policies = policies});
  const RetryBudget::Counters before = RetryBudget::Default().counters();
  EXPECT_EQ(Call(&channel), STATUS_SUCCESS);
  EXPECT_EQ(RetryBudget::Default().counters().calls, before.calls + 1);
  EXPECT_TRUE(Has(Get("/inspect/channels"),
                  " with a policy: " + std::to_string(before.retries) +
                      " retried, " + std::to_string(before.hedges) +
                      " hedged, " + std::to_string(before.refused) +
                      " refused by the budget, which has "));
}

TEST_F(InspectChannelsTest, ChannelsSayWhatIsWrongWithTheirNames) {
  StartServer();
  auto channel = std::make_unique<RpcChannel>(
      "http+pb:///no/such/file",
      RpcChannel::Options{.override_nslb = "file+p2c"});
  RpcChannel single("flare://" + endpoint().ToString());
  EXPECT_EQ(Call(channel.get()), STATUS_NO_PEER);
  EXPECT_EQ(Call(&single), STATUS_SUCCESS);
  const std::string page = Get("/inspect/channels");
  EXPECT_TRUE(Has(page, "\n# 2 channels;"));
  EXPECT_TRUE(Has(page,
                  "/no/such/file by file+p2c: 0 servers; can't read "
                  "'/no/such/file': No such file"));
  // The only server has no counts.
  EXPECT_EQ(RowOf(endpoint())[0], "well");
  EXPECT_EQ(RowOf(endpoint())[4], "-");
  channel = nullptr;
  EXPECT_TRUE(Has(Get("/inspect/channels"), "\n# 1 channel;"));
}

TEST_F(InspectPagesTest, IndexNamesThePages) {
  StartServer();
  const std::string index = Get("/inspect");
  EXPECT_TRUE(Has(index, "HTTP/1.1 200 OK"));
  EXPECT_TRUE(Has(index, "text/plain"));
  for (const char* page :
       {"/inspect/server", "/inspect/methods", "/inspect/channels",
        "/inspect/scheduler", "/inspect/fibers", "/inspect/stacks",
        "/inspect/flags", "/metrics"}) {
    EXPECT_TRUE(Has(index, page));
    EXPECT_TRUE(Has(Get(page), "HTTP/1.1 200 OK"));
  }
}

TEST_F(InspectPagesTest, IndexHasLinksForBrowsers) {
  StartServer();
  RawClient client(endpoint());
  client.Send(
      "GET /inspect HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
      "Accept: text/html,application/xhtml+xml;q=0.9\r\n\r\n");
  const std::string index = client.ReadAll();
  EXPECT_TRUE(Has(index, "text/html"));
  EXPECT_TRUE(
      Has(index, "\n<a href=\"/inspect/fibers\">/inspect/fibers</a>  "));
}

TEST_F(InspectPagesTest, NeedNothingElseOfTheirServer) {
  Server admin;
  admin.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  ASSERT_TRUE(admin.Start()) << admin.error();
  RawClient client(admin.endpoint());
  client.Send("GET /inspect/server HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(Has(client.ReadAll(), "connections_accepted 1"));
}

TEST_F(InspectPagesTest, ServerCountsCalls) {
  StartServer();
  RawClient client(endpoint());
  for (int i = 1; i <= 3; ++i) {
    client.Call(i, i == 3 ? "no.such.Method" : kCall, MakeRequest("hello"));
    ASSERT_TRUE(client.ReadReply());
  }
  const std::string page = Get("/inspect/server");
  EXPECT_TRUE(Has(page, "\nconnections_accepted 2\n"));
  EXPECT_TRUE(Has(page, "\ncalls_failed 1\n"));
  EXPECT_TRUE(Has(page, "\ncalls_unknown 1\n"));
  EXPECT_TRUE(Has(page, "\nlog_lines_lost 0\n"));
}

TEST_F(InspectPagesTest, MethodsTellsCountersAndLatencies) {
  service().on_other = [](TestCall call) {
    call.controller->SetFailed("no");
    call.Reply();
  };
  fiber::Event inside, finish;
  service().on_call = FlexibleService::EchoAfter(&finish, &inside);
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCallStrict, MakeStrict("hello"));
  ASSERT_TRUE(client.ReadReply());
  for (int i = 2; i <= 12; ++i) {
    client.Call(i, kOther, MakeRequest("hello"));
    ASSERT_TRUE(client.ReadReply());
  }
  client.Call(13, kCall, MakeRequest("hello"));
  inside.Wait();
  std::istringstream page(Get("/inspect/methods"));
  finish.Set();
  ASSERT_TRUE(client.ReadReply());

  std::string line;
  while (std::getline(page, line) && line != "\r") continue;
  ASSERT_TRUE(std::getline(page, line));
  EXPECT_EQ(line.substr(0, 2), "# ");
  ASSERT_TRUE(std::getline(page, line));
  EXPECT_EQ(Words(line),
            (std::vector<std::string>{
                "calls", "running", "failed", "overloaded", "mean_us", "p50_us",
                "p90_us", "p99_us", "p999_us", "max_us", "method"}));
  const std::size_t names_at = line.find("method");
  std::vector<std::string> methods;
  while (std::getline(page, line) && line[0] != '#') {
    EXPECT_EQ(line.find("flare.rpc."), names_at);  // In columns.
    const std::vector<std::string> words = Words(line);
    ASSERT_EQ(words.size(), 11u);
    methods.push_back(words.back());
    std::string counts;
    for (int i = 0; i != 4; ++i) counts += words[i] + " ";
    if (methods.back() == kCall) {
      EXPECT_EQ(counts, "1 1 0 0 ");
    } else if (methods.back() == kOther) {
      EXPECT_EQ(counts, "11 0 11 0 ");
    } else {
      EXPECT_EQ(counts,
                methods.back() == kCallStrict ? "1 0 0 0 " : "0 0 0 0 ");
    }
    // Rows with answered calls.
    const bool measured =
        methods.back() == kOther || methods.back() == kCallStrict;
    for (int i = 4; i != 10; ++i) EXPECT_EQ(words[i] != "-", measured);
    if (!measured) continue;
    EXPECT_GT(std::stod(words[4]), 0);
    for (int i = 6; i != 10; ++i) {
      EXPECT_GE(std::stod(words[i]), std::stod(words[i - 1]));
    }
  }
  EXPECT_TRUE(std::is_sorted(methods.begin(), methods.end()));
  EXPECT_EQ(methods.size(), static_cast<std::size_t>(
                                TestService::descriptor()->method_count()));
}

TEST_F(InspectPagesTest, SchedulerTellsCountersAndDelays) {
  StartServer();
  RawClient client(endpoint());
  for (int i = 1; fiber::GetReadyDelays().count() == 0; ++i) {
    ASSERT_LT(i, 1'000'000);
    client.Call(i, kCall, MakeRequest("hello"));
    ASSERT_TRUE(client.ReadReply());
  }
  const std::string page = Get("/inspect/scheduler");
  for (const char* name :
       {"\nworkers_per_group 2\n", "\ntasks ", "\nsteals_per_task ",
        "\nwakes_per_task ", "\nready_delay_samples ", "\nready_delay_p50_ns ",
        "\nready_delay_p999_ns ", "\nready_delay_max_ns "}) {
    EXPECT_TRUE(Has(page, name));
  }
}

TEST_F(InspectPagesTest, FibersShowWhatCallsWaitFor) {
  fiber::Event inside;
  fiber::Event finish;
  service().on_call = [&](TestCall call) {
    this_fiber::SetName("the waiting one");
    inside.Set();
    finish.Wait();
    FlexibleService::Echo(call);
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest("hello"));
  inside.Wait();
  // It may not have gone to wait yet.
  std::string page;
  GetUntil("/inspect/fibers", "Event", &page);
  EXPECT_TRUE(Has(page, "the waiting one"));
  EXPECT_TRUE(Has(page, "Event"));
  EXPECT_TRUE(Has(page, "entry flare::rpc::ServerCall::RunTask("));
  EXPECT_TRUE(
      Has(page, " for flare.rpc.testing.TestService.Call of 127.0.0.1:"));
  // The page's own fiber.
  EXPECT_TRUE(Has(page, " for a request of 127.0.0.1:"));
  finish.Set();
  ASSERT_TRUE(client.ReadReply());
}

// Every number that looks like an address.
std::vector<std::uint64_t> HexNumbers(const std::string& text) {
  std::vector<std::uint64_t> numbers;
  for (std::size_t at = text.find("0x"); at != text.npos;
       at = text.find("0x", at + 2)) {
    if (std::isxdigit(static_cast<unsigned char>(text[at + 2])) == 0) continue;
    numbers.push_back(std::stoull(text.substr(at + 2), nullptr, 16));
  }
  return numbers;
}

// They would tell where the kernel has put program and stacks.
TEST_F(InspectPagesTest, FibersHaveNoAddresses) {
  fiber::Event inside, finish;
  service().on_call = FlexibleService::EchoAfter(&finish, &inside);
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest("hello"));
  inside.Wait();
  std::string page;
  GetUntil("/inspect/fibers", "Event", &page);
  const std::vector<std::uint64_t> numbers = HexNumbers(page);
  EXPECT_GT(numbers.size(), 3u) << page;
  for (const std::uint64_t number : numbers) {
    EXPECT_LT(number, std::uint64_t{1} << 40) << page;
  }
  finish.Set();
  ASSERT_TRUE(client.ReadReply());
}

// Has the page of methods wait until it is let go.
class SlowPageTest : public InspectPagesTest {
 protected:
  int workers() const override { return 1; }

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(InspectPagesTest::SetUp());
    AddInspectPages([] { return Server::Statistics(); },
                    [this] {
                      inside_.Set();
                      finish_.Wait();
                      return std::vector<Server::MethodStatistics>();
                    },
                    [] { return std::map<std::string, CallCells::Values>(); },
                    {.who = PagesFor::kEveryone}, &routes_);
  }

  HttpStatus StatusOf(const std::string& path) {
    HttpRequest request;
    request.set_method(HttpMethod::Get);
    HttpResponse response;
    HttpServerContext context;
    routes_.Find(path)->HandleRequest(request, &response, &context);
    return response.status();
  }

  fiber::Event inside_, finish_;
  HttpRoutes routes_;
};

TEST_F(SlowPageTest, OneAtATime) {
  Fiber first([&] { EXPECT_EQ(StatusOf("/inspect/methods"), HttpStatus::OK); });
  inside_.Wait();
  for (const char* path :
       {"/inspect/methods", "/inspect/fibers", "/inspect/stacks"}) {
    EXPECT_EQ(StatusOf(path), HttpStatus::ServiceUnavailable) << path;
  }
  EXPECT_EQ(StatusOf("/inspect/server"), HttpStatus::OK);
  finish_.Set();
  first.join();
  EXPECT_EQ(StatusOf("/inspect/fibers"), HttpStatus::OK);
}

TEST_F(SlowPageTest, HoldsNoWorker) {
  Fiber page([&] { EXPECT_EQ(StatusOf("/inspect/methods"), HttpStatus::OK); });
  inside_.Wait();
  Fiber([] {}).join();  // On the only worker.
  finish_.Set();
  page.join();
}

// The pages help to see why a server is overloaded.
TEST_F(InspectPagesTest, LimitsOfCallsDoNotHold) {
  server_options().max_concurrent_requests = 1;
  server().AddHttpHandler(
      "/inspect/stacks",
      NewHttpGetHandler(
          [](const HttpRequest&, HttpResponse* response, HttpServerContext*) {
            response->set_body("mine");
          }));
  fiber::Event inside;
  fiber::Event finish;
  service().on_call = FlexibleService::EchoAfter(&finish, &inside);
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest("hello"));
  inside.Wait();
  EXPECT_TRUE(Has(Get("/inspect/server"), "\ncalls_running 1\n"));
  EXPECT_TRUE(Has(Get("/inspect/fibers"), "HTTP/1.1 200 OK"));
  EXPECT_TRUE(Has(Get("/inspect/nothing"), "Server overloaded."));
  EXPECT_TRUE(Has(Get("/inspect/stacks"), "Server overloaded."));
  finish.Set();
  ASSERT_TRUE(client.ReadReply());
  EXPECT_TRUE(Has(Get("/inspect/stacks"), "mine"));
}

TEST_F(InspectPagesTest, StacksSaysHowToGetAProfile) {
  StartServer();
  EXPECT_TRUE(Has(Get("/inspect/stacks"), "--flare_fiber_stack_profile"));
}

TEST_F(InspectPagesTest, StacksShowsHowDeepCallsGot) {
  fiber::TerminateRuntime();
  fiber::RuntimeOptions options;
  options.concurrency = 2;
  options.stack_profile = true;
  options.make_poller = io::EpollPoller::Factory();
  ASSERT_TRUE(fiber::StartRuntime(options).ok());
  StartServer();
  // Each request's own task is known once it has ended, which may be after the
  // reply.
  std::string page;
  GetUntil("/inspect/stacks", "ServerCall", &page);
  EXPECT_TRUE(Has(page, "suggested --flare_fiber_stack_size="));
  EXPECT_TRUE(Has(page, "\nmax_bytes tasks entry\n"));
  EXPECT_TRUE(Has(page, "ServerCall"));
}

TEST_F(InspectPagesTest, CanBeLeftOut) {
  server_options().no_builtin_pages = true;
  StartServer();
  EXPECT_TRUE(Has(Get("/inspect"), "HTTP/1.1 404"));
}

TEST_F(InspectPagesTest, CanBeLeftOutByTheOtherOption) {
  server_options().builtin_pages = BuiltinPages::kNone;
  StartServer();
  EXPECT_TRUE(Has(Get("/inspect"), "HTTP/1.1 404"));
  EXPECT_TRUE(Has(Get("/metrics"), "HTTP/1.1 404"));
}

constexpr char kOpensThem[] = "--flare_rpc_server_pages=everyone";

TEST_F(InspectPagesTest, ArentPassedOnByProxies) {
  StartServer();
  for (const char* field : {"X-Forwarded-For: 192.0.2.1", "Via: 1.1 proxy",
                            "forwarded: for=192.0.2.1"}) {
    RawClient client(endpoint());
    client.Send("GET /metrics HTTP/1.0\r\n" + std::string(field) + "\r\n\r\n");
    const std::string reply = client.ReadAll();
    EXPECT_TRUE(Has(reply, " 403 ")) << field;
    EXPECT_TRUE(Has(reply, kOpensThem));
  }
}

// Else a browser on the host would read them to a page of a stranger, whose
// name has got the address of the host.
TEST_F(InspectPagesTest, AnswerUnderTheNamesOfThisHostOnly) {
  StartServer();
  const auto get = [&](const std::string& host) {
    RawClient client(endpoint());
    client.Send("GET /inspect/server HTTP/1.1\r\nHost: " + host +
                "\r\nConnection: close\r\n\r\n");
    return client.ReadAll();
  };
  for (const char* host : {"localhost", "LocalHost:80", "127.0.0.1",
                           "127.0.0.1:5567", "[::1]", "[::1]:80", "10.1.2.3"}) {
    EXPECT_TRUE(Has(get(host), " 200 ")) << host;
  }
  for (const char* host :
       {"evil.example", "evil.example:80", "localhost.evil.example",
        "127.0.0.1.evil.example:80", "[evil]", "[::1"}) {
    const std::string reply = get(host);
    EXPECT_FALSE(Has(reply, " 200 ")) << host;
    EXPECT_TRUE(Has(reply, " 40")) << host;
  }
  EXPECT_TRUE(Has(get("evil.example"), kOpensThem));
}

TEST_F(InspectPagesTest, CanBeOpenedToEveryone) {
  server_options().builtin_pages = BuiltinPages::kEveryone;
  StartServer();
  RawClient client(endpoint());
  client.Send(
      "GET /inspect/server HTTP/1.0\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n");
  EXPECT_TRUE(Has(client.ReadAll(), "connections_accepted 1"));
}

TEST_F(InspectPagesTest, MethodsThatWereCalledLatelyHaveTheirRates) {
  HttpRoutes routes;
  AddInspectPages([] { return Server::Statistics(); },
                  [] {
                    std::vector<Server::MethodStatistics> methods(2);
                    methods[0].name = "a.Quiet.Call";
                    methods[1].name = "a.Busy.Call";
                    methods[1].last_minute = {.seconds = 60,
                                              .calls_per_second = 12.34,
                                              .failed_per_second = 0.5,
                                              .p50_ns = 1000,
                                              .p90_ns = 20'000,
                                              .p99_ns = 300'000};
                    return methods;
                  },
                  [] { return std::map<std::string, CallCells::Values>(); },
                  {.who = PagesFor::kEveryone}, &routes);
  HttpRequest request;
  request.set_method(HttpMethod::Get);
  HttpResponse response;
  HttpServerContext context;
  routes.Find("/inspect/methods")->HandleRequest(request, &response, &context);
  std::istringstream page(*response.body());
  std::string line;
  while (std::getline(page, line) && !line.starts_with("# the last 10 s")) {
    continue;
  }
  ASSERT_TRUE(std::getline(page, line));
  EXPECT_EQ(Words(line), (std::vector<std::string>{
                             "#", "rate_10s", "failed_10s", "p50_10s",
                             "p90_10s", "p99_10s", "rate_1m", "failed_1m",
                             "p50_1m", "p90_1m", "p99_1m", "method"}));
  ASSERT_TRUE(std::getline(page, line));
  EXPECT_EQ(Words(line), (std::vector<std::string>{
                             "#", "0.0", "0.0", "-", "-", "-", "12.3", "0.5",
                             "1.0", "20.0", "300.0", "a.Busy.Call"}));
  EXPECT_FALSE(std::getline(page, line));
}

// The answer to peers of these addresses.
TEST_F(InspectPagesTest, AnswersPeersOnThisHostOnly) {
  HttpRoutes routes;
  AddInspectPages([] { return Server::Statistics(); },
                  [] { return std::vector<Server::MethodStatistics>(); },
                  [] { return std::map<std::string, CallCells::Values>(); },
                  {.who = PagesFor::kLoopback}, &routes);
  const auto get = [&](const Endpoint& peer, const char* path) {
    HttpRequest request;
    request.set_method(HttpMethod::Get);
    HttpResponse response;
    HttpServerContext context;
    context.remote_peer = peer;
    routes.Find(path)->HandleRequest(request, &response, &context);
    return response;
  };
  for (const char* path :
       {"/inspect", "/inspect/server", "/inspect/methods", "/inspect/channels",
        "/inspect/scheduler", "/inspect/fibers", "/inspect/stacks",
        "/inspect/flags", "/metrics"}) {
    for (const Endpoint& peer :
         {EndpointFromIpv4("127.3.2.1", 7), EndpointFromIpv6("::1", 7),
          EndpointFromIpv6("::ffff:127.0.0.1", 7), EndpointFromUnix("/x")}) {
      EXPECT_EQ(get(peer, path).status(), HttpStatus::OK) << peer << path;
    }
    for (const Endpoint& peer :
         {EndpointFromIpv4("192.0.2.1", 7), EndpointFromIpv6("2001:db8::1", 7),
          EndpointFromIpv6("::ffff:192.0.2.1", 7), Endpoint()}) {
      const HttpResponse refusal = get(peer, path);
      EXPECT_EQ(refusal.status(), HttpStatus::Forbidden) << peer << path;
      EXPECT_TRUE(Has(*refusal.body(), kOpensThem));
    }
  }
}

TEST_F(InspectPagesTest, AUsersOwnPageWins) {
  server().AddHttpHandler(
      "/inspect",
      NewHttpGetHandler(
          [](const HttpRequest&, HttpResponse* response, HttpServerContext*) {
            response->set_body("my own");
          }));
  StartServer();
  EXPECT_TRUE(Has(Get("/inspect"), "my own"));
  EXPECT_TRUE(Has(Get("/inspect/server"), "connections_accepted"));
}

TEST_F(InspectPagesTest, PlainHttpComesWithThem) {
  StartServer({"flare"});
  EXPECT_TRUE(Has(Get("/inspect"), "HTTP/1.1 200"));
  EXPECT_TRUE(Has(Get("/rpc/x"), "HTTP/1.1 404"));
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest("hello"));
  EXPECT_TRUE(client.ReadReply());
}

TEST_F(InspectPagesTest, PlainHttpComesWithThemBesideCalls) {
  StartServer({"flare", "http+pb"});
  EXPECT_TRUE(Has(Get("/inspect"), "HTTP/1.1 200"));
  EXPECT_TRUE(Has(Get("/rpc/x"), "HTTP/1.1 405"));
  RawClient client(endpoint(), "http+pb");
  client.Call(1, kCall, MakeRequest("hello"));
  EXPECT_TRUE(client.ReadReply());
}

TEST_F(InspectPagesTest, WithoutThemThereIsNoPlainHttp) {
  server_options().no_builtin_pages = true;
  StartServer({"flare"});
  EXPECT_EQ(Get("/inspect"), "");
}

TEST_F(InspectPagesTest, AHandlerIsServedWithoutThem) {
  server_options().no_builtin_pages = true;
  server().AddHttpHandler(
      "/mine", NewHttpGetHandler([](auto&, HttpResponse* response, auto*) {
        response->set_body("my own");
      }));
  StartServer({"flare"});
  EXPECT_TRUE(Has(Get("/mine"), "my own"));
  EXPECT_TRUE(Has(Get("/inspect"), "HTTP/1.1 404"));
}

}  // namespace
}  // namespace flare::rpc::testing
