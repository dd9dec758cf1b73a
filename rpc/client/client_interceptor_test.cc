// Interceptors of a channel.
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/spinlock.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/testing/foreign_controller.h"
#include "flare/rpc/testing/raw_server_fixture.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using std::chrono::milliseconds;

// Does what the test says.
class Interceptor : public ClientInterceptor {
 public:
  using Body = std::function<void(ClientInterceptedCall&, ClientNext&)>;
  explicit Interceptor(Body body) : body_(std::move(body)) {}
  void Intercept(ClientInterceptedCall& call, ClientNext& next) override {
    body_(call, next);
  }

 private:
  const Body body_;
};

class ClientInterceptorTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    StartServer({"flare"});
  }

  void TearDown() override {
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  // A channel to the server with these.
  std::unique_ptr<RpcChannel> Open(std::vector<Interceptor::Body> bodies) {
    RpcChannel::Options options;
    for (auto& body : bodies) {
      options.interceptors.push_back(
          std::make_shared<Interceptor>(std::move(body)));
    }
    return std::make_unique<RpcChannel>("flare://" + endpoint().ToString(),
                                        options);
  }

  // A call that blocks; its status.
  static int CallAndWait(RpcChannel* channel, RpcClientController* controller,
                         TestResponse* response) {
    const TestRequest request = MakeRequest("ping");
    TestService_Stub(channel).Call(controller, &request, response, nullptr);
    return controller->ErrorCode();
  }
};

TEST_F(ClientInterceptorTest, FirstOneIsTheOutermost) {
  std::string order;
  const auto noting = [&](const char* before, const char* after) {
    return [&order, before, after](ClientInterceptedCall&, ClientNext& next) {
      order += before;
      next.Run();
      order += after;
    };
  };
  const auto channel =
      Open({noting("a", "A"), noting("b", "B"), noting("c", "C")});
  RpcClientController controller;
  TestResponse response;
  EXPECT_EQ(CallAndWait(channel.get(), &controller, &response), 0);
  EXPECT_EQ(response.body(), "ping");
  EXPECT_EQ(order, "abcCBA");
  order.clear();
  TestedCall call;
  EXPECT_EQ(call.Start(channel.get())->Await(), STATUS_SUCCESS);
  EXPECT_EQ(call.response.body(), "ping");
  EXPECT_EQ(order, "abcCBA");
}

TEST_F(ClientInterceptorTest, SeesTheCallAndItsOutcome) {
  service().on_call = [](TestCall call) {
    call.controller->SetFailed(1234, "no");
    call.Reply();
  };
  const auto channel = Open({[](ClientInterceptedCall& call, ClientNext& next) {
    EXPECT_EQ(call.method().full_name(), kCall);
    EXPECT_EQ(static_cast<const TestRequest*>(call.request())->body(), "ping");
    EXPECT_FALSE(call.controller().Failed());
    call.controller().SetTimeout(std::chrono::seconds(10));
    next.Run();
    EXPECT_EQ(call.controller().ErrorCode(), 1234);
    EXPECT_EQ(call.controller().ErrorText(), "no");
    EXPECT_FALSE(call.controller().GetRemotePeer().empty());
  }});
  RpcClientController controller;
  TestResponse response;
  EXPECT_EQ(CallAndWait(channel.get(), &controller, &response), 1234);
  TestedCall call;
  EXPECT_EQ(call.Start(channel.get())->Await(), 1234);
}

TEST_F(ClientInterceptorTest, MayAnswerByItself) {
  bool fails = false;
  const auto channel = Open({[&](ClientInterceptedCall& call, ClientNext&) {
    if (fails) return call.controller().SetFailed(1001, "not today");
    static_cast<TestResponse*>(call.response())->set_body("cached");
  }});
  RpcClientController controller;
  TestResponse response;
  EXPECT_EQ(CallAndWait(channel.get(), &controller, &response), 0);
  EXPECT_EQ(response.body(), "cached");
  fails = true;
  EXPECT_EQ(CallAndWait(channel.get(), &controller, &response), 1001);
  EXPECT_EQ(controller.ErrorText(), "not today");
  // The outcome of a call before doesn't last.
  fails = false;
  EXPECT_EQ(CallAndWait(channel.get(), &controller, &response), 0);
  EXPECT_EQ(server().statistics().calls, 0);
}

