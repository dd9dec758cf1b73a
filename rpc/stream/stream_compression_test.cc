// Compressed messages of streaming calls, by both of our sides.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/compression.h"
#include "flare/fiber/event.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

constexpr std::size_t kPadding = 10'000;

class StreamCompressionTest : public StreamerTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StreamerTest::SetUp());
    ASSERT_TRUE(Open("grpc", {}));
  }
  bool Open(const std::string& protocol, const RpcChannel::Options& options) {
    return channel_.Open(protocol + "://" + server_->endpoint().ToString(),
                         options);
  }

  // Echoes; each second message isn't compressed. Says how they came.
  void EchoBy(CompressionAlgorithm algorithm, std::vector<bool>* came) {
    service_.on_echo = [=](StreamReader<Number> reader,
                           StreamWriter<Number> writer,
                           RpcServerController* controller) {
      controller->SetCompressionAlgorithm(algorithm);
      for (const Number& number : reader) {
        came->push_back(reader.compressed());
        writer.SetCompressed(number.value() % 2 == 0);
        if (!writer.Write(number)) return;
      }
      writer.Close();
    };
  }
};

TEST_F(StreamCompressionTest, EachMessageIsCompressedOrNot) {
  for (const CompressionAlgorithm algorithm :
       {CompressionAlgorithm::kGzip, CompressionAlgorithm::kZlib,
        CompressionAlgorithm::kZstd, CompressionAlgorithm::kSnappy}) {
    std::vector<bool> came;
    EchoBy(algorithm, &came);
    controller_.Reset();
    controller_.SetCompressionAlgorithm(algorithm);
    auto [reader, writer] = stub_.Echo(&controller_);
    for (int i = 0; i != 4; ++i) {
      writer.SetCompressed(i < 2);
      ASSERT_TRUE(writer.Write(MakeNumber(i, kPadding)));
    }
    writer.Close();
    for (int i = 0; i != 4; ++i) {
      auto number = reader.Read();
      ASSERT_TRUE(number) << reader.status().ToString();
      EXPECT_EQ(number->value(), i);
      EXPECT_EQ(number->padding().size(), kPadding);
      EXPECT_EQ(reader.compressed(), i % 2 == 0);
    }
    EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
    EXPECT_EQ(came, (std::vector<bool>{true, true, false, false}));
  }
}

TEST_F(StreamCompressionTest, WhatDoesNotGetSmallerGoesAsItIs) {
  std::vector<bool> came;
  EchoBy(CompressionAlgorithm::kGzip, &came);
  controller_.SetCompressionAlgorithm(CompressionAlgorithm::kGzip);
  auto [reader, writer] = stub_.Echo(&controller_);
  EXPECT_TRUE(writer.WriteLast(MakeNumber(2)));
  EXPECT_TRUE(reader.Read());
  EXPECT_FALSE(reader.compressed());
  EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
  EXPECT_EQ(came, std::vector<bool>{false});
}

// Nothing is said about it, as the option says.
TEST_F(StreamCompressionTest, OtherProtocolsSendMessagesAsTheyAre) {
  for (const char* protocol : {"flare", "trpc", "baidu-std"}) {
    ASSERT_TRUE(Open(protocol, {}));
    std::vector<bool> came;
    EchoBy(CompressionAlgorithm::kGzip, &came);
    controller_.Reset();
    controller_.SetCompressionAlgorithm(CompressionAlgorithm::kGzip);
    auto [reader, writer] = stub_.Echo(&controller_);
    EXPECT_TRUE(writer.WriteLast(MakeNumber(2, kPadding)));
    EXPECT_TRUE(reader.Read());
    EXPECT_FALSE(reader.compressed());
    EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
    EXPECT_EQ(came, std::vector<bool>{false}) << protocol;
  }
}

