#include "flare/rpc/stream/message_compression.h"

#include <string>
#include <utility>

#include "flare/rpc/rpc_status.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

constexpr CompressionAlgorithm kAll[] = {
    CompressionAlgorithm::kGzip, CompressionAlgorithm::kZlib,
    CompressionAlgorithm::kZstd, CompressionAlgorithm::kSnappy,
    CompressionAlgorithm::kLz4Frame};

TEST(MessageCompression, GoesBothWays) {
  const std::string text(10'000, 'x');
  for (const CompressionAlgorithm algorithm : kAll) {
    OutboundBody body(CreateBufferSlow(text));
    ASSERT_TRUE(CompressMessage(algorithm, &body));
    EXPECT_LT(body.size(), 1000u);
    Buffer bytes = std::move(body).ToBuffer();
    EXPECT_TRUE(DecompressMessage(algorithm, text.size(), &bytes).ok());
    EXPECT_EQ(FlattenSlow(bytes), text);
  }
}

TEST(MessageCompression, LeavesMessagesThatWouldGrow) {
  for (const CompressionAlgorithm algorithm : kAll) {
    for (const std::string text : {"", "x"}) {
      OutboundBody body(CreateBufferSlow(text));
      EXPECT_FALSE(CompressMessage(algorithm, &body));
      EXPECT_EQ(FlattenSlow(std::move(body).ToBuffer()), text);
    }
  }
}

TEST(MessageCompression, IsBounded) {
  for (const CompressionAlgorithm algorithm : kAll) {
    OutboundBody body(CreateBufferSlow(std::string(10'000, 'x')));
    ASSERT_TRUE(CompressMessage(algorithm, &body));
    Buffer bytes = std::move(body).ToBuffer();
    EXPECT_EQ(DecompressMessage(algorithm, 9'999, &bytes).code(),
              STATUS_OVERLOADED);
  }
}

TEST(MessageCompression, CorruptMessagesAreMalformed) {
  for (const CompressionAlgorithm algorithm : kAll) {
    Buffer bytes = CreateBufferSlow("\xff\xff\xff\xff\xff none of them");
    EXPECT_EQ(DecompressMessage(algorithm, 1000, &bytes).code(),
              STATUS_MALFORMED_DATA);
  }
}

}  // namespace
}  // namespace flare::rpc
