// Interceptors of a server.
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Interceptor : public ServerInterceptor {
 public:
  using F = std::function<void(InterceptedCall&, ServerNext&)>;
  explicit Interceptor(F f) : f_(std::move(f)) {}
  void Intercept(InterceptedCall& call, ServerNext& next) override {
    f_(call, next);
  }

 private:
  const F f_;
};

std::shared_ptr<ServerInterceptor> Make(Interceptor::F f) {
  return std::make_shared<Interceptor>(std::move(f));
}

class OtherServiceImpl : public OtherService {
 public:
  void Call(google::protobuf::RpcController*, const TestRequest* request,
            TestResponse* response, google::protobuf::Closure* done) override {
    response->set_body(request->body());
    done->Run();
  }
};

class ServerInterceptorTest : public ServerTest {
 protected:
  // One that notes "name>" before and "<name" after the rest.
  std::shared_ptr<ServerInterceptor> Noting(const std::string& name) {
    return Make([this, name](InterceptedCall& call, ServerNext& next) {
      Note(name + ">");
      next(call);
      Note("<" + name);
    });
  }
  void Note(std::string what) {
    std::scoped_lock guard(mutex_);
    notes_.push_back(std::move(what));
  }
  std::vector<std::string> TakeNotes() {
    std::scoped_lock guard(mutex_);
    return std::exchange(notes_, {});
  }

