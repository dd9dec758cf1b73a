#include "flare/rpc/grpc/grpc_status.h"

#include "flare/rpc/rpc_status.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

TEST(GrpcStatus, EachCodeOfGrpcComesBack) {
  for (int n = 0; n <= 16; ++n) {
    const auto code = static_cast<GrpcCode>(n);
    const int status = StatusFromGrpc(code);
    EXPECT_EQ(GrpcFromStatus(status), code) << GrpcCodeName(code);
    EXPECT_FALSE(IsLostInGrpc(status)) << GrpcCodeName(code);
    EXPECT_EQ(status == STATUS_SUCCESS, n == 0);
  }
}

TEST(GrpcStatus, OurFailuresStayFailures) {
  for (int status = -5; status <= 2 * STATUS_RESERVED_MAX; ++status) {
    const GrpcCode code = GrpcFromStatus(status);
    EXPECT_EQ(code == GrpcCode::kOk, status == STATUS_SUCCESS) << status;
    EXPECT_EQ(IsLostInGrpc(status), StatusFromGrpc(code) != status);
  }
  EXPECT_EQ(GrpcFromStatus(kGrpcStatusBase), GrpcCode::kUnknown);
  EXPECT_EQ(GrpcFromStatus(kGrpcStatusBase + 17), GrpcCode::kUnknown);
}

TEST(GrpcStatus, MapsByMeaning) {
  EXPECT_EQ(GrpcFromStatus(STATUS_TIMEOUT), GrpcCode::kDeadlineExceeded);
  EXPECT_EQ(GrpcFromStatus(STATUS_OVERLOADED), GrpcCode::kResourceExhausted);
  EXPECT_EQ(GrpcFromStatus(STATUS_SERVICE_NOT_FOUND), GrpcCode::kUnimplemented);
  EXPECT_EQ(GrpcFromStatus(STATUS_METHOD_NOT_FOUND), GrpcCode::kUnimplemented);
  EXPECT_EQ(GrpcFromStatus(STATUS_MALFORMED_DATA), GrpcCode::kInternal);
  EXPECT_EQ(GrpcFromStatus(STATUS_IO_ERROR), GrpcCode::kUnavailable);
  EXPECT_EQ(GrpcFromStatus(STATUS_FAILED), GrpcCode::kUnknown);
  EXPECT_EQ(GrpcFromStatus(12345), GrpcCode::kUnknown);
  EXPECT_TRUE(IsLostInGrpc(12345));
  EXPECT_EQ(StatusFromGrpc(GrpcCode::kNotFound), 1'000'005);
  EXPECT_EQ(StatusFromGrpc(static_cast<GrpcCode>(17)), STATUS_FAILED);
  EXPECT_EQ(StatusFromGrpc(static_cast<GrpcCode>(-1)), STATUS_FAILED);
  EXPECT_TRUE(IsFromService(StatusFromGrpc(GrpcCode::kInvalidArgument)));
}

TEST(GrpcStatus, HasNames) {
  EXPECT_EQ(GrpcCodeName(GrpcCode::kOk), "OK");
  EXPECT_EQ(GrpcCodeName(GrpcCode::kDeadlineExceeded), "DEADLINE_EXCEEDED");
  EXPECT_EQ(GrpcCodeName(GrpcCode::kUnauthenticated), "UNAUTHENTICATED");
  EXPECT_EQ(GrpcCodeName(static_cast<GrpcCode>(99)), "UNKNOWN");
}

TEST(GrpcStatus, ReadsHttpStatusesAndErrorsOfStreams) {
  EXPECT_EQ(GrpcFromHttpStatus(400), GrpcCode::kInternal);
  EXPECT_EQ(GrpcFromHttpStatus(401), GrpcCode::kUnauthenticated);
  EXPECT_EQ(GrpcFromHttpStatus(403), GrpcCode::kPermissionDenied);
  EXPECT_EQ(GrpcFromHttpStatus(404), GrpcCode::kUnimplemented);
  for (const int status : {429, 502, 503, 504}) {
    EXPECT_EQ(GrpcFromHttpStatus(status), GrpcCode::kUnavailable);
  }
  EXPECT_EQ(GrpcFromHttpStatus(500), GrpcCode::kUnknown);
  EXPECT_EQ(GrpcFromHttp2Error(0x0), GrpcCode::kInternal);
  EXPECT_EQ(GrpcFromHttp2Error(0x7), GrpcCode::kUnavailable);
  EXPECT_EQ(GrpcFromHttp2Error(0x8), GrpcCode::kCancelled);
  EXPECT_EQ(GrpcFromHttp2Error(0xb), GrpcCode::kResourceExhausted);
  EXPECT_EQ(GrpcFromHttp2Error(0xc), GrpcCode::kPermissionDenied);
}

}  // namespace
}  // namespace flare::rpc
