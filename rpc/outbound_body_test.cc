#include "flare/rpc/outbound_body.h"

#include <google/protobuf/wrappers.pb.h>

#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

google::protobuf::StringValue Message(std::size_t text_size) {
  google::protobuf::StringValue message;
  message.set_value(std::string(text_size, 'x'));
  return message;
}

TEST(OutboundBody, IsEmptyAtFirst) {
  OutboundBody body;
  EXPECT_TRUE(body.empty());
  EXPECT_EQ(body.size(), 0u);
  BufferBuilder out;
  std::move(body).AppendTo(&out);
  EXPECT_EQ(out.ByteSize(), 0u);
}

TEST(OutboundBody, KeepsBytesAsTheyAre) {
  OutboundBody body = CreateBufferSlow("some bytes");
  EXPECT_EQ(body.size(), 10u);
  OutboundBody copy = body;
  EXPECT_EQ(FlattenSlow(std::move(copy).ToBuffer()), "some bytes");
  BufferBuilder out;
  out.Append("<");
  std::move(body).AppendTo(&out);
  out.Append(">");
  EXPECT_EQ(FlattenSlow(out.DestructiveGet()), "<some bytes>");
}

// Within the room of one block, beyond it, and of no bytes at all.
TEST(OutboundBody, WritesAMessageBetweenWhatIsAroundIt) {
  for (std::size_t text_size : {0, 5, 300, 5000, 300'000}) {
    const auto message = Message(text_size);
    OutboundBody body(message, message.ByteSizeLong());
    EXPECT_EQ(body.size(), message.ByteSizeLong());
    EXPECT_EQ(body.empty(), text_size == 0);
    BufferBuilder out;
    out.Append("head");
    std::move(body).AppendTo(&out);
    out.Append("tail");
    EXPECT_EQ(FlattenSlow(out.DestructiveGet()),
              "head" + message.SerializeAsString() + "tail");
  }
}

TEST(OutboundBody, TurnsAMessageIntoBytesThatOutliveIt) {
  std::string expected;
  Buffer bytes;
  {
    const auto message = Message(20'000);
    expected = message.SerializeAsString();
    bytes = OutboundBody(message, message.ByteSizeLong()).ToBuffer();
  }
  EXPECT_EQ(FlattenSlow(bytes), expected);
}

TEST(OutboundBody, CanBeCleared) {
  const auto message = Message(5);
  OutboundBody body(message, message.ByteSizeLong());
  body.Clear();
  EXPECT_TRUE(body.empty());
  EXPECT_TRUE(std::move(body).ToBuffer().empty());
}

}  // namespace
}  // namespace flare::rpc
