#include "flare/rpc/handler_exception.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "glog/logging.h"

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
  struct Errors : google::LogSink {
    void send(google::LogSeverity severity, const char*, const char*, int,
              const google::LogMessageTime&, const char* message,
              std::size_t size) override {
      if (severity == google::ERROR) texts.emplace_back(message, size);
    }
    std::vector<std::string> texts;
  } errors;
  // For when the test is repeated.
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  google::AddLogSink(&errors);
  EXPECT_EQ(Throw("method a.B.C", "bad\xff\n\xc3\xa4"),
            "std::runtime_error: bad\xff\n\xc3\xa4");
  Throw("method a.B.D", "left out");
  while (errors.texts.size() < 2) Throw("the HTTP handler of /x\xff", "bad");
  google::RemoveLogSink(&errors);
  EXPECT_EQ(errors.texts[0],
            "an exception left method a.B.C: std::runtime_error: "
            "bad?\\x0a\xc3\xa4");
  EXPECT_THAT(errors.texts[1],
              ::testing::MatchesRegex(
                  "an exception left the HTTP handler of /x\\?: "
                  "std::runtime_error: bad \\(and [0-9]+ others?\\)"));
}

}  // namespace
}  // namespace flare::rpc
