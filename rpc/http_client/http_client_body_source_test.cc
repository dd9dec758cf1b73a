// Bodies of requests that are made while they are sent.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/future.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/http_client.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::literals;
using testing::RawPeer;

// These, one by one.
HttpBodySource Pieces(std::vector<std::string> pieces,
                      std::optional<std::uint64_t> size = {}) {
  std::reverse(pieces.begin(), pieces.end());
  return {.next = [pieces]() mutable -> Expected<Buffer> {
            if (pieces.empty()) return Buffer();
            std::string piece = std::move(pieces.back());
            pieces.pop_back();
            return CreateBufferSlow(piece);
          },
          .size = size};
}

class HttpBodySources : public testing::ClientTest {
 protected:
  Future<HttpClient::Result> Post(HttpBodySource source,
                                  HttpRequestOptions options = {}) {
    options.timeout = 20s;
    options.body_source = std::move(source);
    return client_.AsyncPost(Url(), "", options);
  }
  std::string Url() const {
    return "http://" + server_.endpoint().ToString() + "/";
  }
  static int CodeOf(Future<HttpClient::Result> future) {
    const auto result = fiber::BlockingGet(std::move(future));
    return result ? static_cast<int>(result->status()) : result.error().code();
  }

  testing::RawServer server_;
  HttpClient client_{{.connect_timeout = 20s}};
};

TEST_F(HttpBodySources, AreSentInChunks) {
  const std::string large(300, 'x');
  std::unique_ptr<RawPeer> peer;
  for (int i = 0; i != 2; ++i) {  // The connection is kept.
    auto future = Post(Pieces({"hello", large}));
    if (peer == nullptr) peer = server_.Accept();
    const std::string head = peer->ReadUntil("\r\n\r\n");
    EXPECT_NE(head.find("\r\nTransfer-Encoding: chunked\r\n"), head.npos);
    EXPECT_EQ(head.find("Content-Length"), head.npos);
    EXPECT_EQ(peer->ReadUntil("\r\n0\r\n\r\n"),
              "5\r\nhello\r\n12c\r\n" + large + "\r\n0\r\n\r\n");
    peer->Send("HTTP/1.1 204 No Content\r\n\r\n");
    EXPECT_EQ(CodeOf(std::move(future)), 204);
  }
}

TEST_F(HttpBodySources, MayHaveASize) {
  auto future = Post(Pieces({"hello", " you"}, 9));
  auto peer = server_.Accept();
  const std::string head = peer->ReadUntil("\r\n\r\n");
  EXPECT_NE(head.find("\r\nContent-Length: 9\r\n"), head.npos);
  EXPECT_EQ(head.find("Transfer-Encoding"), head.npos);
  EXPECT_EQ(peer->ReadExactly(9), "hello you");
  peer->Send("HTTP/1.1 204 No Content\r\n\r\n");
  EXPECT_EQ(CodeOf(std::move(future)), 204);
}

TEST_F(HttpBodySources, OfAnotherSizeFail) {
  for (const std::uint64_t size : {4, 6}) {
    auto future = Post(Pieces({"hello"}, size));
    auto peer = server_.Accept();
    EXPECT_EQ(CodeOf(std::move(future)), ERROR_INVALID_REQUEST);
    const std::string all = peer->ReadAll();
    EXPECT_EQ(all.find("hello") != all.npos && size == 4, false);
  }
}

TEST_F(HttpBodySources, MayFail) {
  auto future = Post({.next = [n = 0]() mutable -> Expected<Buffer> {
    if (n++ == 0) return CreateBufferSlow("hello");
    return flare::Status(1, "the disk is gone");
  }});
  auto peer = server_.Accept();
  const auto failed = fiber::BlockingGet(std::move(future));
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ERROR_CANCELLED);
  EXPECT_NE(failed.error().message().find("the disk is gone"),
            std::string::npos);
  // The server must not take it for a whole one.
  EXPECT_EQ(peer->ReadAll().find("\r\n0\r\n"), std::string::npos);
}

TEST_F(HttpBodySources, MayThrow) {
  HttpRequestOptions options{.timeout = 20s};
  options.body_source.next = []() -> Expected<Buffer> {
    throw std::runtime_error("no");
  };
  EXPECT_THROW(static_cast<void>(client_.Post(Url(), "", options)),
               std::runtime_error);
  auto peer = server_.Accept();
  EXPECT_EQ(peer->ReadAll().find("\r\n0\r\n"), std::string::npos);
}

