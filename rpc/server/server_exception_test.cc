// Exceptions that leave methods of stock services, which are given `done`.
#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/stress.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/testing/logged_lines.h"
#include "flare/rpc/testing/server_fixture.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

class ServerExceptionTest : public ServerTest {
 protected:
  // Sends a call of Call(), and returns its reply.
  RawClient::Reply Call(RawClient* client, std::string body = "") {
    client->Call(++id_, kCall, MakeRequest(std::move(body)));
    const auto reply = client->ReadReply();
    EXPECT_TRUE(reply);
    if (!reply) return RawClient::Reply();
    EXPECT_EQ(reply->id, id_);
    return *reply;
  }

  // An interceptor that does nothing.
  void Intercept() {
    struct Interceptor : ServerInterceptor {
      void Intercept(InterceptedCall&, ServerNext& next) override {
        next.Run();
      }
    };
    server().AddInterceptor(std::make_shared<Interceptor>());
  }

  void ThrowAfterDone();
  void RaceWithDone();

 private:
  std::uint64_t id_ = 0;
};

TEST_F(ServerExceptionTest, FailTheCallAndNothingElse) {
  service().on_call = [](TestCall call) {
    if (call.request->body() == "throw") throw std::runtime_error("on purpose");
    if (call.request->body() == "7") throw 7;
    FlexibleService::Echo(call);
  };
  StartServer({"flare", "http+pb", "baidu-std", "trpc", "bolt"});
  for (const char* scheme : {"flare", "http+pb", "baidu-std", "trpc"}) {
    RawClient client(endpoint(), scheme);
    EXPECT_EQ(Call(&client, "before").As<TestResponse>().body(), "before");
    const auto reply = Call(&client, "throw");
    EXPECT_NE(reply.status, STATUS_SUCCESS) << scheme;
    EXPECT_THAT(reply.description,
                ::testing::HasSubstr(
                    "Method flare.rpc.testing.TestService.Call has thrown "
                    "std::runtime_error: on purpose"))
        << scheme;
    EXPECT_THAT(Call(&client, "7").description,
                ::testing::HasSubstr("has thrown"));
    EXPECT_EQ(Call(&client, "after").As<TestResponse>().body(), "after");
  }
  RawClient client(endpoint());
  EXPECT_EQ(Call(&client, "throw").status, STATUS_FAILED);
  const auto statistics = server().statistics();
  EXPECT_EQ(statistics.calls_failed, 9u);
  EXPECT_EQ(server().method_statistics()[0].running, 0u);
}

void ServerExceptionTest::ThrowAfterDone() {
  service().on_call = [](TestCall call) {
    FlexibleService::Echo(call);
    throw std::runtime_error("too late");
  };
  StartServer();
  RawClient client(endpoint());
  for (int i = 0; i != 10; ++i) {
    const auto reply = Call(&client, std::to_string(i));
    EXPECT_EQ(reply.status, STATUS_SUCCESS);
    EXPECT_EQ(reply.As<TestResponse>().body(), std::to_string(i));
  }
  EXPECT_EQ(server().statistics().calls_failed, 0u);
}

TEST_F(ServerExceptionTest, AreOnlyLoggedAfterDone) { ThrowAfterDone(); }

TEST_F(ServerExceptionTest, AreOnlyLoggedAfterDoneWithInterceptors) {
  Intercept();
  ThrowAfterDone();
}

// The method has passed it on: request, response and controller are still
// there, and `done` has no effect.
TEST_F(ServerExceptionTest, DoneMayStillBeRun) {
  std::optional<TestCall> kept;
  service().on_call = [&](TestCall call) {
    kept = call;
    throw std::runtime_error("on purpose");
  };
  StartServer();
  RawClient client(endpoint());
  EXPECT_EQ(Call(&client, "kept").status, STATUS_FAILED);
  const TestCall first = *kept;
  for (int i = 0; i != 10; ++i) Call(&client);
  const LoggedLines errors(google::ERROR);
  EXPECT_EQ(first.request->body(), "kept");
  EXPECT_FALSE(first.controller->IsCanceled());
  first.Reply("in vain");
  EXPECT_THAT(errors.Get(),
              ::testing::Contains(::testing::HasSubstr(
                  "done->Run() was called after the method had thrown")));
  service().on_call = FlexibleService::Echo;
  EXPECT_EQ(Call(&client, "next").As<TestResponse>().body(), "next");
}

