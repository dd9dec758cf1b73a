// Rules:
//  [AL1] The thread that sets closing_ closes the window: it alone uses the
//        plain members, until it clears closing_ by a release, which the next
//        one's acquire reads.
//  [AL2] All else is relaxed: sums, a peak, times and the limit, which order
//        nothing. A call that ends while the window is closed is counted in
//        the next one; one that is counted without its time, or the reverse,
//        moves a mean by little.
//  [AL3] The base is the mean of the quickest window of this epoch and the one
//        before. A window's mean divided by the base tells the length of the
//        queue, wherever it is. With the gradient g = kTolerance * base / mean,
//        at least a half and at most one, the next limit is
//        g * limit + sqrt(limit): a queue of the square root keeps workers
//        from idling.
//  [AL4] The limit grows only while at least half of it is used. Nothing is
//        known about more calls than there were.
//  [AL5] If calls queued all the time, the base would be forgotten. So an epoch
//        with a limit in use begins with a probe: a window with a quarter of
//        the limit, in which only calls count that have begun in it. The first
//        epochs are shorter, as a server may start under load. Where few calls
//        end, an epoch lasts for kEpochWindows windows, and the probe for a
//        tenth of the time that so many take while as many calls are under way
//        as at the last one's peak (Little's law: pauses don't count). If fewer
//        than kProbeSamples end, the base stays.
//  [AL6] If calls take as long with a quarter of the limit as at its height
//        before it fell, no queue makes them slow: the server's database, for
//        example, has become slow. The base is then measured anew.
#include "flare/rpc/admission/adaptive_limit.h"

#include <algorithm>
#include <cmath>

namespace flare::rpc {
namespace {

constexpr double kTolerance = 1.5;
constexpr double kProbeShare = 0.25;
// Calls that take more than this share of their time before the limit fell are
// still slow [AL6].
constexpr double kStillSlow = 0.7;
// A probe ends after this share of the epoch's time even if few calls have
// ended.
constexpr std::int64_t kProbesInEpoch = 10;
// So many windows make an epoch, even if it is over before. Otherwise a window
// of a server with few calls would be longer than an epoch, and the limit would
// never change.
constexpr int kEpochWindows = 6;
// So many calls of a probe make a mean.
constexpr std::uint64_t kProbeSamples = 5;

}  // namespace

void AdaptiveLimit::SetUp(std::uint64_t most) {
  most_ = static_cast<double>(std::max(most, kFewest));
  height_ = std::min<double>(kFirst, most_);
  // relaxed, here and below: [AL2].
  limit_.store(static_cast<std::uint64_t>(height_), std::memory_order_relaxed);
}

void AdaptiveLimit::Record(std::int64_t took_ns, std::int64_t now_ns) {
  if (now_ns - took_ns >= ignored_before_ns_.load(std::memory_order_relaxed)) {
    sum_ns_.fetch_add(took_ns, std::memory_order_relaxed);
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  if (now_ns >= window_end_ns_.load(std::memory_order_relaxed)) {
    TryToClose(now_ns);
  }
}

void AdaptiveLimit::TryToClose(std::int64_t now_ns) {
  // acquire: pairs with the release below [AL1].
  if (closing_.exchange(true, std::memory_order_acquire)) return;
  if (now_ns >= window_end_ns_.load(std::memory_order_relaxed)) Close(now_ns);
  // release: pairs with the acquire above, of the next one to close [AL1].
  closing_.store(false, std::memory_order_release);
}

void AdaptiveLimit::Close(std::int64_t now_ns) {
  const std::int64_t end_ns = window_end_ns_.load(std::memory_order_relaxed);
  const std::uint64_t count = count_.load(std::memory_order_relaxed);
  const bool overdue = probing_ && now_ns - end_ns > most_probe_ns_;
  if (end_ns != 0 && count < kSamples && !overdue) return;
  const std::int64_t sum_ns = sum_ns_.exchange(0, std::memory_order_relaxed);
  count_.store(0, std::memory_order_relaxed);
  const Window window{
      .mean_ns = std::max<std::int64_t>(
          count == 0 ? 0 : sum_ns / static_cast<std::int64_t>(count), 1),
      .peak = peak_.exchange(0, std::memory_order_relaxed),
      .now_ns = now_ns};
  window_end_ns_.store(now_ns + kWindowNs, std::memory_order_relaxed);
  if (end_ns == 0) return;  // The first call: the window begins with it.
  if (count >= (probing_ ? kProbeSamples : kSamples)) {
    const auto mean_ns = static_cast<double>(window.mean_ns);
    epoch_min_ns_ =
        epoch_min_ns_ == 0 ? mean_ns : std::min(epoch_min_ns_, mean_ns);
  }
  if (probing_) {  // It was low for the probe alone.
    if (count < kProbeSamples) epoch_min_ns_ = BaseNs();  // [AL5]
    probing_ = false;
  } else if (now_ns >= epoch_end_ns_ && windows_left_ == 0) {
    BeginEpoch(window);
  } else {
    if (windows_left_ != 0) --windows_left_;
    Adapt(window);
  }
  const double height =
      probing_ ? std::max<double>(height_ * kProbeShare, kFewest) : height_;
  limit_.store(static_cast<std::uint64_t>(height), std::memory_order_relaxed);
}

void AdaptiveLimit::BeginEpoch(const Window& window) {
  const bool first = epoch_end_ns_ == 0;
  epoch_end_ns_ = window.now_ns + epoch_ns_;
  windows_left_ = kEpochWindows - 1;
  if (first) return;
  epoch_ns_ = std::min(epoch_ns_ * 2, kEpochNs);
  last_epoch_min_ns_ = epoch_min_ns_;
  epoch_min_ns_ = static_cast<double>(window.mean_ns);
  if (static_cast<double>(window.peak) < height_) return;
  probing_ = true;  // [AL5]
  const double epoch_ns = static_cast<double>(window.mean_ns) * kSamples *
                          kEpochWindows / static_cast<double>(window.peak);
  most_probe_ns_ =
      std::max(static_cast<std::int64_t>(epoch_ns), kEpochNs) / kProbesInEpoch;
  ignored_before_ns_.store(window.now_ns, std::memory_order_relaxed);
}

double AdaptiveLimit::BaseNs() const {
  return last_epoch_min_ns_ == 0 ? epoch_min_ns_
                                 : std::min(epoch_min_ns_, last_epoch_min_ns_);
}

void AdaptiveLimit::Adapt(const Window& window) {
  if (static_cast<double>(window.peak) < height_ / 2) return;  // [AL4]
  const double gradient = std::clamp(
      kTolerance * BaseNs() / static_cast<double>(window.mean_ns), 0.5, 1.0);
  NoticeSlowness(window, gradient);
  // [AL3]
  height_ = std::clamp(height_ * gradient + std::sqrt(height_),
                       std::min<double>(kFewest, most_), most_);
}

// [AL6]
void AdaptiveLimit::NoticeSlowness(const Window& window, double gradient) {
  const auto mean_ns = static_cast<double>(window.mean_ns);
  if (gradient == 1.0) {
    fell_from_ = 0;
  } else if (fell_from_ == 0) {
    fell_from_ = height_;
    fell_at_ns_ = mean_ns;
  } else if (height_ <=
             std::max<double>(fell_from_ * kProbeShare, kFewest + 1)) {
    if (mean_ns > fell_at_ns_ * kStillSlow) {
      epoch_min_ns_ = last_epoch_min_ns_ = mean_ns;
    }
    fell_from_ = 0;
  }
}

}  // namespace flare::rpc
