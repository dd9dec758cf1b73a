// Code as users of the published framework (Tencent's flare) have it, which
// docs/migration.md promises compiles and does the same. Differences that it
// names are left out, or written as it says.
#include <google/protobuf/stubs/callback.h>

#include <bitset>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/endpoint.h"
#include "flare/base/future.h"
#include "flare/fiber/future.h"
#include "flare/fiber/latch.h"
#include "flare/init.h"
#include "flare/init/on_init.h"
#include "flare/init/override_flag.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/server.h"
#include "flare/rpc/server_group.h"
#include "flare/rpc/testing/raw_client.h"
#include "gtest/gtest.h"
#include "rpc/testing/published_service.flare.pb.h"

using namespace std::literals;

FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(flare_fiber_scheduling_optimize_for, "io-heavy");
FLARE_OVERRIDE_FLAG(flare_rpc_client_default_rpc_timeout_ms, 20000);
FLARE_OVERRIDE_FLAG(flare_rpc_client_connect_timeout_ms, 20000);

namespace example::published {
namespace {

std::string steps;

FLARE_ON_INIT([] { steps += "init "; }, [] { steps += "fini "; });
FLARE_ON_INIT(-1, [] { steps += "early "; })

class EchoServiceImpl : public SyncEchoService {
 public:
  void Echo(const EchoRequest& request, EchoResponse* response,
            flare::RpcServerController* ctlr) override {
    if (request.body() == "fail") {
      ctlr->SetFailed(flare::rpc::STATUS_RESERVED_MAX + 1, "as you wish");
      return;
    }
    const std::bitset<64> acceptable =
        ctlr->GetAcceptableCompressionAlgorithms();
    EXPECT_GT(acceptable.count(), 1u);
    if (ctlr->GetAcceptableCompressionAlgorithms()
            [flare::rpc::COMPRESSION_ALGORITHM_SNAPPY]) {
      ctlr->SetCompressionAlgorithm(flare::rpc::COMPRESSION_ALGORITHM_SNAPPY);
    } else {
      ctlr->SetCompressionAlgorithm(ctlr->GetPreferredCompressionAlgorithm());
    }
    EXPECT_TRUE(ctlr->GetTimeout());
    EXPECT_LE(ctlr->GetTimestampReceived(), *ctlr->GetTimeout());
    EXPECT_FALSE(ctlr->GetRemotePeer().ToString().empty());
    response->set_body(request.body());
    ctlr->SetResponseAttachment(ctlr->GetRequestAttachment());
    EXPECT_FALSE(ctlr->GetResponseAttachmentPrecompressed());
    if (request.body() == "raw") {
      ctlr->SetResponseRawBytes(flare::CreateBufferSlow("never sent"));
      EXPECT_FALSE(ctlr->GetResponseRawBytes().Empty());
      ctlr->ClearResponseRawBytes();
    }
  }
};

class EchoHandler : public flare::HttpHandler {
 public:
  void OnPost(const flare::HttpRequest& request, flare::HttpResponse* response,
              flare::HttpServerContext* context) override {
    EXPECT_LE(context->received_at, context->dispatched_at + 1ms);
    response->set_status(flare::HttpStatus::OK);
    response->headers()->Append({{"X-First", "1"}, {"X-Second", "2"}});
    const int times = request.headers()->TryGet<int>("X-Times").value_or(1);
    for (int i = 0; i != times; ++i) response->body()->append(*request.body());
  }
};

std::string AskOverHttp(const flare::Endpoint& server, const std::string& ask) {
  flare::rpc::testing::RawClient client(server);
  client.Send(ask);
  return client.ReadAll();
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void CallInEveryWay(const flare::Endpoint& server) {
  const std::string uri = "flare://" + server.ToString();
  flare::RpcChannel channel;
  ASSERT_TRUE(channel.Open(
      uri, flare::RpcChannel::Options{.maximum_packet_size = 1 << 20,
                                      .override_nslb = "list+rr"}));
  EchoService_SyncStub stub(&channel);
  EchoRequest request;
  request.set_body("hello");
  flare::RpcClientController ctlr;
  ctlr.SetTimeout(10s);
  ctlr.SetMaxRetries(2);
  ctlr.SetCompressionAlgorithm(flare::rpc::COMPRESSION_ALGORITHM_GZIP);
  ctlr.SetRequestAttachment(flare::CreateBufferSlow("attached"));
  if (auto result = stub.Echo(request, &ctlr)) {
    EXPECT_EQ(result->body(), "hello");
    EXPECT_EQ(flare::FlattenSlow(ctlr.GetResponseAttachment()), "attached");
    EXPECT_EQ(ctlr.GetRemotePeer().ToString(), server.ToString());
    EXPECT_GT(ctlr.GetElapsedTime() / 1ns, 0);
  } else {
    ADD_FAILURE() << result.error().ToString();
  }

  ctlr.Reset();
  request.set_body("fail");
  auto failed = stub.Echo(request, &ctlr);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), 1001);
  EXPECT_EQ(failed.error().message(), "as you wish");
  EXPECT_EQ(ctlr.ErrorCode(), 1001);

