// A request's context (fiber/execution_context.h): in handlers, and in code
// that runs when calls have ended. The program's only ExecutionLocals are
// statics of functions, the first of which is made by the first request.
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/future.h"
#include "flare/fiber/async.h"
#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/future.h"
#include "flare/fiber/task.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/load_balancer.h"
#include "flare/rpc/name_resolver.h"
#include "flare/rpc/stub.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/foreign_controller.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using fiber::ExecutionContext;

struct Note {
  ~Note() {
    if (gone != nullptr) gone->Set();
  }
  std::string text;
  std::shared_ptr<fiber::Event> gone;  // Set at the end.
};

const fiber::ExecutionLocal<Note>& note() {
  static fiber::ExecutionLocal<Note> local;
  return local;
}

// "" outside of contexts, too.
std::string TextHere() {
  const Note* const here = note().get();
  return here == nullptr ? "" : here->text;
}

class Callback : public google::protobuf::Closure {
 public:
  explicit Callback(std::function<void()> f) : f_(std::move(f)) {}
  void Run() override {
    f_();
    ended_.Set();
  }
  void Wait() { ended_.Wait(); }

 private:
  const std::function<void()> f_;
  fiber::Event ended_;
};

struct FutureStub : StubBase {
  using StubBase::CallWithFuture;
  using StubBase::StubBase;
};

class RequestContextTest : public ServerTest {
 protected:
  void TearDown() override {
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  std::string uri() { return "flare://" + endpoint().ToString(); }
};

class OneWorkerRequestContextTest : public RequestContextTest {
 protected:
  int workers() const override { return 1; }

