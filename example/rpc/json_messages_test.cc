#include "example/rpc/json_messages.h"

#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "example/rpc/echo_service.pb.h"
#include "example/rpc/method_source.h"
#include "gtest/gtest.h"

namespace example {
namespace {

using Values = std::vector<std::string_view>;

TEST(SplitJsonTest, CutsBetweenValues) {
  for (const auto& [text, values] :
       {std::pair<std::string_view, Values>("", {}),
        {" \n\t", {}},
        {"{}", {"{}"}},
        {"{}{}", {"{}", "{}"}},
        {"{\"a\": [1, {}]}\n\n\"x y\" 12 true null []",
         {"{\"a\": [1, {}]}", "\"x y\"", "12", "true", "null", "[]"}},
        {"{\"a\": \"}{\"} {}", {"{\"a\": \"}{\"}", "{}"}}}) {
    const auto split = SplitJson(text);
    ASSERT_TRUE(split) << text << ": " << split.error();
    EXPECT_EQ(*split, values) << text;
  }
}

TEST(SplitJsonTest, SaysWhereTheTextIsNoJson) {
  for (const auto& [text, error] : {std::pair("{", "1:2: "),
                                    {"{} }", "1:4: "},
                                    {"{}\n{\"a\"}", "2:5: "},
                                    {"\"\xff\"", "is not UTF-8"}}) {
    const auto split = SplitJson(text);
    ASSERT_FALSE(split) << text;
    EXPECT_TRUE(split.error().message().starts_with(error))
        << split.error().message();
  }
  const auto deep = SplitJson(std::string(100'000, '['));
  ASSERT_FALSE(deep);
  EXPECT_NE(deep.error().message().find("nested deeper"), std::string::npos);
}

TEST(JsonTest, ThereAndBack) {
  protobuf_echo::EchoRequest request;
  ASSERT_TRUE(
      ParseJson(R"({"body": "two\nlines", "work": "SPIN"})", &request).ok());
  EXPECT_EQ(request.body(), "two\nlines");
  EXPECT_EQ(request.work(), protobuf_echo::SPIN);
  EXPECT_EQ(*ToJson(request), R"({"body":"two\nlines","work":"SPIN"})");
  const auto unknown = ParseJson(R"({"nobody": ""})", &request);
  EXPECT_TRUE(unknown.message().starts_with(
      "is no example.protobuf_echo.EchoRequest: 1:"))
      << unknown;
}

class ReadRequestsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = ::testing::TempDir() + "/requests.proto";
    std::ofstream(path) << R"(syntax = "proto3";
message M { int32 n = 1; }
service S {
  rpc One(M) returns (M);
  rpc Many(stream M) returns (M);
}
)";
    auto source = MethodSource::FromProtoFiles({path}, {});
    ASSERT_TRUE(source) << source.error();
    source_ = *std::move(source);
  }

  // The requests in JSON, or the error.
  std::string Read(const char* method, const std::string& data) {
    const auto requests =
        ReadRequests(*source_, *source_->FindMethod(method), data);
    if (!requests) return requests.error().message();
    std::string text;
    for (const auto& request : *requests) text += *ToJson(*request);
    return text;
  }

  std::unique_ptr<MethodSource> source_;
};

TEST_F(ReadRequestsTest, OneForAClientThatDoesntStream) {
  EXPECT_EQ(Read("S.One", ""), "{}");
  EXPECT_EQ(Read("S.One", R"({"n": 1})"), R"({"n":1})");
  EXPECT_EQ(Read("S.One", "{} {}"),
            "--data has 2 messages, but S.One takes one request");
}

TEST_F(ReadRequestsTest, AnyNumberForOneThatStreams) {
  EXPECT_EQ(Read("S.Many", ""), "");
  EXPECT_EQ(Read("S.Many", R"({"n": 1}{"n": 2} {})"), R"({"n":1}{"n":2}{})");
}

TEST_F(ReadRequestsTest, OfAFile) {
  const std::string path = ::testing::TempDir() + "/requests.json";
  std::ofstream(path) << "{\n  \"n\": 1\n}\n{}\n";
  EXPECT_EQ(Read("S.Many", "@" + path), R"({"n":1}{})");
  EXPECT_EQ(Read("S.One", "@/no/file"),
            "can't read '/no/file': No such file or directory");
}

TEST_F(ReadRequestsTest, SaysWhatIsWrong) {
  EXPECT_EQ(Read("S.One", "{").find("--data isn't JSON: 1:2: "), 0u);
  EXPECT_EQ(Read("S.One", R"({"m": 1})").find("--data is no M: 1:"), 0u);
}

}  // namespace
}  // namespace example
