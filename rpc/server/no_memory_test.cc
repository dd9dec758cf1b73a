// Each allocation in turn fails, on both sides: the call fails or its
// connection ends, and the next call is served.
#include "flare/base/sanitizer.h"

#if !defined(FLARE_ASAN) && !defined(FLARE_TSAN)

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include "flare/base/clock.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/http_client.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/policy/call_policies.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/http2_client.h"
#include "flare/rpc/testing/server_fixture.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

// How many allocations of workers succeed before one fails; negative: all.
std::atomic<int> before_failure{-1};
// Fibers that run the test's own code.
std::atomic<int> own_code{0};

bool ShallFail() {
  if (before_failure.load() < 0 || !fiber::IsFiberWorker() ||
      own_code.load() != 0) {
    return false;
  }
  return before_failure.fetch_sub(1) <= 0;
}

// Fails allocation `n` from now on, until it is gone.
class FailOne {
 public:
  explicit FailOne(int n) { before_failure.store(n); }
  ~FailOne() { before_failure.store(-1); }
  // It has failed.
  static bool done() { return before_failure.load() < 0; }
};

struct OwnCode {
  OwnCode() { own_code.fetch_add(1); }
  ~OwnCode() { own_code.fetch_sub(1); }
};

}  // namespace

void* AllocateOrFail(std::size_t size, std::size_t alignment) {
  if (ShallFail()) throw std::bad_alloc();
  void* const memory =
      alignment == 0 ? std::malloc(size)
                     : std::aligned_alloc(alignment, (size + alignment - 1) /
                                                         alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace flare::rpc::testing

void* operator new(std::size_t size) {
  return flare::rpc::testing::AllocateOrFail(size, 0);
}
void* operator new[](std::size_t size) {
  return flare::rpc::testing::AllocateOrFail(size, 0);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return flare::rpc::testing::AllocateOrFail(
      size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace flare::rpc::testing {
namespace {

constexpr std::size_t kBody = 40'000;
constexpr char kEcho[] = "/echo";

class NoMemoryTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    service().on_call = [](TestCall call) {
      {
        const OwnCode own;
        call.response->set_body(call.request->body());
      }
      call.done->Run();
    };
    server().AddService(&streamer_);
    server().AddHttpHandler(
        kEcho, NewHttpPostHandler([](const HttpRequest& request,
                                     HttpResponse* response, auto*) {
          const OwnCode own;
          response->set_body(*request.noncontiguous_body());
        }));
    StartServer({"flare", "http+pb", "http+pb-text", "http+proto3-json",
                 "baidu-std", "trpc", "bolt", "http", "grpc"});
  }

  void TearDown() override {
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  // The end of a stream over gRPC, its trailers included; empty: of the
  // connection.
  std::string CallStream(const std::string& path, const std::string& body) {
    Http2Client client(endpoint());
    Http2ClientStream* const stream =
        client.Ask("POST", path, body, {{"content-type", "application/grpc"}});
    return client.TryAwait([stream] { return stream->ended || stream->closed; })
               ? stream->head
               : "";
  }

 private:
  FlexibleStreamer streamer_;
};

// Large messages take allocations; so does a connection.
TEST_F(NoMemoryTest, EachAllocationOfAServerMayFail) {
  for (const char* scheme :
       {"flare", "http+pb", "http+proto3-json", "baidu-std", "trpc", "bolt"}) {
    SCOPED_TRACE(scheme);
    const TestRequest request = MakeRequest(std::string(kBody, 'x'));
    int failed = 0;
    for (int n = 0; n != 200; ++n) {
      bool done;
      {
        const FailOne fail(n);
        RawClient client(endpoint(), scheme);
        const std::string call = client.Encode(1, kCall, request);
        if (client.TrySend(call)) {
          // Ends with a reply, or the connection does.
          const auto reply = client.ReadReply();
          if (!reply || reply->status != STATUS_SUCCESS) ++failed;
        } else {
          ++failed;
        }
        done = FailOne::done();
      }
      RawClient client(endpoint(), scheme);
      client.Call(1, kCall, request);
      const auto reply = client.ReadReply();
      ASSERT_TRUE(reply) << "after allocation " << n;
      ASSERT_EQ(reply->status, STATUS_SUCCESS) << "after allocation " << n;
      if (!done) break;  // There are no more.
    }
    EXPECT_GT(failed, 0);
  }
  EXPECT_EQ(server().statistics().calls_running, 0u);
}

// Its method has run, so the call isn't refused: the client would make it
// again.
TEST_F(NoMemoryTest, ACallWithoutMemoryForItsReplyFails) {
  service().on_call = [](TestCall call) {
    {
      const OwnCode own;
      call.response->set_body(call.request->body());
    }
    before_failure.store(0);
    call.done->Run();
  };
  RawClient client(endpoint(), "http+pb-text");  // A writer of text allocates.
  client.Call(1, kCall, MakeRequest("x"));
  const auto reply = client.ReadReply();
  EXPECT_TRUE(FailOne::done());
  before_failure.store(-1);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, STATUS_FAILED);
  EXPECT_EQ(reply->description, "no memory for the reply");
}

TEST_F(NoMemoryTest, EachAllocationOfAServersStreamMayFail) {
  const std::string message = MakeNumber(3, kBody).SerializeAsString();
  const std::string size = {0, 0, 0, static_cast<char>(message.size() >> 8),
                            static_cast<char>(message.size())};
  for (const char* method : {"Sum", "Count", "Echo"}) {
    SCOPED_TRACE(method);
    const std::string path =
        "/flare.rpc.testing.Streamer/" + std::string(method);
    int failed = 0;
    for (int n = 0; n != 300; ++n) {
      bool done;
      {
        const FailOne fail(n);
        const std::string end = CallStream(path, size + message);
        if (end.find("grpc-status=0;") == std::string::npos) ++failed;
        done = FailOne::done();
      }
      ASSERT_THAT(CallStream(path, size + message),
                  ::testing::HasSubstr("grpc-status=0;"))
          << "after allocation " << n;
      if (!done) break;  // There are no more.
    }
    EXPECT_GT(failed, 0);
  }
  // Methods end behind their replies.
  const std::int64_t give_up_ns = NowNs() + 20'000'000'000;
  while (server().statistics().calls_running != 0 ||
         server().statistics().connections_open != 0) {
    ASSERT_LT(NowNs(), give_up_ns);
    std::this_thread::yield();
  }
}

TEST_F(NoMemoryTest, EachAllocationOfAClientMayFail) {
  for (const char* scheme : {"flare", "http+pb", "trpc", "grpc"}) {
    SCOPED_TRACE(scheme);
    RpcChannel channel;
    ASSERT_TRUE(
        channel.Open(std::string(scheme) + "://" + endpoint().ToString()));
    const auto call_once = [&](int fail) {
      int code = -1;
      OnFiber([&] {
        auto call = [] {
          const OwnCode own;
          auto made = std::make_unique<TestedCall>();
          made->request.set_body(std::string(kBody, 'x'));
          return made;
        }();
        before_failure.store(fail);
        try {
          call->Start(&channel);
          code = call->Await();
        } catch (const std::bad_alloc&) {
          code = STATUS_FAILED;  // Nothing has begun.
        }
        before_failure.store(-1);
      });
      return code;
    };
    int failed = 0;
    for (int n = 0; n != 60; ++n) {
      if (call_once(n) != STATUS_SUCCESS) ++failed;
      // A connection that is closed takes its time to be made anew.
      const std::int64_t give_up_ns = NowNs() + 20'000'000'000;
      while (call_once(-1) != STATUS_SUCCESS) {
        ASSERT_LT(NowNs(), give_up_ns) << "after allocation " << n;
      }
    }
    EXPECT_GT(failed, 0);
  }
}

TEST_F(NoMemoryTest, EachAllocationOfAnHttpClientMayFail) {
  const std::string url = "http://" + endpoint().ToString() + kEcho;
  const std::string body(2 * kBody, 'x');
  for (const HttpClientHttp2 http2 :
       {HttpClientHttp2::kOff, HttpClientHttp2::kPriorKnowledge}) {
    SCOPED_TRACE(static_cast<int>(http2));
    HttpClient client({.http2 = http2});
    // 0: the body has come back.
    const auto ask = [&](int fail) {
      int code = -1;
      OnFiber([&] {
        before_failure.store(fail);
        try {
          const auto response =
              client.Post(url, body, {.timeout = std::chrono::seconds(20)});
          if (!response) {
            code = response.error().code();
          } else if (response->body_size() == body.size()) {
            code = 0;
          }
        } catch (const std::bad_alloc&) {
        }
      });
      return code;
    };
    int failed = 0;
    for (int n = 0; n != 1000; ++n) {
      const int code = ask(n);
      const bool done = FailOne::done();
      before_failure.store(-1);
      if (code != 0) ++failed;
      ASSERT_NE(code, HttpClient::ERROR_TIMEOUT) << "at allocation " << n;
      // A connection that breaks meanwhile may fail another one.
      const std::int64_t give_up_ns = NowNs() + 20'000'000'000;
      while (ask(-1) != 0) {
        ASSERT_LT(NowNs(), give_up_ns) << "after allocation " << n;
      }
      if (!done) break;  // There are no more.
    }
    EXPECT_GT(failed, 0);
  }
}

// Attempts that are under way when the next one can't be made are waited for.
TEST_F(NoMemoryTest, EachAllocationOfAHedgedCallMayFail) {
  auto policies = std::make_shared<CallPolicies>();
  HedgingPolicy hedging;
  hedging.max_attempts = 3;
  hedging.delay = std::chrono::nanoseconds(0);
  ASSERT_TRUE(policies->Set(kCall, {.hedging = hedging}).ok());
  RpcChannel::Options options;
  options.policies = policies;
  RpcChannel channel;
  ASSERT_TRUE(channel.Open("flare://" + endpoint().ToString(), options));
  const TestRequest request = MakeRequest("x");
  int failed = 0;
  for (int n = -1; n != 40; ++n) {
    int code = -1;
    OnFiber([&] {
      auto controller = std::make_unique<RpcClientController>();
      auto response = std::make_unique<TestResponse>();
      before_failure.store(n);
      try {
        TestService_Stub(&channel).Call(controller.get(), &request,
                                        response.get(), nullptr);
        code = controller->ErrorCode();
      } catch (const std::bad_alloc&) {
        code = STATUS_FAILED;  // Nothing has begun.
      }
      before_failure.store(-1);
    });
    if (n == -1) {
      EXPECT_EQ(code, STATUS_SUCCESS);
    } else if (code != STATUS_SUCCESS) {
      ++failed;
    }
  }
  EXPECT_GT(failed, 0);
}

}  // namespace
}  // namespace flare::rpc::testing

#endif  // sanitizers bring their own operators
