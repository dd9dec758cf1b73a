// A bucket of tokens in one word, and a table of buckets for many callers.
//
//   const TokenRate rate = TokenRate::Of(/*per_second=*/100, /*burst=*/20);
//   TokenBucket bucket;                          // Begins full.
//   if (bucket.Take(rate, NowNs()) == 0) ...     // There was a token.
//
// The word is the time at which the bucket will be full again. A token moves
// it on by the interval between two tokens; time itself refills the bucket. A
// bucket of `burst` tokens has none left when that time is more than burst - 1
// intervals away.
//
// All functions are thread-safe and lock-free. All orders are relaxed: a word
// is all that there is of its bucket and publishes nothing else, and the
// compare-exchange sees each token that was taken before it in the word's own
// order of changes.
#ifndef FLARE_RPC_ADMISSION_TOKEN_BUCKET_H_
#define FLARE_RPC_ADMISSION_TOKEN_BUCKET_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "flare/base/cpu.h"

namespace flare::rpc {

struct TokenRate {
  std::int64_t interval_ns = 0;  // Between two tokens.
  std::int64_t depth_ns = 0;     // The time in which an empty bucket fills.

  // Both must be positive, and their quotient at most a day.
  static TokenRate Of(double per_second, double burst) {
    const double interval = std::max(1e9 / per_second, 1.0);
    return {static_cast<std::int64_t>(interval + 0.5),
            static_cast<std::int64_t>(interval * burst + 0.5)};
  }
};

class TokenBucket {
 public:
  // Takes a token and returns 0, or returns the nanoseconds until there is one.
  [[nodiscard]] std::int64_t Take(const TokenRate& rate, std::int64_t now_ns) {
    std::int64_t full_at = full_at_ns_.load(std::memory_order_relaxed);
    while (true) {
      const std::int64_t next = std::max(full_at, now_ns) + rate.interval_ns;
      const std::int64_t wait = next - now_ns - rate.depth_ns;
      if (wait > 0) return wait;
      if (full_at_ns_.compare_exchange_weak(full_at, next,
                                            std::memory_order_relaxed)) {
        return 0;
      }
    }
  }

  // Puts a token back that Take() gave.
  void GiveBack(const TokenRate& rate) {
    full_at_ns_.fetch_sub(rate.interval_ns, std::memory_order_relaxed);
  }

  std::int64_t full_at_ns() const {
    return full_at_ns_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<std::int64_t> full_at_ns_{0};
};

// Buckets for callers that are known by 64-bit hashes. Memory is 16 bytes for
// each of `max_callers`, from the start.
//
// A new caller takes the place of the one in its set of eight places whose
// bucket has been full for longest. A full bucket is that of a new caller, so
// nobody gains or loses tokens by the change. If no bucket of the set is full,
// the new caller shares a bucket with all others that found no place: a caller
// can't get tokens by making others forgotten.
class CallerBuckets {
 public:
  // Rounds up to a multiple of eight.
  explicit CallerBuckets(std::size_t max_callers)
      : count_(std::max<std::size_t>((max_callers + kWays - 1) / kWays, 1)),
        sets_(std::make_unique<Set[]>(count_)) {}

  // Valid as long as this.
  TokenBucket* Find(std::uint64_t hash, std::int64_t now_ns) {
    hash = Mix(hash) | 1;  // 0 is a place that nobody has.
    Set& set = sets_[(hash >> 32) * count_ >> 32];
    while (true) {
      Slot* oldest = nullptr;
      std::int64_t oldest_at = now_ns;
      std::uint64_t seen = 0;
      for (Slot& slot : set.slots) {
        const std::uint64_t owner = slot.owner.load(std::memory_order_relaxed);
        if (owner == hash) return &slot.bucket;
        const std::int64_t full_at = slot.bucket.full_at_ns();
        if (full_at > oldest_at || (oldest && full_at == oldest_at)) continue;
        oldest = &slot;
        oldest_at = full_at;
        seen = owner;
      }
      if (oldest == nullptr) return &shared_;
      // If it fails another caller has come in between, maybe this one.
      if (oldest->owner.compare_exchange_strong(seen, hash,
                                                std::memory_order_relaxed)) {
        return &oldest->bucket;
      }
    }
  }

  bool IsShared(const TokenBucket* bucket) const { return bucket == &shared_; }

 private:
  static constexpr std::size_t kWays = 8;

  struct Slot {
    std::atomic<std::uint64_t> owner{0};
    TokenBucket bucket;
  };
  struct alignas(kCacheLine) Set {
    Slot slots[kWays];
  };

  static std::uint64_t Mix(std::uint64_t x) {
    x = (x ^ (x >> 32)) * 0x9e3779b97f4a7c15u;
    return x ^ (x >> 29);
  }

  const std::size_t count_;
  const std::unique_ptr<Set[]> sets_;
  TokenBucket shared_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_ADMISSION_TOKEN_BUCKET_H_
