#include "flare/rpc/web/connect_error.h"

#include <string>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;

TEST(ConnectError, CodesHaveNamesAndStatuses) {
  struct Case {
    GrpcCode code;
    const char* name;
    int status;
  } cases[] = {
      {GrpcCode::kCancelled, "canceled", 499},
      {GrpcCode::kUnknown, "unknown", 500},
      {GrpcCode::kInvalidArgument, "invalid_argument", 400},
      {GrpcCode::kDeadlineExceeded, "deadline_exceeded", 504},
      {GrpcCode::kNotFound, "not_found", 404},
      {GrpcCode::kAlreadyExists, "already_exists", 409},
      {GrpcCode::kPermissionDenied, "permission_denied", 403},
      {GrpcCode::kResourceExhausted, "resource_exhausted", 429},
      {GrpcCode::kFailedPrecondition, "failed_precondition", 400},
      {GrpcCode::kAborted, "aborted", 409},
      {GrpcCode::kOutOfRange, "out_of_range", 400},
      {GrpcCode::kUnimplemented, "unimplemented", 501},
      {GrpcCode::kInternal, "internal", 500},
      {GrpcCode::kUnavailable, "unavailable", 503},
      {GrpcCode::kDataLoss, "data_loss", 500},
      {GrpcCode::kUnauthenticated, "unauthenticated", 401},
  };
  for (const auto& [code, name, status] : cases) {
    EXPECT_EQ(ConnectCodeName(code), name);
    EXPECT_EQ(ConnectHttpStatus(code), status) << name;
  }
}

TEST(ConnectError, TextsAreEscaped) {
  EXPECT_EQ(ConnectErrorJson(GrpcCode::kNotFound, "no \"key\"\n", nullptr),
            R"({"code":"not_found","message":"no \"key\"\n"})");
  EXPECT_EQ(ConnectErrorJson(GrpcCode::kInternal, "", nullptr),
            R"({"code":"internal"})");
}

// {1: 5, 3: {1: "type.googleapis.com/a.B", 2: "\x01\x02"}, 3: {1: "c.D"}}
std::string TwoDetails() {
  const std::string first = "\x0a\x17type.googleapis.com/a.B\x12\x02\x01\x02"s;
  const std::string second = "\x0a\x03"s + "c.D";
  return "\x08\x05\x1a"s + static_cast<char>(first.size()) + first + "\x1a" +
         static_cast<char>(second.size()) + second;
}

TEST(ConnectError, DetailsComeFromMetadata) {
  Metadata metadata;
  ASSERT_TRUE(metadata.Add("other", "x").ok());
  ASSERT_TRUE(metadata.Add(kGrpcStatusDetails, TwoDetails()).ok());
  EXPECT_EQ(ConnectErrorJson(GrpcCode::kNotFound, "m", &metadata),
            R"({"code":"not_found","message":"m","details":[)"
            R"({"type":"a.B","value":"AQI"},{"type":"c.D","value":""}]})");
}

TEST(ConnectError, MalformedDetailsAreLeftOut) {
  const std::string good = TwoDetails();
  for (std::size_t size = 3; size != good.size(); ++size) {
    Metadata metadata;
    ASSERT_TRUE(metadata.Add(kGrpcStatusDetails, good.substr(0, size)).ok());
    const std::string json =
        ConnectErrorJson(GrpcCode::kNotFound, "m", &metadata);
    EXPECT_EQ(json.find("c.D"), json.npos) << size;
    EXPECT_TRUE(json.ends_with("}")) << json;
  }
}

TEST(ConnectError, TheEndOfAStreamHasErrorAndMetadata) {
  Metadata metadata;
  EXPECT_EQ(ConnectEndJson(GrpcCode::kOk, "", metadata), "{}");
  ASSERT_TRUE(metadata.Add("a", "1").ok());
  ASSERT_TRUE(metadata.Add("b-bin", "\xff").ok());
  ASSERT_TRUE(metadata.Add("a", "2").ok());
  EXPECT_EQ(ConnectEndJson(GrpcCode::kOk, "", metadata),
            R"({"metadata":{"a":["1","2"],"b-bin":["/w"]}})");
  EXPECT_EQ(ConnectEndJson(GrpcCode::kAborted, "no", metadata),
            R"({"error":{"code":"aborted","message":"no"},)"
            R"("metadata":{"a":["1","2"],"b-bin":["/w"]}})");
}

TEST(ConnectError, Base64IsPaddedOnRequest) {
  EXPECT_EQ(EncodeBase64("", true), "");
  EXPECT_EQ(EncodeBase64("a", true), "YQ==");
  EXPECT_EQ(EncodeBase64("a", false), "YQ");
  EXPECT_EQ(EncodeBase64("ab", true), "YWI=");
  EXPECT_EQ(EncodeBase64("abcd", false), "YWJjZA");
}

}  // namespace
}  // namespace flare::rpc
