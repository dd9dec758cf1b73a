#include "flare/rpc/server/handler_exception.h"

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "flare/rpc/testing/logged_lines.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

std::string Throw(const std::string& handler, const std::string& what) {
  try {
    throw std::runtime_error(what);
  } catch (...) {
    return TakeHandlerException(handler);
  }
}

// The second line comes a second after the first.
TEST(HandlerException, LogsWhatItIsOnOneLineOfUtf8) {
  const testing::LoggedLines errors(google::ERROR);
  // For when the test is repeated.
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  EXPECT_EQ(Throw("method a.B.C", "bad\xff\n\xc3\xa4"),
            "std::runtime_error: bad\xff\n\xc3\xa4");
  Throw("method a.B.D", "left out");
  // A third one, if the test was stalled before "left out".
  while (!errors.Have("the HTTP handler of")) {
    Throw("the HTTP handler of /x\xff", "bad");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(errors.Get()[0],
            "an exception left method a.B.C: std::runtime_error: "
            "bad?\\x0a\xc3\xa4");
  EXPECT_THAT(errors.Get().back(),
              ::testing::MatchesRegex(
                  "an exception left the HTTP handler of /x\\?: "
                  "std::runtime_error: bad \\(and [0-9]+ others?\\)"));
}

}  // namespace
}  // namespace flare::rpc
