// The carriers that a worker has in store for when a task suspends; rules in
// spare_carriers.cc.

#ifndef FLARE_FIBER_SPARE_CARRIERS_H_
#define FLARE_FIBER_SPARE_CARRIERS_H_

#include <cstddef>
#include <cstdint>

#include "flare/base/clock.h"
#include "flare/fiber/scheduler/carrier.h"

namespace flare::fiber {

class StackAllocator;

// The spares of one worker. Used by its thread only, once that has started.
class SpareCarriers {
 public:
  // They are made of `stacks` and begin in `enter`. Those that weren't needed
  // for half of `idle_ns`, up to all of it, are given back; 0: never.
  SpareCarriers(StackAllocator* stacks, Carrier::Entry enter,
                std::int64_t idle_ns);
  ~SpareCarriers() { Keep(0); }

  SpareCarriers(const SpareCarriers&) = delete;
  SpareCarriers& operator=(const SpareCarriers&) = delete;

  bool empty() const noexcept { return first_ == nullptr; }
  std::size_t size() const noexcept { return count_; }

  Carrier* Take() {  // There is one [ST1].
    Carrier* const carrier = first_;
    first_ = carrier->next_spare_;
    --count_;
    return carrier;
  }
  void Add(Carrier* carrier) {
    if (count_ >= kMost) [[unlikely]] {
      carrier->Destroy();
      return;
    }
    carrier->next_spare_ = first_;
    first_ = carrier;
    ++count_;
  }

  // Makes one. False: there is no stack.
  bool Get();
  // Makes those that a worker starts with. False: there are no stacks.
  bool GetFirst();
  // Gives all but `count` back.
  void Keep(std::size_t count);

  // The time from which Trim() should be called; kNoDeadline if there is
  // nothing to wake up for [ST5].
  std::int64_t next_trim_ns() const noexcept { return next_trim_ns_; }
  std::int64_t trim_deadline() const noexcept {
    return count_ > 1 ? next_trim_ns_ : kNoDeadline;
  }
  void Trim(std::int64_t now_ns);

 private:
  // More than fibers end, in a relay, between two that are suspended.
  static constexpr std::size_t kMost = 1024;

  Carrier* first_ = nullptr;
  std::size_t count_ = 0;
  StackAllocator* const stacks_;
  const Carrier::Entry enter_;
  const std::int64_t idle_ns_;
  std::int64_t next_trim_ns_ = kNoDeadline;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_SPARE_CARRIERS_H_
