// What can be wrong with the messages of calls; and calls that are made again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/rpc/flags.h"
#include "flare/rpc/load_balancer.h"
#include "flare/rpc/testing/raw_server_fixture.h"
#include "glog/logging.h"

namespace flare::rpc::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::Contains;
using ::testing::HasSubstr;

class ClientMessagesTest : public RawServerTest {};

TEST_F(ClientMessagesTest, UnserialisableRequest) {
  RawServer server;
  RpcChannel channel(server.uri());
  RpcClientController controller;
  Strict request, response;
  channel.CallMethod(MethodNamed("CallStrict"), &controller, &request,
                     &response, nullptr);
  EXPECT_EQ(controller.ErrorCode(), STATUS_SERIALIZE_REQUEST);
  EXPECT_NE(controller.ErrorText(), "");
  EXPECT_FALSE(server.HasVisitor());
}

TEST_F(ClientMessagesTest, UnparsableReply) {
  RawServer server;
  RpcChannel channel(server.uri());
  std::thread answering([&] {
    auto peer = server.Accept();
    peer->Send(peer->Encode(peer->ReadRequest()->id, OutboundResponse{}));
    OutboundResponse garbage;
    garbage.body = CreateBufferSlow("\xff\xff\xff");
    peer->Send(peer->Encode(peer->ReadRequest()->id, std::move(garbage)));
  });
  Strict request, response;
  request.set_body("x");
  for (int i = 0; i != 2; ++i) {
    RpcClientController controller;
    channel.CallMethod(MethodNamed("CallStrict"), &controller, &request,
                       &response, nullptr);
    EXPECT_EQ(controller.ErrorCode(), STATUS_MALFORMED_DATA);
    EXPECT_NE(controller.ErrorText(), "");
  }
  answering.join();
}

TEST_F(ClientMessagesTest, CompressesBothWays) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  for (auto algorithm :
       {CompressionAlgorithm::kGzip, CompressionAlgorithm::kLz4Frame,
        CompressionAlgorithm::kSnappy, CompressionAlgorithm::kZstd}) {
    const std::string text(10000, 'a');
    TestedCall call;
    call.request.set_body(text);
    call.controller.SetCompressionAlgorithm(algorithm);
    call.controller.SetRequestAttachment(CreateBufferSlow(text));
    call.Start(&channel);
    const auto request = peer->ReadRequest();
    EXPECT_EQ(request->compression, algorithm);
    EXPECT_TRUE(request->attachment_compressed);
    EXPECT_LT(request->body.size(), 1000);
    const auto body =
        Decompress(algorithm, CreateBufferSlow(request->body), 1 << 20);
    const auto attachment =
        Decompress(algorithm, CreateBufferSlow(request->attachment), 1 << 20);
    ASSERT_TRUE(body && attachment);
    EXPECT_EQ(FlattenSlow(*body), call.request.SerializeAsString());
    EXPECT_EQ(FlattenSlow(*attachment), text);

    OutboundResponse response;
    response.compression = algorithm;
    response.attachment_compressed = true;
    TestResponse message;
    message.set_body(text + "!");
    response.body =
        *Compress(algorithm, CreateBufferSlow(message.SerializeAsString()));
    response.attachment = *Compress(algorithm, CreateBufferSlow(text + "?"));
    peer->Send(peer->Encode(request->id, std::move(response)));
    EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
    EXPECT_EQ(call.response.body(), text + "!");
    EXPECT_EQ(FlattenSlow(call.controller.GetResponseAttachment()), text + "?");
  }
}

