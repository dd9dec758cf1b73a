// The times to send calls: one after another as fast as they are answered, at a
// fixed rate, or at the times of a recording; for ever, or a given number of
// them.
//
// At a fixed rate, as with recorded times, the schedule doesn't wait for
// anybody: the k-th call is due k / rate seconds after the start, and latency
// counts from there. If the server stalls, the calls that should have been sent
// meanwhile are sent late and show how late, instead of never having been meant
// to be sent ("coordinated omission").

#ifndef EXAMPLE_RPC_SCHEDULE_H_
#define EXAMPLE_RPC_SCHEDULE_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace example {

// Times of recorded calls, again and again.
struct RecordedPace {
  std::vector<std::int64_t> offsets_ns;  // Ascending, from 0 on; not empty.
  std::int64_t period_ns = 0;            // Greater than the last of these.
};

// Thread-safe; nothing blocks. Times are those of flare::NowNs().
class Schedule {
 public:
  // A call that somebody has claimed.
  struct Claim {
    std::uint64_t number = 0;
    std::int64_t due_ns = 0;  // Maybe in the past.
  };

  // `rate`: calls per second, 0: no fixed rate. `limit`: number of calls, 0: no
  // limit. The first call is due at `start_ns`.
  Schedule(double rate, std::uint64_t limit, std::int64_t start_ns);

  // The first call is due at `start_ns`, instead of the constructor's time.
  // Before the first Next() only.
  void StartAt(std::int64_t start_ns) { start_ns_ = start_ns; }

  // Calls are due at these times after the start, in place of a rate. Before
  // the first Next() only.
  void Follow(std::shared_ptr<const RecordedPace> pace) {
    recorded_ = std::move(pace);
  }
  // Numbers calls without a rate and a limit, too. Before the first Next()
  // only.
  void NumberCalls() { numbered_ = true; }

  // Claims the next call; nothing if there are none left or Stop() was called.
  std::optional<Claim> Next(std::int64_t now_ns);

  // Besides the calls that are under way there will be so many more, of which
  // some may have been claimed because they are due later. For one thread.
  void Limit(std::uint64_t limit, std::int64_t now_ns);

  // Whether a call that was claimed isn't to be sent any more: after Stop(), or
  // because it is beyond a Limit() or End() that has come since.
  bool Revoked(const Claim& claim) const {
    // relaxed: as in Stop.
    return stopped() || claim.number >= end_.load(std::memory_order_relaxed);
  }

  // At a fixed rate, no calls that are due at `now_ns` or later: those that are
  // due before, for which there was nobody to send them, are still to be sent.
  // Without one, as Stop(). For one thread.
  void End(std::int64_t now_ns);

  // A call was claimed, and will not be sent, though it was due.
  void NoteUnsent(const Claim& claim) {
    // relaxed: a count, read when all is over.
    if (claim.number < end_.load(std::memory_order_relaxed)) {
      unsent_.fetch_add(1, std::memory_order_relaxed);
    }
  }

  // After End() with a fixed rate, and when nobody claims or sends any more:
  // calls that were due and weren't sent.
  std::uint64_t unsent() const;

  // No more calls.
  void Stop() {
    // relaxed: a caller that sees it late makes one more call, which does no
    // harm.
    stopped_.store(true, std::memory_order_relaxed);
  }
  bool stopped() const {
    return stopped_.load(std::memory_order_relaxed);  // As in Stop.
  }

  // Would Next() claim nothing?
  bool over() const {
    // relaxed, both: as in Stop.
    return stopped() || claimed_.load(std::memory_order_relaxed) >=
                            end_.load(std::memory_order_relaxed);
  }

  // Does the clock say when calls are due?
  bool paced() const { return ns_per_call_ != 0 || recorded_ != nullptr; }

  // Calls that the pace makes due before `time_ns`, whether or not they are
  // claimed or beyond the limit. Only if paced().
  std::uint64_t DueBefore(std::int64_t time_ns) const;

 private:
  static constexpr auto kNoEnd = std::numeric_limits<std::uint64_t>::max();

  // How long after the start a call is due.
  std::int64_t OffsetOf(std::uint64_t number) const;

  const double ns_per_call_;
  std::int64_t start_ns_;
  std::shared_ptr<const RecordedPace> recorded_;  // Null: a rate, or none.
  bool numbered_ = false;
  // The end of the numbers; changed by Limit() only.
  std::atomic<std::uint64_t> end_;
  std::atomic<bool> stopped_{false};
  std::atomic<std::uint64_t> unsent_{0};  // Those that were claimed.
  alignas(64) std::atomic<std::uint64_t> claimed_{0};
};

}  // namespace example

#endif  // EXAMPLE_RPC_SCHEDULE_H_
