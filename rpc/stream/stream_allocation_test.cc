// Streams in steady state call the general allocator for nothing but what is in
// the fields of messages; short strings need none.
#include "flare/base/sanitizer.h"

#if !defined(FLARE_ASAN) && !defined(FLARE_TSAN)

#include <cstdint>
#include <utility>

#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"
#include "flare/rpc/testing/allocation_fixture.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

class StreamAllocationTest : public StreamerTest {
 protected:
  static constexpr int kMessages = 20'000;
  // One for a batch of messages would be many more: pools of workers run dry
  // now and then, and the queues of a stream grow to what they need.
  static constexpr int kFew = kMessages / 50;

  // Of all workers, while `code` runs on a fiber.
  template <class F>
  static int AllocationsOf(F code) {
    allocations = 0;
    counting = true;
    code();
    counting = false;
    return allocations;
  }
};

TEST_F(StreamAllocationTest, PingPong) {
  OnFiber([&] {
    auto [reader, writer] = stub_.Echo();
    Number number = MakeNumber(1);
    const auto play = [&, &reader = reader, &writer = writer] {
      for (int i = 0; i != kMessages; ++i) {
        number.set_value(i);
        ASSERT_TRUE(writer.Write(number));
        ASSERT_TRUE(reader.Read(&number));
      }
    };
    play();
    EXPECT_LE(AllocationsOf(play), kFew);
  });
}

TEST_F(StreamAllocationTest, OneWay) {
  service_.on_count = [](const Number& request, StreamWriter<Number> writer,
                         RpcServerController*) {
    Number number;
    for (std::int64_t i = 0; i != request.value(); ++i) {
      number.set_value(i);
      if (!writer.Write(number)) return;
    }
    writer.Close();
  };
  OnFiber([&] {
    auto reader = stub_.Count(MakeNumber(3 * kMessages));
    Number number;
    const auto read = [&] {
      for (int i = 0; i != kMessages; ++i) ASSERT_TRUE(reader.Read(&number));
    };
    read();
    EXPECT_LE(AllocationsOf(read), kFew);
  });
}

}  // namespace
}  // namespace flare::rpc::testing

#endif
