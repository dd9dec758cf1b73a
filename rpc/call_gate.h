// Whether a call that comes to its worker is begun: not if it has waited for
// too long, nor once its server has stopped for it.
//
//   if (!gate->IsOpen(waited_ns)) {
//     switch (gate->Ask(now_ns, waited_ns)) { ... }
//   }
//
// A server has one for each scheduling group. Any thread, except SetUp();
// nothing blocks. Rules in call_gate.cc.
#ifndef FLARE_RPC_CALL_GATE_H_
#define FLARE_RPC_CALL_GATE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>

#include "flare/base/cpu.h"

namespace flare::rpc {

class alignas(kCacheLine) CallGate {
 public:
  enum class Verdict { kBegin, kOverloaded, kStopping };

  // Before anything else. Calls that waited longer than `max_wait` are refused;
  // 0: none are.
  void SetUp(std::chrono::nanoseconds max_wait);

  // True: a call that waited for so long is begun. False: ask.
  bool IsOpen(std::int64_t waited_ns) const {
    // relaxed: a limit, nothing is ordered by it.
    return waited_ns <= look_beyond_ns_.load(std::memory_order_relaxed);
  }
  Verdict Ask(std::int64_t now_ns, std::int64_t waited_ns) const;

  // Calls that come to their workers after `at_ns` (NowNs()) are refused:
  // kStopping. A second time the earlier moment holds.
  void CloseAt(std::int64_t at_ns);

 private:
  static constexpr std::int64_t kNever =
      std::numeric_limits<std::int64_t>::max();

  std::atomic<std::int64_t> look_beyond_ns_{kNever};  // [CG1]
  std::atomic<std::int64_t> closed_at_ns_{kNever};
  std::int64_t max_wait_ns_ = kNever;  // Constant once set up.
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CALL_GATE_H_