TEST_F(ClientMessagesTest, LogsWhichCompressionIsLeftOut) {
  struct Warnings : google::LogSink {
    void send(google::LogSeverity severity, const char*, const char*, int,
              const google::LogMessageTime&, const char* message,
              std::size_t size) override {
      if (severity == google::WARNING) texts.emplace_back(message, size);
    }
    std::vector<std::string> texts;
  } warnings;
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  google::AddLogSink(&warnings);
  TestedCall call;
  call.controller.SetCompressionAlgorithm(CompressionAlgorithm::kZlib);
  call.Start(&channel);
  const auto request = peer->ReadRequest();
  google::RemoveLogSink(&warnings);
  EXPECT_EQ(request->compression, CompressionAlgorithm::kNone);
  EXPECT_THAT(warnings.texts,
              Contains("a request isn't compressed: protocol flare doesn't "
                       "have zlib"));
  peer->Reply(request->id, "pong");
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
}

// What a service says besides its failure; and if that can't be read, the
// failure is still the service's.
TEST_F(ClientMessagesTest, FailuresMayBringMessages) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  TestResponse message;
  message.set_body("why");
  const std::string why = message.SerializeAsString();
  const std::string packed = FlattenSlow(
      *Compress(CompressionAlgorithm::kGzip, CreateBufferSlow(why)));
  struct Case {
    CompressionAlgorithm compression;
    std::string body, text;
  } cases[] = {{CompressionAlgorithm::kNone, why, "why"},
               {CompressionAlgorithm::kGzip, packed, "why"},
               {CompressionAlgorithm::kGzip, why, ""},
               {CompressionAlgorithm::kNone, why + "\xff", ""},
               {CompressionAlgorithm::kNone, "", ""}};
  for (const Case& c : cases) {
    TestedCall call;
    call.Start(&channel);
    OutboundResponse response;
    response.status = 1001;
    response.description = "no";
    response.compression = c.compression;
    response.body = CreateBufferSlow(c.body);
    response.attachment = CreateBufferSlow("attached");
    peer->Send(peer->Encode(peer->ReadRequest()->id, std::move(response)));
    EXPECT_EQ(call.Await(), 1001);
    EXPECT_EQ(call.controller.ErrorText(), "no");
    EXPECT_EQ(call.response.body(), c.text);
    EXPECT_EQ(FlattenSlow(call.controller.GetResponseAttachment()), "attached");
  }
}

TEST_F(ClientMessagesTest, FailuresMayBringRawBytes) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  TestedCall call;
  call.controller.SetAcceptResponseRawBytes(true);
  call.Start(&channel);
  OutboundResponse response;
  response.status = 1001;
  response.body = CreateBufferSlow("raw");
  peer->Send(peer->Encode(peer->ReadRequest()->id, std::move(response)));
  EXPECT_EQ(call.Await(), 1001);
  EXPECT_EQ(FlattenSlow(call.controller.GetResponseRawBytes()), "raw");
}

TEST_F(ClientMessagesTest, WhatBecomesTooLargeFailsOneCall) {
  FLAGS_flare_rpc_max_decompressed_size = 8000;
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  for (const std::size_t size : {8001, 7000}) {
    TestedCall call;
    call.Start(&channel);
    OutboundResponse response;
    response.compression = CompressionAlgorithm::kGzip;
    response.attachment_compressed = true;
    response.attachment = *Compress(CompressionAlgorithm::kGzip,
                                    CreateBufferSlow(std::string(size, 'a')));
    peer->Send(peer->Encode(peer->ReadRequest()->id, std::move(response)));
    EXPECT_EQ(call.Await(),
              size > 8000 ? STATUS_MALFORMED_DATA : STATUS_SUCCESS);
  }
}

// Most likely the size is wrong, and nothing would ever be read again.
TEST_F(ClientMessagesTest, AReplyThatIsMuchTooLargeEndsTheConnection) {
  FLAGS_flare_rpc_client_max_connections_per_server = 1;
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  std::vector<TestedCall> calls(2);
  for (TestedCall& call : calls) call.Start(&channel);
  std::string reply = peer->Encode(peer->ReadRequest()->id, "");
  peer->ReadRequest();
  reply.replace(8, 4, "\xff\xff\xff\xff");
  peer->Send(reply);
  EXPECT_EQ(calls[0].Await(), STATUS_MALFORMED_DATA);
  EXPECT_THAT(calls[0].controller.ErrorText(),
              HasSubstr("bytes exceeds the limit of 4194304"));
  EXPECT_EQ(calls[1].Await(), STATUS_IO_ERROR);
  EXPECT_THAT(calls[1].controller.ErrorText(),
              HasSubstr("exceeds the limit of 4194304 bytes by too much"));
  EXPECT_TRUE(peer->AtEnd());
  // Which the next call doesn't notice.
  peer = Connect(&channel, &server);
}

