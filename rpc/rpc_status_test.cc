#include "flare/rpc/rpc_status.h"

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

TEST(RpcStatus, NumbersAreThoseOnTheWire) {
  EXPECT_EQ(STATUS_SUCCESS, 0);
  EXPECT_EQ(STATUS_TIMEOUT, 3);
  EXPECT_EQ(STATUS_SERVICE_NOT_FOUND, 9);
  EXPECT_EQ(STATUS_METHOD_NOT_FOUND, 10);
  EXPECT_EQ(STATUS_OVERLOADED, 11);
  EXPECT_EQ(STATUS_NO_PEER, 16);
  EXPECT_EQ(STATUS_FAILED, 99);
  EXPECT_EQ(STATUS_MALFORMED_DATA, 102);
  EXPECT_EQ(STATUS_IO_ERROR, 104);
  EXPECT_EQ(STATUS_RESERVED_MAX, 1000);
}

TEST(RpcStatus, NamesEveryCode) {
  for (int code = 0; code <= 17; ++code) {
    EXPECT_NE(StatusName(code), "STATUS_UNKNOWN") << code;
  }
  for (int code : {99, 100, 101, 102, 103, 104, 1000, 1'000'007, 1'000'016}) {
    EXPECT_NE(StatusName(code), "STATUS_UNKNOWN") << code;
  }
  EXPECT_EQ(StatusName(STATUS_GET_ROUTE_ALL_DISABLED),
            "STATUS_GET_ROUTE_ALL_DISABLED");
}

TEST(RpcStatus, NamesOfOtherCodes) {
  EXPECT_EQ(StatusName(18), "STATUS_UNKNOWN");
  EXPECT_EQ(StatusName(-1), "STATUS_UNKNOWN");
  EXPECT_EQ(StatusName(1001), "STATUS_USER");
}

}  // namespace
}  // namespace flare::rpc
