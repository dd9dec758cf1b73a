// Bodies of HTTP replies that handlers send piece by piece.
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/fiber/event.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kAsk[] = "GET /pieces HTTP/1.1\r\nHost: x\r\n\r\n";

class HttpPiecesTest : public ServerTest {
 protected:
  using Handler = std::function<void(HttpResponse*, HttpBodyWriter*)>;

  // ... at /pieces, and "plain" at /plain.
  void Start(Handler handler) {
    server().AddHttpHandler("/pieces",
                            NewHttpGetHandler([handler = std::move(handler)](
                                                  auto&, HttpResponse* response,
                                                  HttpServerContext* context) {
                              handler(response, context->body);
                            }));
    server().AddHttpHandler(
        "/plain", NewHttpGetHandler([](auto&, HttpResponse* response, auto*) {
          response->set_body("plain");
        }));
    StartServer();
  }

  static bool Write(HttpBodyWriter* body, std::string_view piece) {
    return body->Write(CreateBufferSlow(piece)).ok();
  }

  static std::string HeadOf(RawClient* client) {
    return client->ReadUntil("\r\n\r\n");
  }

  // The connection goes on with this.
  static void ExpectPlain(RawClient* client, bool ask = true) {
    if (ask) client->Send("GET /plain HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_EQ(HeadOf(client).substr(0, 15), "HTTP/1.1 200 OK");
    EXPECT_EQ(client->ReadExactly(5), "plain");
  }
};

TEST_F(HttpPiecesTest, GoOutAsChunks) {
  Start([](HttpResponse* response, HttpBodyWriter* body) {
    response->set_status(HttpStatus::Accepted);
    response->headers()->Set("X", "y");
    response->headers()->Set("Content-Length", "3");
    response->headers()->Set("Transfer-Encoding", "gzip");
    response->set_body("never looked at");
    EXPECT_TRUE(Write(body, ""));  // More chunks follow.
    response->headers()->Set("X", "too late");
    EXPECT_TRUE(Write(body, "one"));
    EXPECT_TRUE(Write(body, ""));
    EXPECT_TRUE(Write(body, std::string(300, '2')));
  });
  RawClient client(endpoint());
  for (int i = 0; i != 2; ++i) {
    client.Send(kAsk);
    const std::string head = HeadOf(&client);
    EXPECT_EQ(head.substr(0, 31), "HTTP/1.1 202 Accepted\r\nX: y\r\nDa");
    EXPECT_THAT(head, HasSubstr("\r\nTransfer-Encoding: chunked\r\n"));
    EXPECT_THAT(head, Not(HasSubstr("Content-Length")));
    EXPECT_THAT(head, Not(HasSubstr("gzip")));
    EXPECT_THAT(head, Not(HasSubstr("Connection")));
    const std::string chunks =
        "3\r\none\r\n12c\r\n" + std::string(300, '2') + "\r\n0\r\n\r\n";
    EXPECT_EQ(client.ReadExactly(chunks.size()), chunks);
  }
  ExpectPlain(&client);
}

TEST_F(HttpPiecesTest, LeaveBeforeTheHandlerEnds) {
  fiber::Event go_on;
  Start([&](auto*, HttpBodyWriter* body) {
    EXPECT_TRUE(Write(body, "one"));
    go_on.Wait();
    EXPECT_TRUE(Write(body, "two"));
  });
  RawClient client(endpoint());
  client.Send(kAsk);
  HeadOf(&client);
  EXPECT_EQ(client.ReadExactly(8), "3\r\none\r\n");
  go_on.Set();
  EXPECT_EQ(client.ReadExactly(13), "3\r\ntwo\r\n0\r\n\r\n");
}

TEST_F(HttpPiecesTest, AreNotCompletedAfterAnException) {
  Start([](auto*, HttpBodyWriter* body) {
    EXPECT_TRUE(Write(body, "one"));
    throw std::runtime_error("no more");
  });
  RawClient client(endpoint());
  client.Send(kAsk);
  EXPECT_THAT(client.ReadAll(), Not(HasSubstr("0\r\n\r\n")));
}

TEST_F(HttpPiecesTest, EndWithTheConnectionForHttp10) {
  Start([](auto*, HttpBodyWriter* body) {
    EXPECT_TRUE(Write(body, "one"));
    EXPECT_TRUE(Write(body, "two"));
  });
  for (const char* fields : {"", "Connection: keep-alive\r\n"}) {
    RawClient client(endpoint());
    client.Send("GET /pieces HTTP/1.0\r\n" + std::string(fields) + "\r\n");
    const std::string head = HeadOf(&client);
    EXPECT_THAT(head, HasSubstr("\r\nConnection: close\r\n"));
    EXPECT_THAT(head, Not(HasSubstr("keep-alive")));
    EXPECT_THAT(head, Not(HasSubstr("Transfer-Encoding")));
    EXPECT_THAT(head, Not(HasSubstr("Content-Length")));
    EXPECT_EQ(client.ReadAll(), "onetwo");
  }
}

TEST_F(HttpPiecesTest, HandlersCanClose) {
  Start([](HttpResponse* response, HttpBodyWriter* body) {
    response->headers()->Set("Connection", "close");
    Write(body, "one");
  });
  RawClient client(endpoint());
  client.Send(std::string(kAsk) + kAsk);  // The second one is dropped.
  EXPECT_THAT(HeadOf(&client), HasSubstr("\r\nConnection: close\r\n"));
  EXPECT_EQ(client.ReadAll(), "3\r\none\r\n0\r\n\r\n");
}

TEST_F(HttpPiecesTest, HandlersCanGiveUp) {
  std::atomic<bool> begins{true};
  std::atomic<int> refused{0};
  fiber::Event seen;
  Start([&](HttpResponse*, HttpBodyWriter* body) {
    if (begins) {
      EXPECT_TRUE(Write(body, "part"));
      seen.Wait();
    }
    body->Abort();
    if (!Write(body, "more")) ++refused;
  });
  {
    RawClient client(endpoint());
    client.Send(kAsk);
    EXPECT_THAT(HeadOf(&client), HasSubstr("chunked"));
    EXPECT_EQ(client.ReadExactly(9), "4\r\npart\r\n");
    seen.Set();
    EXPECT_TRUE(client.AtEnd());  // And no last chunk.
  }
  {  // Where the end would be that of the body.
    RawClient client(endpoint());
    client.Send("GET /pieces HTTP/1.0\r\n\r\n");
    HeadOf(&client);
    EXPECT_EQ(client.ReadExactly(4), "part");
    char byte;
    EXPECT_EQ(::recv(client.fd(), &byte, 1, 0), -1);
    EXPECT_EQ(errno, ECONNRESET);
  }
  begins = false;
  RawClient client(endpoint());
  client.Send(kAsk);
  EXPECT_TRUE(client.AtEnd());
  StopServer();
  EXPECT_EQ(refused, 3);
}

TEST_F(HttpPiecesTest, CountAsFailedByTheHeadThatWasSent) {
  HttpStatus sent;
  HttpStatus too_late;
  Start([&](HttpResponse* response, HttpBodyWriter* body) {
    response->set_status(sent);
    EXPECT_TRUE(Write(body, "one"));
    response->set_status(too_late);
  });
  RawClient client(endpoint());
  const auto failed_after = [&](HttpStatus first, HttpStatus second) {
    sent = first;
    too_late = second;
    client.Send(kAsk);
    HeadOf(&client);
    EXPECT_EQ(client.ReadExactly(13), "3\r\none\r\n0\r\n\r\n");
    return server().statistics().calls_failed;
  };
  EXPECT_EQ(failed_after(HttpStatus::OK, HttpStatus::InternalServerError), 0u);
  EXPECT_EQ(failed_after(HttpStatus::NotFound, HttpStatus::OK), 1u);
  EXPECT_EQ(failed_after(HttpStatus{103}, HttpStatus::OK), 2u);
}

TEST_F(HttpPiecesTest, NoneWhereThereIsNoBody) {
  HttpStatus status = HttpStatus::OK;
  int written = 0;
  Start([&](HttpResponse* response, HttpBodyWriter* body) {
    response->set_status(status);
    while (Write(body, "piece")) ++written;  // One that never ends.
  });
  RawClient client(endpoint());
  client.Send("HEAD /pieces HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(HeadOf(&client), HasSubstr("\r\nTransfer-Encoding: chunked\r\n"));
  ExpectPlain(&client);
  status = HttpStatus::NoContent;
  client.Send(kAsk);
  EXPECT_THAT(HeadOf(&client), Not(HasSubstr("Transfer-Encoding")));
  ExpectPlain(&client);
  status = HttpStatus::ResetContent;
  client.Send(kAsk);
  EXPECT_THAT(HeadOf(&client), HasSubstr("\r\nContent-Length: 0\r\n"));
  ExpectPlain(&client);
  EXPECT_EQ(written, 0);
}

TEST_F(HttpPiecesTest, PipelinedRepliesStayInOrder) {
  fiber::Event go_on;
  server().AddHttpHandler(
      "/slow", NewHttpGetHandler([&](auto&, HttpResponse* response, auto*) {
        go_on.Wait();
        response->set_body("plain");
      }));
  Start([&](auto*, HttpBodyWriter* body) {
    go_on.Set();
    EXPECT_TRUE(Write(body, "one"));
    EXPECT_TRUE(Write(body, "two"));
  });
  RawClient client(endpoint());
  client.Send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n" + std::string(kAsk) +
              kAsk + "GET /plain HTTP/1.1\r\nHost: x\r\n\r\n");
  ExpectPlain(&client, /*ask=*/false);
  for (int i = 0; i != 2; ++i) {
    HeadOf(&client);
    EXPECT_EQ(client.ReadExactly(21), "3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n");
  }
  ExpectPlain(&client, /*ask=*/false);
}

TEST_F(HttpPiecesTest, CallsDontComeInBetween) {
  fiber::Event answered;
  service().on_call = [&](TestCall call) {
    FlexibleService::Echo(call);
    answered.Set();
  };
  Start([&](auto*, HttpBodyWriter* body) {
    EXPECT_TRUE(Write(body, "one"));
    answered.Wait();
    EXPECT_TRUE(Write(body, "two"));
  });
  RawClient client(endpoint(), "http+pb");
  client.Send(kAsk);
  HeadOf(&client);
  EXPECT_EQ(client.ReadExactly(8), "3\r\none\r\n");
  client.Call(1, kCall, MakeRequest("call"));
  EXPECT_EQ(client.ReadExactly(13), "3\r\ntwo\r\n0\r\n\r\n");
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->As<TestResponse>().body(), "call");
}