TEST_F(ClientMessagesTest, CorruptCompressionFailsOneCall) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  TestedCall body, attachment, good;
  body.Start(&channel);
  OutboundResponse corrupt;
  corrupt.compression = CompressionAlgorithm::kZstd;
  corrupt.body = CreateBufferSlow("this is not zstd");
  peer->Send(peer->Encode(peer->ReadRequest()->id, std::move(corrupt)));
  EXPECT_EQ(body.Await(), STATUS_MALFORMED_DATA);

  attachment.Start(&channel);
  OutboundResponse other;
  other.compression = CompressionAlgorithm::kGzip;
  other.attachment_compressed = true;
  other.attachment = CreateBufferSlow("this is not gzip");
  peer->Send(peer->Encode(peer->ReadRequest()->id, std::move(other)));
  EXPECT_EQ(attachment.Await(), STATUS_MALFORMED_DATA);

  good.Start(&channel);
  peer->Reply(peer->ReadRequest()->id, "pong");
  EXPECT_EQ(good.Await(), STATUS_SUCCESS);
}

TEST_F(ClientMessagesTest, AttachmentsGoAlong) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  const std::string large(300'000, 'z');
  TestedCall call;
  call.controller.SetRequestAttachment(CreateBufferSlow(large));
  call.Start(&channel);
  const auto request = peer->ReadRequest();
  EXPECT_EQ(request->attachment, large);
  EXPECT_FALSE(request->attachment_compressed);
  OutboundResponse response;
  response.attachment = CreateBufferSlow(large + large);
  peer->Send(peer->Encode(request->id, std::move(response)));
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  EXPECT_EQ(FlattenSlow(call.controller.GetResponseAttachment()),
            large + large);
}

TEST_F(ClientMessagesTest, AttachmentOverHttpIsAnError) {
  RawServer server;
  RpcChannel channel("http://" + server.endpoint().ToString());
  TestedCall call;
  call.controller.SetRequestAttachment(CreateBufferSlow("x"));
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_NOT_SUPPORTED);
  EXPECT_EQ(call.controller.ErrorText(),
            "http+pb doesn't carry attachments; flare, baidu-std and trpc do");
  EXPECT_FALSE(server.HasVisitor());
}

TEST_F(ClientMessagesTest, RawBytesBothWays) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  TestedCall call;
  call.controller.SetRequestRawBytes(CreateBufferSlow("any bytes"));
  call.controller.SetAcceptResponseRawBytes(true);
  call.Start(&channel);
  const auto request = peer->ReadRequest();
  EXPECT_EQ(request->body, "any bytes");
  OutboundResponse response;
  response.compression = CompressionAlgorithm::kSnappy;
  response.body = CreateBufferSlow("\xff\xff as they are");
  peer->Send(peer->Encode(request->id, std::move(response)));
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  EXPECT_EQ(FlattenSlow(call.controller.GetResponseRawBytes()),
            "\xff\xff as they are");
  EXPECT_EQ(call.response.ByteSizeLong(), 0);
}

// --- Retries ---

class ClientRetryTest : public RawServerTest {};

