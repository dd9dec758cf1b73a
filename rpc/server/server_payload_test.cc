// Attachments, raw bytes, compression.
#include <string>
#include <utility>

#include "flare/base/compression.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using ServerPayloadTest = ServerTest;

TEST_F(ServerPayloadTest, AttachmentsGoBothWays) {
  service().on_call = [](TestCall call) {
    call.controller->SetResponseAttachment(
        call.controller->GetRequestAttachment());
    FlexibleService::Echo(call);
  };
  StartServer();
  RawClient client(endpoint());
  for (std::size_t size : {1, 1000, 1'000'000}) {
    OutboundRequest request;
    request.correlation_id = size;
    request.method = kCall;
    request.body = CreateBufferSlow(MakeRequest("x").SerializeAsString());
    request.attachment = CreateBufferSlow(std::string(size, 'z'));
    client.Send(client.Encode(std::move(request)));
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, STATUS_SUCCESS) << reply->description;
    EXPECT_TRUE(reply->attachment == std::string(size, 'z')) << size;
    EXPECT_EQ(reply->As<TestResponse>().body(), "x");
  }
}

TEST_F(ServerPayloadTest, AttachmentThatTheProtocolCannotCarryIsLeftOut) {
  service().on_call = [](TestCall call) {
    call.controller->SetResponseAttachment(CreateBufferSlow("attached"));
    call.Reply("x");
  };
  StartServer();
  RawClient client(endpoint(), "http+pb");
  client.Call(1, kCall, MakeRequest(""));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, STATUS_SUCCESS) << reply->description;
  EXPECT_EQ(reply->As<TestResponse>().body(), "x");
  // Nor does it hide why a call failed.
  service().on_call = [](TestCall call) {
    call.controller->SetResponseAttachment(CreateBufferSlow("attached"));
    call.controller->SetFailed(1234, "no");
    call.Reply();
  };
  client.Call(2, kCall, MakeRequest(""));
  EXPECT_EQ(client.ReadReply()->status, 1234);
}

TEST_F(ServerPayloadTest, RawBytesReplaceTheMessage) {
  service().on_call = [](TestCall call) {
    call.controller->SetResponseRawBytes(CreateBufferSlow("raw"));
    call.Reply("not this");
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  EXPECT_EQ(client.ReadReply()->body, "raw");
}

class CompressionTest
    : public ServerTest,
      public ::testing::WithParamInterface<CompressionAlgorithm> {
 protected:
  static OutboundRequest MakeCompressed(CompressionAlgorithm algorithm) {
    OutboundRequest request;
    request.correlation_id = 1;
    request.method = kCall;
    request.compression = algorithm;
    request.body =
        *Compress(algorithm,
                  CreateBufferSlow(
                      MakeRequest(std::string(5000, 'c')).SerializeAsString()));
    request.attachment =
        *Compress(algorithm, CreateBufferSlow(std::string(9000, 'd')));
    request.attachment_compressed = true;
    return request;
  }
};

TEST_P(CompressionTest, BothWays) {
  service().on_call = [](TestCall call) {
    EXPECT_EQ(FlattenSlow(call.controller->GetRequestAttachment()),
              std::string(9000, 'd'));
    call.controller->SetCompressionAlgorithm(GetParam());
    call.controller->SetResponseAttachment(
        call.controller->GetRequestAttachment());
    FlexibleService::Echo(call);
  };
  StartServer();
  RawClient client(endpoint());
  client.Send(client.Encode(MakeCompressed(GetParam())));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->status, STATUS_SUCCESS) << reply->description;
  EXPECT_EQ(reply->compression, GetParam());
  EXPECT_TRUE(reply->attachment_compressed);
  EXPECT_LT(reply->body.size(), 1000u);
  EXPECT_LT(reply->attachment.size(), 1000u);
  const auto body =
      Decompress(GetParam(), CreateBufferSlow(reply->body), 1 << 20);
  ASSERT_TRUE(body);
  TestResponse response;
  ASSERT_TRUE(response.ParseFromString(FlattenSlow(*body)));
  EXPECT_EQ(response.body(), std::string(5000, 'c'));
  const auto attachment =
      Decompress(GetParam(), CreateBufferSlow(reply->attachment), 1 << 20);
  ASSERT_TRUE(attachment);
  EXPECT_EQ(FlattenSlow(*attachment), std::string(9000, 'd'));
}

TEST_P(CompressionTest, WhatBecomesTooLargeIsAnswered) {
  server_options().max_decompressed_size = 8000;
  StartServer();
  RawClient client(endpoint());
  client.Send(client.Encode(MakeCompressed(GetParam())));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, STATUS_MALFORMED_DATA);
  EXPECT_NE(reply->description.find("attachment can't be decompressed"),
            std::string::npos)
      << reply->description;
  EXPECT_NE(reply->description.find("8000 bytes"), std::string::npos)
      << reply->description;
}

TEST_P(CompressionTest, UnpackedItIsNoLargerThanAMessage) {
  server_options().maximum_packet_size = 8000;
  StartServer();
  RawClient client(endpoint());
  client.Send(client.Encode(MakeCompressed(GetParam())));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, STATUS_MALFORMED_DATA);
  EXPECT_NE(reply->description.find("8000 bytes"), std::string::npos)
      << reply->description;
}

TEST_P(CompressionTest, GarbageIsAnswered) {
  StartServer();
  RawClient client(endpoint());
  OutboundRequest request = MakeCompressed(GetParam());
  request.body = CreateBufferSlow("this was never compressed");
  client.Send(client.Encode(std::move(request)));
  auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, STATUS_MALFORMED_DATA) << reply->description;
  request = MakeCompressed(GetParam());
  request.attachment = CreateBufferSlow("nor this");
  client.Send(client.Encode(std::move(request)));
  reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, STATUS_MALFORMED_DATA) << reply->description;
  EXPECT_EQ(server().statistics().calls_malformed, 2u);
}

TEST_P(CompressionTest, PrecompressedAttachmentIsLeftAlone) {
  const Buffer packed =
      *Compress(GetParam(), CreateBufferSlow(std::string(9000, 'd')));
  service().on_call = [&](TestCall call) {
    call.controller->SetCompressionAlgorithm(GetParam());
    call.controller->SetResponseAttachment(packed);
    call.controller->SetResponseAttachmentPrecompressed(true);
    call.Reply("");
  };
  StartServer();
  RawClient client(endpoint());
  client.Send(client.Encode(MakeCompressed(GetParam())));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->status, STATUS_SUCCESS) << reply->description;
  EXPECT_TRUE(reply->attachment_compressed);
  EXPECT_EQ(reply->attachment, FlattenSlow(packed));
}

INSTANTIATE_TEST_SUITE_P(Algorithms, CompressionTest,
                         ::testing::Values(CompressionAlgorithm::kGzip,
                                           CompressionAlgorithm::kLz4Frame,
                                           CompressionAlgorithm::kSnappy,
                                           CompressionAlgorithm::kZstd));

TEST_F(ServerPayloadTest, CompressionIsLeftOutWhereTheProtocolHasNone) {
  service().on_call = [](TestCall call) {
    EXPECT_EQ(call.controller->GetPreferredCompressionAlgorithm(),
              CompressionAlgorithm::kNone);
    call.controller->SetCompressionAlgorithm(CompressionAlgorithm::kGzip);
    FlexibleService::Echo(call);
  };
  StartServer();
  RawClient client(endpoint(), "http+pb");
  client.Call(1, kCall, MakeRequest("plain"));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->As<TestResponse>().body(), "plain");
}

}  // namespace
}  // namespace flare::rpc::testing
