#include "flare/rpc/http2/http2_head.h"

#include <initializer_list>
#include <string_view>
#include <utility>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using Kind = Http2HeadCheck::Kind;
using Fields =
    std::initializer_list<std::pair<std::string_view, std::string_view>>;

bool IsWell(Kind kind, Fields fields, Http2HeadCheck* check) {
  check->Begin(kind);
  for (const auto& [name, value] : fields) {
    if (!check->Add({.name = name, .value = value})) return false;
  }
  return check->End();
}
bool IsWell(Kind kind, Fields fields) {
  Http2HeadCheck check;
  return IsWell(kind, fields, &check);
}

bool IsRequest(Fields fields) { return IsWell(Kind::kRequest, fields); }

TEST(Http2HeadCheckTest, RequestsHaveATarget) {
  EXPECT_TRUE(IsRequest({{":method", "GET"},
                         {":path", "/"},
                         {":scheme", "http"},
                         {":authority", "a"},
                         {"te", "trailers"}}));
  EXPECT_TRUE(IsRequest({{":method", "GET"},
                         {":path", "/"},
                         {":scheme", "http"},
                         {"host", "a"}}));
  EXPECT_TRUE(IsRequest({{":method", "OPTIONS"},
                         {":path", "*"},
                         {":scheme", "http"},
                         {":authority", "a"}}));
  EXPECT_TRUE(IsRequest({{":method", "CONNECT"}, {":authority", "a"}}));
  EXPECT_FALSE(IsRequest({}));
  EXPECT_FALSE(
      IsRequest({{":method", "GET"}, {":path", "/"}, {":scheme", "http"}}));
  for (const std::string_view path : {"", "page", "*"}) {
    EXPECT_FALSE(IsRequest({{":method", "GET"},
                            {":path", path},
                            {":scheme", "http"},
                            {":authority", "a"}}))
        << path;
  }
  EXPECT_FALSE(
      IsRequest({{":method", "CONNECT"}, {":path", "/"}, {":authority", "a"}}));
}

TEST(Http2HeadCheckTest, PseudoFieldsComeOnceAndFirst) {
  EXPECT_FALSE(IsRequest({{":method", "GET"}, {":method", "GET"}}));
  EXPECT_FALSE(IsRequest({{":status", "200"}}));
  EXPECT_FALSE(IsRequest({{":method", "GET"},
                          {"a", "1"},
                          {":path", "/"},
                          {":scheme", "http"},
                          {":authority", "a"}}));
  EXPECT_FALSE(IsWell(Kind::kResponse, {{":method", "GET"}}));
  EXPECT_FALSE(IsWell(Kind::kTrailers, {{":status", "200"}}));
}

TEST(Http2HeadCheckTest, ResponsesHaveAStatus) {
  Http2HeadCheck check;
  EXPECT_TRUE(IsWell(Kind::kResponse, {{":status", "404"}}, &check));
  EXPECT_EQ(check.status(), 404);
  EXPECT_FALSE(check.interim());
  EXPECT_TRUE(IsWell(Kind::kResponse, {{":status", "103"}}, &check));
  EXPECT_TRUE(check.interim());
  EXPECT_FALSE(IsWell(Kind::kResponse, {{"a", "1"}}));
  for (const std::string_view status : {"101", "20", "2000", "2x0", "099"}) {
    EXPECT_FALSE(IsWell(Kind::kResponse, {{":status", status}})) << status;
  }
}

TEST(Http2HeadCheckTest, FieldsOfHttp1AreMalformed) {
  EXPECT_TRUE(IsWell(Kind::kTrailers, {{"a", "1"}, {"b", ""}}));
  for (const std::string_view name :
       {"connection", "keep-alive", "proxy-connection", "transfer-encoding",
        "upgrade"}) {
    EXPECT_FALSE(IsWell(Kind::kTrailers, {{name, "x"}})) << name;
  }
  EXPECT_FALSE(IsWell(Kind::kTrailers, {{"te", "gzip"}}));
  Http2HeadCheck check;
  check.Begin(Kind::kTrailers);
  EXPECT_FALSE(check.Add({.name = "A", .value = "1", .valid = false}));
}

TEST(Http2HeadCheckTest, ContentLengthIsOneNumber) {
  Http2HeadCheck check;
  EXPECT_TRUE(IsWell(Kind::kTrailers, {{"content-length", "12"}}, &check));
  EXPECT_EQ(check.content_length(), 12u);
  EXPECT_FALSE(IsWell(Kind::kTrailers,
                      {{"content-length", "1"}, {"content-length", "1"}}));
  for (const std::string_view length :
       {"", "-1", "+1", "1x", "99999999999999999999"}) {
    EXPECT_FALSE(IsWell(Kind::kTrailers, {{"content-length", length}}))
        << length;
  }
}

}  // namespace
}  // namespace flare::rpc
