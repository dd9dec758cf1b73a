// Whether a plain thread that is about to send offers its CPU first, so that
// other threads that are ready to run can add to its output.
//
// Threads that make one call after another on a common connection would each
// send alone: a system call for each call, and another one for the peer to
// receive it. While one of them has the right to send and lets others run,
// these leave their output to it, and one system call sends it all. That pays
// if there are several. It doesn't if the threads that run meanwhile have
// nothing to send: then all that has been written waits. So each wait is judged
// by its yield and its length; while they don't pay, few are tried.
// docs/decisions/0027-threads-that-send-together.md
//
// For the holder of the right to send: not thread-safe. Nothing blocks.

#ifndef FLARE_IO_GATHER_POLICY_H_
#define FLARE_IO_GATHER_POLICY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "flare/base/backoff.h"

namespace flare::io {

class GatherPolicy {
 public:
  // Before a send: whether to offer the CPU. If so, say Waited() afterwards.
  bool ShouldWait() { return backoff_.ShouldTry(); }

  // That the offer took `ns`, and others have added `writes` meanwhile.
  void Waited(std::size_t writes, std::int64_t ns) {
    const auto counted = std::min(writes, kMostWrites);
    const std::int64_t saved =
        static_cast<std::int64_t>(counted) * kWriteNs - kWaitNs - ns;
    // One alone doesn't decide: the output of others differs from time to time.
    saved_ns_ = trying_ ? saved : saved_ns_ + (saved - saved_ns_) / 8;
    trying_ = saved_ns_ < 0;
    if (trying_) {
      backoff_.Failed();
    } else {
      backoff_.Succeeded();
    }
  }

 private:
  // A system call to send and another one to receive, on either side.
  static constexpr std::int64_t kWriteNs = 20'000;
  static constexpr std::int64_t kWaitNs = 20'000;  // To be worth it.
  // The writes of one wait that count, at most, or a single good one would
  // outweigh many in vain.
  static constexpr std::size_t kMostWrites = 100;
  static constexpr int kAtFirst = 16;  // Sends without a wait.

  std::int64_t saved_ns_ = 0;  // By a wait lately.
  bool trying_ = true;         // It doesn't pay; the next wait alone decides.
  Backoff backoff_{kAtFirst};  // Sends without a wait.
};

}  // namespace flare::io

#endif  // FLARE_IO_GATHER_POLICY_H_
