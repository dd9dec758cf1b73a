// Streams in steady state call the general allocator for nothing except the
// fields of messages; short strings need none.
#include "flare/base/sanitizer.h"

#if !defined(FLARE_ASAN) && !defined(FLARE_TSAN)

#include <cstdint>
#include <string>
#include <utility>

#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"
#include "flare/rpc/testing/allocation_fixture.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

class StreamAllocationTest : public StreamerTest,
                             public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StreamerTest::SetUp());
    ASSERT_TRUE(measured_channel_.Open(std::string(GetParam()) + "://" +
                                       server_->endpoint().ToString()));
  }

  static constexpr int kMessages = 20'000;
  // One for a batch of messages would be many more: pools of workers run dry
  // now and then, and the queues of a stream grow to the size they need.
  static constexpr int kFew = kMessages / 50;

  // Allocations of all workers, while `code` runs on a fiber.
  template <class F>
  static int AllocationsOf(F code) {
    allocations = 0;
    counting = true;
    code();
    counting = false;
    return allocations;
  }

  RpcChannel measured_channel_;
  Streamer_SyncStub measured_{&measured_channel_};
};

TEST_P(StreamAllocationTest, PingPong) {
  OnFiber([&] {
    auto [reader, writer] = measured_.Echo();
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

TEST_P(StreamAllocationTest, OneWay) {
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
    auto reader = measured_.Count(MakeNumber(3 * kMessages));
    Number number;
    const auto read = [&] {
      for (int i = 0; i != kMessages; ++i) ASSERT_TRUE(reader.Read(&number));
    };
    read();
    EXPECT_LE(AllocationsOf(read), kFew);
  });
}

INSTANTIATE_TEST_SUITE_P(, StreamAllocationTest,
                         ::testing::Values("flare", "grpc", "trpc",
                                           "baidu-std"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace flare::rpc::testing

#endif
