// The controller on its own, as in a unit test of a service; in a server it is
// tested by server_test.cc.
#include "flare/rpc/rpc_server_controller.h"

#include <google/protobuf/stubs/callback.h>

#include <bitset>

#include "flare/rpc/rpc_status.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

TEST(RpcServerController, IsFreshAtFirst) {
  RpcServerController controller;
  EXPECT_FALSE(controller.Failed());
  EXPECT_EQ(controller.ErrorCode(), rpc::STATUS_SUCCESS);
  EXPECT_EQ(controller.ErrorText(), "");
  EXPECT_EQ(controller.GetTimeout(), std::nullopt);
  EXPECT_EQ(controller.GetCompressionAlgorithm(), CompressionAlgorithm::kNone);
  EXPECT_TRUE(controller.GetRequestAttachment().empty());
  EXPECT_TRUE(controller.GetRemotePeer().empty());
  EXPECT_EQ(controller.GetElapsedTime().count(), 0);
  EXPECT_FALSE(controller.IsCanceled());
  controller.WriteResponseImmediately();  // To nobody.
}

TEST(RpcServerController, FailsWithTextOrCode) {
  RpcServerController controller;
  controller.SetFailed("just so");
  EXPECT_TRUE(controller.Failed());
  EXPECT_EQ(controller.ErrorCode(), rpc::STATUS_FAILED);
  EXPECT_EQ(controller.ErrorText(), "just so");
  controller.SetFailed(2000, "worse");
  EXPECT_EQ(controller.ErrorCode(), 2000);
  EXPECT_EQ(controller.ErrorText(), "worse");
  controller.SetFailed(3000);
  EXPECT_EQ(controller.ErrorText(), "");
}

#ifdef NDEBUG
TEST(RpcServerController, CodeOfSuccessStillFails) {
  RpcServerController controller;
  controller.SetFailed(0, "nonsense");
  EXPECT_EQ(controller.ErrorCode(), rpc::STATUS_FAILED);
}
#else
TEST(RpcServerControllerDeathTest, CodeOfSuccessIsAMistake) {
  RpcServerController controller;
  EXPECT_DEATH(controller.SetFailed(0, "nonsense"), "means success");
}
#endif

TEST(RpcServerController, PrefersNothingIfTheCallerDidNotSay) {
  RpcServerController controller;
  EXPECT_EQ(controller.GetAcceptableCompressionAlgorithms().count(), 1u);
  EXPECT_TRUE(controller.GetAcceptableCompressionAlgorithms().test(
      CompressionAlgorithm::kNone));
  EXPECT_EQ(controller.GetPreferredCompressionAlgorithm(),
            CompressionAlgorithm::kNone);
}

TEST(CompressionAlgorithmSet, HasWhatWasAddedAndNoOthers) {
  CompressionAlgorithmSet set(1u << 5);
  set.Add(rpc::COMPRESSION_ALGORITHM_GZIP);
  EXPECT_TRUE(set[rpc::COMPRESSION_ALGORITHM_GZIP]);
  EXPECT_TRUE(set[rpc::COMPRESSION_ALGORITHM_ZSTD]);
  EXPECT_FALSE(set[rpc::COMPRESSION_ALGORITHM_SNAPPY]);
  EXPECT_FALSE(set.test(static_cast<CompressionAlgorithm>(64)));
  EXPECT_FALSE(set.test(static_cast<CompressionAlgorithm>(-1)));
  const std::bitset<64> bits = set;
  EXPECT_EQ(bits.to_ullong(), 0x24u);
}

TEST(RpcServerController, ResetMakesItFresh) {
  RpcServerController controller;
  controller.SetFailed(2000, "failed");
  controller.SetCompressionAlgorithm(CompressionAlgorithm::kZstd);
  controller.SetResponseAttachment(CreateBufferSlow("attachment"));
  controller.SetResponseAttachmentPrecompressed(true);
  EXPECT_EQ(FlattenSlow(controller.GetResponseAttachment()), "attachment");
  controller.Reset();
  EXPECT_FALSE(controller.Failed());
  EXPECT_EQ(controller.ErrorText(), "");
  EXPECT_EQ(controller.GetCompressionAlgorithm(), CompressionAlgorithm::kNone);
  EXPECT_TRUE(controller.GetResponseAttachment().empty());
}

TEST(RpcServerController, RawBytesCanBeTakenBack) {
  RpcServerController controller;
  EXPECT_TRUE(controller.GetResponseRawBytes().empty());
  EXPECT_FALSE(controller.GetResponseAttachmentPrecompressed());
  controller.SetResponseRawBytes(CreateBufferSlow("raw"));
  controller.SetResponseAttachmentPrecompressed(true);
  EXPECT_EQ(FlattenSlow(controller.GetResponseRawBytes()), "raw");
  EXPECT_TRUE(controller.GetResponseAttachmentPrecompressed());
  controller.ClearResponseRawBytes();
  EXPECT_TRUE(controller.GetResponseRawBytes().empty());
}

TEST(RpcServerController, CancelCallbackRunsOnce) {
  RpcServerController controller;
  int runs = 0;
  struct Count {
    static void Up(int* n) { ++*n; }
  };
  controller.NotifyOnCancel(google::protobuf::NewCallback(&Count::Up, &runs));
  controller.StartCancel();
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace flare
