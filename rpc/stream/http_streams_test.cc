// Replies that are streams, over HTTP: bytes, and both of our sides.
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/fiber/event.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_client.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

class HttpStreamsTest : public StreamerTest,
                        public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(RpcTest::SetUp());
    server_.emplace(Server::Options{.service_name = "test"});
    server_->AddService(&service_);
    server_->AddProtocols(
        {"http+pb", "http+pb-text", "http+proto3-json", "http"});
    server_->ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    ASSERT_TRUE(server_->Start());
    ASSERT_TRUE(channel_.Open(std::string(GetParam()) + "://" +
                              server_->endpoint().ToString()));
  }
};

TEST_P(HttpStreamsTest, MessagesComeInOrder) {
  OnFiber([&] {
    for (int n : {0, 1, 2, 1000}) {
      std::vector<std::int64_t> numbers;
      auto reader = stub_.Count(MakeNumber(n));
      for (const Number& number : reader) numbers.push_back(number.value());
      EXPECT_EQ(reader.error(), StreamError::EndOfStream)
          << reader.status().ToString();
      ASSERT_EQ(numbers.size(), static_cast<std::size_t>(n));
      for (int i = 0; i != n; ++i) EXPECT_EQ(numbers[i], i);
    }
  });
}

TEST_P(HttpStreamsTest, LargeMessagesAreWhole) {
  OnFiber([&] {
    int count = 0;
    auto reader = stub_.Count(MakeNumber(50, 100'000));
    for (const Number& number : reader) {
      ASSERT_EQ(number.padding().size(), 100'000u);
      ++count;
    }
    EXPECT_EQ(reader.error(), StreamError::EndOfStream);
    EXPECT_EQ(count, 50);
  });
}

TEST_P(HttpStreamsTest, AFailureComesBehindTheMessages) {
  service_.on_count = [](const Number&, StreamWriter<Number> writer,
                         RpcServerController* controller) {
    EXPECT_TRUE(writer.Write(MakeNumber(7)));
    controller->SetFailed(1234, "that was all");
  };
  OnFiber([&] {
    auto reader = stub_.Count(MakeNumber(3));
    auto number = reader.Read();
    ASSERT_TRUE(number);
    EXPECT_EQ(number->value(), 7);
    EXPECT_FALSE(reader.Read());
    EXPECT_EQ(reader.error(), StreamError::IoError);
    EXPECT_EQ(reader.status().code(), 1234);
    EXPECT_EQ(reader.status().message(), "that was all");
  });
}

TEST_P(HttpStreamsTest, AFailureMayBeAllThereIs) {
  service_.on_count = [](const Number&, StreamWriter<Number>,
                         RpcServerController* controller) {
    controller->SetFailed(1234, "nothing");
  };
  OnFiber([&] {
    auto reader = stub_.Count(MakeNumber(3));
    EXPECT_FALSE(reader.Read());
    EXPECT_EQ(reader.status().code(), 1234);
    EXPECT_EQ(reader.status().message(), "nothing");
  });
}

TEST_P(HttpStreamsTest, AReaderThatLeavesStopsItsWriter) {
  fiber::Event ended;
  service_.on_count = [&](const Number&, StreamWriter<Number> writer,
                          RpcServerController*) {
    while (writer.Write(MakeNumber(1, 10'000))) continue;
    ended.Set();
  };
  OnFiber([&] {
    {
      auto reader = stub_.Count(MakeNumber(1));
      ASSERT_TRUE(reader.Read());
    }
    ended.Wait();
  });
}

TEST_P(HttpStreamsTest, TheDeadlineEndsBothSides) {
  fiber::Event ended;
  service_.on_count = [&](const Number&, StreamWriter<Number> writer,
                          RpcServerController*) {
    while (writer.Write(MakeNumber(1, 10'000))) continue;
    ended.Set();
  };
  OnFiber([&] {
    // Long enough for the method to begin on a busy machine.
    controller_.SetTimeout(std::chrono::seconds(2));
    auto reader = stub_.Count(MakeNumber(1), &controller_);
    while (reader.Read()) continue;
    EXPECT_NE(reader.error(), StreamError::EndOfStream);
    ended.Wait();
  });
}

TEST_P(HttpStreamsTest, RequestsCantStream) {
  OnFiber([&] {
    auto [reader, writer] = stub_.Sum();
    EXPECT_FALSE(reader.Read());
    EXPECT_EQ(reader.status().code(), STATUS_NOT_SUPPORTED);
    EXPECT_EQ(reader.status().message(),
              std::string(GetParam()) + " has no streams of requests");
  });
}

INSTANTIATE_TEST_SUITE_P(, HttpStreamsTest,
                         ::testing::Values("http+pb", "http+pb-text",
                                           "http+proto3-json"));

class HttpStreamBytesTest : public HttpStreamsTest {
 protected:
  static std::string Ask(std::string_view type, std::string_view body,
                         std::string_view fields = "",
                         std::string_view version = "1.1") {
    return "POST /rpc/flare.rpc.testing.Streamer.Count HTTP/" +
           std::string(version) + "\r\n" + std::string(fields) +
           "Content-Type: " + std::string(type) +
           "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
           std::string(body);
  }
};

// protocols.md, 1.2; the first message is empty.
TEST_P(HttpStreamBytesTest, AreAsPublished) {
  RawClient client(server_->endpoint());
  static constexpr char kReply[] =
      "HTTP/1.1 200 OK\r\n"
      "Content-Type: application/x-protobuf\r\n"
      "Rpc-SeqNo: 7\r\n"
      "Transfer-Encoding: chunked\r\n"
      "Trailer: Rpc-Error-Code\r\n"
      "\r\n"
      "4\r\n\xc0\xa3\x09\0\r\n"
      "2\r\n\x08\x01\r\n"
      "0\r\n"
      "Rpc-Error-Code: success\r\n"
      "\r\n";
  for (int i = 0; i != 2; ++i) {  // The connection goes on.
    client.Send(Ask("application/x-protobuf", "\x08\x02", "Rpc-SeqNo: 7\r\n"));
    const std::string expected(kReply, sizeof(kReply) - 1);
    EXPECT_EQ(client.ReadExactly(expected.size()), expected);
  }
}

TEST_P(HttpStreamBytesTest, JsonHasALineForEachMessage) {
  RawClient client(server_->endpoint());
  client.Send(Ask("application/x-proto3-json", R"({"value":"1"})"));
  client.ReadUntil("\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"),
            "3\r\n{}\n\r\n0\r\nRpc-Error-Code: success\r\n\r\n");
}

TEST_P(HttpStreamBytesTest, TheStatusFollowsTheMessages) {
  service_.on_count = [](const Number&, StreamWriter<Number> writer,
                         RpcServerController* controller) {
    EXPECT_TRUE(writer.Write(MakeNumber(1)));
    controller->SetFailed(STATUS_OVERLOADED, "too\nmuch");
  };
  RawClient client(server_->endpoint());
  client.Send(Ask("application/x-protobuf", "\x08\x02"));
  client.ReadUntil("\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"),
            "2\r\n\x08\x01\r\n0\r\nRpc-Error-Code: ServerOverload\r\n"
            "Rpc-Error-Reason: too much\r\nRpc-Error-Number: 11\r\n\r\n");
}

// Replies in their order, though the first one's method takes its time.
TEST_P(HttpStreamBytesTest, PipelinedStreamsFollowEachOther) {
  RawClient client(server_->endpoint());
  std::string both;
  for (int i = 0; i != 20; ++i)
    both += Ask("application/json", R"({"value":3})");
  client.Send(both);
  for (int i = 0; i != 20; ++i) {
    EXPECT_EQ(client.ReadUntil("\r\n\r\n").substr(0, 15), "HTTP/1.1 200 OK");
    const std::string body = client.ReadUntil("\r\n\r\n");
    EXPECT_TRUE(body.ends_with("0\r\nRpc-Error-Code: success\r\n\r\n")) << body;
  }
}

TEST_P(HttpStreamBytesTest, AnOldPeerIsRefused) {
  RawClient client(server_->endpoint());
  client.Send(Ask("application/json", R"({"value":3})", "", "1.0"));
  const std::string reply = client.ReadAll();
  EXPECT_EQ(reply.substr(0, 12), "HTTP/1.1 500");
  EXPECT_NE(reply.find("needs HTTP/1.1"), reply.npos) << reply;
}

TEST_P(HttpStreamBytesTest, AConnectionThatEndsStopsTheWriter) {
  fiber::Event ended;
  service_.on_count = [&](const Number&, StreamWriter<Number> writer,
                          RpcServerController*) {
    while (writer.Write(MakeNumber(1, 10'000))) continue;
    ended.Set();
  };
  RawClient client(server_->endpoint());
  client.Send(Ask("application/x-protobuf", "\x08\x02"));
  client.ReadUntil("\r\n\r\n");
  client.Close();
  ended.Wait();
}

INSTANTIATE_TEST_SUITE_P(, HttpStreamBytesTest, ::testing::Values("http+pb"));

}  // namespace
}  // namespace flare::rpc::testing
