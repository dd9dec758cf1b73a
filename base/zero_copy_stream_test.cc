#include "flare/base/zero_copy_stream.h"

#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wrappers.pb.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "flare/base/testing/buffers.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

using buffer_testing::Sliced;

using google::protobuf::BytesValue;
using google::protobuf::FileDescriptorProto;

std::string Text(std::size_t size) {
  std::mt19937 random(42);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

TEST(BufferInputStream, Empty) {
  Buffer buffer;
  BufferInputStream in(&buffer);
  const void* data;
  int size;
  EXPECT_FALSE(in.Next(&data, &size));
  EXPECT_FALSE(in.Next(&data, &size));
  EXPECT_EQ(in.ByteCount(), 0);
  EXPECT_TRUE(in.Skip(0));
  EXPECT_FALSE(in.Skip(1));
}

TEST(BufferInputStream, NextBackUpSkip) {
  const std::string text = "abcdefgh";
  Buffer buffer = Sliced(text, 3);
  BufferInputStream in(&buffer);
  const void* data;
  int size;
  auto next = [&] {
    EXPECT_TRUE(in.Next(&data, &size));
    return std::string(static_cast<const char*>(data), size);
  };
  EXPECT_EQ(next(), "abc");
  in.BackUp(0);
  EXPECT_EQ(in.ByteCount(), 3);
  EXPECT_EQ(next(), "def");
  in.BackUp(3);
  EXPECT_EQ(in.ByteCount(), 3);
  EXPECT_EQ(next(), "def");
  in.BackUp(1);
  EXPECT_EQ(in.ByteCount(), 5);
  EXPECT_EQ(next(), "f");
  in.BackUp(1);
  EXPECT_EQ(next(), "f");
  EXPECT_TRUE(in.Skip(1));
  EXPECT_EQ(in.ByteCount(), 7);
  EXPECT_EQ(next(), "h");
  in.BackUp(1);
  EXPECT_FALSE(in.Skip(2));
  EXPECT_EQ(in.ByteCount(), 8);
  EXPECT_FALSE(in.Next(&data, &size));
  EXPECT_EQ(FlattenSlow(buffer), text) << "The Buffer changed.";
}

TEST(BufferInputStream, PointsIntoTheBuffer) {
  const std::string text = "abcdefgh";
  Buffer buffer = Sliced(text, 8);
  BufferInputStream in(&buffer);
  const void* data;
  int size;
  ASSERT_TRUE(in.Next(&data, &size));
  EXPECT_EQ(data, text.data());
}

// Random walk against a string and an offset.
TEST(BufferInputStream, Random) {
  const std::string text = Text(3000);
  for (int seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    Buffer buffer = Sliced(text, 1 + random() % 100);
    BufferInputStream in(&buffer);
    std::size_t at = 0;
    while (at < text.size()) {
      if (random() % 3 == 0) {
        const std::size_t n = random() % 200;
        EXPECT_EQ(in.Skip(static_cast<int>(n)), at + n <= text.size());
        at = std::min(at + n, text.size());
      } else {
        const void* data;
        int size;
        ASSERT_TRUE(in.Next(&data, &size));
        ASSERT_GT(size, 0);
        ASSERT_EQ(std::string_view(static_cast<const char*>(data), size),
                  text.substr(at, size));
        const int back = static_cast<int>(random() % (size + 1));
        in.BackUp(back);
        at += size - back;
      }
      ASSERT_EQ(in.ByteCount(), static_cast<std::int64_t>(at));
    }
  }
}

FileDescriptorProto SampleMessage() {
  FileDescriptorProto message;
  google::protobuf::FileDescriptorProto::descriptor()->file()->CopyTo(&message);
  return message;
}

TEST(BufferInputStream, ParsesMessagesHoweverTheyAreSliced) {
  const FileDescriptorProto message = SampleMessage();
  const std::string bytes = message.SerializeAsString();
  for (std::size_t slice : {1u, 2u, 7u, 100u, 4096u, 1u << 20}) {
    Buffer buffer = Sliced(bytes, slice);
    BufferInputStream in(&buffer);
    FileDescriptorProto parsed;
    ASSERT_TRUE(parsed.ParseFromZeroCopyStream(&in));
    EXPECT_EQ(parsed.SerializeAsString(), bytes);
  }
}

TEST(BufferInputStream, TruncatedMessageFails) {
  std::string bytes = SampleMessage().SerializeAsString();
  bytes.resize(bytes.size() - 1);
  Buffer buffer = Sliced(bytes, 100);
  BufferInputStream in(&buffer);
  FileDescriptorProto parsed;
  EXPECT_FALSE(parsed.ParseFromZeroCopyStream(&in));
}

TEST(BufferInputStream, BoundedParseLeavesTheRest) {
  const std::string bytes = SampleMessage().SerializeAsString();
  const std::string all = bytes + "rest";
  Buffer buffer = Sliced(all, 64);
  BufferInputStream in(&buffer);
  FileDescriptorProto parsed;
  ASSERT_TRUE(parsed.ParseFromBoundedZeroCopyStream(
      &in, static_cast<int>(bytes.size())));
  EXPECT_EQ(in.ByteCount(), static_cast<std::int64_t>(bytes.size()));
}

TEST(BufferOutputStream, Empty) {
  BufferBuilder builder;
  {
    BufferOutputStream out(&builder);
    EXPECT_EQ(out.ByteCount(), 0);
    out.Flush();
  }
  EXPECT_EQ(builder.ByteSize(), 0u);
}

TEST(BufferOutputStream, NextAndBackUp) {
  BufferBuilder builder;
  builder.Append("<");
  {
    BufferOutputStream out(&builder);
    void* data;
    int size;
    ASSERT_TRUE(out.Next(&data, &size));
    ASSERT_GE(size, 6);
    std::memcpy(data, "abcdef", 6);
    out.BackUp(size - 6);
    EXPECT_EQ(out.ByteCount(), 6);
    out.Flush();
    EXPECT_EQ(out.ByteCount(), 6);
    EXPECT_EQ(builder.ByteSize(), 7u);
    ASSERT_TRUE(out.Next(&data, &size));
    out.BackUp(size);
    EXPECT_EQ(out.ByteCount(), 6);
    ASSERT_TRUE(out.Next(&data, &size));
    std::memcpy(data, "gh", 2);
    out.BackUp(size - 2);
  }
  builder.Append(">");
  Buffer buffer = builder.DestructiveGet();
  EXPECT_EQ(FlattenSlow(buffer), "<abcdefgh>");
  EXPECT_EQ(buffer.SliceCount(), 1u);
}

TEST(BufferOutputStream, ManyBlocks) {
  BufferBuilder builder;
  std::string model;
  {
    BufferOutputStream out(&builder);
    std::mt19937 random(7);
    for (int i = 0; i < 200; ++i) {
      void* data;
      int size;
      ASSERT_TRUE(out.Next(&data, &size));
      ASSERT_GT(size, 0);
      std::memset(data, 'a' + i % 26, size);
      const int back = random() % 2 ? 0 : static_cast<int>(random() % size);
      out.BackUp(back);
      model += std::string(size - back, static_cast<char>('a' + i % 26));
      ASSERT_EQ(out.ByteCount(), static_cast<std::int64_t>(model.size()));
    }
  }
  EXPECT_EQ(FlattenSlow(builder.DestructiveGet()), model);
}

TEST(BufferOutputStream, SerialisesMessages) {
  const FileDescriptorProto message = SampleMessage();
  for (bool hint : {false, true}) {
    BufferBuilder builder;
    builder.Append("head");
    {
      BufferOutputStream out(&builder, hint ? message.ByteSizeLong() : 0);
      ASSERT_TRUE(message.SerializeToZeroCopyStream(&out));
    }
    builder.Append("tail");
    EXPECT_EQ(FlattenSlow(builder.DestructiveGet()),
              "head" + message.SerializeAsString() + "tail");
  }
}

TEST(BufferOutputStream, LargeMessageRoundTrip) {
  BytesValue message;
  message.set_value(Text(3 << 20));
  BufferBuilder builder;
  BufferOutputStream out(&builder, message.ByteSizeLong());
  ASSERT_TRUE(message.SerializeToZeroCopyStream(&out));
  out.Flush();
  Buffer buffer = builder.DestructiveGet();
  EXPECT_EQ(buffer.size(), message.ByteSizeLong());
  EXPECT_LE(buffer.SliceCount(), 60u) << "Not in large blocks.";
  BufferInputStream in(&buffer);
  BytesValue parsed;
  ASSERT_TRUE(parsed.ParseFromZeroCopyStream(&in));
  EXPECT_EQ(parsed.value(), message.value());
}

}  // namespace
}  // namespace flare