  RawClient::Reply Call(std::string body, std::string_view method = kCall) {
    RawClient client(endpoint());
    client.Call(1, method, MakeRequest(std::move(body)));
    const auto reply = client.ReadReply();
    EXPECT_TRUE(reply);
    return reply.value_or(RawClient::Reply());
  }
  std::string Get(const std::string& path) {
    RawClient client(endpoint());
    client.Send("GET " + path +
                " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    return client.ReadAll();
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> notes_;
};

TEST_F(ServerInterceptorTest, AreCalledInTheOrderOfAdding) {
  OtherServiceImpl other;
  server().AddInterceptor(Noting("a"));
  server().AddService(&other, {.interceptors = {Noting("x"), Noting("y")}});
  server().AddInterceptor(Noting("b"));
  service().on_call = [this](TestCall call) {
    Note("method");
    FlexibleService::Echo(call);
  };
  StartServer();
  EXPECT_EQ(Call("hello").As<TestResponse>().body(), "hello");
  EXPECT_THAT(TakeNotes(), ElementsAre("a>", "b>", "method", "<b", "<a"));
  EXPECT_EQ(Call("hello", "flare.rpc.testing.OtherService.Call")
                .As<TestResponse>()
                .body(),
            "hello");
  EXPECT_THAT(TakeNotes(),
              ElementsAre("a>", "b>", "x>", "y>", "<y", "<x", "<b", "<a"));
}

TEST_F(ServerInterceptorTest, SeeTheCallAndItsOutcome) {
  server().AddInterceptor(Make([](InterceptedCall& call, ServerNext& next) {
    EXPECT_EQ(call.method(), kCall);
    EXPECT_EQ(call.descriptor()->name(), "Call");
    EXPECT_EQ(call.peer().host(), "127.0.0.1");
    EXPECT_NE(call.deadline(), std::nullopt);
    EXPECT_EQ(call.http_request(), nullptr);
    EXPECT_GE(call.elapsed().count(), 0);
    EXPECT_EQ(static_cast<const TestRequest*>(call.request())->number(), 7);
    auto* const response = static_cast<TestResponse*>(call.response());
    EXPECT_EQ(response->body(), "");
    next.Run();
    EXPECT_EQ(response->body(), "of the method");
    EXPECT_TRUE(call.failed());
    EXPECT_EQ(call.status(), 1234);
    response->set_body("changed");
    call.controller().SetFailed(1235, "changed, too");
  }));
  service().on_call = [](TestCall call) {
    call.controller->SetFailed(1234);
    call.Reply("of the method");
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest("", 7), /*timeout_ms=*/60'000);
  const auto reply = client.ReadReply();
  EXPECT_EQ(reply->status, 1235);
  EXPECT_EQ(reply->description, "changed, too");
  EXPECT_EQ(reply->As<TestResponse>().body(), "changed");
}

TEST_F(ServerInterceptorTest, MayAnswerByThemselves) {
  server().AddInterceptor(Make([](InterceptedCall& call, ServerNext& next) {
    const auto& request = *static_cast<const TestRequest*>(call.request());
    if (request.body() == "refuse") return call.SetFailed(1401, "who is it?");
    if (request.body() != "cached") return next.Run();
    static_cast<TestResponse*>(call.response())->set_body("from the cache");
  }));
  std::atomic<int> calls{0};
  service().on_call = [&](TestCall call) {
    ++calls;
    FlexibleService::Echo(call);
  };
  StartServer();
  EXPECT_EQ(Call("refuse").status, 1401);
  EXPECT_EQ(Call("refuse").description, "who is it?");
  EXPECT_EQ(Call("cached").As<TestResponse>().body(), "from the cache");
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(Call("other").As<TestResponse>().body(), "other");
  EXPECT_EQ(calls, 1);
}

// `done` is run by a thread, which comes later, or at once.
TEST_F(ServerInterceptorTest, WaitForAsynchronousMethods) {
  server().AddInterceptor(Make([](InterceptedCall& call, ServerNext& next) {
    next.Run();
    auto* const response = static_cast<TestResponse*>(call.response());
    response->set_body(response->body() + ", seen");
  }));
  std::vector<std::thread> threads;
  service().on_call = [&](TestCall call) {
    threads.emplace_back([call] { call.Reply("later"); });
  };
  StartServer();
  RawClient client(endpoint());
  for (int i = 0; i != 200; ++i) {
    client.Call(i, kCall, MakeRequest(""));
    ASSERT_EQ(client.ReadReply()->As<TestResponse>().body(), "later, seen");
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ServerInterceptorTest, SeeTheBytesOfEarlyReplies) {
  server().AddInterceptor(Make([this](InterceptedCall& call, ServerNext& next) {
    next.Run();
    EXPECT_TRUE(call.controller().HasResponseRawBytes());
    Note(FlattenSlow(call.controller().GetResponseRawBytes()));
    Note(FlattenSlow(call.controller().GetResponseAttachment()));
  }));
  service().on_call = [](TestCall call) {
    call.controller->SetResponseRawBytes(CreateBufferSlow("raw"));
    call.controller->SetResponseAttachment(CreateBufferSlow("attached"));
    call.controller->WriteResponseImmediately();
    call.done->Run();
  };
  StartServer();
  const RawClient::Reply reply = Call("");
  EXPECT_EQ(reply.body, "raw");
  EXPECT_EQ(reply.attachment, "attached");
  StopServer();
  EXPECT_THAT(TakeNotes(), ElementsAre("raw", "attached"));
}

TEST_F(ServerInterceptorTest, MayBlock) {
  fiber::Event go;
  server().AddInterceptor(Make([&](InterceptedCall& call, ServerNext& next) {
    if (static_cast<const TestRequest*>(call.request())->body() == "wait") {
      go.Wait();
    }
    next.Run();
    this_fiber::Yield();
  }));
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest("wait"));
  client.Call(2, kCall, MakeRequest("now"));
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "now");
  go.Set();
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "wait");
}

TEST_F(ServerInterceptorTest, RunInTheContextOfTheCall) {
  fiber::ExecutionContext* here = nullptr;
  server().AddInterceptor(Make([&](InterceptedCall& call, ServerNext& next) {
    here = fiber::ExecutionContext::Current();
    ASSERT_NE(here, nullptr);
    EXPECT_FALSE(call.controller().GetStopToken().stop_requested());
    next.Run();
    EXPECT_EQ(fiber::ExecutionContext::Current(), here);
  }));
  service().on_call = [&](TestCall call) {
    EXPECT_EQ(fiber::ExecutionContext::Current(), here);
    FlexibleService::Echo(call);
  };
  StartServer();
  EXPECT_EQ(Call("hello").As<TestResponse>().body(), "hello");
}

// Also once the method has answered.
TEST_F(ServerInterceptorTest, AreStoppedWithTheCall) {
  fiber::Event started;
  fiber::Event ended;
  server().AddInterceptor(Make([&](InterceptedCall& call, ServerNext& next) {
    next.Run();
    started.Set();
    EXPECT_FALSE(this_fiber::SleepFor(call.controller().GetStopToken(),
                                      std::chrono::hours(1)));
    ended.Set();
  }));
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  started.Wait();
  client.Close();
  ended.Wait();
}

TEST_F(ServerInterceptorTest, TheirExceptionsFailTheCall) {
  bool failed = false;
  server().AddInterceptor(Make([&](InterceptedCall& call, ServerNext& next) {
    next.Run();  // Returns in any case.
    failed = call.failed();
  }));
  server().AddInterceptor(Make([&](InterceptedCall& call, ServerNext& next) {
    const auto& request = *static_cast<const TestRequest*>(call.request());
    if (request.body() == "before") throw std::runtime_error("on purpose");
    next.Run();
    if (request.body() == "after") throw 7;
  }));
  StartServer();
  const auto reply = Call("before");
  EXPECT_EQ(reply.status, STATUS_FAILED);
  EXPECT_EQ(reply.description,
            "Interceptor 2 of flare.rpc.testing.TestService.Call has thrown "
            "std::runtime_error: on purpose");
  EXPECT_TRUE(failed);
  EXPECT_EQ(Call("after").status, STATUS_FAILED);
  EXPECT_EQ(Call("neither").status, STATUS_SUCCESS);
  EXPECT_FALSE(failed);
}

TEST_F(ServerInterceptorTest, SeeExceptionsOfMethods) {
  std::optional<TestCall> kept;
  server().AddInterceptor(Make([&](InterceptedCall& call, ServerNext& next) {
    next.Run();
    EXPECT_EQ(call.status(), STATUS_FAILED);
  }));
  service().on_call = [&](TestCall call) {
    kept = call;
    throw std::runtime_error("on purpose");
  };
  StartServer();
  for (int i = 0; i != 100; ++i) {
    EXPECT_THAT(Call("").description, HasSubstr("has thrown"));
  }
  kept->Reply("in vain");
  EXPECT_EQ(server().statistics().calls_running, 0u);
}

TEST_F(ServerInterceptorTest, WrapHttpHandlers) {
  server().AddInterceptor(Make([](InterceptedCall& call, ServerNext& next) {
    EXPECT_EQ(call.descriptor(), nullptr);
    EXPECT_EQ(call.request(), nullptr);
    EXPECT_EQ(call.peer().host(), "127.0.0.1");
    EXPECT_EQ(call.http_request()->path(), call.method());
    if (call.method() == "/secret") {
      return FillHttpError(HttpStatus::Forbidden, "no", call.http_response());
    }
    if (call.method() == "/busy") {
      return call.SetFailed(STATUS_OVERLOADED, "later");
    }
    if (call.method() == "/throw") throw std::runtime_error("on purpose");
    next.Run();
    EXPECT_EQ(call.failed(), call.method() != "/hello");
    call.http_response()->headers()->Set("X-Seen", "yes");
  }));
  server().AddHttpHandler("/hello",
                          NewHttpGetHandler([](auto&, auto* response, auto*) {
                            response->set_body("hello");
                          }));
  StartServer();
  EXPECT_THAT(Get("/hello"),
              ::testing::AllOf(HasSubstr(" 200 "), HasSubstr("X-Seen: yes"),
                               HasSubstr("\r\n\r\nhello")));
  EXPECT_THAT(Get("/nothing"),
              ::testing::AllOf(HasSubstr(" 404 "), HasSubstr("X-Seen: yes")));
  EXPECT_THAT(Get("/secret"), HasSubstr(" 403 "));
  EXPECT_THAT(Get("/busy"), HasSubstr(" 503 "));
  EXPECT_THAT(Get("/throw"), HasSubstr(" 500 "));
}

// An interceptor that keeps strangers out mustn't be passed by.
TEST_F(ServerInterceptorTest, HoldForPagesOfAnOverloadedServer) {
  server_options().max_concurrent_requests = 1;
  server().AddInterceptor(
      Make([](InterceptedCall&, ServerNext& next) { next.Run(); }));
  fiber::Event go;
  fiber::Event started;
  service().on_call = FlexibleService::EchoAfter(&go, &started);
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  started.Wait();
  EXPECT_THAT(Get("/inspect/server"), HasSubstr(" 503 "));
  go.Set();
  EXPECT_TRUE(client.ReadReply());
}

TEST_F(ServerInterceptorTest, AreDestroyedWithTheServer) {
  auto interceptor =
      Make([](InterceptedCall&, ServerNext& next) { next.Run(); });
  const std::weak_ptr<ServerInterceptor> watch = interceptor;
  {
    Server own;
    OtherServiceImpl other;
    own.AddInterceptor(std::move(interceptor));
    own.AddService(&other, {.interceptors = {watch.lock()}});
    own.AddProtocol("flare");
    own.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    ASSERT_TRUE(own.Start());
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace flare::rpc::testing