TEST_F(ClientRetryTest, RetriesOnTheNextServer) {
  RawServer one, two;
  RpcChannel channel(one.uri() + "," + two.endpoint().ToString());
  TestedCall call;
  call.controller.SetMaxRetries(3);
  call.controller.SetRequestAttachment(CreateBufferSlow("attached"));
  call.Start(&channel);
  while (!one.HasVisitor() && !two.HasVisitor()) std::this_thread::yield();
  RawServer& first = one.HasVisitor() ? one : two;
  RawServer& second = one.HasVisitor() ? two : one;
  auto busy = first.Accept();
  const auto request = busy->ReadRequest();
  busy->Fail(request->id, STATUS_OVERLOADED, "busy");
  auto idle = second.Accept();
  const auto again = idle->ReadRequest();
  EXPECT_EQ(again->body, request->body);
  EXPECT_EQ(again->attachment, "attached");
  idle->Reply(again->id, "pong");
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  EXPECT_EQ(call.controller.ErrorText(), "");
  EXPECT_EQ(call.response.body(), "pong");
  EXPECT_EQ(call.controller.GetRemotePeer(), second.endpoint());
}

// However many calls have asked the load balancer meanwhile: as if they came
// around to the same server every time.
TEST_F(ClientRetryTest, EachAttemptGoesToAnotherServer) {
  struct First : LoadBalancer {
    std::size_t Next(std::size_t) override { return 0; }
  };
  RegisterLoadBalancer("test-first", [] { return std::make_unique<First>(); });
  RawServer servers[3];
  RpcChannel channel(servers[0].uri() + "," + servers[1].endpoint().ToString() +
                         "," + servers[2].endpoint().ToString(),
                     {.override_nslb = "list+test-first"});
  TestedCall call;
  call.controller.SetMaxRetries(3);
  call.Start(&channel);
  for (RawServer& server : servers) {
    auto peer = server.Accept();
    ASSERT_NE(peer, nullptr);
    peer->Fail(peer->ReadRequest()->id, STATUS_OVERLOADED,
               "busy: " + server.uri());
  }
  EXPECT_EQ(call.Await(), STATUS_OVERLOADED);
  EXPECT_EQ(call.controller.ErrorText(), "busy: " + servers[2].uri());
}

TEST_F(ClientRetryTest, GivesUpAfterTheLastAttempt) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  TestedCall call;
  call.controller.SetMaxRetries(3);
  call.Start(&channel);
  for (int attempt = 1; attempt <= 3; ++attempt) {
    peer->Fail(peer->ReadRequest()->id, STATUS_OVERLOADED,
               "busy " + std::to_string(attempt));
  }
  EXPECT_EQ(call.Await(), STATUS_OVERLOADED);
  EXPECT_EQ(call.controller.ErrorText(), "busy 3");
}

// Nothing of an earlier attempt is left in the controller.
TEST_F(ClientRetryTest, OnlyTheLastAttemptIsTold) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  TestedCall call;
  call.controller.SetMaxRetries(2);
  call.Start(&channel);
  OutboundResponse unreadable;
  unreadable.body = CreateBufferSlow("\xff\xff\xff");
  unreadable.attachment = CreateBufferSlow("attached");
  peer->Send(peer->Encode(peer->ReadRequest()->id, std::move(unreadable)));
  const auto id = peer->ReadRequest()->id;
  peer->Fail(id, STATUS_OVERLOADED, "busy");
  EXPECT_EQ(call.Await(), STATUS_OVERLOADED);
  EXPECT_EQ(call.controller.GetTimestampParsed().time_since_epoch().count(), 0);
  EXPECT_TRUE(call.controller.GetResponseAttachment().empty());
  const std::chrono::nanoseconds elapsed = call.controller.GetElapsedTime();
  EXPECT_GE(elapsed.count(), (call.controller.GetTimestampReceived() -
                              call.controller.GetTimestampSent())
                                 .count());
}

