// Connections: when they are kept, and what their peers may do to them.
#include <cerrno>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/future.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/http_client.h"
#include "flare/rpc/http_client/http_connections.h"
#include "flare/rpc/name_resolver.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::literals;
using testing::RawPeer;

constexpr std::string_view kOk =
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

class HttpClientConnections : public testing::ClientTest {
 protected:
  std::string url() const {
    return "http://" + server_.endpoint().ToString() + "/";
  }

  Future<HttpClient::Result> Ask(HttpRequestOptions options = {}) {
    options.timeout = 20s;
    return client_.AsyncGet(url(), options);
  }

  static std::string Request(RawPeer* peer) {
    return peer->ReadUntil("\r\n\r\n");
  }

  // A response that is answered with `bytes`, and the connection's end if they
  // say so.
  static std::string BodyOf(Future<HttpClient::Result> future) {
    const auto result = fiber::BlockingGet(std::move(future));
    return result ? *result->body() : result.error().ToString();
  }
  static int CodeOf(Future<HttpClient::Result> future) {
    const auto result = fiber::BlockingGet(std::move(future));
    return result ? 0 : result.error().code();
  }

  // A request through, so that its connection is kept.
  std::unique_ptr<RawPeer> Keep() {
    auto future = Ask();
    auto peer = server_.Accept();
    Request(peer.get());
    peer->Send(kOk);
    EXPECT_EQ(BodyOf(std::move(future)), "ok");
    return peer;
  }

  testing::RawServer server_;
  HttpClient client_{{.connect_timeout = 20s, .max_connections_per_host = 4}};
};

TEST_F(HttpClientConnections, AreKept) {
  auto peer = Keep();
  for (int i = 0; i != 3; ++i) {
    auto future = Ask();
    Request(peer.get());
    peer->Send(kOk);
    EXPECT_EQ(BodyOf(std::move(future)), "ok");
  }
  EXPECT_FALSE(server_.HasVisitor());
}

TEST_F(HttpClientConnections, ArentKeptIfTheServerSaysSo) {
  for (
      std::string_view bytes :
      {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"sv,
       "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"sv,
       // Bytes behind the response.
       "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n"sv}) {
    auto future = Ask();
    auto peer = server_.Accept();
    Request(peer.get());
    peer->Send(bytes);
    EXPECT_EQ(BodyOf(std::move(future)), "ok");
    EXPECT_TRUE(peer->AtEnd());
  }
}

TEST_F(HttpClientConnections, CloseOnBytesThatNobodyAskedFor) {
  auto peer = Keep();
  peer->Send(kOk);
  EXPECT_TRUE(peer->AtEnd());
  auto again = Keep();  // Over a new one.
}

TEST_F(HttpClientConnections, CloseWhenTheyAreIdleForLong) {
  client_ = HttpClient({.max_idle = 20ms});
  auto peer = Keep();
  EXPECT_TRUE(peer->AtEnd());
  auto again = Keep();
}

TEST_F(HttpClientConnections, OfManyHostsAreKeptInBounds) {
  client_ = HttpClient({.max_idle_connections = 1});
  auto kept = Keep();
  testing::RawServer other;
  auto future = client_.AsyncGet("http://" + other.endpoint().ToString() + "/");
  auto peer = other.Accept();
  Request(peer.get());
  peer->Send(kOk);
  EXPECT_EQ(BodyOf(std::move(future)), "ok");
  EXPECT_TRUE(peer->AtEnd());
  EXPECT_FALSE(kept->HasInput());
}

TEST_F(HttpClientConnections, CloseWithTheClient) {
  auto peer = Keep();
  client_ = HttpClient();
  EXPECT_TRUE(peer->AtEnd());
}

TEST_F(HttpClientConnections, RepeatARequestWhoseConnectionWasStale) {
  auto stale = Keep();
  auto future = Ask();
  Request(stale.get());
  stale->Close();  // Instead of a response.
  auto peer = server_.Accept();
  EXPECT_TRUE(Request(peer.get()).starts_with("GET / "));
  peer->Send(kOk);
  EXPECT_EQ(BodyOf(std::move(future)), "ok");
  // Once only.
  future = Ask();
  Request(peer.get());
  peer->Close();
  peer = server_.Accept();
  Request(peer.get());
  peer->Close();
  EXPECT_EQ(CodeOf(std::move(future)), HttpClient::ERROR_CONNECTION);
  EXPECT_FALSE(server_.HasVisitor());
}

