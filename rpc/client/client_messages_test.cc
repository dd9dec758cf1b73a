// Faults in the messages of calls.
#include <google/protobuf/stubs/callback.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/fiber/event.h"
#include "flare/rpc/start/flags.h"
#include "flare/rpc/testing/logged_lines.h"
#include "flare/rpc/testing/raw_server_fixture.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

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
    garbage.body = CreateBufferSlow("\x0a\x01x\xff");  // After a whole field.
    garbage.attachment = CreateBufferSlow("attached");
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
    EXPECT_FALSE(response.has_body());
    EXPECT_TRUE(controller.GetResponseAttachment().empty());
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
  const LoggedLines warnings(google::WARNING);
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  TestedCall call;
  call.controller.SetCompressionAlgorithm(CompressionAlgorithm::kZlib);
  call.Start(&channel);
  const auto request = peer->ReadRequest();
  EXPECT_EQ(request->compression, CompressionAlgorithm::kNone);
  EXPECT_THAT(warnings.Get(),
              Contains("a request isn't compressed: protocol flare doesn't "
                       "have zlib"));
  peer->Reply(request->id, "pong");
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
}

// A service's message besides its failure; if it can't be read, the failure is
// still the service's.
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

// Channels with static storage are opened before flags are parsed.
TEST_F(ClientMessagesTest, FlagsMayBeSetAfterChannelsAreOpened) {
  FLAGS_flare_rpc_channel_max_packet_size = 1000;
  RawServer server;
  RpcChannel channel(server.uri());
  FLAGS_flare_rpc_channel_max_packet_size = 10'000;
  TestedCall call;
  call.Start(&channel);
  auto peer = server.Accept();
  peer->Reply(peer->ReadRequest()->id, std::string(5000, 'a'));
  EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
  EXPECT_EQ(call.response.body().size(), 5000);
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

  attachment.response.set_body("of the call before");
  attachment.Start(&channel);
  OutboundResponse other;
  other.compression = CompressionAlgorithm::kGzip;
  other.attachment_compressed = true;
  other.attachment = CreateBufferSlow("this is not gzip");
  peer->Send(peer->Encode(peer->ReadRequest()->id, std::move(other)));
  EXPECT_EQ(attachment.Await(), STATUS_MALFORMED_DATA);
  EXPECT_EQ(attachment.response.body(), "");

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

TEST_F(ClientMessagesTest, AttachmentOverHttpOrBoltIsAnError) {
  RawServer server;
  for (const auto& [scheme, protocol] : {std::pair{"http", "http+pb"},
                                         {"http+pb", "http+pb"},
                                         {"bolt", "bolt"}}) {
    RpcChannel channel(std::string(scheme) + "://" +
                       server.endpoint().ToString());
    TestedCall call;
    call.controller.SetRequestAttachment(CreateBufferSlow("x"));
    EXPECT_EQ(call.Start(&channel)->Await(), STATUS_NOT_SUPPORTED);
    EXPECT_EQ(call.controller.ErrorText(),
              std::string(protocol) +
                  " doesn't carry attachments; flare, baidu-std and trpc do");
    EXPECT_FALSE(server.HasVisitor());
  }
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
  response.body = CreateBufferSlow("\xff\xff as they are");
  peer->Send(peer->Encode(request->id, std::move(response)));
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  EXPECT_EQ(FlattenSlow(call.controller.GetResponseRawBytes()),
            "\xff\xff as they are");
  EXPECT_EQ(call.response.ByteSizeLong(), 0);
}

// A caller couldn't know by which algorithm they are compressed.
TEST_F(ClientMessagesTest, RawBytesAreDecompressed) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  for (const bool malformed : {false, true}) {
    TestedCall call;
    call.controller.SetAcceptResponseRawBytes(true);
    call.Start(&channel);
    OutboundResponse response;
    response.compression = CompressionAlgorithm::kSnappy;
    response.body = CreateBufferSlow("\xff\xff");
    if (!malformed) {
      response.body = *Compress(CompressionAlgorithm::kSnappy,
                                CreateBufferSlow("any bytes"));
    }
    peer->Send(peer->Encode(peer->ReadRequest()->id, std::move(response)));
    EXPECT_EQ(call.Await(), malformed ? STATUS_MALFORMED_DATA : STATUS_SUCCESS);
    EXPECT_EQ(FlattenSlow(call.controller.GetResponseRawBytes()),
              malformed ? "" : "any bytes");
  }
}

TEST_F(ClientMessagesTest, RawBytesNeedNoMessages) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  RpcClientController controller;
  controller.SetRequestRawBytes(CreateBufferSlow("any bytes"));
  controller.SetAcceptResponseRawBytes(true);
  fiber::Event done;
  channel.CallMethod(MethodNamed("Call"), &controller, nullptr, nullptr,
                     google::protobuf::NewCallback(&done, &fiber::Event::Set));
  const auto request = peer->ReadRequest();
  EXPECT_EQ(request->body, "any bytes");
  OutboundResponse response;
  response.body = CreateBufferSlow("raw");
  peer->Send(peer->Encode(request->id, std::move(response)));
  done.Wait();
  EXPECT_FALSE(controller.Failed()) << controller.ErrorText();
  EXPECT_EQ(FlattenSlow(controller.GetResponseRawBytes()), "raw");
}

}  // namespace
}  // namespace flare::rpc::testing
