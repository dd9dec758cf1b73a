// Requests that race with their ends: by time, by the server, by the idle
// timer, by the client side.
#include <atomic>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/random.h"
#include "flare/fiber/async.h"
#include "flare/fiber/future.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/http_client.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/testing/rpc_fixture.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::literals;

constexpr HttpClientHttp2 kVersions[] = {HttpClientHttp2::kOff,
                                         HttpClientHttp2::kPriorKnowledge};

class HttpClientStressBase : public testing::ServerTest {
 protected:
  void TearDown() override {
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  // "/echo?<text>": answers the text after a while, now and then as the last
  // response of the connection.
  void StartEcho() {
    server().AddHttpHandler(
        "/echo", NewHttpGetHandler([this](const HttpRequest& request,
                                          HttpResponse* response,
                                          HttpServerContext* context) {
          const auto draw = MixBits(++seed_) % 16;
          if (draw < 4) this_fiber::SleepFor(std::chrono::milliseconds(draw));
          if (draw == 5) response->headers()->Set("Connection", "close");
          const std::string text(request.query());
          if (draw % 2 == 0) return response->set_body(text);
          for (char c : text) {
            if (!context->body->Write(CreateBufferSlow(std::string(1, c)))
                     .ok()) {
              return;
            }
          }
        }));
    StartServer({"http", "grpc"});
  }

  // Requests of one fiber. Each ends as its own or by its time.
  void Ask(const HttpClient& client, int fiber, int requests) {
    for (int i = 0; i != requests; ++i) {
      const std::string text =
          "fiber-" + std::to_string(fiber) + "-" + std::to_string(i);
      std::string pieces;
      HttpRequestOptions options;
      const bool hurried = MixBits(++seed_) % 4 == 0;
      options.timeout = hurried ? 1ms : 20s;
      if (i % 3 == 0) {
        options.on_body = [&pieces](auto&, Buffer piece) {
          pieces += FlattenSlow(piece);
          return true;
        };
      }
      const auto result = client.Get(
          "http://" + endpoint().ToString() + "/echo?" + text, options);
      if (result) {
        EXPECT_EQ(i % 3 == 0 ? pieces : *result->body(), text);
        ++answered_;
      } else {
        EXPECT_TRUE(hurried || ending_) << result.error().ToString();
      }
    }
  }

  std::atomic<std::uint64_t> seed_ = 1;
  std::atomic<int> answered_ = 0;
  std::atomic<bool> ending_ = false;
};

using HttpClientStress = testing::InEachShape<HttpClientStressBase>;

TEST_P(HttpClientStress, EachResponseGoesToItsRequest) {
  StartEcho();
  for (const HttpClientHttp2 http2 : kVersions) {
    HttpClient client(
        {.http2 = http2, .max_connections_per_host = 4, .max_idle = 2ms});
    answered_ = 0;
    std::vector<Future<>> fibers;
    for (int fiber = 0; fiber != 8; ++fiber) {
      fibers.push_back(fiber::Async([&, fiber] { Ask(client, fiber, 60); }));
    }
    Ask(client, 8, 60);  // On a plain thread.
    for (auto& one : fibers) fiber::BlockingGet(std::move(one));
    EXPECT_GT(answered_, 100);
  }
}

TEST_P(HttpClientStress, EndsWithTheClientSide) {
  StartEcho();
  for (int round = 0; round != 6; ++round) {
    ending_ = false;
    HttpClient client(
        {.http2 = kVersions[round % 2], .max_connections_per_host = 4});
    std::vector<Future<>> fibers;
    for (int fiber = 0; fiber != 8; ++fiber) {
      fibers.push_back(fiber::Async([&, fiber] { Ask(client, fiber, 20); }));
    }
    this_fiber::SleepFor(5ms);
    ending_ = true;
    ShutdownClientSide();
    for (auto& one : fibers) fiber::BlockingGet(std::move(one));
  }
}

FLARE_INSTANTIATE_RUNTIME_TEST(HttpClientStress);

}  // namespace
}  // namespace flare::rpc