TEST_F(HttpClientConnections, RepeatNoPost) {
  auto stale = Keep();
  auto future = client_.AsyncPost(url(), "body", {.timeout = 20s});
  Request(stale.get());
  stale->Close();
  EXPECT_EQ(CodeOf(std::move(future)), HttpClient::ERROR_CONNECTION);
  EXPECT_FALSE(server_.HasVisitor());
}

TEST_F(HttpClientConnections, RepeatNothingThatWasAnswered) {
  auto stale = Keep();
  auto future = Ask();
  Request(stale.get());
  stale->Send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no");
  stale->Close();
  EXPECT_EQ(CodeOf(std::move(future)), HttpClient::ERROR_CONNECTION);
  EXPECT_FALSE(server_.HasVisitor());
}

TEST_F(HttpClientConnections, NewOnesArentRepeated) {
  auto future = Ask();
  auto peer = server_.Accept();
  Request(peer.get());
  peer->Close();
  EXPECT_EQ(CodeOf(std::move(future)), HttpClient::ERROR_CONNECTION);
  EXPECT_FALSE(server_.HasVisitor());
}

TEST_F(HttpClientConnections, MayEndResponses) {
  auto future = Ask();
  auto peer = server_.Accept();
  Request(peer.get());
  peer->Send("HTTP/1.0 200 OK\r\n\r\nto the");
  peer->Send(" end");
  peer->Close();
  EXPECT_EQ(BodyOf(std::move(future)), "to the end");
}

TEST_F(HttpClientConnections, MayNotCutResponsesShort) {
  for (std::string_view bytes :
       {""sv, "HTTP/1.1 2"sv, "HTTP/1.1 200 OK\r\n"sv,
        "HTTP/1.1 100 Continue\r\n\r\n"sv,
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"sv,
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok"sv,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"sv}) {
    auto future = Ask();
    auto peer = server_.Accept();
    Request(peer.get());
    peer->Send(bytes);
    peer->Close();
    EXPECT_EQ(CodeOf(std::move(future)), HttpClient::ERROR_CONNECTION) << bytes;
  }
}

