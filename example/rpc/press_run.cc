#include "example/rpc/press_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/init.h"
#include "glog/logging.h"

namespace example {
namespace {

// How soon a signal is noticed.
constexpr std::int64_t kSignalInterval = flare::kNsPerSecond / 20;
constexpr std::int64_t kProgressInterval = flare::kNsPerSecond / 2;

std::int64_t Nanoseconds(double seconds) {
  return flare::ToNs(std::chrono::duration<double>(seconds));
}

// Ordinary calls, and those of the tail.
struct Calls {
  CallStatistics ordinary;
  CallStatistics tail;

  void Merge(const Calls& other) {
    ordinary.Merge(other.ordinary);
    tail.Merge(other.tail);
  }
};

// Adds the rates at which calls of `load` succeeded, and their messages went,
// in so many seconds.
void AddRate(const LoadSummary& load, double seconds, LoadSummary* sum) {
  const auto rate = [seconds](std::uint64_t count) {
    return static_cast<double>(count) / std::max(seconds, 1e-9);
  };
  sum->qps += rate(load.calls.successes());
  sum->mps += rate(load.calls.messages.total());
  if (load.tail) sum->tail->qps += rate(load.tail->calls.successes());
}

// Figures since some moment, for a line that is written again and again.
class Period {
 public:
  explicit Period(std::int64_t interval_ns) : interval_ns_(interval_ns) {}

  void Begin(std::int64_t now_ns) {
    began_ns_ = now_ns;
    calls_ = Calls();
  }
  void Add(const Calls& calls) { calls_.Merge(calls); }
  std::int64_t began_ns() const { return began_ns_; }
  std::int64_t end_ns() const {
    return flare::SaturatingAdd(began_ns_, interval_ns_);
  }
  const CallStatistics& calls() const { return calls_.ordinary; }
  const CallStatistics& tail() const { return calls_.tail; }
  std::uint64_t successes() const {
    return calls_.ordinary.successes() + calls_.tail.successes();
  }
  double LengthAt(std::int64_t now_ns) const {
    return flare::ToSeconds(now_ns - began_ns_);
  }

 private:
  const std::int64_t interval_ns_;
  std::int64_t began_ns_ = 0;
  Calls calls_;
};

class Run {
 public:
  Run(const RunOptions& options, const std::vector<PressTarget>& targets,
      HdrLog* hdr_log)
      : options_(options),
        targets_(targets),
        hdr_log_(hdr_log),
        report_(Nanoseconds(options.report_interval_s)),
        progress_(options.show_progress ? kProgressInterval
                                        : flare::kNoDeadline) {
    for (const PressTarget& target : targets) {
      summary_.targets.push_back({target.server_addr, 0, {}});
      if (options.has_tail) summary_.targets.back().load.tail.emplace();
    }
    if (options.has_tail) summary_.tail.emplace();
    summary_.replayed = options.replays;
  }

  Summary Go() {
    start_ns_ = flare::NowNs();
    const bool warm_up = options_.warm_up_s > 0;
    for (const PressTarget& target : targets_) target.load->Start(warm_up);
    summary_.measured = !warm_up || WarmUp();
    if (summary_.measured) {
      Measure(warm_up ? EndWarmUp() : start_ns_);
    } else {
      Stop();
    }
    End();
    for (const TargetSummary& target : summary_.targets) {
      summary_.Merge(target.load);
    }
    if (summary_.targets.size() == 1) summary_.targets.clear();
    return std::move(summary_);
  }

 private:
  // False: a signal came first.
  bool WarmUp() {
    const std::int64_t end =
        flare::SaturatingAdd(start_ns_, Nanoseconds(options_.warm_up_s));
    while (flare::NowNs() < end) {
      if (WaitUntil(end)) return false;
    }
    return true;
  }

  // Returned: when it ended. Calls may have begun to count at once.
  std::int64_t EndWarmUp() {
    const std::int64_t ended = flare::NowNs();
    for (std::size_t i = 0; i != targets_.size(); ++i) {
      CollectWarmUp(i);
      // Behind that, so that none of those that count from now on is there.
      targets_[i].load->EndWarmUp();
    }
    return ended;
  }

  void Measure(std::int64_t begin) {
    const std::int64_t end =
        options_.duration_s == 0
            ? flare::kNoDeadline
            : flare::SaturatingAdd(begin, Nanoseconds(options_.duration_s));
    report_.Begin(begin);
    progress_.Begin(begin);
    std::int64_t now = begin;
    for (bool over = false; !over;) {
      over = WaitUntil(std::min({end, report_.end_ns(), progress_.end_ns()}));
      now = flare::NowNs();
      over = over || now >= end;
      if (over) EndWindow();
      if (over || now >= report_.end_ns() || now >= progress_.end_ns()) {
        Collect();
        Show(now);
      }
    }
    CloseInterval(now);  // Unless Show() has.
    NoteRates(begin, now);
  }

  void EndWindow() {
    for (const PressTarget& target : targets_) target.load->End();
  }

  void Stop() {
    for (const PressTarget& target : targets_) target.load->Stop();
  }

