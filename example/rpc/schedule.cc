#include "example/rpc/schedule.h"

namespace example {

Schedule::Schedule(double rate, std::uint64_t limit, std::int64_t start_ns)
    : ns_per_call_(rate > 0 ? 1e9 / rate : 0),
      limit_(limit),
      start_ns_(start_ns) {}

std::optional<std::int64_t> Schedule::Next(std::int64_t now_ns) {
  if (stopped()) return std::nullopt;
  // What needs no numbers does without the counter that all workers share.
  if (!paced() && limit_ == 0) return now_ns;
  // relaxed: each number is handed out once, which is all that matters.
  const std::uint64_t number = claimed_.fetch_add(1, std::memory_order_relaxed);
  if (limit_ != 0 && number >= limit_) return std::nullopt;
  if (!paced()) return now_ns;
  return start_ns_ +
         static_cast<std::int64_t>(ns_per_call_ * static_cast<double>(number));
}

}  // namespace example
