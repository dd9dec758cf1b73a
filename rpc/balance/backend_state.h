// A channel's knowledge of one of its servers, whatever the balancer: calls
// under way, latency, and whether it is well. Outlives changes of the list.
//
// The rules of its states are at the top of backend_state.cc.

#ifndef FLARE_RPC_BALANCE_BACKEND_STATE_H_
#define FLARE_RPC_BALANCE_BACKEND_STATE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "flare/rpc/balance/pace.h"

namespace flare::rpc {

// May a call go to the server?
enum class Admission : std::uint8_t {
  kRefused,
  kAdmitted,
  kProbe,  // Yes, and its end decides whether others may.
};

// The verdict of a call's end on the server.
enum class Verdict : std::uint8_t {
  kNeutral,   // Nothing.
  kAnswered,  // It is well.
  kRefused,   // It is overloaded, as the others may be.
  kFailed,    // It broke the connection, or can't serve.
  kSilent,    // It didn't answer in time.
};

enum class EjectionReason : std::uint8_t {
  kNone,
  kSilent,
  kErrors,
  kSlow,
  kChecks,  // No probes: health checks find out when it is back.
};
const char* ToString(EjectionReason reason);

// Thread-safe; nothing blocks.
class alignas(64) BackendState {
 public:
  enum class Mode : std::uint8_t { kWell, kEjected, kRecovering };

  // --- For each call ---

  // One load if the server is well. `random`: any number.
  Admission Admit(std::uint64_t random, std::int64_t slow_start_ns) {
    // relaxed: a hint; nothing is read by it but other hints.
    if (mode_.load(std::memory_order_relaxed) == Mode::kWell) [[likely]] {
      return Admission::kAdmitted;
    }
    return AdmitSlowly(random, slow_start_ns);
  }
  bool ejected() const { return mode() == Mode::kEjected; }
  bool fails_checks() const {
    return ejected() && reason() == EjectionReason::kChecks;
  }

  // relaxed, here and below: numbers to compare, or to show.
  void Begin() { in_flight_.fetch_add(1, std::memory_order_relaxed); }
  // Counts the end. If the call failed, returns how many have in a row.
  std::size_t End(Verdict verdict, std::int64_t latency_ns,
                  std::int64_t now_ns);
  // One that ends, and isn't neutral, was slow.
  void CountSlow() { slow_.fetch_add(1, std::memory_order_relaxed); }
  // A stream is under way, too, but it isn't known for how long it should be.
  void BeginStream() {
    streams_.fetch_add(1, std::memory_order_relaxed);
    Begin();
  }
  void EndStream() {
    streams_.fetch_sub(1, std::memory_order_relaxed);
    in_flight_.fetch_sub(1, std::memory_order_relaxed);
  }
  // Counts the verdict of one that took so long, which says nothing of the
  // server's pace. Returns what End() does.
  std::size_t CountStream(Verdict verdict, std::int64_t took_ns,
                          std::int64_t now_ns);

  std::uint32_t in_flight() const {
    return in_flight_.load(std::memory_order_relaxed);
  }
  std::int64_t latency_ns() const {
    return latency_ns_.load(std::memory_order_relaxed);
  }
  std::int64_t DecayedLatencyNs(std::int64_t now_ns) const;

  // --- For the group, under its lock (backend_group.h) ---

  void Eject(EjectionReason reason, std::int64_t retry_at_ns);
  // The probe was answered, or the server is new.
  void Recover(std::int64_t now_ns);
  void SetWell();
  // An ejected server shows signs of life: the next call is a probe.
  void AllowProbe(std::int64_t now_ns);

  struct Window {
    std::uint64_t calls = 0;
    std::uint64_t failures = 0;
  };
  // Calls that have ended since the last window.
  Window window() const { return Since(closed_); }
  // Calls of the last window and of the current one.
  Window recent() const { return Since(closed_before_); }
  void CloseWindow();
  CallTotals totals() const;
  // Calls have failed in a row, and not by time-outs alone.
  bool row_has_errors() const {
    return failed_at_ns_.load(std::memory_order_relaxed) != 0;
  }

  Mode mode() const { return mode_.load(std::memory_order_relaxed); }
  EjectionReason reason() const {
    return reason_.load(std::memory_order_relaxed);
  }
  std::int64_t retry_at_ns() const {
    return retry_at_ns_.load(std::memory_order_relaxed);
  }
  // Since the channel knows the server.
  std::uint64_t calls() const {
    return calls_.load(std::memory_order_relaxed) +
           judged_streams_.load(std::memory_order_relaxed);
  }
  std::uint64_t failures() const {
    return failures_.load(std::memory_order_relaxed) +
           failed_streams_.load(std::memory_order_relaxed);
  }
  std::uint64_t ejections() const {
    return ejections_.load(std::memory_order_relaxed);
  }

  // Doublings of the next ejection's time. The group's, under its lock.
  unsigned doublings = 0;
  // The server's pace.
  Pace pace;

 private:
  Admission AdmitSlowly(std::uint64_t random, std::int64_t slow_start_ns);
  std::size_t CountFailure(Verdict verdict, std::int64_t latency_ns,
                           std::int64_t now_ns);
  bool FailedWithAnother(std::int64_t latency_ns, std::int64_t now_ns);
  void EndRow();
  Window Since(const Window& then) const;
  void NoteLatency(std::int64_t latency_ns, std::int64_t now_ns,
                   bool only_if_longer);

  // Read by each pick.
  std::atomic<Mode> mode_{Mode::kWell};
  std::atomic<EjectionReason> reason_{EjectionReason::kNone};
  std::atomic<std::uint32_t> in_flight_{0};
  std::atomic<std::int64_t> latency_ns_{0};
  std::atomic<std::int64_t> latency_at_ns_{0};
  std::atomic<std::int64_t> retry_at_ns_{0};
  std::atomic<std::int64_t> recovered_at_ns_{0};
  // Written by the ends of calls.
  std::atomic<std::uint32_t> failed_in_row_{0};
  // The latest kFailed of the row; 0: none.
  std::atomic<std::int64_t> failed_at_ns_{0};
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<std::uint64_t> failures_{0};
  std::atomic<std::uint64_t> slow_{0};
  std::atomic<std::uint64_t> latency_sum_ns_{0};
  std::atomic<std::uint64_t> neutral_{0};  // They aren't among calls_.
  std::atomic<std::uint32_t> streams_{0};  // Under way.
  std::atomic<std::uint64_t> judged_streams_{0};
  std::atomic<std::uint64_t> failed_streams_{0};
  std::atomic<std::uint64_t> ejections_{0};
  // When windows were closed; the group's, under its lock.
  Window closed_;
  Window closed_before_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_BALANCE_BACKEND_STATE_H_
