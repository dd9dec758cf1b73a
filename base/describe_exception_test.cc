#include "flare/base/describe_exception.h"

#include <exception>
#include <stdexcept>

#include "gtest/gtest.h"

namespace flare {
namespace {

TEST(DescribeExceptionTest, TypeAndWhat) {
  EXPECT_EQ(
      DescribeException(std::make_exception_ptr(std::runtime_error("no room"))),
      "std::runtime_error: no room");
}

TEST(DescribeExceptionTest, OtherTypesByName) {
  EXPECT_EQ(DescribeException(std::make_exception_ptr(7)), "int");
}

TEST(DescribeExceptionTest, WhileAnotherIsHandled) {
  try {
    throw std::logic_error("outer");
  } catch (const std::exception&) {
    EXPECT_EQ(
        DescribeException(std::make_exception_ptr(std::range_error("inner"))),
        "std::range_error: inner");
  }
}

}  // namespace
}  // namespace flare