TEST_F(ClientInterceptorTest, MayTryAgain) {
  int calls = 0;
  service().on_call = [&](TestCall call) {
    if (++calls < 3) call.controller->SetFailed(1001, "later");
    FlexibleService::Echo(call);
  };
  const auto channel = Open({[](ClientInterceptedCall& call, ClientNext& next) {
    do {
      next.Run();
    } while (call.controller().ErrorCode() == 1001);
  }});
  TestedCall call;
  EXPECT_EQ(call.Start(channel.get())->Await(), STATUS_SUCCESS);
  EXPECT_EQ(calls, 3);
}

TEST_F(ClientInterceptorTest, MayBlock) {
  const auto channel = Open({[](ClientInterceptedCall&, ClientNext& next) {
    this_fiber::SleepFor(milliseconds(1));
    next.Run();
    this_fiber::SleepFor(milliseconds(1));
  }});
  std::vector<TestedCall> calls(20);
  for (TestedCall& call : calls) call.Start(channel.get());
  for (TestedCall& call : calls) EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  OnFiber([&] {
    RpcClientController controller;
    TestResponse response;
    EXPECT_EQ(CallAndWait(channel.get(), &controller, &response), 0);
  });
}

// Those further out see a call that has failed.
TEST_F(ClientInterceptorTest, ExceptionsFailTheCall) {
  int seen = 0;
  const auto channel =
      Open({[&](ClientInterceptedCall& call, ClientNext& next) {
              next.Run();
              seen = call.controller().ErrorCode();
            },
            [](ClientInterceptedCall&, ClientNext& next) {
              next.Run();
              throw std::runtime_error("no such luck");
            }});
  RpcClientController controller;
  TestResponse response;
  EXPECT_EQ(CallAndWait(channel.get(), &controller, &response), STATUS_FAILED);
  EXPECT_NE(controller.ErrorText().find("no such luck"), std::string::npos)
      << controller.ErrorText();
  EXPECT_EQ(seen, STATUS_FAILED);
  TestedCall call;
  EXPECT_EQ(call.Start(channel.get())->Await(), STATUS_FAILED);
}

// Request and channel may be gone when CallMethod has returned.
TEST_F(ClientInterceptorTest, CallsInTheBackgroundKeepWhatTheyNeed) {
  fiber::Event go;
  auto channel = Open({[&](ClientInterceptedCall&, ClientNext& next) {
    go.Wait();
    next.Run();
  }});
  TestedCall call;
  call.request.set_body("as it was");
  call.Start(channel.get());
  call.request.set_body("changed");
  channel.reset();
  go.Set();
  EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
  EXPECT_EQ(call.response.body(), "as it was");
}

TEST_F(ClientInterceptorTest, RunsInTheContextOfTheCaller) {
  const auto context = fiber::ExecutionContext::Create();
  fiber::ExecutionContext* seen = nullptr;
  const auto channel = Open({[&](ClientInterceptedCall&, ClientNext& next) {
    seen = fiber::ExecutionContext::Current();
    next.Run();
  }});
  TestedCall call;
  context->Execute([&] { call.Start(channel.get()); });
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  EXPECT_EQ(seen, context.Get());
}

TEST_F(ClientInterceptorTest, ControllersOfOthersAndNone) {
  service().on_call = [](TestCall call) {
    call.controller->SetFailed(1234, "no");
    call.Reply();
  };
  int seen = 0;
  const auto channel =
      Open({[&](ClientInterceptedCall& call, ClientNext& next) {
        next.Run();
        seen += call.controller().ErrorCode();
      }});
  const TestRequest request = MakeRequest("ping");
  TestResponse response;
  ForeignController foreign;
  TestService_Stub(channel.get()).Call(&foreign, &request, &response, nullptr);
  EXPECT_TRUE(foreign.Failed());
  EXPECT_EQ(foreign.ErrorText(), "no");
  TestService_Stub(channel.get()).Call(nullptr, &request, &response, nullptr);
  EXPECT_EQ(seen, 2 * 1234);
}

}  // namespace
}  // namespace flare::rpc::testing
