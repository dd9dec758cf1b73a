// A limit of calls in flight that adapts to the time that calls take.
//
//   AdaptiveLimit limit;
//   limit.SetUp(/*most=*/10'000);
//   if (!limit.Admits(under_way, share)) return Refuse();
//   ...
//   limit.Record(took_ns, NowNs());          // The call has ended.
//
// Calls that a server can't run at once wait in some queue, and so take longer.
// The limit compares the mean time of the latest calls with the shortest mean
// of the last seconds. While the latest mean is much longer, the limit falls in
// proportion; otherwise it grows by its square root, if enough calls come.
// adaptive_limit.cc has the rules.
//
// Any thread, except SetUp(); nothing blocks. A call takes a few additions to
// words that all threads share.
#ifndef FLARE_RPC_ADMISSION_ADAPTIVE_LIMIT_H_
#define FLARE_RPC_ADMISSION_ADAPTIVE_LIMIT_H_

#include <atomic>
#include <cmath>
#include <cstdint>

#include "flare/base/clock.h"
#include "flare/base/cpu.h"

namespace flare::rpc {

class alignas(kCacheLine) AdaptiveLimit {
 public:
  static constexpr std::uint64_t kFewest = 4;
  static constexpr std::uint64_t kFirst = 20;
  // A window lasts at least kWindowNs, and until kSamples calls have ended.
  static constexpr std::int64_t kWindowNs = 100 * kNsPerMs;
  static constexpr std::uint64_t kSamples = 50;
  // Means are remembered for one to two epochs. An epoch lasts longer where few
  // calls end.
  static constexpr std::int64_t kEpochNs = 10 * kNsPerSecond;

  // Call it before anything else. The limit never exceeds `most`.
  void SetUp(std::uint64_t most);

  // Whether a call may begin. `under_way` counts the calls in flight, this one
  // included; `share`, up to 1, is the part of the limit that it may use.
  bool Admits(std::uint64_t under_way, double share = 1) {
    const std::uint64_t needed =
        share >= 1 ? under_way
                   : static_cast<std::uint64_t>(std::ceil(
                         static_cast<double>(under_way) / share - 1e-9));
    // relaxed, all: [AL2].
    if (needed > peak_.load(std::memory_order_relaxed)) {
      peak_.store(needed, std::memory_order_relaxed);
    }
    return needed <= limit_.load(std::memory_order_relaxed);
  }

  // Records a call that took `took_ns` and has ended at `now_ns` (NowNs()).
  void Record(std::int64_t took_ns, std::int64_t now_ns);

  std::uint64_t limit() const {
    return limit_.load(std::memory_order_relaxed);  // [AL2]
  }

 private:
  struct Window {
    std::int64_t mean_ns = 0;
    std::uint64_t peak = 0;
    std::int64_t now_ns = 0;
  };

  [[gnu::noinline]] void TryToClose(std::int64_t now_ns);
  void Close(std::int64_t now_ns);
  void BeginEpoch(const Window& window);
  void Adapt(const Window& window);
  void NoticeSlowness(const Window& window, double gradient);
  double BaseNs() const;

  std::atomic<std::uint64_t> limit_{kFirst};
  std::atomic<std::uint64_t> peak_{0};  // Most calls in flight in the window.
  std::atomic<std::int64_t> sum_ns_{0};
  std::atomic<std::uint64_t> count_{0};
  std::atomic<std::int64_t> window_end_ns_{0};
  std::atomic<std::int64_t> ignored_before_ns_{0};  // [AL5]
  std::atomic<bool> closing_{false};                // [AL1]

  // Used by the thread that has set closing_ [AL1].
  double most_ = 0;
  double height_ = kFirst;  // The limit, unrounded, and without probes.
  double epoch_min_ns_ = 0;
  double last_epoch_min_ns_ = 0;  // 0: none.
  std::int64_t epoch_ns_ = kNsPerSecond;
  std::int64_t epoch_end_ns_ = 0;
  int windows_left_ = 0;  // Before the next epoch may begin.
  std::int64_t most_probe_ns_ = 0;
  bool probing_ = false;
  double fell_from_ = 0;  // [AL6]; 0: it doesn't fall.
  double fell_at_ns_ = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_ADMISSION_ADAPTIVE_LIMIT_H_