TEST_F(ServerExceptionTest, AreMany) {
  service().on_call = [](TestCall) { throw std::runtime_error("again"); };
  StartServer();
  RawClient client(endpoint());
  for (int i = 0; i != 1000; ++i) {
    ASSERT_EQ(Call(&client).status, STATUS_FAILED);
  }
  EXPECT_EQ(server().statistics().calls_running, 0u);
}

#if !defined(FLARE_ASAN) && !defined(FLARE_TSAN)  // Which have a malloc each.
// Requests that throw are as large as callers like, and as many.
TEST_F(ServerExceptionTest, KeepFewLargeRequests) {
  service().on_call = [](TestCall) { throw std::runtime_error("again"); };
  StartServer();
  RawClient client(endpoint());
  const auto in_use = [] {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const std::string body(2 << 20, 'x');
  ASSERT_EQ(Call(&client, body).status, STATUS_FAILED);
  const std::size_t before = in_use();
  for (int i = 0; i != 40; ++i) {
    ASSERT_EQ(Call(&client, body).status, STATUS_FAILED);
  }
  EXPECT_LT(in_use(), before + (32 << 20));
}
#endif

TEST_F(ServerExceptionTest, EndTheWatchOfTheCall) {
  service().on_call = [](TestCall call) {
    EXPECT_FALSE(call.controller->GetStopToken().stop_requested());
    throw std::runtime_error("watched");
  };
  StartServer();
  RawClient client(endpoint());
  for (int i = 0; i != 10; ++i) {
    client.Call(i, kCall, MakeRequest(""), /*timeout_ms=*/60'000);
    EXPECT_EQ(client.ReadReply()->status, STATUS_FAILED);
  }
}

// An exception and `done`, at once: each call is answered once, and by one.
void ServerExceptionTest::RaceWithDone() {
  std::atomic<int> begun{0};
  std::atomic<int> ended{0};
  service().on_call = [&](TestCall call) {
    const bool yields = ++begun % 2 == 0;  // The test may be over after Spawn.
    fiber::Spawn([call, &ended] {
      call.Reply("done");
      ++ended;
    });
    if (yields) this_fiber::Yield();
    throw std::runtime_error("at once");
  };
  StartServer();
  RawClient client(endpoint());
  const std::int64_t end = NowNs() + fiber::testing::StressNs(300'000'000);
  int succeeded = 0;
  int failed = 0;
  while (NowNs() < end) {
    // Few enough that none of those whose method threw is given back while its
    // fiber is still to run `done`.
    constexpr int kBatch = 16;
    std::string batch;
    for (int i = 0; i != kBatch; ++i) {
      batch += client.Encode(i, kCall, MakeRequest(""));
    }
    client.Send(batch);
    for (int i = 0; i != kBatch; ++i) {
      const auto reply = client.ReadReply();
      ASSERT_TRUE(reply);
      if (reply->status == STATUS_SUCCESS) {
        ++succeeded;
        ASSERT_EQ(reply->As<TestResponse>().body(), "done");
      } else {
        ++failed;
        ASSERT_NE(reply->description, "");
      }
    }
    while (ended != begun) std::this_thread::yield();
  }
  EXPECT_EQ(succeeded + failed, begun);
  EXPECT_EQ(server().statistics().calls_running, 0u);
}

TEST_F(ServerExceptionTest, RaceWithDone) { RaceWithDone(); }

TEST_F(ServerExceptionTest, RaceWithDoneWithInterceptors) {
  Intercept();
  RaceWithDone();
}

}  // namespace
}  // namespace flare::rpc::testing
