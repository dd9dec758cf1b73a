// How many of a server's latest calls were slow, those included that are still
// under way. backend_group.cc says which are slow, and the consequences.

#ifndef FLARE_RPC_BALANCE_PACE_H_
#define FLARE_RPC_BALANCE_PACE_H_

#include <cstdint>

namespace flare::rpc {

// The totals of one server, since the channel knows it. Streams aren't among
// them.
struct CallTotals {
  std::uint64_t ended = 0;  // In any way.
  std::uint64_t calls = 0;  // Those of them that say something of the server.
  std::uint64_t failures = 0;        // Part of calls.
  std::uint64_t slow = 0;            // Part of calls.
  std::uint64_t latency_sum_ns = 0;  // The sum over calls - failures.
  std::uint64_t under_way = 0;
};

// A window of calls, and the one before it. Not thread-safe.
class Pace {
 public:
  // Adds to the window the calls since the last Note(). Calls that have been
  // under way for longer than `slow_ns` count as slow: if no call of a server
  // ends any more, that is soon known.
  void Note(const CallTotals& totals, std::int64_t now_ns,
            std::int64_t slow_ns);
  // The next window begins.
  void CloseWindow();
  // Leaves out all that was noted up to now.
  void Forget();

  // Calls of the window.
  std::uint64_t calls() const { return window_.calls; }
  double SlowShare() const { return ShareOf(window_); }
  // Those of both windows, of which the one that isn't closed may be short.
  std::uint64_t LatestCalls() const { return window_.calls + before_.calls; }
  double LatestSlowShare() const;
  // The mean latency of the latest closed window with an answer; 0: none.
  double mean_ns() const { return mean_ns_; }

 private:
  struct Window {
    std::uint64_t calls = 0;
    std::uint64_t slow = 0;
    std::uint64_t answered = 0;
    std::uint64_t latency_sum_ns = 0;
  };
  static double ShareOf(const Window& window);
  void NoteUnended(const CallTotals& totals, std::int64_t now_ns,
                   std::int64_t slow_ns);

  CallTotals noted_;
  Window window_;
  Window before_;
  double mean_ns_ = 0;
  // Calls that had begun at a time.
  std::int64_t marked_at_ns_ = 0;
  std::uint64_t begun_at_mark_ = 0;
  // How many count as slow, and haven't ended yet.
  std::uint64_t counted_unended_ = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_BALANCE_PACE_H_
