// Recorded calls that are sent to a server of this process.

#include "example/rpc/replay_call.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "example/rpc/echo_load_fixture.h"
#include "example/rpc/echo_service.pb.h"
#include "example/rpc/replay.h"
#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/rpc/rpc_server_controller.h"
#include "gtest/gtest.h"

namespace example {
namespace {

flare::Expected<std::unique_ptr<MethodSource>, flare::Status> Describe(
    const std::string&) {
  google::protobuf::FileDescriptorSet set;
  protobuf_echo::EchoRequest::descriptor()->file()->CopyTo(set.add_file());
  return MethodSource::FromDescriptions(set, "the test");
}

class ReplayCallTest : public EchoLoadTest {
 protected:
  // An answered call of the echo service.
  static flare::RecordedCall Recorded(const std::string& body,
                                      const std::string& attachment) {
    protobuf_echo::EchoRequest request;
    request.set_body(body);
    flare::RecordedCall call;
    call.method = "example.protobuf_echo.EchoService.Echo";
    call.request = request.SerializeAsString();
    call.attachment = attachment;
    protobuf_echo::EchoResponse response;
    response.set_body(body);
    call.reply = {.message = response.SerializeAsString(),
                  .attachment = attachment};
    return call;
  }

  // Sends `calls` over `scheme` to the server of `options`.
  static CallStatistics Replayed(LoadOptions options, const std::string& scheme,
                                 std::vector<flare::RecordedCall> calls) {
    const bool is_flare = scheme == "flare";
    ReplayOptions replay{.attachments = is_flare,
                         .default_timeout = options.timeout,
                         .compare_replies = true};
    if (scheme == "http+proto3-json") replay.describe = Describe;
    auto made = Replay::Make(std::move(calls), replay);
    EXPECT_TRUE(made) << made.error();
    options.server_addr.replace(0, options.server_addr.find(':'), scheme);
    options.replay = *std::move(made);
    options.requests = options.replay->size();
    return Run(options);
  }
};

TEST_F(ReplayCallTest, CompressedRepliesCountAsTheirMessages) {
  const LoadOptions options =
      StartServer([](int, protobuf_echo::EchoResponse*,
                     flare::RpcServerController* controller) {
        controller->SetCompressionAlgorithm(flare::CompressionAlgorithm::kGzip);
      });
  for (const char* scheme : {"flare", "grpc", "http+proto3-json"}) {
    const auto calls = Replayed(options, scheme,
                                {Recorded(std::string(5000, 'a'), "attached")});
    EXPECT_EQ(calls.successes(), 1u) << scheme;
    EXPECT_EQ(calls.changes(), 0u) << scheme;
  }
}

TEST_F(ReplayCallTest, RepliesWithOtherMessagesOrAttachmentsHaveChanged) {
  const LoadOptions options = StartServer();
  flare::RecordedCall message = Recorded("hello", "attached");
  message.reply->message.clear();
  flare::RecordedCall attachment = Recorded("hello", "attached");
  attachment.reply->attachment = "detached";
  // Attachments count where they can be sent.
  for (const auto& [scheme, changes] :
       {std::pair("flare", 2u), {"grpc", 1u}, {"http+proto3-json", 1u}}) {
    const auto calls = Replayed(
        options, scheme, {Recorded("hello", "attached"), message, attachment});
    EXPECT_EQ(calls.successes(), 3u) << scheme;
    EXPECT_EQ(calls.changed_replies, changes) << scheme;
  }
}

}  // namespace
}  // namespace example
