// Lets one log line per second through, so that a peer that sends us garbage
// can't fill the disk:
//
//   if (auto left_out = throttle.Admit()) {
//     LOG(WARNING) << what << LogThrottle::Note(*left_out);
//   }
//
// Thread-safe; one atomic exchange where a line is let through, a load or an
// increment otherwise.
#ifndef FLARE_RPC_LOG_THROTTLE_H_
#define FLARE_RPC_LOG_THROTTLE_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "flare/base/clock.h"

namespace flare::rpc {

class LogThrottle {
 public:
  explicit LogThrottle(std::int64_t interval_ns = 1'000'000'000)
      : interval_ns_(interval_ns) {}

  // How many were refused since the last one that wasn't; nullopt: refused.
  std::optional<std::uint64_t> Admit() { return AdmitAt(NowNs()); }

  std::optional<std::uint64_t> AdmitAt(std::int64_t now_ns) {
    // relaxed, here and below: counts and times that order nothing else.
    std::int64_t next = next_ns_.load(std::memory_order_relaxed);
    if (now_ns < next ||
        !next_ns_.compare_exchange_strong(next, now_ns + interval_ns_,
                                          std::memory_order_relaxed)) {
      left_out_.fetch_add(1, std::memory_order_relaxed);
      return std::nullopt;
    }
    return left_out_.exchange(0, std::memory_order_relaxed);
  }

  // " (and 3 more like it)", or nothing for 0.
  static std::string Note(std::uint64_t left_out) {
    if (left_out == 0) return "";
    return " (and " + std::to_string(left_out) + " more like it)";
  }
  // " (and 3 others)": of a throttle that lines of several kinds share.
  static std::string NoteOthers(std::uint64_t left_out) {
    if (left_out == 0) return "";
    return " (and " + std::to_string(left_out) +
           (left_out == 1 ? " other)" : " others)");
  }

 private:
  const std::int64_t interval_ns_;
  std::atomic<std::int64_t> next_ns_{INT64_MIN};
  std::atomic<std::uint64_t> left_out_{0};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_LOG_THROTTLE_H_
