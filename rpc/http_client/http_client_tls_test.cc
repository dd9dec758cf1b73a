// https. Certificates by an authority, and wrong ones of all kinds, are for
// example/short/short_test.py.
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "flare/fiber/future.h"
#include "flare/io/testing/tls_certificate.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/http_client.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

class HttpClientTls : public testing::ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    io::testing::MakeTlsCertificate(folder_);
    server_options().tls = TlsServerOptions{
        .certificates = {{folder_ + "/certificate", folder_ + "/key"}}};
    server().AddHttpHandler(
        "/page", NewHttpGetHandler([](auto&, HttpResponse* response, auto*) {
          response->set_body("hello");
        }));
    StartServer();
  }

  void TearDown() override {
    ShutdownClientSide();
    ServerTest::TearDown();
    ::unlink((folder_ + "/certificate").c_str());
    ::unlink((folder_ + "/key").c_str());
    ::rmdir(folder_.c_str());
  }

  std::string Url(const std::string& scheme) {
    return scheme + "://" + endpoint().ToString() + "/page";
  }

  std::string folder_ = "/tmp/flare_http_client_XXXXXX";
};

TEST_F(HttpClientTls, GetsAPage) {
  HttpClient client({.tls = {.insecure_skip_verify = true}});
  HttpResponseInfo info;
  for (int i = 0; i != 2; ++i) {
    const auto response = client.Get(Url("https"), {}, &info);
    ASSERT_TRUE(response) << response.error().ToString();
    EXPECT_EQ(*response->body(), "hello");
    EXPECT_EQ(info.connection_reused, i != 0);
  }
}

TEST_F(HttpClientTls, VerifiesUnlessItIsTold) {
  for (const TlsClientOptions& tls :
       {TlsClientOptions{}, TlsClientOptions{.ca = folder_ + "/certificate"},
        TlsClientOptions{.ca = folder_ + "/nothing"}}) {
    const auto failed = HttpClient({.tls = tls}).Get(Url("https"));
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code(), HttpClient::ERROR_SSL)
        << failed.error().ToString();
  }
}

TEST_F(HttpClientTls, DoesNotFallBack) {
  HttpClient client({.tls = {.insecure_skip_verify = true}});
  // A plain request to a port with TLS, and the other way around.
  EXPECT_FALSE(client.Get(Url("http")));
  testing::RawServer plain;
  auto future = client.AsyncGet("https://" + plain.endpoint().ToString() + "/");
  auto peer = plain.Accept();
  peer->Send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
  const auto failed = fiber::BlockingGet(std::move(future));
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), HttpClient::ERROR_SSL)
      << failed.error().ToString();
}

TEST_F(HttpClientTls, IsNotLeftByARedirection) {
  HttpClient client({.tls = {.insecure_skip_verify = true}});
  // A server that speaks TLS redirects to one that doesn't.
  Server redirecting(server_options());
  redirecting.AddHttpHandler(
      "/page", NewHttpGetHandler([](auto&, HttpResponse* response, auto*) {
        response->set_status(HttpStatus::Found);
        response->headers()->Set("Location", "http://127.0.0.1:1/");
      }));
  redirecting.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  ASSERT_TRUE(redirecting.Start()) << redirecting.error().ToString();
  const auto failed =
      client.Get("https://" + redirecting.endpoint().ToString() + "/page",
                 {.max_redirection_count = 3});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), HttpClient::ERROR_PROTOCOL_NOT_SUPPORTED)
      << failed.error().ToString();
  redirecting.Stop();
  redirecting.Join();
}

}  // namespace
}  // namespace flare::rpc
