#include "flare/base/log_queue.h"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

constexpr std::int64_t kLongNs = 60 * kNsPerSecond;

// The log of all tests here: writes wait while the gate is shut.
struct SlowLog {
  ThreadMutex lock;
  std::condition_variable_any changed;
  bool open FLARE_GUARDED_BY(lock) = true;
  bool waiting FLARE_GUARDED_BY(lock) = false;
  bool refuses FLARE_GUARDED_BY(lock) = false;
  std::string text FLARE_GUARDED_BY(lock);

  static SlowLog& Get() {
    static auto* const log = new SlowLog();
    return *log;
  }

  static bool Write(const LogQueue::Line& line) {
    SlowLog& log = Get();
    ScopedLock guard(log.lock);
    log.waiting = true;
    log.changed.notify_all();
    while (!log.open) log.changed.wait(log.lock);
    log.waiting = false;
    if (!log.refuses) log.text += line.text;
    return !log.refuses;
  }

  void SetOpen(bool value) {
    ScopedLock guard(lock);
    open = value;
    changed.notify_all();
  }
  void AwaitWriter() {
    ScopedLock guard(lock);
    while (!waiting) changed.wait(lock);
  }
  std::string Take() {
    ScopedLock guard(lock);
    return std::exchange(text, "");
  }
};

// A sink for the queue's own messages.
class Warnings final : public google::LogSink {
 public:
  Warnings() { google::AddLogSink(this); }
  ~Warnings() override { google::RemoveLogSink(this); }

  std::vector<std::string> Get() {
    ScopedLock guard(lock_);
    return lines_;
  }

 private:
  void send(google::LogSeverity, const char*, const char*, int,
            const google::LogMessageTime&, const char* message,
            std::size_t size) override {
    ScopedLock guard(lock_);
    lines_.emplace_back(message, size);
  }

  ThreadMutex lock_;
  std::vector<std::string> lines_ FLARE_GUARDED_BY(lock_);
};

// They live for ever, and may be found by a leak checker.
LogQueue& NewQueue() {
  static auto* const queues = new std::vector<LogQueue*>();
  queues->push_back(new LogQueue("the test", &SlowLog::Write));
  return *queues->back();
}

class LogQueueTest : public ::testing::Test {
 protected:
  void TearDown() override {
    log_.SetOpen(true);
    EXPECT_TRUE(queue_.Flush(kLongNs));
    EXPECT_TRUE(queue_.Stop(kLongNs));
    {
      ScopedLock guard(log_.lock);
      log_.refuses = false;
    }
    log_.Take();
  }

  // Nothing moves from here on.
  void ShutGate() {
    log_.SetOpen(false);
    queue_.Push({.text = "first\n"});
    log_.AwaitWriter();
  }

  SlowLog& log_ = SlowLog::Get();
  LogQueue& queue_ = NewQueue();
};

TEST_F(LogQueueTest, WritesInOrder) {
  EXPECT_TRUE(queue_.empty());
  EXPECT_FALSE(queue_.used());
  std::string all;
  for (int i = 0; i != 1000; ++i) {
    const std::string line = std::to_string(i) + '\n';
    queue_.Push({.text = line});
    all += line;
  }
  ASSERT_TRUE(queue_.Flush(kLongNs));
  EXPECT_EQ(log_.Take(), all);
  EXPECT_TRUE(queue_.empty());
  EXPECT_TRUE(queue_.used());
  EXPECT_EQ(queue_.lost(), 0u);
}

TEST_F(LogQueueTest, IsStartedAgainAfterItsEnd) {
  for (int i = 0; i != 3; ++i) {
    queue_.Push({.text = "line\n"});
    ASSERT_TRUE(queue_.Stop(kLongNs));
    EXPECT_EQ(log_.Take(), "line\n");
  }
}

TEST_F(LogQueueTest, DropsAndCountsBeyondItsBound) {
  Warnings warnings;
  ShutGate();
  const std::string line(4095, 'x');
  for (int i = 0; i != 1000; ++i) queue_.Push({.text = line + '\n'});
  const std::uint64_t lost = queue_.lost();
  EXPECT_GT(lost, 700u);
  EXPECT_LT(lost, 800u);
  EXPECT_TRUE(warnings.Get().empty());
  log_.SetOpen(true);
  // The thread says it before it ends.
  ASSERT_TRUE(queue_.Stop(kLongNs));
  EXPECT_EQ(log_.Take().size(), 6 + (1000 - lost) * 4096);
  ASSERT_EQ(warnings.Get().size(), 1u);
  EXPECT_NE(warnings.Get()[0].find(std::to_string(lost) +
                                   " lines of the log were lost"),
            std::string::npos)
      << warnings.Get()[0];
}

TEST_F(LogQueueTest, CountsTheLinesOfATextThatIsRefused) {
  {
    ScopedLock guard(log_.lock);
    log_.refuses = true;
  }
  queue_.Push({.text = "one\ntwo\nthree\n"});
  queue_.Push({.text = "no end"});
  ASSERT_TRUE(queue_.Flush(kLongNs));
  EXPECT_EQ(queue_.lost(), 4u);
}

TEST_F(LogQueueTest, OnlyTheFirstWaitsForAStuckLog) {
  ShutGate();
  EXPECT_FALSE(queue_.Flush(kNsPerMs));
  // Would wait for a minute.
  EXPECT_FALSE(queue_.Flush(kLongNs));
  EXPECT_FALSE(queue_.Stop(kLongNs));
  queue_.Push({.text = "second\n"});
  EXPECT_FALSE(queue_.Flush(kLongNs));
  log_.SetOpen(true);
  while (!queue_.empty()) std::this_thread::yield();
  EXPECT_EQ(log_.Take(), "first\nsecond\n");
  // And is patient again.
  ShutGate();
  auto flushed =
      std::async(std::launch::async, [&] { return queue_.Flush(kLongNs); });
  log_.SetOpen(true);
  EXPECT_TRUE(flushed.get());
}

TEST_F(LogQueueTest, TakesLinesOfManyThreads) {
  std::vector<std::thread> threads;
  for (int i = 0; i != 4; ++i) {
    threads.emplace_back([this] {
      for (int j = 0; j != 1000; ++j) {
        queue_.Push({.text = "x"});
        if (j % 100 == 0) queue_.Stop(kLongNs);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(queue_.Flush(kLongNs));
  EXPECT_EQ(log_.Take().size() + queue_.lost(), 4000u);
}

}  // namespace
}  // namespace flare
