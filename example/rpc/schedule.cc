#include "example/rpc/schedule.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>

#include "flare/base/clock.h"

namespace example {
namespace {

// Nearly all that 64 bits hold, 285 years: as good as never.
constexpr double kLongestIntervalNs = 9e18;

std::int64_t ToNs(double ns) {
  return flare::ToNs(std::chrono::duration<double, std::nano>(ns));
}

}  // namespace

Schedule::Schedule(double rate, std::uint64_t limit, std::int64_t start_ns)
    : ns_per_call_(rate > 0 ? std::min(1e9 / rate, kLongestIntervalNs) : 0),
      start_ns_(start_ns),
      end_(limit == 0 ? kNoEnd : limit) {}

std::optional<Schedule::Claim> Schedule::Next(std::int64_t now_ns) {
  if (stopped()) return std::nullopt;
  // relaxed, both: each number is handed out once, which is all that matters.
  const std::uint64_t end = end_.load(std::memory_order_relaxed);
  // A load without numbers does without the counter that all workers share.
  if (!paced() && !numbered_ && end == kNoEnd) return Claim{0, now_ns};
  const std::uint64_t number = claimed_.fetch_add(1, std::memory_order_relaxed);
  if (number >= end) return std::nullopt;
  if (!paced()) return Claim{number, now_ns};
  return Claim{number, flare::SaturatingAdd(start_ns_, OffsetOf(number))};
}

std::int64_t Schedule::OffsetOf(std::uint64_t number) const {
  if (recorded_ == nullptr) {
    return ToNs(ns_per_call_ * static_cast<double>(number));
  }
  const std::size_t calls = recorded_->offsets_ns.size();
  const auto passes = static_cast<double>(number / calls);
  return flare::SaturatingAdd(
      ToNs(passes * static_cast<double>(recorded_->period_ns)),
      recorded_->offsets_ns[number % calls]);
}

void Schedule::Limit(std::uint64_t limit, std::int64_t now_ns) {
  // relaxed, all: as in Next and Stop.
  std::uint64_t first = claimed_.load(std::memory_order_relaxed);
  // Callers that wait have claimed calls that aren't due yet.
  if (paced()) first = std::min(first, DueBefore(now_ns));
  end_.store(first + limit, std::memory_order_relaxed);
}

void Schedule::End(std::int64_t now_ns) {
  if (!paced()) return Stop();
  // relaxed, both: as in Next and Stop; this thread alone changes it.
  const std::uint64_t end = end_.load(std::memory_order_relaxed);
  end_.store(std::min(end, DueBefore(now_ns)), std::memory_order_relaxed);
}

std::uint64_t Schedule::unsent() const {
  if (!paced()) return 0;
  // relaxed, all: nobody changes them any more.
  const std::uint64_t end = end_.load(std::memory_order_relaxed);
  return end - std::min(end, claimed_.load(std::memory_order_relaxed)) +
         unsent_.load(std::memory_order_relaxed);
}

std::uint64_t Schedule::DueBefore(std::int64_t time_ns) const {
  if (recorded_ != nullptr) {
    const std::int64_t passed = time_ns - start_ns_;
    if (passed <= 0) return 0;
    const auto& offsets = recorded_->offsets_ns;
    const auto in_pass = std::lower_bound(offsets.begin(), offsets.end(),
                                          passed % recorded_->period_ns);
    return static_cast<std::uint64_t>(passed / recorded_->period_ns) *
               offsets.size() +
           static_cast<std::uint64_t>(in_pass - offsets.begin());
  }
  const double calls =
      std::ceil(static_cast<double>(time_ns - start_ns_) / ns_per_call_);
  if (calls >= 0x1p64) return kNoEnd;
  return static_cast<std::uint64_t>(std::max(calls, 0.0));
}

}  // namespace example
