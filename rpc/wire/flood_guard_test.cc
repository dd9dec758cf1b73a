#include "flare/rpc/wire/flood_guard.h"

#include <cstdint>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/rpc/stream_table.h"
#include "flare/rpc/stream_wire.h"
#include "flare/rpc/wire/late_frames.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

TEST(FloodGuard, AdmitsSoManyWithinASecond) {
  FloodGuard guard(100);
  for (std::int64_t second = 5; second != 8; ++second) {
    for (int i = 0; i != 100; ++i) {
      ASSERT_TRUE(guard.Admit(second * kSecond + i)) << i;
    }
    EXPECT_FALSE(guard.Admit(second * kSecond + 999'999'999));
    EXPECT_FALSE(guard.Admit(second * kSecond + 999'999'999));
  }
}

TEST(FloodGuard, AdmitsAnyNumberInTheLongRun) {
  FloodGuard guard(100);
  for (std::int64_t i = 0; i != 1000; ++i) {
    ASSERT_TRUE(guard.Admit(i * kSecond / 100));
  }
}

class AnyStream final : public StreamReceiver {
 public:
  void OnMessage(Buffer&&, bool) override {}
  void OnEnd(const flare::Status&) override {}
  void OnCredit(std::size_t) override {}
  void OnReset(const flare::Status&) override {}
  void Drop() override {}
  void OnInputLost(const flare::Status&) override {}
};

TEST(LateFramesTest, AreThoseOfStreamsThatHaveEnded) {
  StreamTable table;
  LateFrames late;
  std::int64_t now = kNsPerSecond;
  int admitted = 0;
  const auto count = [&] {
    for (admitted = 0; admitted != 1'000'000; ++admitted) {
      if (!late.Admit(now, &table)) return;
    }
  };
  count();
  EXPECT_EQ(admitted, FloodGuard::kMaxNotices);
  // Each stream that ends accounts for the bytes in its windows.
  for (std::uint64_t id : {1, 2}) {
    ASSERT_TRUE(table.Add(id, MakeRefCounted<AnyStream>()));
    table.Remove(id);
  }
  count();
  EXPECT_EQ(admitted, 2 * 65536);
  now += kNsPerSecond;
  count();
  EXPECT_EQ(admitted, FloodGuard::kMaxNotices);
}

}  // namespace
}  // namespace flare::rpc
