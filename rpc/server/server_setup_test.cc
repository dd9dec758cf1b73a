// Settings of a server before it starts, and their faults: protocols,
// addresses, services, limits; and groups of servers.
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/rpc/http_handler.h"
#include "flare/rpc/server.h"
#include "flare/rpc/server_group.h"
#include "flare/rpc/testing/logged_lines.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using ServerSetUpTest = ServerTest;

TEST_F(ServerSetUpTest, UnknownProtocolIsAnErrorThatNamesTheKnownOnes) {
  EXPECT_FALSE(server().AddProtocol("svrkit"));
  EXPECT_NE(server().error().message().find("svrkit"), std::string::npos);
  EXPECT_NE(server().error().message().find("http+pb"), std::string::npos)
      << server().error().ToString();
  EXPECT_TRUE(server().AddProtocol("flare"));
  server().ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  EXPECT_FALSE(server().Start());
}

TEST_F(ServerSetUpTest, IncompleteSetUpIsAnError) {
  Server no_address;
  no_address.AddProtocol("flare");
  EXPECT_FALSE(no_address.Start());
  EXPECT_NE(no_address.error().message().find("ListenOn"), std::string::npos);

  Server named_address;
  EXPECT_FALSE(named_address.ListenOn(EndpointFromIpv4("localhost", 0)));
  EXPECT_NE(named_address.error().message().find("not of a host's name"),
            std::string::npos)
      << named_address.error().ToString();

  Server no_protocol(Server::Options{.no_builtin_pages = true});
  no_protocol.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  EXPECT_FALSE(no_protocol.Start());
  EXPECT_NE(no_protocol.error().message().find("AddProtocol"),
            std::string::npos);

  FlexibleService service;
  Server service_without_protocol;
  service_without_protocol.AddService(&service);
  service_without_protocol.AddHttpHandler(
      "/", NewHttpGetHandler([](const auto&, auto*, auto*) {}));
  service_without_protocol.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  EXPECT_FALSE(service_without_protocol.Start());

  // Handlers are reached by HTTP anyway.
  Server handlers_alone;
  handlers_alone.AddHttpHandler(
      "/", NewHttpGetHandler([](const auto&, auto*, auto*) {}));
  handlers_alone.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  EXPECT_TRUE(handlers_alone.Start()) << handlers_alone.error();
  handlers_alone.Stop();
  handlers_alone.Join();

  Server bad_address;
  EXPECT_FALSE(bad_address.ListenOn(EndpointFromIpv4("1.2.3", 1)));
  Server two_addresses;
  EXPECT_TRUE(two_addresses.ListenOn(EndpointFromIpv4("127.0.0.1", 0)));
  EXPECT_FALSE(two_addresses.ListenOn(EndpointFromIpv4("127.0.0.1", 0)));

  Server bad_limits(
      Server::Options{.max_concurrent_requests_per_method = "not a limit"});
  bad_limits.AddProtocol("flare");
  bad_limits.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  EXPECT_FALSE(bad_limits.Start());
  EXPECT_NE(bad_limits.error().message().find("not a limit"),
            std::string::npos);

  Server bad_status(Server::Options{.status_code_for_overloaded = 0});
  bad_status.AddProtocol("flare");
  bad_status.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  EXPECT_FALSE(bad_status.Start());
  EXPECT_NE(bad_status.error().message().find("must not be 0"),
            std::string::npos);
}

TEST_F(ServerSetUpTest, LogLinesNameTheAddress) {
  const LoggedLines lines;
  Server server;
  EXPECT_FALSE(server.Start());
  Server other;
  other.AddProtocol("flare");
  other.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  ASSERT_TRUE(other.Start());
  EXPECT_FALSE(other.Start());
  EXPECT_TRUE(lines.Have("Server: there was no ListenOn()")) << lines.All();
  EXPECT_TRUE(
      lines.Have("Server " + other.endpoint().ToString() + ": it was started"))
      << lines.All();
}