// They count for the window as they came.
TEST_F(StreamCompressionTest, MessagesThatWaitAreHeldCompressed) {
  constexpr int kMessages = 50;
  fiber::Event all_sent;
  service_.on_sum = [&](StreamReader<Number> reader, Number* response,
                        RpcServerController*) {
    all_sent.Wait();
    std::int64_t bytes = 0;
    for (const Number& number : reader) {
      bytes += static_cast<std::int64_t>(number.padding().size());
    }
    response->set_value(bytes);
  };
  controller_.SetCompressionAlgorithm(CompressionAlgorithm::kZstd);
  auto [reader, writer] = stub_.Sum(&controller_);
  for (int i = 0; i != kMessages; ++i) {
    ASSERT_TRUE(writer.Write(MakeNumber(i, 1'000'000)));
  }
  writer.Close();
  all_sent.Set();
  auto sum = reader.Read();
  ASSERT_TRUE(sum) << reader.status().ToString();
  EXPECT_EQ(sum->value(), kMessages * 1'000'000);
}

TEST_F(StreamCompressionTest, TheServersLimitIsThatOfTheUnpackedMessage) {
  controller_.SetCompressionAlgorithm(CompressionAlgorithm::kGzip);
  auto [reader, writer] = stub_.Sum(&controller_);
  EXPECT_TRUE(writer.Write(MakeNumber(1, 5'000'000)));
  writer.Close();
  EXPECT_FALSE(reader.Read());
  EXPECT_EQ(GrpcFromStatus(reader.status().code()),
            GrpcCode::kResourceExhausted)
      << reader.status().ToString();
}

class UnpackedBytesTest : public StreamCompressionTest {
 protected:
  Server::Options server_options() override {
    return {.service_name = "test",
            .max_concurrent_decompressed_bytes = kPadding};
  }
};

// Each stream counts the message that was read last.
TEST_F(UnpackedBytesTest, ReadMessagesCountForTheServersLimit) {
  fiber::Event has_read;
  fiber::Event go_on;
  service_.on_sum = [&](StreamReader<Number> reader, Number* response,
                        RpcServerController*) {
    std::int64_t bytes = 0;
    for (const Number& number : reader) {
      bytes += static_cast<std::int64_t>(number.padding().size());
      if (number.value() != 1) continue;
      has_read.Set();
      go_on.Wait();
    }
    response->set_value(bytes);
  };
  controller_.SetCompressionAlgorithm(CompressionAlgorithm::kGzip);
  auto [reader, writer] = stub_.Sum(&controller_);
  ASSERT_TRUE(writer.Write(MakeNumber(1, 2 * kPadding)));
  has_read.Wait();
  const auto sum_of_other = [&](std::int64_t* sum) {
    RpcClientController controller;
    controller.SetCompressionAlgorithm(CompressionAlgorithm::kGzip);
    auto [in, out] = stub_.Sum(&controller);
    EXPECT_TRUE(out.Write(MakeNumber(2, kPadding)));
    out.Close();
    if (auto number = in.Read()) *sum = number->value();
    return in.status().code();
  };
  std::int64_t sum = 0;
  EXPECT_EQ(GrpcFromStatus(sum_of_other(&sum)), GrpcCode::kResourceExhausted);
  go_on.Set();
  ASSERT_TRUE(writer.Write(MakeNumber(2, 2 * kPadding)));
  writer.Close();
  auto number = reader.Read();
  ASSERT_TRUE(number) << reader.status().ToString();
  EXPECT_EQ(number->value(), std::int64_t{4 * kPadding});
  EXPECT_FALSE(reader.Read());  // Its end: the server's stream is gone soon.
  ASSERT_TRUE(fiber::testing::Eventually(
      [&] { return sum_of_other(&sum) == STATUS_SUCCESS; }));
  EXPECT_EQ(sum, std::int64_t{kPadding});
}

TEST_F(StreamCompressionTest, SoIsTheClients) {
  ASSERT_TRUE(Open("grpc", {.max_decompressed_size = kPadding}));
  service_.on_count = [&](const Number& request, StreamWriter<Number> writer,
                          RpcServerController* controller) {
    controller->SetCompressionAlgorithm(CompressionAlgorithm::kGzip);
    writer.WriteLast(request);
  };
  auto reader = stub_.Count(MakeNumber(1, kPadding), &controller_);
  EXPECT_EQ(reader.Read().error(), StreamError::IoError);
  EXPECT_EQ(reader.status().code(), STATUS_OVERLOADED);
  EXPECT_EQ(controller_.ErrorCode(), STATUS_OVERLOADED);
}

}  // namespace
}  // namespace flare::rpc::testing
