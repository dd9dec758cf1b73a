// [LW1] The places, and all that is counted, are under `places_lock`, which is
//       taken for each sampled wait twice: when it begins, before the waiter
//       takes anything of the lock that it waits for (a backtrace would hold a
//       Spinlock for too long), and when it has ended.
// [LW2] A wait may begin in one recording and end in a later one, or in none.
//       It knows the number of its own, and counts its end in that one only.
// [LW3] A place keeps its index until the recording ends.
#include "flare/fiber/sync/lock_wait.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/random.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/sync/sample_pace.h"

namespace flare::fiber {
namespace {

// A table of places, by the hash of their backtraces.
class WaitPlaces {
 public:
  static constexpr std::size_t kNone = ~std::size_t{0};

  struct Entry {
    ContentionPlace place;
    // Sums over waits that haven't ended.
    std::uint64_t waiting = 0;
    double since_ns = 0;
  };

  // The index of the place; kNone: there is no room for a further one.
  std::size_t Find(const char* what, const Backtrace& where) {
    std::uint64_t hash = where.size();
    for (const auto frame : where.frames()) hash = MixBits(hash ^ frame);
    for (std::size_t i = hash;; ++i) {
      Entry& entry = entries_[i % kEntries];
      if (entry.place.where.empty()) {
        if (used_ == LockWait::kMaxPlaces) return kNone;
        ++used_;
        entry.place.what = what;
        entry.place.where = where;
        return i % kEntries;
      }
      if (entry.place.where == where &&
          std::strcmp(entry.place.what, what) == 0) {
        return i % kEntries;
      }
    }
  }

  Entry& operator[](std::size_t i) { return entries_[i]; }

  std::vector<ContentionPlace> TakeAll(std::int64_t now_ns) {
    std::vector<ContentionPlace> places;
    for (Entry& entry : entries_) {
      if (entry.place.where.empty()) continue;
      ContentionPlace& place = places.emplace_back(entry.place);
      if (entry.waiting == 0) continue;
      const auto now = static_cast<double>(now_ns);
      const double length =
          static_cast<double>(entry.waiting) * now - entry.since_ns;
      place.waiting = entry.waiting;
      place.waits += entry.waiting;
      place.wait_ns +=
          std::max<std::int64_t>(static_cast<std::int64_t>(length), 0);
    }
    return places;
  }

 private:
  // Never full, so that each search ends.
  static constexpr std::size_t kEntries = 2 * LockWait::kMaxPlaces;

  std::vector<Entry> entries_ = std::vector<Entry>(kEntries);
  std::size_t used_ = 0;
};

Spinlock places_lock;
// Stay at exit, when threads may still wait.
WaitPlaces* wait_places FLARE_GUARDED_BY(places_lock) = nullptr;
std::uint64_t recording_number FLARE_GUARDED_BY(places_lock) = 0;
std::int64_t recording_since_ns FLARE_GUARDED_BY(places_lock) = 0;
std::uint64_t samples FLARE_GUARDED_BY(places_lock) = 0;
std::uint64_t lost FLARE_GUARDED_BY(places_lock) = 0;
SamplePace sample_pace;

}  // namespace

void LockWait::Begin(const char* what) {
  const std::int64_t now_ns = NowNs();
  const std::uint64_t weight = sample_pace.Period(now_ns);
  const auto seed = reinterpret_cast<std::uintptr_t>(this) ^
                    static_cast<std::uint64_t>(now_ns);
  if (weight != 1 && MixBits(seed) % weight != 0) return;
  // Without Begin() and the function that waits.
  const Backtrace where = CurrentBacktrace(/*skip=*/2);
  ScopedLock guard(places_lock);
  if (wait_places == nullptr || where.empty()) return;
  sample_pace.CountSample(now_ns);
  ++samples;
  place_ = wait_places->Find(what, where);
  if (place_ == WaitPlaces::kNone) {
    lost += weight;
    return;
  }
  weight_ = weight;
  recording_number_ = recording_number;
  since_ns_ = NowNs();  // The backtrace took longer than many a wait.
  WaitPlaces::Entry& entry = (*wait_places)[place_];
  entry.waiting += weight;
  entry.since_ns += static_cast<double>(weight) *
                    static_cast<double>(since_ns_ - recording_since_ns);
}

void LockWait::End() {
  const std::int64_t now_ns = NowNs();
  ScopedLock guard(places_lock);
  if (wait_places == nullptr || recording_number != recording_number_) {
    return;  // [LW2]
  }
  WaitPlaces::Entry& entry = (*wait_places)[place_];  // [LW3]
  const std::int64_t length_ns = std::max<std::int64_t>(now_ns - since_ns_, 0);
  entry.waiting -= weight_;
  entry.since_ns -= static_cast<double>(weight_) *
                    static_cast<double>(since_ns_ - recording_since_ns);
  entry.place.waits += weight_;
  entry.place.wait_ns += length_ns * static_cast<std::int64_t>(weight_);
  entry.place.longest_ns = std::max(entry.place.longest_ns, length_ns);
}

bool LockWait::StartRecording() {
  PrepareBacktraces();
  auto places = std::make_unique<WaitPlaces>();
  const std::int64_t now_ns = NowNs();  // The process's first call may throw.
  ScopedLock guard(places_lock);
  if (wait_places != nullptr) return false;
  wait_places = places.release();
  ++recording_number;
  recording_since_ns = now_ns;
  sample_pace.Restart(now_ns);
  samples = 0;
  lost = 0;
  // relaxed: the places are published by their lock [LW1].
  recording_.store(true, std::memory_order_relaxed);
  return true;
}

LockWait::Recorded LockWait::StopRecording() {
  std::unique_ptr<WaitPlaces> places;
  Recorded recorded;
  std::int64_t now_ns = 0;
  {
    ScopedLock guard(places_lock);
    // relaxed: a waiter that still sees it set finds no places [LW1].
    recording_.store(false, std::memory_order_relaxed);
    places.reset(std::exchange(wait_places, nullptr));
    recorded.samples = samples;
    recorded.lost = lost;
    now_ns = NowNs() - recording_since_ns;
  }
  if (places != nullptr) recorded.places = places->TakeAll(now_ns);
  return recorded;
}

void LockWait::DropRecording() noexcept {
  std::unique_ptr<WaitPlaces> places;  // Freed without the lock.
  ScopedLock guard(places_lock);
  // relaxed: as in StopRecording [LW1].
  recording_.store(false, std::memory_order_relaxed);
  places.reset(std::exchange(wait_places, nullptr));
}

}  // namespace flare::fiber