TEST_F(HttpBodySources, AreTheOnlyBody) {
  HttpRequestOptions options{.timeout = 20s, .body_source = Pieces({"a"})};
  const auto failed = client_.Post(Url(), "b", options);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ERROR_INVALID_REQUEST);
}

// A source without an end, which counts its bytes.
HttpBodySource Endless(std::atomic<std::size_t>* bytes) {
  return {.next = [bytes]() -> Expected<Buffer> {
    *bytes += 64 << 10;
    return CreateBufferSlow(std::string(64 << 10, 'x'));
  }};
}

TEST_F(HttpBodySources, WaitForTheServerWhichMayAnswerEarly) {
  std::atomic<std::size_t> bytes{0};
  auto future = Post(Endless(&bytes));
  auto peer = server_.Accept();
  peer->ReadUntil("\r\n\r\n");
  peer->Send("HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(CodeOf(std::move(future)), 413);
  peer->Close();
  // The rest lay in the kernel's buffers.
  EXPECT_LT(bytes, 32 << 20);
  // The connection can't be used again.
  auto again = Post(Pieces({"a"}));
  auto other = server_.Accept();
  other->ReadUntil("\r\n0\r\n\r\n");
  other->Send("HTTP/1.1 204 No Content\r\n\r\n");
  EXPECT_EQ(CodeOf(std::move(again)), 204);
}

TEST_F(HttpBodySources, KeepToTheTimeout) {
  std::atomic<std::size_t> bytes{0};
  HttpRequestOptions options{.timeout = 2s, .body_source = Endless(&bytes)};
  const auto failed = client_.Post(Url(), "", options);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ERROR_TIMEOUT) << failed.error().ToString();
  EXPECT_NE(failed.error().message().find("sending the body"),
            std::string::npos);
}

