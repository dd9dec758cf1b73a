#include "flare/base/log_queue.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "flare/base/clock.h"
#include "glog/logging.h"

namespace flare {
namespace {

// Beyond it lines are dropped.
constexpr std::size_t kMostLogBytes = 1 << 20;
// The bytes that a line takes besides its text, roughly.
constexpr std::size_t kLogLineCharge = sizeof(LogQueue::Line);

}  // namespace

void LogQueue::Push(Line line) {
  const std::size_t size = line.text.size() + kLogLineCharge;
  bool wake = false;
  {
    ScopedLock guard(lock_);
    if (bytes_ + size > kMostLogBytes || (!running_ && !StartThread())) {
      CountLost(line.text);
      return;
    }
    wake = lines_.empty();
    lines_.push_back(std::move(line));
    bytes_ += size;
    ++pushed_;
  }
  if (wake) filled_.notify_one();
}

bool LogQueue::empty() const {
  ScopedLock guard(lock_);
  return done_ == pushed_;
}

bool LogQueue::used() const {
  ScopedLock guard(lock_);
  return pushed_ != 0;
}

bool LogQueue::Flush(std::int64_t patience_ns) {
  ScopedLock guard(lock_);
  const std::uint64_t target = pushed_;
  const auto deadline =
      ReadSteadyClock() + std::chrono::nanoseconds(patience_ns);
  while (done_ < target && !stuck_) {
    if (written_.wait_until(lock_, deadline) == std::cv_status::timeout &&
        done_ < target) {
      stuck_ = true;
    }
  }
  return done_ >= target;
}

bool LogQueue::Stop(std::int64_t patience_ns) {
  if (!Flush(patience_ns)) return false;
  ScopedLock guard(lock_);
  if (!running_) return true;
  ++stops_;
  filled_.notify_one();
  // The thread may still have to say that lines were lost.
  const auto deadline =
      ReadSteadyClock() + std::chrono::nanoseconds(patience_ns);
  while (running_ &&
         written_.wait_until(lock_, deadline) == std::cv_status::no_timeout) {
  }
  --stops_;
  return !running_;
}

void LogQueue::CountLost(std::string_view text) noexcept {
  const auto lines = std::count(text.begin(), text.end(), '\n');
  // relaxed: a counter.
  lost_.fetch_add(
      static_cast<std::uint64_t>(std::max<std::ptrdiff_t>(lines, 1)),
      std::memory_order_relaxed);
}

std::uint64_t LogQueue::lost() const {
  return lost_.load(std::memory_order_relaxed);  // relaxed: a counter.
}

bool LogQueue::StartThread() {
  // Signals are for threads that don't wait for a log.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([this] { Run(); }).detach();
    running_ = true;
  } catch (const std::exception&) {
    // Too few threads, or too little memory. The next line tries again.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return running_;
}

void LogQueue::Run() {
  ScopedLock guard(lock_);
  for (;;) {
    while (lines_.empty() && stops_ == 0) filled_.wait(lock_);
    if (lines_.empty()) break;
    const Line line = std::move(lines_.front());
    lines_.pop_front();
    bytes_ -= line.text.size() + kLogLineCharge;
    guard.unlock();
    if (!write_(line)) CountLost(line.text);
    guard.lock();
    ++done_;
    stuck_ = false;
    written_.notify_all();
    if (!lines_.empty()) continue;
    guard.unlock();
    ReportLost();
    guard.lock();
  }
  running_ = false;
  written_.notify_all();
}

// Once all that waits is written, so that there is room for this line.
void LogQueue::ReportLost() {
  const std::uint64_t now = lost();
  if (now == reported_) return;
  const std::uint64_t before = std::exchange(reported_, now);
  LOG(WARNING) << now - before << " lines of the log were lost, " << now
               << " in all: nobody took them from " << where_
               << " in time, or it refused them.";
}

}  // namespace flare
