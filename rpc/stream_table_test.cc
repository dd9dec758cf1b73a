#include "flare/rpc/stream_table.h"

#include <time.h>

#include <cstdint>

#include "flare/base/buffer.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/rpc/stream_wire.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

class AnyStream final : public StreamReceiver {
 public:
  void OnMessage(Buffer&&, bool) override {}
  void OnEnd(const flare::Status&) override {}
  void OnCredit(std::size_t) override {}
  void OnReset(const flare::Status&) override { ++resets; }
  void Drop() override {}
  void OnInputLost(const flare::Status&) override {}

  int resets = 0;
};

TEST(StreamTable, KnowsStreamsUntilTheyAreRemoved) {
  StreamTable table;
  const auto stream = MakeRefCounted<AnyStream>();
  EXPECT_EQ(table.Find(7), nullptr);
  EXPECT_TRUE(table.Add(7, stream));
  EXPECT_FALSE(table.Add(7, stream));
  EXPECT_EQ(table.Find(7), stream);
  EXPECT_EQ(table.size(), 1u);
  table.Remove(7);
  EXPECT_EQ(table.Find(7), nullptr);
  EXPECT_EQ(table.TakeRemoved(), 1u);
  EXPECT_TRUE(table.Add(8, stream));
  table.Close(flare::Status(1, "gone"));
  EXPECT_EQ(stream->resets, 1);
  EXPECT_FALSE(table.Add(9, stream));
}

// The peer chooses the numbers: here all multiples of the numbers of buckets
// that the standard library's table has as it grows.
TEST(StreamTable, HasNoNumbersThatAreSlow) {
  constexpr std::uint64_t kStreams = 80'000;
  constexpr std::uint64_t kBuckets = std::uint64_t{42043} * 85229;
  StreamTable table;
  const auto stream = MakeRefCounted<AnyStream>();
  timespec cpu;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
  const time_t began = cpu.tv_sec;
  for (std::uint64_t i = 1; i != kStreams; ++i) {
    ASSERT_TRUE(table.Add(i * kBuckets, stream));
  }
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
  EXPECT_LE(cpu.tv_sec - began, 3);
}

}  // namespace
}  // namespace flare::rpc