TEST_F(HttpClientConnections, CloseOnMalformedResponses) {
  for (std::string_view bytes :
       {"\r\n"sv, "SSH-2.0-OpenSSH\r\n"sv, "HTTP/2 200\r\n\r\n"sv,
        "HTTP/1.1 101 Switching\r\n\r\n"sv,
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: "
        "chunked\r\n\r\n"sv,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nok"sv}) {
    auto future = Ask();
    auto peer = server_.Accept();
    Request(peer.get());
    peer->Send(bytes);
    EXPECT_EQ(CodeOf(std::move(future)), HttpClient::ERROR_PARSE_RESPONSE)
        << bytes;
    EXPECT_TRUE(peer->AtEnd());
  }
}

TEST_F(HttpClientConnections, CloseWhenTheTimeIsOver) {
  auto future = client_.AsyncGet(url(), {.timeout = 1s});
  auto peer = server_.Accept();
  Request(peer.get());
  peer->Send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsome");
  EXPECT_EQ(CodeOf(std::move(future)), HttpClient::ERROR_TIMEOUT);
  EXPECT_TRUE(peer->AtEnd());
}

TEST_F(HttpClientConnections, CloseWhenTheTimeIsOverWithinALongBody) {
  HttpRequestOptions options;
  options.timeout = 500ms;
  options.on_body = [](auto&, auto&&) {
    this_fiber::SleepFor(20ms);  // The server is faster.
    return true;
  };
  auto future = client_.AsyncGet(url(), options);
  auto peer = server_.Accept();
  Request(peer.get());
  peer->Send("HTTP/1.1 200 OK\r\nContent-Length: 2000000000\r\n\r\n");
  const std::string some(1'000'000, 'x');
  for (int i = 0; i != 2000; ++i) peer->Send(some);
  EXPECT_EQ(CodeOf(std::move(future)), HttpClient::ERROR_TIMEOUT);
}

TEST_F(HttpClientConnections, ArentReusedOnceTheyAreClosing) {
  HttpRequestOptions options;
  options.on_body = [](auto&, auto&&) { return false; };
  auto future = Ask(options);
  auto peer = server_.Accept();
  Request(peer.get());
  peer->Send(kOk);
  EXPECT_EQ(CodeOf(std::move(future)), HttpClient::ERROR_CANCELLED);
  auto again = Keep();  // Over a new one, at once.
  EXPECT_TRUE(peer->AtEnd());
}

// All of the response has come by then, so the server would let it be kept.
TEST_F(HttpClientConnections, ArentReusedOnceOnBodyHasThrown) {
  fiber::Event first;
  fiber::Event sent;
  HttpRequestOptions options;
  options.on_body = [&](auto&, auto&&) -> bool {
    first.Set();
    sent.Wait();
    std::this_thread::sleep_for(50ms);
    throw std::runtime_error("on purpose");
  };
  std::thread asking([&] {
    EXPECT_THROW(static_cast<void>(client_.Get(url(), options)),
                 std::runtime_error);
  });
  auto peer = server_.Accept();
  Request(peer.get());
  peer->Send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no");
  first.Wait();
  peer->Send("k");
  sent.Set();
  asking.join();
  auto again = Keep();  // Over a new one.
  EXPECT_TRUE(peer->AtEnd());
}

TEST_F(HttpClientConnections, LeaveNothingOfHostsThatFail) {
  SetHostLookupForTesting(
      [](std::string_view) -> Expected<std::vector<Endpoint>, flare::Status> {
        return flare::Status(EHOSTUNREACH, "no such host");
      });
  const testing::DeadAddress dead;
  const auto connections = HttpConnections::Create({});
  const HttpWaitLimit limit{{.stop = {}, .at = ReadSteadyClock() + 20s}};
  for (int i = 0; i != 20; ++i) {
    const std::string host = "host" + std::to_string(i);
    for (const std::string& address : {host, dead.endpoint().ToString()}) {
      EXPECT_FALSE(connections->Acquire({false, host, address},
                                        HttpConnections::Wanted::kAny, limit));
    }
  }
  SetHostLookupForTesting(nullptr);
  while (connections->known_hosts() != 0) std::this_thread::yield();
}

// A server may answer before it has read the request.
TEST_F(HttpClientConnections, TakeEarlyResponses) {
  auto future =
      client_.AsyncPost(url(), std::string(8'000'000, 'x'), {.timeout = 20s});
  auto peer = server_.Accept();
  Request(peer.get());
  peer->Send(
      "HTTP/1.1 413 Content Too Large\r\nConnection: close\r\n"
      "Content-Length: 0\r\n\r\n");
  const auto result = fiber::BlockingGet(std::move(future));
  ASSERT_TRUE(result) << result.error().ToString();
  EXPECT_EQ(result->status(), HttpStatus::PayloadTooLarge);
}

TEST_F(HttpClientConnections, ArentReusedBehindHalfARequest) {
  auto future =
      client_.AsyncPost(url(), std::string(32'000'000, 'x'), {.timeout = 20s});
  auto peer = server_.Accept();
  Request(peer.get());
  peer->Send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(CodeOf(std::move(future)), 0);
  auto again = Keep();  // Over a new one.
}

TEST_F(HttpClientConnections, SlowServersDownForSlowReaders) {
  constexpr std::size_t kBody = 64 << 20;
  std::size_t received = 0;
  HttpRequestOptions options;
  options.on_body = [&](auto&, Buffer piece) {
    if (received == 0) this_fiber::SleepFor(100ms);
    received += piece.size();
    // The bytes that come meanwhile are bounded.
    EXPECT_LT(piece.size(), std::size_t{8} << 20);
    return true;
  };
  auto future = Ask(options);
  auto peer = server_.Accept();
  Request(peer.get());
  peer->Send("HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(kBody) +
             "\r\n\r\n");
  peer->Send(std::string(kBody, 'x'));
  EXPECT_EQ(CodeOf(std::move(future)), 0);
  EXPECT_EQ(received, kBody);
}

TEST_F(HttpClientConnections, HandOverPiecesAsTheyCome) {
  std::string seen;
  fiber::Event first;
  HttpRequestOptions options;
  options.on_body = [&](auto&, Buffer piece) {
    seen += FlattenSlow(piece);
    first.Set();
    return true;
  };
  auto future = Ask(options);
  auto peer = server_.Accept();
  Request(peer.get());
  peer->Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
  first.Wait();
  EXPECT_EQ(seen, "a");
  peer->Send("1\r\nb\r\n0\r\n\r\n");
  EXPECT_EQ(CodeOf(std::move(future)), 0);
  EXPECT_EQ(seen, "ab");
  // And it is kept.
  future = Ask();
  Request(peer.get());
  peer->Send(kOk);
  EXPECT_EQ(BodyOf(std::move(future)), "ok");
}

}  // namespace
}  // namespace flare::rpc