  request.set_body("raw");
  EchoService_AsyncStub async(uri);
  flare::RpcClientController c1, c2;
  auto f1 = async.Echo(request, &c1);
  auto f2 = async.Echo(request, &c2);
  auto [r1, r2] = flare::fiber::BlockingGet(flare::WhenAll(&f1, &f2));
  EXPECT_EQ(r1->body(), "raw");
  EXPECT_EQ(r2->body(), "raw");

  // Bytes in place of messages.
  ctlr.Reset();
  ctlr.SetRequestRawBytes(flare::CreateBufferSlow("no message"));
  ctlr.ClearRequestRawBytes();
  ctlr.SetRequestRawBytes(flare::CreateBufferSlow(request.SerializeAsString()));
  ctlr.SetAcceptResponseRawBytes(true);
  flare::fiber::Latch latch(1);
  EchoService_Stub stock(&channel);
  stock.Echo(&ctlr, nullptr, nullptr,
             google::protobuf::NewCallback(
                 +[](flare::fiber::Latch* l) { l->count_down(); }, &latch));
  latch.wait();
  EXPECT_FALSE(ctlr.Failed()) << ctlr.ErrorText();
  EXPECT_FALSE(ctlr.GetResponseRawBytes().Empty());
}

int Entry(int, char**) {
  EchoHandler handler;
  EchoServiceImpl service;
  flare::Server server(flare::Server::Options{
      .service_name = "published",
      .no_builtin_pages = true,
      .maximum_packet_size = 1 << 20,
      .max_concurrent_requests = 1000,
      .max_concurrent_connections = 100,
      .max_request_queueing_delay = 10s,
      .conn_filter = [](const flare::Endpoint&) { return true; }});
  server.AddProtocols({"flare", "http+pb", "http+proto3-json", "baidu-std"});
  server.AddProtocol("http");
  server.AddService(&service);
  server.AddHttpHandler("/path/to/echo.svc", &handler);
  server.AddHttpHandler("/another/path", &handler);
  server.AddHttpPrefixHandler("/prefix/", std::make_unique<EchoHandler>());
  server.SetDefaultHttpHandler(flare::NewHttpGetHandler(
      [text = std::make_unique<std::string>("anything")](
          auto&& r, auto&& w, auto&&) { w->set_body(*text + *r.body()); }));
  server.ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
  EXPECT_TRUE(server.Start());
  CallInEveryWay(server.endpoint());
  for (const std::string path :
       {"/path/to/echo.svc", "/another/path", "/prefix/x"}) {
    const std::string reply =
        AskOverHttp(server.endpoint(), "POST " + path +
                                           " HTTP/1.0\r\nX-Times: 2\r\n"
                                           "Content-Length: 2\r\n\r\nab");
    EXPECT_TRUE(Has(reply, "\r\nX-Second: 2\r\n")) << reply;
    EXPECT_TRUE(Has(reply, "\r\n\r\nabab")) << reply;
  }
  EXPECT_TRUE(
      Has(AskOverHttp(server.endpoint(), "GET /inspect HTTP/1.0\r\n\r\n"),
          "anything"));
  server.Stop();
  server.Join();

  flare::ServerGroup servers;
  auto&& dummy = *servers.AddServer();  // For its pages.
  dummy.ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
  servers.AddServer(flare::EndpointFromIpv4("127.0.0.1", 0), {"flare"},
                    std::make_unique<EchoServiceImpl>());
  servers.AddServer(flare::EndpointFromIpv4("127.0.0.1", 0), {"flare"},
                    &service);
  servers.AddServer(std::make_unique<flare::Server>())
      ->ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
  EXPECT_TRUE(servers.Start());
  EXPECT_TRUE(
      Has(AskOverHttp(dummy.endpoint(), "GET /inspect/server HTTP/1.0\r\n\r\n"),
          "connections_accepted 1"));
  servers.Stop();
  servers.Join();
  return 7;
}

TEST(PublishedCode, CompilesAndRuns) {
  char name[] = "published_code";
  char* argv[] = {name, nullptr};
  EXPECT_EQ(flare::Start(1, argv, Entry), 7);
  EXPECT_EQ(steps, "early init fini ");
}

}  // namespace
}  // namespace example::published
