// Where the process spends its CPU time: 100 backtraces for each second of it,
// of whichever threads run, fibers and plain ones alike.
//
//   auto profile = CpuProfile::Start();
//   if (!profile) return profile.error();
//   sleep(10);
//   WriteFile("cpu.prof", (*profile)->Finish());  // pprof PROGRAM cpu.prof
//
// A timer of CPU time (ITIMER_PROF) sends SIGPROF to a thread that runs, which
// unwinds its stack in the handler: some 20 us, 0.2% of the time. A system call
// that it interrupts is restarted, except those that never are (poll, sleep),
// which return EINTR. The handler stays installed, for late signals. For
// addresses in a profile the file has the places of all libraries, so it tells
// where the process has its code: show it to those only that may know.
#ifndef FLARE_BASE_CPU_PROFILE_H_
#define FLARE_BASE_CPU_PROFILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace flare {

class CpuProfile {
 public:
  static constexpr int kHz = 100;
  // Memory for backtraces; later ones are lost. Enough for some 500 seconds of
  // CPU time with backtraces of 20 frames.
  static constexpr std::size_t kMaxBytes = 8 << 20;

  // Fails with EBUSY if there is a profile in the making, also by another
  // profiler that uses SIGPROF or the timer. Any thread or fiber.
  static Expected<std::unique_ptr<CpuProfile>, Status> Start();

  ~CpuProfile();  // Ends it, if Finish() hasn't.
  CpuProfile(const CpuProfile&) = delete;
  CpuProfile& operator=(const CpuProfile&) = delete;

  // Ends it, and returns it in the form of gperftools' CPU profiles, which
  // pprof and google-pprof read. Once. May take a second of CPU time.
  std::string Finish();

  // How many backtraces were lost. After Finish().
  std::uint64_t lost() const { return lost_; }

 private:
  CpuProfile() = default;

  bool running_ = false;
  std::uint64_t lost_ = 0;
};

}  // namespace flare

#endif  // FLARE_BASE_CPU_PROFILE_H_