TEST_F(ServerSetUpTest, EachServiceAndPathOnce) {
  FlexibleService again;
  EXPECT_FALSE(server().AddService(&again));
  EXPECT_FALSE(
      server().AddService(static_cast<google::protobuf::Service*>(nullptr)));
  EXPECT_FALSE(
      server().AddHttpHandler("/null", std::unique_ptr<HttpHandler>()));
  Server other;
  const auto handler = [](const HttpRequest&, HttpResponse*,
                          HttpServerContext*) {};
  EXPECT_TRUE(other.AddHttpHandler("/a", NewHttpGetHandler(handler)));
  EXPECT_FALSE(other.AddHttpHandler("/a", NewHttpGetHandler(handler)));
  EXPECT_FALSE(other.AddHttpHandler("b", NewHttpGetHandler(handler)));
  EXPECT_FALSE(other.AddHttpPrefixHandler("", NewHttpGetHandler(handler)));
}

TEST_F(ServerSetUpTest, PortInUseIsAnError) {
  StartServer();
  Server second;
  second.AddProtocol("flare");
  second.ListenOn(endpoint());
  EXPECT_FALSE(second.Start());
  EXPECT_NE(second.error().message().find(endpoint().ToString()),
            std::string::npos)
      << second.error().ToString();
  // The first goes on; once it has stopped the port is free.
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  EXPECT_TRUE(client.ReadReply());
  client.Close();
  StopServer();
  Server third;
  third.AddProtocol("flare");
  third.ListenOn(endpoint());
  EXPECT_TRUE(third.Start()) << third.error().ToString();
}

TEST_F(ServerSetUpTest, GroupStartsAllOrNone) {
  ServerGroup group;
  Endpoint taken;
  {
    auto good = std::make_unique<Server>();
    good->AddProtocol("flare");
    good->ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    group.AddServer(std::move(good));
    auto bad = std::make_unique<Server>();
    bad->AddProtocol("flare");
    group.AddServer(std::move(bad));
  }
  EXPECT_FALSE(group.Start());

  ServerGroup two;
  std::vector<Server*> servers;
  for (int i = 0; i != 2; ++i) {
    auto member = std::make_unique<Server>();
    member->AddProtocol("flare");
    member->AddService(std::make_unique<FlexibleService>());
    member->ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    servers.push_back(two.AddServer(std::move(member)));
  }
  ASSERT_TRUE(two.Start());
  for (Server* member : servers) {
    RawClient client(member->endpoint());
    client.Call(1, kCall, MakeRequest(""));
    EXPECT_TRUE(client.ReadReply());
  }
  two.Stop();
  two.Join();
}

TEST_F(ServerSetUpTest, GroupMakesAndBorrowsServers) {
  const Endpoint any = EndpointFromIpv4("127.0.0.1", 0);
  const std::vector<std::string> flare = {"flare"};
  FlexibleService service;
  Server borrowed;
  borrowed.AddProtocol("flare");
  borrowed.AddService(&service);
  borrowed.ListenOn(any);

  ServerGroup group;
  std::vector<Server*> servers = {
      group.AddServer(any, flare, std::make_unique<FlexibleService>()),
      group.AddServer(any, flare, &service),
      group.AddServer(&borrowed),
      group.AddServer(),
  };
  EXPECT_EQ(servers[2], &borrowed);
  servers[3]->AddProtocol("flare");
  servers[3]->AddService(&service);
  servers[3]->ListenOn(any);
  ASSERT_TRUE(group.Start());
  for (Server* member : servers) {
    RawClient client(member->endpoint());
    client.Call(1, kCall, MakeRequest(""));
    EXPECT_TRUE(client.ReadReply());
  }
  group.Stop();
  EXPECT_EQ(group.Join(), 0u);

  ServerGroup wrong;
  wrong.AddServer(any, {"no such protocol"}, &service);
  EXPECT_FALSE(wrong.Start());
}

TEST_F(ServerSetUpTest, ListensOnUnixSockets) {
  // In place of TempDir(): a socket's path has at most 107 characters.
  const std::string path =
      "/tmp/flare_server_setup_test." + std::to_string(getpid());
  server().AddProtocol("flare");
  server().ListenOn(EndpointFromUnix(path));
  ASSERT_TRUE(server().Start()) << server().error().ToString();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest("local"));
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "local");
}

}  // namespace
}  // namespace flare::rpc::testing
