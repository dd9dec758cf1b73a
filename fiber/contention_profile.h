// Where fibers and threads wait for a fiber::Mutex or a fiber::SharedMutex that
// another one holds, how often, and for how long, by backtrace. For finding the
// locks that make a service slow.
//
//   auto profile = fiber::ContentionProfile::Start();
//   if (!profile) return profile.error();
//   this_fiber::SleepFor(10s);
//   const fiber::ContentionReport report = (*profile)->Finish();
//   WriteFile("contention.prof", report.ToPprof());  // pprof PROGRAM ...
//   std::cout << report.ToText();
//
// A wait counts if a moment's spinning hasn't got the lock (the first try, for
// a SharedMutex), whether the caller gets it in the end or gives up. Waits that
// began before the profile aren't in it; those that haven't ended by its end
// are, for so long as they have taken.
// The first part of a wait for a ConditionVariable isn't one for its mutex. A
// lock that is free costs nothing more while a profile is taken, a wait some 10
// us: the backtrace, which comes before the wait and isn't part of its time.
// With more than 2,000 waits a second only some of them are sampled, and count
// as several.
//
// Mutexes of threads (std::mutex, ThreadMutex) aren't seen: see perf lock.

#ifndef FLARE_FIBER_CONTENTION_PROFILE_H_
#define FLARE_FIBER_CONTENTION_PROFILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/fiber/sync/lock_wait.h"

namespace flare::fiber {

struct ContentionReport {
  std::vector<ContentionPlace> places;  // The longest waits in all first.
  std::int64_t duration_ns = 0;         // The profile's.
  std::uint64_t samples = 0;            // Waits with a backtrace of their own.
  std::uint64_t lost = 0;  // Waits at places beyond LockWait::kMaxPlaces.

  // The form of gperftools' contention profiles, which pprof and google-pprof
  // read. It has the places of all libraries, and so tells where the process
  // has its code. Any thread or fiber.
  std::string ToPprof() const;

  // For people; of the first `max_places` places:
  //
  //   10.000 s: 1234 waits for locks, 3.211 s in all
  //
  //   812 waits, 2.944 s (91.7%), longest 12.301 ms: Mutex
  //       #0 0x55d7c0 Cache::Get(...) (src/cache.cc:124)
  //       ...
  // Looks names up, which may take a second, and blocks the thread meanwhile.
  std::string ToText(std::size_t max_places = ~std::size_t{0}) const;
};

class ContentionProfile {
 public:
  // Fails with EBUSY if there is a profile in the making. Any thread or fiber.
  static Expected<std::unique_ptr<ContentionProfile>, Status> Start();

  ~ContentionProfile();  // Ends it, if Finish() hasn't.
  ContentionProfile(const ContentionProfile&) = delete;
  ContentionProfile& operator=(const ContentionProfile&) = delete;

  // Ends it. Once.
  ContentionReport Finish();

 private:
  ContentionProfile() = default;

  bool running_ = false;
  std::int64_t since_ns_ = 0;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_CONTENTION_PROFILE_H_