TEST_F(HttpPiecesTest, EndWhenThePeerIsGone) {
  fiber::Event ended;
  Start([&](auto*, HttpBodyWriter* body) {
    flare::Status written;
    while ((written = body->Write(CreateBufferSlow("piece"))).ok()) {
    }
    EXPECT_EQ(written.code(), STATUS_IO_ERROR);
    EXPECT_FALSE(Write(body, "still"));
    ended.Set();
  });
  RawClient client(endpoint());
  client.Send(kAsk);
  HeadOf(&client);
  client.Close();
  ended.Wait();
}

TEST_F(HttpPiecesTest, EmptyOnesEndWhenTheServerStops) {
  server_options().drain_timeout = std::chrono::milliseconds(50);
  fiber::Event ended;
  Start([&](auto*, HttpBodyWriter* body) {
    while (Write(body, "")) this_fiber::SleepFor(std::chrono::milliseconds(1));
    ended.Set();
  });
  RawClient client(endpoint());
  client.Send(kAsk);
  HeadOf(&client);
  StopServer();
  ended.Wait();
}

TEST_F(HttpPiecesTest, EndWhenTheServerStops) {
  server_options().drain_timeout = std::chrono::milliseconds(50);
  fiber::Event ended;
  const Buffer piece = CreateBufferSlow(std::string(1 << 20, 'x'));
  Start([&](auto*, HttpBodyWriter* body) {
    while (body->Write(piece).ok()) {
    }
    ended.Set();
  });
  RawClient client(endpoint());
  client.Send(kAsk);
  HeadOf(&client);  // And nothing more: the writer waits for room.
  StopServer();
  ended.Wait();
}