  // A target that was done before the others has its own, shorter window.
  void NoteRates(std::int64_t begin, std::int64_t end) {
    summary_.seconds = flare::ToSeconds(end - begin);
    for (std::size_t i = 0; i != targets_.size(); ++i) {
      TargetSummary& target = summary_.targets[i];
      const std::int64_t ended = targets_[i].load->ended_ns().value_or(end);
      target.seconds = flare::ToSeconds(std::clamp(ended, begin, end) - begin);
      AddRate(target.load, target.seconds, &target.load);
      AddRate(target.load, summary_.seconds, &summary_);
    }
  }

  // Calls that end from here on count, except for the rate. Without a
  // measurement it belongs to the warm-up.
  void End() {
    // Calls that were due and had no loop show by their latencies how late they
    // are; if they can't be sent, they are counted.
    WaitUntilFinished(
        flare::SaturatingAdd(flare::NowNs(), Nanoseconds(options_.late_s)));
    Stop();
    const std::int64_t deadline =
        flare::SaturatingAdd(flare::NowNs(), Nanoseconds(options_.patience_s));
    const bool ended = WaitUntilFinished(deadline);
    if (summary_.measured) {
      Collect();
    } else {
      for (std::size_t i = 0; i != targets_.size(); ++i) CollectWarmUp(i);
    }
    for (std::size_t i = 0; summary_.measured && i != targets_.size(); ++i) {
      summary_.targets[i].load.unsent = targets_[i].load->unsent();
    }
    // In the log, too, no time belongs to these.
    if (report_.successes() != 0) WriteHdrLog(report_.began_ns());
    if (!ended) {
      for (const PressTarget& target : targets_) {
        summary_.unended += target.load->running();
      }
    }
    ClearProgress();
  }

  bool WaitUntilFinished(std::int64_t deadline_ns) {
    return std::all_of(targets_.begin(), targets_.end(),
                       [&](const PressTarget& target) {
                         return target.load->WaitUntilFinished(deadline_ns);
                       });
  }

  // Waits until `deadline_ns` or shorter; true: the run is over.
  bool WaitUntil(std::int64_t deadline_ns) {
    const std::int64_t soon = flare::NowNs() + kSignalInterval;
    return WaitUntilFinished(std::min(deadline_ns, soon)) ||
           flare::CheckForQuitSignal();
  }

  Calls Take(std::size_t target) const {
    LoadRecorder* const recorder = targets_[target].recorder;
    Calls calls;
    calls.ordinary = recorder->ordinary.Take();
    if (options_.has_tail) calls.tail = recorder->tail.Take();
    return calls;
  }

  void CollectWarmUp(std::size_t target) {
    const Calls calls = Take(target);
    LoadSummary& load = summary_.targets[target].load;
    load.warm_up.Merge(calls.ordinary);
    if (load.tail) load.tail->warm_up.Merge(calls.tail);
  }

  void Collect() {
    for (std::size_t i = 0; i != targets_.size(); ++i) {
      const Calls calls = Take(i);
      LoadSummary& load = summary_.targets[i].load;
      load.calls.Merge(calls.ordinary);
      if (load.tail) load.tail->calls.Merge(calls.tail);
      report_.Add(calls);
      if (options_.show_progress) progress_.Add(calls);
    }
  }

  void Show(std::int64_t now) {
    if (now >= report_.end_ns()) {
      ClearProgress();
      const double length = report_.LengthAt(now);
      LOG(INFO) << ReportLine(report_.calls(), length);
      if (options_.has_tail) {
        LOG(INFO) << "Tail: " << ReportLine(report_.tail(), length);
      }
      CloseInterval(now);
    }
    if (now >= progress_.end_ns()) {
      // To the line's start, the text, and the rest of the line cleared.
      const std::string line =
          ProgressLine(progress_.calls(), progress_.LengthAt(now),
                       flare::ToSeconds(now - start_ns_));
      std::fprintf(stderr, "\r%s\033[K", line.c_str());
      std::fflush(stderr);
      progress_.Begin(now);
    }
  }

  void CloseInterval(std::int64_t now) {
    if (now > report_.began_ns()) WriteHdrLog(now);
    report_.Begin(now);
  }

  void WriteHdrLog(std::int64_t now) {
    if (hdr_log_ == nullptr) return;
    const std::int64_t began = report_.began_ns();
    hdr_log_->Write("", began, now, report_.calls().latency_ns);
    if (options_.has_tail) {
      hdr_log_->Write("tail", began, now, report_.tail().latency_ns);
    }
  }

  void ClearProgress() {
    if (!options_.show_progress) return;
    std::fputs("\r\033[K", stderr);
    std::fflush(stderr);
  }

  const RunOptions options_;
  const std::vector<PressTarget> targets_;
  HdrLog* const hdr_log_;
  std::int64_t start_ns_ = 0;
  Period report_;
  Period progress_;
  Summary summary_;  // Its own figures come at the end, from its targets.
};

}  // namespace

Summary RunLoad(const RunOptions& options,
                const std::vector<PressTarget>& targets, HdrLog* hdr_log) {
  (void)flare::CheckForQuitSignal();  // From here on signals don't kill.
  return Run(options, targets, hdr_log).Go();
}

}  // namespace example
