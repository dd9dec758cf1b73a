#include "example/rpc/replay.h"

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "example/rpc/echo_service.pb.h"
#include "example/rpc/recorded_calls.h"
#include "example/rpc/recording_json.h"
#include "flare/rpc/recording/recording_format.h"
#include "gtest/gtest.h"

namespace example {
namespace {

using namespace std::literals;
using flare::RecordedCall;

constexpr char kEcho[] = "example.protobuf_echo.EchoService.Echo";

RecordedCall CallAt(std::int64_t ns, const std::string& method = kEcho) {
  protobuf_echo::EchoRequest request;
  request.set_body("hello");
  RecordedCall call;
  call.received_unix_ns = ns;
  call.method = method;
  call.request = request.SerializeAsString();
  return call;
}

// Describes the echo service.
flare::Expected<std::unique_ptr<MethodSource>, flare::Status> Describe(
    const std::string&) {
  google::protobuf::FileDescriptorSet set;
  const auto* const file = protobuf_echo::EchoRequest::descriptor()->file();
  file->CopyTo(set.add_file());
  return MethodSource::FromDescriptions(set, "the test");
}

std::string ErrorOf(const std::vector<RecordedCall>& calls,
                    const ReplayOptions& options = {}) {
  const auto replay = Replay::Make(calls, options);
  EXPECT_FALSE(replay);
  return replay ? "" : replay.error().message();
}

TEST(Replay, NeedsNamesOnly) {
  const auto replay =
      Replay::Make({CallAt(0), CallAt(1, "a.B.C"), CallAt(2, "NoPackage.M"),
                    CallAt(3, "a.B.D")},
                   {});
  ASSERT_TRUE(replay) << replay.error();
  EXPECT_EQ((*replay)->size(), 4u);
  const Replay::Item& first = (*replay)->At(0);
  EXPECT_EQ(first.method->full_name(), kEcho);
  EXPECT_EQ(first.source, nullptr);
  EXPECT_EQ(flare::FlattenSlow(first.request), CallAt(0).request);
  EXPECT_EQ((*replay)->At(1).method->full_name(), "a.B.C");
  EXPECT_EQ((*replay)->At(2).method->full_name(), "NoPackage.M");
  EXPECT_EQ((*replay)->At(7).method->full_name(), "a.B.D");
}

TEST(Replay, RefusesNamesThatAreNone) {
  EXPECT_NE(ErrorOf({}).find("no recorded call"), std::string::npos);
  for (const char* name : {"", "x", "a..b", "a.b.", "a b.C.d", ".", "a/b.c"}) {
    EXPECT_NE(ErrorOf({CallAt(0, name)}), "") << name;
  }
}

TEST(Replay, DescribesMessagesForTheirProtocols) {
  ReplayOptions options{.describe = Describe};
  const auto replay = Replay::Make({CallAt(0)}, options);
  ASSERT_TRUE(replay) << replay.error();
  EXPECT_NE((*replay)->At(0).source, nullptr);
  EXPECT_EQ((*replay)->At(0).method->input_type()->name(), "EchoRequest");

  RecordedCall malformed = CallAt(0);
  malformed.request = "\xff";
  EXPECT_NE(ErrorOf({malformed}, options).find("is no "), std::string::npos);
  RecordedCall unknown = CallAt(0);
  unknown.method = "example.protobuf_echo.EchoService.Missing";
  EXPECT_NE(ErrorOf({unknown}, options).find("Missing"), std::string::npos);
}

TEST(Replay, TakesRecordedTimeoutsUnlessToldOthers) {
  RecordedCall timed = CallAt(0);
  timed.timeout_ns = 250'000'000;
  const std::vector<RecordedCall> calls = {timed, CallAt(1)};
  ReplayOptions options{.default_timeout = 100ms};
  const auto recorded = Replay::Make(calls, options);
  ASSERT_TRUE(recorded);
  EXPECT_EQ((*recorded)->At(0).timeout, 250ms);
  EXPECT_EQ((*recorded)->At(1).timeout, 100ms);
  EXPECT_EQ((*recorded)->longest_timeout(), 250ms);
  options.timeout = 7ms;
  const auto told = Replay::Make(calls, options);
  ASSERT_TRUE(told);
  EXPECT_EQ((*told)->At(0).timeout, 7ms);
  EXPECT_EQ((*told)->longest_timeout(), 7ms);
}

TEST(Replay, SendsMetadataExceptOfTraces) {
  RecordedCall call = CallAt(0);
  call.metadata = {{"x-user", "7"},
                   {"traceparent", "00-0af7651916cd43dd"},
                   {"x-b3-sampled", "1"},
                   {"x-region", "north"},
                   {"grpc-reserved", "x"}};
  call.attachment = "bytes";
  ReplayOptions options;
  ASSERT_TRUE(options.more_metadata.Add("x-region", "south").ok());
  const auto replay = Replay::Make({call}, options);
  ASSERT_TRUE(replay);
  const flare::Metadata& metadata = (*replay)->At(0).metadata;
  EXPECT_EQ(metadata.size(), 2u);
  EXPECT_EQ(metadata.Get("x-user"), "7");
  EXPECT_EQ(metadata.Get("x-region"), "south");
  EXPECT_EQ(flare::FlattenSlow((*replay)->At(0).attachment), "bytes");

  options = {.attachments = false, .metadata = false};
  const auto without = Replay::Make({call}, options);
  ASSERT_TRUE(without);
  EXPECT_TRUE((*without)->At(0).metadata.empty());
  EXPECT_TRUE((*without)->At(0).attachment.Empty());
}

TEST(Replay, KeepsTheTimesOfCalls) {
  const std::vector<RecordedCall> calls = {CallAt(1000), CallAt(1040),
                                           CallAt(1100)};
  const auto once = PacesOf(calls, 1, 1);
  ASSERT_EQ(once.size(), 1u);
  EXPECT_EQ(once[0].offsets_ns, (std::vector<std::int64_t>{0, 40, 100}));
  EXPECT_EQ(once[0].period_ns, 150);
  EXPECT_EQ(PacesOf(calls, 2, 1)[0].offsets_ns,
            (std::vector<std::int64_t>{0, 20, 50}));
  // One call, or several at the same time, have no rate.
  EXPECT_EQ(PacesOf({CallAt(5)}, 1, 1)[0].period_ns, 1'000'000'000);
  EXPECT_EQ(PacesOf({CallAt(5), CallAt(5)}, 1, 1)[0].period_ns, 1);
  // A file may have any times.
  using Limits = std::numeric_limits<std::int64_t>;
  const auto longest =
      PacesOf({CallAt(Limits::min()), CallAt(Limits::max())}, 1, 1);
  EXPECT_EQ(longest[0].offsets_ns.back(), 4'000'000'000'000'000'000);
}

// Whichever target a call goes to, and in later passes, too.
TEST(Replay, KeepsTheTimesOfCallsToSeveralTargets) {
  const std::vector<RecordedCall> calls = {CallAt(1000), CallAt(1040),
                                           CallAt(1100)};
  const auto paces = PacesOf(calls, 1, 2);
  ASSERT_EQ(paces.size(), 2u);
  EXPECT_EQ(paces[0].offsets_ns, (std::vector<std::int64_t>{0, 100}));
  EXPECT_EQ(paces[1].offsets_ns, (std::vector<std::int64_t>{40}));
  EXPECT_EQ(paces[0].period_ns, 150);
  EXPECT_EQ(paces[1].period_ns, 150);
}

class RecordedCallsTest : public ::testing::Test {
 protected:
  RecordedCallsTest() {
    std::string folder =
        std::filesystem::temp_directory_path() / "recorded_XXXXXX";
    folder_ = mkdtemp(folder.data());
  }
  ~RecordedCallsTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name,
                    const std::vector<RecordedCall>& calls,
                    const std::string& rest = "") {
    std::string bytes = flare::EncodeRecordingHead();
    for (const RecordedCall& call : calls) bytes += flare::EncodeRecord(call);
    const std::string path = folder_ + '/' + name;
    std::ofstream(path, std::ios::binary) << bytes + rest;
    return path;
  }
  static std::vector<std::int64_t> TimesIn(
      const std::vector<std::string>& paths,
      const std::vector<std::string>& methods = {}) {
    const auto calls = ReadRecordedCalls(paths, methods);
    EXPECT_TRUE(calls) << calls.error();
    std::vector<std::int64_t> times;
    for (const RecordedCall& call : *calls) {
      times.push_back(call.received_unix_ns);
    }
    return times;
  }

  std::string folder_;
};

using Times = std::vector<std::int64_t>;

TEST_F(RecordedCallsTest, AreInTheOrderInWhichTheyCame) {
  const std::string a = Write("a.calls", {CallAt(5), CallAt(3)});
  const std::string b = Write("b.calls", {CallAt(4), CallAt(6)});
  Write("notes.txt", {CallAt(7)});
  EXPECT_EQ(TimesIn({a, b}), (Times{3, 4, 5, 6}));
  EXPECT_EQ(TimesIn({folder_}), (Times{3, 4, 5, 6}));
}

TEST_F(RecordedCallsTest, AreThoseOfTheMethodsAskedFor) {
  Write("a.calls",
        {CallAt(1, "a.B.C"), CallAt(2, "a.B.D"), CallAt(3, "x.Y.Z")});
  EXPECT_EQ(TimesIn({folder_}, {"a."}), (Times{1, 2}));
  EXPECT_EQ(TimesIn({folder_}, {"a.B.C", "x.Y."}), (Times{1, 3}));
  EXPECT_EQ(TimesIn({folder_}, {"b."}), Times());
}

TEST_F(RecordedCallsTest, OfACutFileAreThoseBeforeTheCut) {
  Write("a.calls", {CallAt(1)}, "\1");
  EXPECT_EQ(TimesIn({folder_}), (Times{1}));
}

TEST_F(RecordedCallsTest, OfADamagedFileAreNone) {
  const std::string path = Write("a.calls", {CallAt(1)}, std::string(9, '\1'));
  const auto calls = ReadRecordedCalls({path}, {});
  ASSERT_TRUE(calls);  // Longer than the file.
  const std::string zeros =
      Write("b.calls", {CallAt(1)}, std::string(9, '\0') + 'x');
  const auto damaged = ReadRecordedCalls({zeros}, {});
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code(), EBADMSG);
  const auto missing = ReadRecordedCalls({folder_ + "/c.calls"}, {});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ENOENT);
}

