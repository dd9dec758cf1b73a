#include "flare/rpc/tracing/trace_context.h"

#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace flare {
namespace {

// The example of the standard.
constexpr char kExample[] =
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceparentTest, IsReadAndWritten) {
  const auto context = ParseTraceparent(kExample);
  ASSERT_TRUE(context);
  EXPECT_EQ(context->trace_id.high, 0x0af7651916cd43ddu);
  EXPECT_EQ(context->trace_id.low, 0x8448eb211c80319cu);
  EXPECT_EQ(context->span_id, 0xb7ad6b7169203331u);
  EXPECT_TRUE(context->sampled);
  EXPECT_FALSE(context->random);
  EXPECT_EQ(context->ToTraceparent(), kExample);
  EXPECT_EQ(context->trace_id.ToString(), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(SpanIdToString(context->span_id), "b7ad6b7169203331");
}

TEST(TraceparentTest, FlagsThatWeKnowAreHandedOn) {
  const std::string ids(kExample, 53);
  EXPECT_EQ(ParseTraceparent(ids + "00")->ToTraceparent(), ids + "00");
  EXPECT_EQ(ParseTraceparent(ids + "02")->ToTraceparent(), ids + "02");
  EXPECT_EQ(ParseTraceparent(ids + "ff")->ToTraceparent(), ids + "03");
}

TEST(TraceparentTest, LaterVersionsAreReadByTheirBeginning) {
  const std::string rest(kExample + 2);
  for (const std::string& value :
       {"01" + rest, "cc" + rest + "-what-comes-later", "fe" + rest + "-"}) {
    const auto context = ParseTraceparent(value);
    ASSERT_TRUE(context) << value;
    EXPECT_EQ(context->ToTraceparent(), kExample);
  }
  EXPECT_FALSE(ParseTraceparent("cc" + rest + ".what-comes-later"));
  EXPECT_FALSE(ParseTraceparent("cc" + rest + "0"));
}

TEST(TraceparentTest, MalformedOnesAreNone) {
  const std::string zeros(32, '0');
  for (const std::string& value : std::vector<std::string>{
           "",
           "00",
           std::string(kExample, 54),               // Too short.
           std::string(kExample) + "0",             // Too long.
           std::string(kExample) + "-more",         // For this version.
           "ff" + std::string(kExample + 2),        // No version.
           "0g" + std::string(kExample + 2),        //
           "00-" + zeros + "-b7ad6b7169203331-01",  // No trace.
           std::string(kExample, 36) + "0000000000000000-01",  // No span.
           "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
           "00-0af7651916cd43dd8448eb211c80319c-B7AD6B7169203331-01",
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x",
           "00-0af7651916cd43dd8448eb211c80319.-b7ad6b7169203331-01",
           "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
           "00-0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331-01",
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331_01",
           " " + std::string(kExample),
           std::string(kExample) + "," + kExample,  // Two in one.
           std::string(55, '\0'),
           std::string(1 << 20, '0')}) {
    EXPECT_FALSE(ParseTraceparent(value)) << value.substr(0, 80);
  }
}

// Each change of one byte makes a value that is malformed, or one of the same
// form.
TEST(TraceparentTest, AnyByteAnywhere) {
  for (std::size_t at = 0; at != sizeof(kExample) - 1; ++at) {
    for (int byte = 0; byte != 256; ++byte) {
      std::string value = kExample;
      value[at] = static_cast<char>(byte);
      const auto context = ParseTraceparent(value);
      if (context) {
        EXPECT_EQ(context->ToTraceparent().size(), 55u);
      }
    }
  }
}

TEST(TracestateTest, IsJoined) {
  EXPECT_EQ(JoinTracestate({}), "");
  EXPECT_EQ(JoinTracestate({"rojo=00f067aa0ba902b7"}), "rojo=00f067aa0ba902b7");
  EXPECT_EQ(JoinTracestate({"a=1, b=2\t", "", "c@d=x y", " , ,0/_*-=~"}),
            "a=1,b=2,c@d=x y,0/_*-=~");
}

TEST(TracestateTest, MalformedOnesAreNone) {
  std::string many;
  for (int i = 0; i != 33; ++i) many += "k" + std::to_string(i) + "=v,";
  for (const std::string& value : std::vector<std::string>{
           "a", "=1", "a=", "A=1", "_a=1", "a b=1", "a=1=2", "a=\x01",
           "a=\xc3\xa4", "a@b@c=1", "a=1,a=2", many,
           std::string(257, 'a') + "=1", "a=" + std::string(257, 'v')}) {
    EXPECT_EQ(JoinTracestate({value}), "") << value.substr(0, 80);
    EXPECT_EQ(JoinTracestate({"good=1", value}), "") << value.substr(0, 80);
  }
  EXPECT_EQ(JoinTracestate({"a=1", "a=2"}), "");
  many.resize(many.rfind(",k") + 1);
  EXPECT_NE(JoinTracestate({many}), "");  // 32 are allowed.
}

TEST(TracestateTest, LongOnesLoseTheLargestAndThenTheLast) {
  const std::string large = "large=" + std::string(250, 'x');
  const std::string larger = "larger=" + std::string(255, 'x');
  EXPECT_EQ(JoinTracestate({"a=1," + large + "," + larger, "z=1"}),
            "a=1," + large + ",z=1");
  std::string small;
  for (char c = 'a'; c <= 'j'; ++c) {
    small +=
        std::string(small.empty() ? "" : ",") + c + "=" + std::string(100, c);
  }
  const std::string joined = JoinTracestate({small});
  EXPECT_EQ(joined, small.substr(0, joined.size()));
  EXPECT_EQ(joined.size(), 4 * 103u - 1);
  EXPECT_LE(joined.size(), kMaxTracestateBytes);
}

TEST(TraceIdTest, AreDifferentOnAllThreads) {
  constexpr int kThreads = 4;
  constexpr int kIds = 1000;
  std::vector<std::vector<std::string>> ids(kThreads);
  std::vector<std::thread> threads;
  for (auto& mine : ids) {
    threads.emplace_back([&mine] {
      for (int i = 0; i != kIds; ++i) {
        mine.push_back(NewTraceId().ToString());
        mine.push_back(SpanIdToString(NewSpanId()));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::set<std::string> all;
  for (const auto& some : ids) all.insert(some.begin(), some.end());
  EXPECT_EQ(all.size(), 2u * kThreads * kIds);
}

}  // namespace
}  // namespace flare
