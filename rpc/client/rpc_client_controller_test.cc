#include "flare/rpc/rpc_client_controller.h"

#include <chrono>
#include <string>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/start/flags.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Time stands still in those that look at it.
class RpcClientControllerTimeTest : public ::testing::Test {
 protected:
  void SetUp() override { SetVirtualNow(NowNs()); }
  void TearDown() override { EndVirtualNow(); }

  // How far the deadline is from now.
  static std::chrono::nanoseconds Left(const RpcClientController& controller) {
    return controller.GetTimeout() - ReadSteadyClock();
  }
};

TEST(RpcClientControllerTest, StartsClean) {
  RpcClientController c;
  EXPECT_FALSE(c.Failed());
  EXPECT_EQ(c.ErrorCode(), rpc::STATUS_SUCCESS);
  EXPECT_EQ(c.ErrorText(), "");
  EXPECT_FALSE(c.IsCanceled());
  EXPECT_EQ(c.GetMaxRetries(), 1);
  EXPECT_EQ(c.GetCompressionAlgorithm(), CompressionAlgorithm::kNone);
  EXPECT_TRUE(c.GetRequestAttachment().empty());
  EXPECT_TRUE(c.GetResponseAttachment().empty());
  EXPECT_TRUE(c.GetRemotePeer().empty());
  EXPECT_EQ(c.GetElapsedTime().count(), 0);
  EXPECT_EQ(c.GetTimestampSent().time_since_epoch().count(), 0);
}

TEST_F(RpcClientControllerTimeTest, DefaultTimeoutIsTheFlags) {
  gflags::FlagSaver saver;
  RpcClientController c;
  EXPECT_EQ(Left(c), milliseconds(2000));
  FLAGS_flare_rpc_client_default_rpc_timeout_ms = 3'600'000;
  EXPECT_EQ(Left(c), hours(1));
}

TEST_F(RpcClientControllerTimeTest, TimeoutsOfAllKinds) {
  RpcClientController c;
  c.SetTimeout(hours(2));
  EXPECT_EQ(Left(c), hours(2));
  c.SetTimeout(ReadSteadyClock() + hours(3));
  EXPECT_EQ(Left(c), hours(3));
  // This clock goes on meanwhile.
  c.SetTimeout(std::chrono::system_clock::now() + hours(4));
  EXPECT_LE(Left(c), hours(4));
  EXPECT_GT(Left(c), hours(4) - seconds(20));
  c.SetTimeout(std::chrono::duration<double>(7200.5));
  EXPECT_EQ(Left(c), milliseconds(7200500));
  c.Reset();
  EXPECT_EQ(Left(c), milliseconds(2000));
}

// A span begins with the call: it isn't used up before.
TEST_F(RpcClientControllerTimeTest, SpanIsNotCountedFromHere) {
  RpcClientController c;
  c.SetTimeout(milliseconds(100));
  SetVirtualNow(NowNs() + 3'600'000'000'000);
  EXPECT_EQ(Left(c), milliseconds(100));
}

TEST_F(RpcClientControllerTimeTest, ExtremeTimeoutsDoNotOverflow) {
  RpcClientController c;
  c.SetTimeout(hours::max());
  EXPECT_GT(Left(c), hours(24 * 365 * 100));
  c.SetTimeout(std::chrono::steady_clock::time_point::max());
  EXPECT_GT(Left(c), hours(24 * 365 * 100));
  c.SetTimeout(std::chrono::system_clock::time_point::max());
  EXPECT_GT(Left(c), hours(24 * 365 * 100));
  c.SetTimeout(hours::min());
  EXPECT_LT(c.GetTimeout(), ReadSteadyClock());
  c.SetTimeout(std::chrono::steady_clock::time_point::min());
  EXPECT_LT(c.GetTimeout(), ReadSteadyClock());
  c.SetTimeout(milliseconds(0));
  EXPECT_EQ(Left(c), milliseconds(0));
}

TEST(RpcClientControllerTest, SetFailed) {
  RpcClientController c;
  c.SetFailed("because");
  EXPECT_TRUE(c.Failed());
  EXPECT_EQ(c.ErrorCode(), rpc::STATUS_FAILED);
  EXPECT_EQ(c.ErrorText(), "because");
  c.SetFailed(1234, "otherwise");
  EXPECT_EQ(c.ErrorCode(), 1234);
  EXPECT_EQ(c.ErrorText(), "otherwise");
  c.Reset();
  EXPECT_FALSE(c.Failed());
  EXPECT_EQ(c.ErrorText(), "");
}

TEST(RpcClientControllerTest, ResetForgetsEverything) {
  RpcClientController c;
  c.SetMaxRetries(5);
  c.SetCompressionAlgorithm(CompressionAlgorithm::kZstd);
  c.SetRequestAttachment(CreateBufferSlow("a"));
  c.SetRequestRawBytes(CreateBufferSlow("b"));
  c.SetAcceptResponseRawBytes(true);
  c.StartCancel();
  EXPECT_EQ(FlattenSlow(c.GetRequestAttachment()), "a");
  EXPECT_EQ(FlattenSlow(c.GetRequestRawBytes()), "b");
  EXPECT_TRUE(c.GetAcceptResponseRawBytes());
  c.Reset();
  EXPECT_EQ(c.GetMaxRetries(), 1);
  EXPECT_EQ(c.GetCompressionAlgorithm(), CompressionAlgorithm::kNone);
  EXPECT_TRUE(c.GetRequestAttachment().empty());
  EXPECT_TRUE(c.GetRequestRawBytes().empty());
  EXPECT_FALSE(c.GetAcceptResponseRawBytes());
}

TEST(RpcClientControllerTest, RawBytesCanBeTakenBack) {
  RpcClientController c;
  c.ClearRequestRawBytes();
  c.SetRequestRawBytes(CreateBufferSlow("b"));
  c.ClearRequestRawBytes();
  EXPECT_TRUE(c.GetRequestRawBytes().empty());
}

TEST(RpcClientControllerDeathTest, ServerSideMembersAreRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  RpcClientController c;
  EXPECT_DEATH(c.NotifyOnCancel(nullptr), "server's side");
  EXPECT_DEATH(c.SetFailed(0, "fine"), "code of success");
}

}  // namespace
}  // namespace flare
