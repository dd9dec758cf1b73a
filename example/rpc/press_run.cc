#include "example/rpc/press_run.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

#include "flare/base/clock.h"
#include "flare/init.h"
#include "glog/logging.h"

namespace example {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// How soon a signal is noticed.
constexpr std::int64_t kSignalInterval = kSecond / 20;
constexpr std::int64_t kProgressInterval = kSecond / 2;

std::int64_t Nanoseconds(double seconds) {
  return flare::ToNs(std::chrono::duration<double>(seconds));
}

double Seconds(std::int64_t ns) { return static_cast<double>(ns) / 1e9; }

// Figures since some moment, for a line that is written again and again.
class Period {
 public:
  explicit Period(std::int64_t interval_ns) : interval_ns_(interval_ns) {}

  void Begin(std::int64_t now_ns) {
    began_ns_ = now_ns;
    calls_ = CallStatistics();
  }
  void Add(const CallStatistics& calls) { calls_.Merge(calls); }
  std::int64_t end_ns() const {
    return flare::SaturatingAdd(began_ns_, interval_ns_);
  }
  const CallStatistics& calls() const { return calls_; }
  double LengthAt(std::int64_t now_ns) const {
    return Seconds(now_ns - began_ns_);
  }

 private:
  const std::int64_t interval_ns_;
  std::int64_t began_ns_ = 0;
  CallStatistics calls_;
};

class Run {
 public:
  Run(const RunOptions& options, LoadGenerator* load, CallRecorder* recorder)
      : options_(options),
        load_(load),
        recorder_(recorder),
        report_(Nanoseconds(options.report_interval_s)),
        progress_(options.show_progress ? kProgressInterval : kNever) {}

  Summary Go() {
    start_ns_ = flare::NowNs();
    load_->Start();
    WarmUp();
    Measure();
    End();
    return std::move(summary_);
  }

 private:
  void WarmUp() {
    const std::int64_t end =
        flare::SaturatingAdd(start_ns_, Nanoseconds(options_.warm_up_s));
    if (options_.warm_up_s == 0) return;
    while (flare::NowNs() < end && !WaitUntil(end)) continue;
    summary_.warm_up = recorder_->Take();
  }

  void Measure() {
    const std::int64_t begin = flare::NowNs();
    const std::int64_t end =
        options_.duration_s == 0
            ? kNever
            : flare::SaturatingAdd(begin, Nanoseconds(options_.duration_s));
    report_.Begin(begin);
    progress_.Begin(begin);
    std::int64_t now = begin;
    for (bool over = false; !over;) {
      over = WaitUntil(std::min({end, report_.end_ns(), progress_.end_ns()}));
      now = flare::NowNs();
      over = over || now >= end;
      if (over) load_->Stop();
      if (over || now >= report_.end_ns() || now >= progress_.end_ns()) {
        Collect();
        Show(now);
      }
    }
    summary_.seconds = Seconds(now - begin);
    summary_.qps = static_cast<double>(summary_.calls.successes()) /
                   std::max(summary_.seconds, 1e-9);
  }

  // What ends from here on counts, but for the rate.
  void End() {
    const std::int64_t deadline =
        flare::SaturatingAdd(flare::NowNs(), Nanoseconds(options_.patience_s));
    const bool ended = load_->WaitUntilFinished(deadline);
    Collect();
    if (!ended) summary_.unended = load_->running();
    ClearProgress();
  }

  // Waits until `deadline_ns` or shorter; true: the run is over.
  bool WaitUntil(std::int64_t deadline_ns) {
    const std::int64_t soon = flare::NowNs() + kSignalInterval;
    return load_->WaitUntilFinished(std::min(deadline_ns, soon)) ||
           flare::CheckForQuitSignal();
  }

  void Collect() {
    const CallStatistics calls = recorder_->Take();
    summary_.calls.Merge(calls);
    report_.Add(calls);
    if (options_.show_progress) progress_.Add(calls);
  }

  void Show(std::int64_t now) {
    if (now >= report_.end_ns()) {
      ClearProgress();
      LOG(INFO) << ReportLine(report_.calls(), report_.LengthAt(now));
      report_.Begin(now);
    }
    if (now >= progress_.end_ns()) {
      // To the line's start, the text, and the rest of the line cleared.
      const std::string line = ProgressLine(
          progress_.calls(), progress_.LengthAt(now), Seconds(now - start_ns_));
      std::fprintf(stderr, "\r%s\033[K", line.c_str());
      std::fflush(stderr);
      progress_.Begin(now);
    }
  }

  void ClearProgress() {
    if (!options_.show_progress) return;
    std::fputs("\r\033[K", stderr);
    std::fflush(stderr);
  }

  const RunOptions options_;
  LoadGenerator* const load_;
  CallRecorder* const recorder_;
  std::int64_t start_ns_ = 0;
  Period report_;
  Period progress_;
  Summary summary_;
};

}  // namespace

Summary RunLoad(const RunOptions& options, LoadGenerator* load,
                CallRecorder* recorder) {
  (void)flare::CheckForQuitSignal();  // From here on signals don't kill.
  return Run(options, load, recorder).Go();
}

}  // namespace example
