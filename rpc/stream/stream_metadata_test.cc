// Metadata of streaming calls, both ways, over each protocol that has streams.
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "flare/rpc/metadata.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

const std::string kBinary("\0\xff\n ", 4);

class StreamMetadataTest : public StreamerTest,
                           public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StreamerTest::SetUp());
    ASSERT_TRUE(channel_.Open(std::string(GetParam()) + "://" +
                              server_->endpoint().ToString()));
  }

  // Over trpc and baidu-std all of it comes with the end.
  bool comes_early() const { return std::string_view(GetParam()) == "flare"; }

  std::string Received(std::string_view name) const {
    return std::string(
        controller_.GetResponseMetadata().Get(name).value_or("-"));
  }
};

TEST_P(StreamMetadataTest, TheCallersReachesTheMethod) {
  Metadata seen;
  service_.on_echo = [&](StreamReader<Number> reader,
                         StreamWriter<Number> writer,
                         RpcServerController* controller) {
    seen = controller->GetRequestMetadata();
    while (reader.Read()) continue;
    writer.Close();
  };
  controller_.AddMetadata("who", "me");
  controller_.AddMetadata("trace-bin", kBinary);
  // Covers streams on connections of their own and on shared ones.
  for (int i = 0; i != 2; ++i) {
    auto [reader, writer] = stub_.Echo(&controller_);
    EXPECT_TRUE(writer.WriteLast(MakeNumber(1)));
    EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
    EXPECT_EQ(seen.size(), 2u);
    EXPECT_EQ(seen.Get("who"), "me");
    EXPECT_EQ(seen.Get("trace-bin"), kBinary);
    seen.Clear();
  }
}

TEST_P(StreamMetadataTest, TheServersComesBeforeTheMessagesAndBehind) {
  service_.on_echo = [&](StreamReader<Number> reader,
                         StreamWriter<Number> writer,
                         RpcServerController* controller) {
    EXPECT_TRUE(controller->AddResponseMetadata("early", "1"));
    EXPECT_TRUE(writer.Write(MakeNumber(1)));
    while (reader.Read()) continue;
    EXPECT_TRUE(controller->AddResponseMetadata("late-bin", kBinary));
    writer.Close();
  };
  auto [reader, writer] = stub_.Echo(&controller_);
  EXPECT_TRUE(writer.Write(MakeNumber(1)));
  EXPECT_TRUE(reader.Read());
  EXPECT_EQ(Received("early"), comes_early() ? "1" : "-");
  EXPECT_EQ(Received("late-bin"), "-");
  writer.Close();
  EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
  EXPECT_EQ(Received("early"), "1");
  EXPECT_EQ(Received("late-bin"), kBinary);
  EXPECT_EQ(controller_.GetResponseMetadata().size(), 2u);
}

TEST_P(StreamMetadataTest, ComesWithTheLastMessage) {
  service_.on_count = [&](const Number&, StreamWriter<Number> writer,
                          RpcServerController* controller) {
    EXPECT_TRUE(writer.Write(MakeNumber(1)));
    EXPECT_TRUE(controller->AddResponseMetadata("late", "2"));
    EXPECT_TRUE(writer.WriteLast(MakeNumber(2)));
  };
  auto reader = stub_.Count(MakeNumber(1), &controller_);
  while (reader.Read()) continue;
  EXPECT_EQ(reader.error(), StreamError::EndOfStream);
  EXPECT_EQ(Received("late"), "2");
}

TEST_P(StreamMetadataTest, ComesWithAFailure) {
  service_.on_count = [&](const Number&, StreamWriter<Number>,
                          RpcServerController* controller) {
    EXPECT_TRUE(controller->AddResponseMetadata("retry-after", "7"));
    controller->SetFailed(1001, "not now");
  };
  auto reader = stub_.Count(MakeNumber(1), &controller_);
  EXPECT_FALSE(reader.Read());
  EXPECT_EQ(controller_.ErrorCode(), 1001);
  EXPECT_EQ(Received("retry-after"), "7");
}

TEST_P(StreamMetadataTest, TrailersWaitForTheEnd) {
  service_.on_echo = [&](StreamReader<Number> reader,
                         StreamWriter<Number> writer,
                         RpcServerController* controller) {
    EXPECT_TRUE(controller->AddResponseTrailer("late", "1"));
    EXPECT_TRUE(writer.Write(MakeNumber(1)));
    while (reader.Read()) continue;
    writer.Close();
  };
  auto [reader, writer] = stub_.Echo(&controller_);
  EXPECT_TRUE(writer.Write(MakeNumber(1)));
  EXPECT_TRUE(reader.Read());
  EXPECT_EQ(Received("late"), "-");
  writer.Close();
  EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
  EXPECT_EQ(Received("late"), "1");
}

TEST_P(StreamMetadataTest, ComesWithTheReplyToAStream) {
  service_.on_sum = [&](StreamReader<Number> reader, Number* response,
                        RpcServerController* controller) {
    for (const Number& number : reader) response->set_value(number.value());
    EXPECT_TRUE(controller->AddResponseMetadata("total", "3"));
  };
  auto [reader, writer] = stub_.Sum(&controller_);
  EXPECT_TRUE(writer.WriteLast(MakeNumber(5)));
  auto sum = reader.Read();
  ASSERT_TRUE(sum) << reader.status().ToString();
  EXPECT_EQ(sum->value(), 5);
  EXPECT_EQ(Received("total"), "3");
}

TEST_P(StreamMetadataTest, ThatCannotBeSentFailsTheCall) {
  controller_.AddMetadata("grpc-timeout", "1");
  auto reader = stub_.Count(MakeNumber(1), &controller_);
  EXPECT_FALSE(reader.Read());
  EXPECT_EQ(controller_.ErrorCode(), STATUS_NOT_SUPPORTED);
  EXPECT_NE(controller_.ErrorText().find("grpc-timeout"), std::string::npos)
      << controller_.ErrorText();
}

INSTANTIATE_TEST_SUITE_P(, StreamMetadataTest,
                         ::testing::Values("flare", "trpc", "baidu-std"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace flare::rpc::testing