// Where its end would be that of the body.
TEST_F(HttpPiecesTest, WhatTheEndOfTheServerCutsShortIsReset) {
  server_options().drain_timeout = std::chrono::milliseconds(50);
  fiber::Event ended;
  Start([&](auto*, HttpBodyWriter* body) {
    EXPECT_TRUE(Write(body, "part"));
    while (Write(body, "")) this_fiber::SleepFor(std::chrono::milliseconds(1));
    ended.Set();
  });
  RawClient client(endpoint());
  client.Send("GET /pieces HTTP/1.0\r\n\r\n");
  HeadOf(&client);
  EXPECT_EQ(client.ReadExactly(4), "part");
  StopServer();
  ended.Wait();
  char byte;
  EXPECT_EQ(::recv(client.fd(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

// More than may wait for a peer: without waiting the connection would be given
// up.
class HttpPiecesOfSlowPeersTest : public HttpPiecesTest {
 protected:
  static constexpr int kPieces = 100;

  static void WritePieces(HttpBodyWriter* body) {
    const Buffer piece = CreateBufferSlow(std::string(1 << 20, 'x'));
    for (int i = 0; i != kPieces; ++i) EXPECT_TRUE(body->Write(piece).ok());
  }

  void ExpectPieces() {
    RawClient client(endpoint());
    client.Send(kAsk);
    HeadOf(&client);
    for (int i = 0; i != kPieces; ++i) {
      ASSERT_EQ(client.ReadExactly(8), "100000\r\n");
      ASSERT_EQ(client.ReadExactly((1 << 20) + 2).size(), (1u << 20) + 2);
    }
    EXPECT_EQ(client.ReadExactly(5), "0\r\n\r\n");
  }
};

TEST_F(HttpPiecesOfSlowPeersTest, WaitOnTheFiber) {
  Start([](auto*, HttpBodyWriter* body) { WritePieces(body); });
  ExpectPieces();
}

TEST_F(HttpPiecesOfSlowPeersTest, WaitOnAThread) {
  Start([](auto*, HttpBodyWriter* body) {
    fiber::Event ended;
    std::thread thread([&] {
      WritePieces(body);
      ended.Set();
    });
    ended.Wait();
    thread.join();
  });
  ExpectPieces();
}

}  // namespace
}  // namespace flare::rpc::testing