TEST_F(RecordedCallsTest, ThereMustBeSomeInAFolder) {
  const auto none = ReadRecordedCalls({folder_}, {});
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message().find("no recording in " + folder_),
            std::string::npos);
}

TEST(RecordingJson, ShowsAllOfACall) {
  RecordedCall call = CallAt(1'796'083'200'123'456'789);
  call.peer = "10.0.0.1:4711";
  call.status = 1001;
  call.error = "no \"such\" thing";
  call.latency_ns = 1234567;
  call.timeout_ns = 250'000'000;
  call.metadata = {{"x-user", "7"}, {"id-bin", "\xff"}};
  call.left_out = {"cookie", "authorization"};
  call.attachment = "ab";
  const std::string head =
      "{\"time\": \"2026-12-01T00:00:00.123456Z\", \"method\": "
      "\"example.protobuf_echo.EchoService.Echo\", \"peer\": "
      "\"10.0.0.1:4711\", \"status\": 1001, \"error\": \"no \\\"such\\\" "
      "thing\", \"latency_us\": 1234, \"timeout_us\": 250000, \"metadata\": "
      "[[\"x-user\", \"7\"], [\"id-bin\", \"ff\"]], \"left_out\": "
      "[\"cookie\", \"authorization\"], ";
  EXPECT_EQ(RecordingJson(call, nullptr),
            head +
                "\"request_hex\": \"0a0568656c6c6f\", \"attachment_hex\": "
                "\"6162\"}");
  const auto source = Describe("");
  ASSERT_TRUE(source);
  EXPECT_EQ(RecordingJson(call, source->get()),
            head +
                "\"request\": {\"body\":\"hello\"}, \"attachment_hex\": "
                "\"6162\"}");
}

TEST(RecordingJson, ShowsReplies) {
  RecordedCall call = CallAt(0);
  call.reply = {.message = "\xff", .attachment = "c"};
  const auto source = Describe("");
  ASSERT_TRUE(source);
  // Bytes that aren't a message are shown as they are.
  EXPECT_NE(
      RecordingJson(call, source->get())
          .find("\"reply_hex\": \"ff\", \"reply_attachment_hex\": \"63\""),
      std::string::npos);
}

}  // namespace
}  // namespace example
