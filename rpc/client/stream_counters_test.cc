// Streaming calls in the counters of their channel.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <cstdint>
#include <string>
#include <utility>

#include "flare/fiber/this_fiber.h"
#include "flare/rpc/client/call_counters.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

// The counters of the channel with this URI and the method; none: all is 0.
ClientCalls CallsOf(const std::string& uri, const std::string& method) {
  for (ClientCalls& each : ReadClientCalls()) {
    if (each.channel == uri &&
        each.method == "flare.rpc.testing.Streamer." + method) {
      return std::move(each);
    }
  }
  return {};
}

std::uint64_t EndedOf(const ClientCalls& calls) {
  std::uint64_t ended = 0;
  for (const auto& [status, count] : calls.values.counts) ended += count;
  return ended;
}

class StreamCountersTest : public StreamPairTest {
 protected:
  // Each test's server has a port of its own.
  std::string uri() const {
    return "flare://" + server_->endpoint().ToString();
  }
  // A call is counted by the thread that ends it, which may be behind ours.
  ClientCalls Await(const std::string& method, std::uint64_t ended) const {
    while (EndedOf(CallsOf(uri(), method)) < ended) this_fiber::Yield();
    return CallsOf(uri(), method);
  }
};

TEST_F(StreamCountersTest, AnOpenStreamIsCountedByItself) {
  ClientCalls calls = CallsOf(uri(), "Echo");
  EXPECT_TRUE(calls.streams);
  EXPECT_EQ(calls.open_streams, 1);
  EXPECT_EQ(EndedOf(calls), 0u);
  writer_.Close();
  CloseAndEndCall();
  EXPECT_EQ(reader_.Read().error(), StreamError::EndOfStream);
  calls = Await("Echo", 1);
  EXPECT_EQ(calls.values.counts.at(STATUS_SUCCESS), 1u);
  std::uint64_t measured = 0;
  for (const std::uint64_t count : calls.values.seconds.counts) {
    measured += count;
  }
  EXPECT_EQ(measured, 1u);
  while (CallsOf(uri(), "Echo").open_streams != 0) this_fiber::Yield();
}

TEST_F(StreamCountersTest, FailuresHaveTheirStatus) {
  EndCall(1234, "no more");
  EXPECT_EQ(reader_.Read().error(), StreamError::IoError);
  EXPECT_EQ(Await("Echo", 1).values.counts.at(1234), 1u);
}

TEST_F(StreamCountersTest, ADroppedReaderIsAFailure) {
  reader_ = {};
  const ClientCalls calls = Await("Echo", 1);
  EXPECT_FALSE(calls.values.counts.contains(STATUS_SUCCESS) &&
               calls.values.counts.at(STATUS_SUCCESS) != 0);
}

TEST_F(StreamCountersTest, OneThatCannotBeginIsCounted) {
  RpcClientController controller;
  controller.SetOneWay(true);
  auto reader = stub_.Count(MakeNumber(3), &controller);
  EXPECT_FALSE(reader.Read());
  const ClientCalls calls = Await("Count", 1);
  EXPECT_EQ(calls.values.counts.at(STATUS_NOT_SUPPORTED), 1u);
  EXPECT_EQ(calls.open_streams, 0);
}

// A channel's calls of methods with one name are one series, as labels don't
// tell a streaming method from its former, unary form.
TEST(MethodCallCountersTest, MethodsWithOneNameShareASeries) {
  google::protobuf::DescriptorPool pools[2];
  MethodCallCounters counters("one name");
  std::uint16_t numbers[2];
  for (int i = 0; i != 2; ++i) {
    google::protobuf::FileDescriptorProto file;
    file.set_name("one.proto");
    file.add_message_type()->set_name("Message");
    auto* const service = file.add_service();
    service->set_name("Service");
    auto* const method = service->add_method();
    method->set_name("Method");
    method->set_input_type(".Message");
    method->set_output_type(".Message");
    method->set_server_streaming(i == 1);
    const auto* const built = pools[i].BuildFile(file);
    ASSERT_NE(built, nullptr);
    numbers[i] = counters.Of(built->service(0)->method(0));
  }
  EXPECT_EQ(numbers[0], numbers[1]);
  int count = 0;
  for (const ClientCalls& each : ReadClientCalls()) {
    if (each.channel != "one name") continue;
    ++count;
    EXPECT_TRUE(each.streams);
  }
  EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace flare::rpc::testing
