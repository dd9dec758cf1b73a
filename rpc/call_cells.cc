#include "flare/rpc/call_cells.h"

#include <utility>

namespace flare::rpc {

StatusCells::StatusCells() {
  // relaxed: no other thread knows this object yet.
  for (auto& status : statuses_) status.store(kFree, std::memory_order_relaxed);
}

// All orders are relaxed: a cell never changes its status, and the numbers
// order no other memory.
std::size_t StatusCells::IndexOf(int status) {
  if (status == kFree) return kMost;
  for (std::size_t i = 0; i != kMost; ++i) {
    int found = statuses_[i].load(std::memory_order_relaxed);
    if (found == kFree && statuses_[i].compare_exchange_strong(
                              found, status, std::memory_order_relaxed)) {
      return i;
    }
    if (found == status) return i;
  }
  return kMost;
}

StatusCells::Values StatusCells::Read() const {
  Values values;
  for (std::size_t i = 0; i != kMost; ++i) {
    // relaxed: as in IndexOf().
    const int status = statuses_[i].load(std::memory_order_relaxed);
    if (status == kFree) break;
    values.counts[status] = cells_.Sum(i);
  }
  values.others = cells_.Sum(kMost);
  return values;
}

// The status first: see Read().
void CallCells::EndUnusual(int status, std::int64_t ns) {
  unusual_.Add(status);
  AddDuration(ns);
}

// The statuses behind the durations, which a call is added to last: so those of
// a call that is counted by its duration are found, and the difference is never
// more than the calls with the usual status. It may be less than it was.
CallCells::Values CallCells::Read() const {
  Values values;
  std::uint64_t rest = 0;
  for (std::size_t i = 0; i != kBuckets; ++i) {
    if (i + 1 != kBuckets) {
      values.seconds.bounds.push_back(
          static_cast<double>(std::uint64_t{1} << (kFirstBits + i)) / 1e9);
    }
    values.seconds.counts.push_back(durations_.Sum(i));
    rest += values.seconds.counts.back();
  }
  values.seconds.sum = static_cast<double>(durations_.Sum(kBuckets)) / 1e9;
  StatusCells::Values unusual = unusual_.Read();
  values.counts = std::move(unusual.counts);
  values.others = unusual.others;
  for (const auto& [status, count] : values.counts)
    rest -= std::min(rest, count);
  const std::uint64_t usual = rest - std::min(rest, values.others);
  // relaxed, all: a maximum, which orders nothing.
  std::uint64_t before = shown_.load(std::memory_order_relaxed);
  while (before < usual && !shown_.compare_exchange_weak(
                               before, usual, std::memory_order_relaxed)) {
  }
  values.counts[usual_] = std::max(before, usual);
  return values;
}

}  // namespace flare::rpc