TEST_F(HttpBodySources, AreNotSentToAnotherPlace) {
  auto future = Post(Pieces({"a"}), {.max_redirection_count = 3});
  auto peer = server_.Accept();
  peer->ReadUntil("\r\n0\r\n\r\n");
  peer->Send("HTTP/1.1 307 Moved\r\nLocation: /a\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(CodeOf(std::move(future)), 307);
  // One that asks for no body is followed.
  future = Post(Pieces({"a"}), {.max_redirection_count = 3});
  peer->ReadUntil("\r\n0\r\n\r\n");
  peer->Send("HTTP/1.1 303 See\r\nLocation: /a\r\nContent-Length: 0\r\n\r\n");
  const std::string head = peer->ReadUntil("\r\n\r\n");
  EXPECT_TRUE(head.starts_with("GET /a HTTP/1.1")) << head;
  EXPECT_EQ(head.find("chunked"), head.npos);
  peer->Send("HTTP/1.1 204 No Content\r\n\r\n");
  EXPECT_EQ(CodeOf(std::move(future)), 204);
}

TEST_F(HttpBodySources, AreNotSentTwice) {
  auto future = Post(Pieces({"a"}));
  auto peer = server_.Accept();
  peer->ReadUntil("\r\n0\r\n\r\n");
  peer->Send("HTTP/1.1 204 No Content\r\n\r\n");
  EXPECT_EQ(CodeOf(std::move(future)), 204);
  // The kept connection breaks under the next one.
  HttpRequestOptions options{.timeout = 20s, .body_source = Pieces({"a", "b"})};
  auto put = client_.AsyncRequest(
      "http", server_.endpoint().ToString(),
      [] {
        HttpRequest request;
        request.set_method(HttpMethod::Put);
        request.set_uri("/");
        return request;
      }(),
      options);
  peer->ReadUntil("\r\n\r\n");
  peer->Close();
  EXPECT_EQ(CodeOf(std::move(put)), ERROR_CONNECTION);
  EXPECT_FALSE(server_.HasVisitor());
}

// It isn't asked for more than its size, so the connection is free at once.
TEST_F(HttpBodySources, OfASizeEndWithThat) {
  int calls = 0;
  std::unique_ptr<RawPeer> peer;
  for (int i = 0; i != 2; ++i) {
    auto future = Post({.next = [&calls]() -> Expected<Buffer> {
                          ++calls;
                          return CreateBufferSlow("hello");
                        },
                        .size = 10});
    if (peer == nullptr) peer = server_.Accept();
    peer->ReadUntil("\r\n\r\n");
    EXPECT_EQ(peer->ReadExactly(10), "hellohello");
    peer->Send("HTTP/1.1 204 No Content\r\n\r\n");
    EXPECT_EQ(CodeOf(std::move(future)), 204);
  }
  EXPECT_EQ(calls, 4);
  auto future = Post({.next = [] { return Buffer(); }, .size = 0});
  EXPECT_NE(peer->ReadUntil("\r\n\r\n").find("\r\nContent-Length: 0\r\n"),
            std::string::npos);
  peer->Send("HTTP/1.1 204 No Content\r\n\r\n");
  EXPECT_EQ(CodeOf(std::move(future)), 204);
}

TEST_F(HttpBodySources, MayHaveLargePieces) {
  const std::string large(5 << 20, 'x');
  auto future = Post(Pieces({large, "y"}, large.size() + 1));
  auto peer = server_.Accept();
  peer->ReadUntil("\r\n\r\n");
  EXPECT_EQ(peer->ReadExactly(large.size() + 1), large + "y");
  peer->Send("HTTP/1.1 204 No Content\r\n\r\n");
  EXPECT_EQ(CodeOf(std::move(future)), 204);
}

// The response has come whole while the source made up its mind.
TEST_F(HttpBodySources, AreForgottenBehindAResponse) {
  fiber::Event asked;
  fiber::Event answered;
  auto future = Post({.next = [&]() -> Expected<Buffer> {
    asked.Set();
    answered.Wait();
    return flare::Status(1, "the disk is gone");
  }});
  auto peer = server_.Accept();
  peer->ReadUntil("\r\n\r\n");
  asked.Wait();
  peer->Send("HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(peer->ReadAll(), "");  // The client has read it, and closed.
  answered.Set();
  EXPECT_EQ(CodeOf(std::move(future)), 413);
}

TEST_F(HttpBodySources, EndWithTheCall) {
  for (const fiber::StopCause cause :
       {fiber::StopCause::kCallerGone, fiber::StopCause::kDeadline}) {
    std::atomic<std::size_t> bytes{0};
    const auto context = fiber::ExecutionContext::Create();
    auto future = context->Execute([&] { return Post(Endless(&bytes)); });
    auto peer = server_.Accept();
    peer->ReadUntil("\r\n\r\n");
    context->RequestStop(cause);
    const auto failed = fiber::BlockingGet(std::move(future));
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code(), cause == fiber::StopCause::kDeadline
                                         ? ERROR_TIMEOUT
                                         : ERROR_CANCELLED)
        << failed.error().ToString();
    EXPECT_NE(failed.error().message().find("sending the body"),
              std::string::npos)
        << failed.error().ToString();
  }
}

// Neither side reads on: that must not last until the timeout.
TEST_F(HttpBodySources, AreOutrunByResponsesInPieces) {
  std::atomic<std::size_t> bytes{0};
  auto future =
      Post(Endless(&bytes),
           {.on_body = [](const HttpResponse&, Buffer) { return true; }});
  auto peer = server_.Accept();
  peer->ReadUntil("\r\n\r\n");
  peer->Send("HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n" +
             std::string(1 << 20, 'x'));
  EXPECT_EQ(CodeOf(std::move(future)), ERROR_RESPONSE_TOO_LARGE);
}

class HttpBodySourceServer : public testing::ServerTest {
 protected:
  void TearDown() override {
    ShutdownClientSide();
    ServerTest::TearDown();
  }
};

TEST_F(HttpBodySourceServer, GetsTheBody) {
  server().AddHttpHandler("/echo",
                          NewHttpPostHandler([](const HttpRequest& request,
                                                HttpResponse* response, auto*) {
                            response->set_body(*request.noncontiguous_body());
                          }));
  StartServer();
  std::vector<std::string> pieces;
  std::string all;
  for (int i = 0; i != 100; ++i) {
    pieces.push_back(std::string(1 + 200 * i, static_cast<char>('a' + i % 26)));
    all += pieces.back();
  }
  HttpClient client;
  for (const std::optional<std::uint64_t> size :
       {std::optional<std::uint64_t>(), std::optional(all.size())}) {
    const auto response =
        client.Post("http://" + endpoint().ToString() + "/echo", "",
                    {.timeout = 20s, .body_source = Pieces(pieces, size)});
    ASSERT_TRUE(response) << response.error().ToString();
    EXPECT_EQ(*response->body(), all);
  }
}

}  // namespace
}  // namespace flare::rpc
