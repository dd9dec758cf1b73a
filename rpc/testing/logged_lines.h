// The log lines of a test, from here to the end of the scope.
//
//   LoggedLines warnings(google::WARNING);
//   Serve();
//   EXPECT_TRUE(warnings.Have("too many")) << warnings.All();
//
// Thread-safe.

#ifndef FLARE_RPC_TESTING_LOGGED_LINES_H_
#define FLARE_RPC_TESTING_LOGGED_LINES_H_

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "glog/logging.h"

namespace flare::rpc::testing {

class LoggedLines final : private google::LogSink {
 public:
  // Lines of this severity and above.
  explicit LoggedLines(google::LogSeverity least = google::INFO)
      : least_(least) {
    google::AddLogSink(this);
  }
  ~LoggedLines() override { google::RemoveLogSink(this); }

  LoggedLines(const LoggedLines&) = delete;
  LoggedLines& operator=(const LoggedLines&) = delete;

  std::vector<std::string> Get() const {
    ScopedLock lock(mutex_);
    return lines_;
  }
  // How many have `part` in them.
  std::size_t Count(std::string_view part) const {
    ScopedLock lock(mutex_);
    return static_cast<std::size_t>(std::ranges::count_if(
        lines_,
        [&](const std::string& line) { return line.find(part) != line.npos; }));
  }
  bool Have(std::string_view part) const { return Count(part) != 0; }
  std::string All() const {
    std::string all;
    for (const std::string& line : Get()) all += line + '\n';
    return all;
  }

 private:
  void send(google::LogSeverity severity, const char*, const char*, int,
            const google::LogMessageTime&, const char* message,
            std::size_t size) override {
    if (severity < least_) return;
    ScopedLock lock(mutex_);
    lines_.emplace_back(message, size);
  }

  const google::LogSeverity least_;
  mutable ThreadMutex mutex_;
  std::vector<std::string> lines_ FLARE_GUARDED_BY(mutex_);
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_TESTING_LOGGED_LINES_H_