  // Tasks of the worker that nobody has given a context.
  static void ExpectNoneElsewhere() {
    for (int i = 0; i != 3; ++i) {
      OnFiber([] { EXPECT_EQ(ExecutionContext::Current(), nullptr); });
    }
  }
};

// Also if it is the first one, before which nobody has made an ExecutionLocal.
TEST_F(RequestContextTest, EachOfManyPipelinedHasItsOwn) {
  EXPECT_TRUE(ExecutionContext::AnyLocals());
  service().on_call = [](TestCall call) {
    EXPECT_EQ(note()->text, "");
    const std::string body = call.request->body();
    note()->text = body;
    // Some change their workers.
    for (int i = 0; i != 3; ++i) this_fiber::Yield();
    EXPECT_EQ(note()->text, body);
    call.Reply(note()->text);
    // The call has ended, its context hasn't.
    this_fiber::Yield();
    EXPECT_EQ(note()->text, body);
  };
  StartServer({"flare", "baidu-std", "trpc", "bolt", "http+pb"});
  for (const char* scheme : {"flare", "baidu-std", "trpc", "bolt", "http+pb"}) {
    RawClient client(endpoint(), scheme);
    constexpr int kCalls = 200;
    std::string batch;
    for (int i = 1; i <= kCalls; ++i) {
      batch += client.Encode(i, kCall, MakeRequest(std::to_string(i)));
    }
    client.Send(batch);
    for (int i = 0; i != kCalls; ++i) {
      const auto reply = client.ReadReply();
      ASSERT_TRUE(reply) << scheme;
      EXPECT_EQ(reply->As<TestResponse>().body(), std::to_string(reply->id));
    }
  }
}

TEST_F(RequestContextTest, IsInheritedAsAnyOther) {
  service().on_call = [](TestCall call) {
    note()->text = "request's";
    EXPECT_EQ(fiber::BlockingGet(fiber::Async([] { return TextHere(); })),
              "request's");
    OnFiber([] { EXPECT_EQ(ExecutionContext::Current(), nullptr); });
    ExecutionContext::Create()->Execute([] {
      EXPECT_EQ(note()->text, "");
      note()->text = "own";
    });
    call.Reply(note()->text);
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "request's");
}

// A thread answers that knows nothing of contexts: nobody keeps it but the
// call.
TEST_F(RequestContextTest, LastsAsLongAsTheCall) {
  const auto gone = std::make_shared<fiber::Event>();
  std::optional<TestCall> call;
  Note* here = nullptr;
  fiber::Event called;
  service().on_call = [&](TestCall c) {
    note()->gone = gone;
    note()->text = "kept";
    call = c;
    here = note().get();
    called.Set();
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  called.Wait();
  EXPECT_FALSE(gone->IsSet());
  call->Reply(here->text);
  // With the method's return, if that comes later.
  gone->Wait();
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "kept");
}

TEST_F(RequestContextTest, ValuesGoWithTheirLastUser) {
  const auto gone = std::make_shared<fiber::Event>();
  fiber::Event go_on;
  service().on_call = [&](TestCall call) {
    note()->gone = gone;
    static_cast<void>(fiber::Async([&] {
      go_on.Wait();
      EXPECT_EQ(note()->gone, gone);
    }));
    call.Reply("");
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  EXPECT_TRUE(client.ReadReply());
  EXPECT_FALSE(gone->IsSet());
  go_on.Set();
  gone->Wait();
}

TEST_F(OneWorkerRequestContextTest, HttpHandlersHaveOne) {
  const auto gone = std::make_shared<fiber::Event>();
  server().AddHttpHandler("/note",
                          NewHttpGetHandler([](const HttpRequest& request,
                                               HttpResponse* response, auto*) {
                            EXPECT_EQ(note()->text, "");
                            note()->text = request.query();
                            this_fiber::Yield();
                            response->set_body(note()->text + ";");
                          }));
  server().AddHttpHandler("/throw", NewHttpGetHandler([&](auto&, auto*, auto*) {
                            note()->gone = gone;
                            throw std::runtime_error("on purpose");
                          }));
  StartServer({"http"});
  RawClient client(endpoint());
  std::string requests;
  for (int i = 0; i != 20; ++i) {
    requests +=
        "GET /note?" + std::to_string(i) + " HTTP/1.1\r\nHost: x\r\n\r\n";
  }
  client.Send(requests + "GET /throw HTTP/1.1\r\nHost: x\r\n\r\n");
  for (int i = 0; i != 20; ++i) {
    EXPECT_NE(client.ReadUntil("\r\n\r\n").find(" 200 "), std::string::npos);
    EXPECT_EQ(client.ReadUntil(";"), std::to_string(i) + ";");
  }
  EXPECT_NE(client.ReadUntil("\r\n\r\n").find(" 500 "), std::string::npos);
  gone->Wait();
  ExpectNoneElsewhere();
}

// The callback, and a future's continuation; their own server's part is another
// request.
TEST_F(RequestContextTest, CallsBringTheirCallersContextBack) {
  std::unique_ptr<RpcChannel> channel;
  service().on_other = [](TestCall call) {
    EXPECT_EQ(note()->text, "");
    note()->text = "callee's";
    FlexibleService::Echo(call);
  };
  service().on_call = [&](TestCall call) {
    note()->text = "caller's";
    TestRequest request;
    RpcClientController controller;
    auto reply = FutureStub(channel.get())
                     .CallWithFuture<TestResponse>(MethodNamed("Other"),
                                                   request, &controller)
                     .Then([](auto outcome) {
                       EXPECT_TRUE(outcome);
                       return TextHere();
                     });
    EXPECT_EQ(fiber::BlockingGet(std::move(reply)), "caller's");

    struct Pending : google::protobuf::Closure {
      explicit Pending(TestCall call) : call(call) {}
      void Run() override {
        EXPECT_FALSE(controller.Failed()) << controller.ErrorText();
        call.Reply(TextHere());
        delete this;
      }
      const TestCall call;
      RpcClientController controller;
      TestResponse response;
    };
    auto* const pending = new Pending(call);
    channel->CallMethod(MethodNamed("Other"), &pending->controller, &request,
                        &pending->response, pending);
  };
  StartServer();
  channel = std::make_unique<RpcChannel>(uri());
  RawClient client(endpoint());
  for (int i = 1; i != 10; ++i) {
    client.Call(i, kCall, MakeRequest(""));
    EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "caller's");
  }
}

TEST_F(OneWorkerRequestContextTest, SoDoCallsThatFail) {
  RawServer silent;
  RpcChannel channel(silent.uri());
  RpcChannel unopened;
  TestRequest request;
  TestResponse response;
  const auto expect = [](std::string text) {
    return [text = std::move(text)] {
      EXPECT_EQ(ExecutionContext::Current() == nullptr, text.empty());
      EXPECT_EQ(TextHere(), text);
    };
  };
  // `text`: of the caller's context; "": it has none.
  const auto fail_all = [&](const std::string& text) {
    RpcClientController timed;
    timed.SetTimeout(std::chrono::milliseconds(1));
    Callback timed_out(expect(text));
    channel.CallMethod(MethodNamed("Call"), &timed, &request, &response,
                       &timed_out);
    RpcClientController cancelled;
    Callback cancelling(expect(text));
    channel.CallMethod(MethodNamed("Call"), &cancelled, &request, &response,
                       &cancelling);
    cancelled.StartCancel();
    RpcClientController refused;
    Callback refusing(expect(text));
    unopened.CallMethod(MethodNamed("Call"), &refused, &request, &response,
                        &refusing);
    timed_out.Wait();
    cancelling.Wait();
    refusing.Wait();
    EXPECT_EQ(timed.ErrorCode(), STATUS_TIMEOUT);
    EXPECT_TRUE(cancelled.IsCanceled());
    EXPECT_EQ(refused.ErrorCode(), STATUS_INVALID_CHANNEL);
  };
  const auto fail_in_context = [&] {
    ExecutionContext::Create()->Execute([&] {
      note()->text = "caller's";
      fail_all("caller's");
    });
  };
  for (int i = 0; i != 3; ++i) {
    OnFiber(fail_in_context);
    OnFiber([&] { fail_all(""); });
    fail_in_context();  // On a plain thread.
    fail_all("");
  }
  ExpectNoneElsewhere();
}

TEST_F(RequestContextTest, ForeignControllersHearOfFailuresInIt) {
  class Controller : public ForeignController {
   public:
    void SetFailed(const std::string&) override {
      ForeignController::SetFailed(TextHere());
    }
  };
  OnFiber([] {
    ExecutionContext::Create()->Execute([] {
      note()->text = "caller's";
      RpcChannel unopened;
      Controller controller;
      TestRequest request;
      TestResponse response;
      Callback done([] {});
      unopened.CallMethod(MethodNamed("Call"), &controller, &request, &response,
                          &done);
      done.Wait();
      EXPECT_EQ(controller.ErrorText(), "caller's");
    });
  });
}

// Each attempt asks them, and the first one doesn't get to a server.
TEST_F(RequestContextTest, ResolversAndBalancersAreAskedInIt) {
  struct Resolution : NameResolution {
    explicit Resolution(Peer peer) : peer(std::move(peer)) {}
    bool IsStatic() const override { return false; }
    std::uint64_t Version() override {
      EXPECT_EQ(TextHere(), "caller's");
      return ++asked;
    }
    std::vector<Peer> Peers() override {
      EXPECT_EQ(TextHere(), "caller's");
      return asked < 3 ? std::vector<Peer>() : std::vector<Peer>{peer};
    }
    const Peer peer;
    std::atomic<std::uint64_t> asked{0};
  };
  struct Balancer : LoadBalancer {
    std::size_t Next(std::size_t) override {
      EXPECT_EQ(TextHere(), "caller's");
      return 0;
    }
  };
  StartServer();
  // The resolver stays registered.
  static std::shared_ptr<Resolution> resolution;
  resolution = std::make_shared<Resolution>(
      Peer{.endpoint = endpoint(), .host = endpoint().ToString()});
  RegisterNameResolver("test-context", [](std::string_view) {
    return Expected<std::shared_ptr<NameResolution>>(resolution);
  });
  RegisterLoadBalancer("test-context",
                       [] { return std::make_unique<Balancer>(); });
  RpcChannel channel("flare://name",
                     {.override_nslb = "test-context+test-context"});
  TestedCall call;
  call.controller.SetMaxRetries(5);
  OnFiber([&] {
    ExecutionContext::Create()->Execute([&] {
      note()->text = "caller's";
      call.Start(&channel);
    });
  });
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  EXPECT_EQ(resolution->asked, 3);
}

TEST_F(RequestContextTest, IsDroppedWhenTheCallHasEnded) {
  const auto gone = std::make_shared<fiber::Event>();
  RpcChannel unopened;
  TestedCall call;
  ExecutionContext::Create()->Execute([&] {
    note()->gone = gone;
    call.Start(&unopened);
  });
  call.Await();
  gone->Wait();
}

}  // namespace
}  // namespace flare::rpc::testing
