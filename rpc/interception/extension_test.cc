#include "flare/rpc/extension.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "flare/rpc/client/client_side.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

struct CountServerCalls : ServerInterceptor {
  void Intercept(InterceptedCall&, ServerNext& next) override {
    ++calls;
    next.Run();
  }
  std::atomic<int> calls{0};
};

struct CountClientCalls : ClientInterceptor {
  void Intercept(ClientInterceptedCall&, ClientNext& next) override {
    ++calls;
    next.Run();
  }
  std::atomic<int> calls{0};
};

class ExtensionTest : public ServerTest {
 protected:
  void TearDown() override {
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  Extension MakeExtension() {
    return {
        .server_interceptor = served_,
        .client_interceptor = called_,
        .page = Extension::Page{
            .path = "/inspect/of-an-extension-with-a-long-name",
            .what = "its state",
            .write = [](const HttpRequest& request, HttpResponse* response) {
              response->set_body("asked for " + std::string(request.query()));
            }}};
  }

  std::string Get(const std::string& path) {
    RawClient client(endpoint());
    client.Send("GET " + path +
                " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    return client.ReadAll();
  }

  int Call(RpcChannel::Options options = {}) {
    RpcChannel channel("flare://" + endpoint().ToString(), options);
    TestedCall call;
    return call.Start(&channel)->Await();
  }

  const std::shared_ptr<CountServerCalls> served_ =
      std::make_shared<CountServerCalls>();
  const std::shared_ptr<CountClientCalls> called_ =
      std::make_shared<CountClientCalls>();
};

TEST_F(ExtensionTest, TakesPartInServersAndChannels) {
  auto installed = std::make_unique<InstalledExtension>(MakeExtension());
  StartServer();
  EXPECT_EQ(Call(), 0);
  EXPECT_EQ(served_->calls, 1);
  EXPECT_EQ(called_->calls, 1);
  EXPECT_EQ(Call({.extensions = false}), 0);
  EXPECT_EQ(served_->calls, 2);
  EXPECT_EQ(called_->calls, 1);
  const std::string page = Get("/inspect/of-an-extension-with-a-long-name?a=b");
  EXPECT_NE(page.find("asked for a=b"), page.npos) << page;
  EXPECT_NE(page.find("no-store"), page.npos) << page;
  const std::string index = Get("/inspect");
  EXPECT_NE(index.find("-with-a-long-name its state\n"), index.npos) << index;
  // The server has taken it, a channel that is opened now doesn't.
  installed.reset();
  EXPECT_EQ(Call(), 0);
  EXPECT_EQ(called_->calls, 1);
  EXPECT_GE(served_->calls, 3);
}

TEST_F(ExtensionTest, MayHaveNothing) {
  const InstalledExtension nothing({});
  EXPECT_EQ(InstalledExtensions().size(), 1u);
  StartServer();
  EXPECT_EQ(Call(), 0);
}

TEST_F(ExtensionTest, ComesBeforeOwnInterceptors) {
  std::string order;
  struct Note : ClientInterceptor {
    Note(std::string* order, char name) : order(order), name(name) {}
    void Intercept(ClientInterceptedCall&, ClientNext& next) override {
      *order += name;
      next.Run();
    }
    std::string* const order;
    const char name;
  };
  const InstalledExtension first(
      {.client_interceptor = std::make_shared<Note>(&order, '1')});
  const InstalledExtension second(
      {.client_interceptor = std::make_shared<Note>(&order, '2')});
  StartServer();
  EXPECT_EQ(Call({.interceptors = {std::make_shared<Note>(&order, '3')}}), 0);
  EXPECT_EQ(order, "123");
}

}  // namespace
}  // namespace flare::rpc::testing