TEST_F(ClientRetryTest, BlockedCallRetries) {
  RawServer server;
  RpcChannel channel(server.uri());
  std::thread answering([&] {
    auto peer = server.Accept();
    peer->ReadRequest();
    peer->Close();  // The request may be lost: retried on a new connection.
    peer = server.Accept();
    peer->Reply(peer->ReadRequest()->id, "pong");
  });
  OnFiber([&] {
    RpcClientController controller;
    controller.SetMaxRetries(2);
    controller.SetTimeout(seconds(20));
    TestRequest request;
    TestResponse response;
    do {
      TestService_Stub(&channel).Call(&controller, &request, &response,
                                      nullptr);
    } while (controller.Failed());
    EXPECT_EQ(response.body(), "pong");
  });
  answering.join();
}

TEST_F(ClientRetryTest, DoesNotRetryWhatIsFinal) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  for (int code :
       {static_cast<int>(STATUS_FAILED), static_cast<int>(STATUS_FROM_USER),
        1001, 70000, -3, static_cast<int>(STATUS_NOT_SUPPORTED),
        static_cast<int>(STATUS_TIMEOUT)}) {
    TestedCall call;
    call.controller.SetMaxRetries(5);
    call.Start(&channel);
    peer->Fail(peer->ReadRequest()->id, code, "no");
    EXPECT_EQ(call.Await(), code);
  }
}

// Nothing of an attempt that failed is left over for the next one.
TEST_F(ClientRetryTest, MessagesOfFailedAttemptsAreDropped) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  TestedCall call;
  call.controller.SetMaxRetries(2);
  call.Start(&channel);
  TestResponse message;
  message.set_body("why");
  OutboundResponse response;
  response.status = STATUS_OVERLOADED;
  response.body = CreateBufferSlow(message.SerializeAsString());
  response.attachment = CreateBufferSlow("attached");
  peer->Send(peer->Encode(peer->ReadRequest()->id, std::move(response)));
  peer->Fail(peer->ReadRequest()->id, STATUS_OVERLOADED, "busy");
  EXPECT_EQ(call.Await(), STATUS_OVERLOADED);
  EXPECT_EQ(call.response.body(), "");
  EXPECT_TRUE(call.controller.GetResponseAttachment().empty());
}

TEST_F(ClientRetryTest, DeadlineHoldsForAllAttempts) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  TestedCall call;
  call.controller.SetMaxRetries(1000);
  // Enough for five attempts on a busy machine.
  call.controller.SetTimeout(seconds(2));
  call.Start(&channel);
  std::uint32_t last = 2000;
  for (int i = 0; i != 5; ++i) {
    const auto request = peer->ReadRequest();
    EXPECT_LE(request->timeout_ms, last);
    last = request->timeout_ms;
    peer->Fail(request->id, STATUS_OVERLOADED, "busy");
  }
  EXPECT_EQ(call.Await(), STATUS_TIMEOUT);
}

// The channel may go while a call is under way.
TEST_F(ClientRetryTest, OneAttemptOutlivesChannel) {
  RawServer server;
  auto channel = std::make_unique<RpcChannel>(server.uri());
  auto peer = Connect(channel.get(), &server);
  TestedCall call;
  call.Start(channel.get());
  const auto request = peer->ReadRequest();
  channel.reset();
  peer->Reply(request->id, "pong");
  EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
  EXPECT_EQ(call.response.body(), "pong");
}

// ... also while one is that retries, and so keeps what it needs of it.
TEST_F(ClientRetryTest, OutlivesChannel) {
  RawServer server;
  auto channel = std::make_unique<RpcChannel>(server.uri());
  auto peer = Connect(channel.get(), &server);
  TestedCall once, again;
  once.Start(channel.get());
  const auto first = peer->ReadRequest();
  again.controller.SetMaxRetries(2);
  again.Start(channel.get());
  // It may have got a second connection.
  auto other = server.Accept();
  const auto second = other->ReadRequest();
  channel.reset();
  peer->Reply(first->id, "pong");
  EXPECT_EQ(once.Await(), STATUS_SUCCESS);
  other->Close();
  peer->Reply(peer->ReadRequest()->id, "pong");
  EXPECT_EQ(again.Await(), STATUS_SUCCESS) << again.controller.ErrorText();
}

}  // namespace
}  // namespace flare::rpc::testing
