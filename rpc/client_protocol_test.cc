#include "flare/rpc/client_protocol.h"

#include <string>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

TEST(InboundResponseTest, ClearMakesItNew) {
  InboundResponse response;
  response.correlation_id = 5;
  response.status = STATUS_FAILED;
  response.description = "d";
  response.compression = CompressionAlgorithm::kGzip;
  response.attachment_compressed = true;
  response.body = CreateBufferSlow("b");
  response.attachment = CreateBufferSlow("a");
  response.wire = CreateBufferSlow("w");
  response.last_on_connection = true;
  response.is_notice = true;
  response.unreadable = true;
  response.wire_size = response.meta_size = response.body_size = 3;
  response.Clear();
  EXPECT_EQ(response.correlation_id, 0u);
  EXPECT_EQ(response.status, STATUS_SUCCESS);
  EXPECT_TRUE(response.description.empty());
  EXPECT_EQ(response.compression, CompressionAlgorithm::kNone);
  EXPECT_FALSE(response.attachment_compressed);
  EXPECT_TRUE(response.body.empty());
  EXPECT_TRUE(response.attachment.empty());
  EXPECT_TRUE(response.wire.empty());
  EXPECT_FALSE(response.last_on_connection);
  EXPECT_FALSE(response.is_notice);
  EXPECT_FALSE(response.unreadable);
  EXPECT_EQ(response.wire_size + response.meta_size + response.body_size, 0u);
}

TEST(InboundResponseTest, ClearKeepsLittleMemory) {
  InboundResponse response;
  response.scratch.assign(1'000'000, 'x');
  response.Clear();
  EXPECT_LE(response.scratch.capacity(), 4096u);
}

}  // namespace
}  // namespace flare::rpc
