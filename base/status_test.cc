#include "flare/base/status.h"

#include <cerrno>
#include <sstream>
#include <type_traits>
#include <utility>

#include "gtest/gtest.h"

namespace flare {
namespace {

TEST(Status, DefaultIsOk) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), 0);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(status.ToString(), "OK");
}

TEST(Status, CarriesCodeAndText) {
  const Status status(22, "unreadable CPU list \"x\"");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), 22);
  EXPECT_EQ(status.message(), "unreadable CPU list \"x\"");
  EXPECT_EQ(status.ToString(), "[22] unreadable CPU list \"x\"");
  EXPECT_EQ(Status(-5).ToString(), "[-5]");
  EXPECT_EQ(Status(-5).message(), "");
  EXPECT_EQ(Status(5, "").ToString(), "[5]");
}

TEST(Status, OkMayCarryATextToo) {
  const Status status(0, "from cache");
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.ToString(), "OK from cache");
}

enum Codes : int { kBusy = 16 };

TEST(Status, TakesUnscopedEnums) {
  EXPECT_EQ(Status(kBusy, "busy").code(), 16);
  EXPECT_EQ(Status(kBusy).code(), 16);
}

TEST(Status, CopiesShareTheText) {
  const Status status(1, std::string(100, 'x'));
  const Status copy = status;
  EXPECT_EQ(&copy.message(), &status.message());
  EXPECT_EQ(copy, status);
  static_assert(std::is_nothrow_move_constructible_v<Status>);
  static_assert(std::is_nothrow_copy_constructible_v<Status>);
}

TEST(Status, MovedFromIsStillReadable) {
  Status status(1, "text");
  const Status moved = std::move(status);
  EXPECT_EQ(moved.message(), "text");
  EXPECT_EQ(status.message(), "");  // NOLINT: that is the point.
}

TEST(Status, ComparesCodeAndText) {
  EXPECT_EQ(Status(1, "a"), Status(1, "a"));
  EXPECT_NE(Status(1, "a"), Status(2, "a"));
  EXPECT_NE(Status(1, "a"), Status(1, "b"));
  EXPECT_NE(Status(1, "a"), Status(1));
  EXPECT_EQ(Status(1, ""), Status(1));
  EXPECT_EQ(Status(0), Status());
}

TEST(Status, Prints) {
  std::ostringstream out;
  out << Status(3, "three") << "|" << Status();
  EXPECT_EQ(out.str(), "[3] three|OK");
}

TEST(StatusFromErrno, SaysWhatAndWhy) {
  const Status status = StatusFromErrno(ENOENT, "can't open \"/x\"");
  EXPECT_EQ(status.code(), ENOENT);
  EXPECT_EQ(status.message(), "can't open \"/x\": No such file or directory");
}

}  // namespace
}  // namespace flare
