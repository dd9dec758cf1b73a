#include "flare/base/cpu_profile.h"

#include <sched.h>
#include <signal.h>
#include <sys/time.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "flare/base/backtrace.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"

// Handlers of SIGPROF run on any threads, at the same time, and may be late.
//
// [PF1] A handler enters `inside`, then looks at `active`; the end of a profile
//       clears `active`, then waits until nobody is inside. Both sides are
//       sequentially consistent: a handler that has seen the samples is seen by
//       the end, which therefore frees no memory under it.
// [PF2] A handler writes the words that its fetch_add of `used` has given it,
//       and nobody else does. The end reads them after [PF1].
// [PF3] The handler is never uninstalled: by default SIGPROF ends the process.

namespace flare {
namespace {

constexpr std::size_t kMaxWords =
    CpuProfile::kMaxBytes / sizeof(std::uintptr_t);

// Backtraces, each behind its number of frames.
struct Samples {
  std::vector<std::uintptr_t> words = std::vector<std::uintptr_t>(kMaxWords);
  std::atomic<std::size_t> used{0};
  std::atomic<std::uint64_t> lost{0};

  void Add(const Backtrace& backtrace) {
    const std::size_t size = backtrace.size() + 1;
    // relaxed: the reader comes after [PF1].
    const std::size_t at = used.fetch_add(size, std::memory_order_relaxed);
    if (at + size > kMaxWords) {
      lost.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    words[at] = backtrace.size();  // [PF2]
    std::memcpy(&words[at + 1], backtrace.frames().data(),
                backtrace.size() * sizeof(std::uintptr_t));
  }
};

std::atomic<Samples*> active{nullptr};
std::atomic<int> inside{0};

ThreadMutex profile_lock;
// Stay at exit, when handlers may still run.
Samples* samples FLARE_GUARDED_BY(profile_lock) = nullptr;

void OnProfileSignal(int, siginfo_t*, void* context) {
  const int saved_errno = errno;
  // seq_cst, both: before the look at `active` [PF1].
  inside.fetch_add(1, std::memory_order_seq_cst);
  if (Samples* const to = active.load(std::memory_order_seq_cst)) {
    to->Add(BacktraceFromSignal(context));
  }
  // release: pairs with the loads in EndSampling [PF1].
  inside.fetch_sub(1, std::memory_order_release);
  errno = saved_errno;
}

void EndSampling() {
  const itimerval never{};
  setitimer(ITIMER_PROF, &never, nullptr);
  // seq_cst: before the look at `inside` [PF1].
  active.store(nullptr, std::memory_order_seq_cst);
  while (inside.load(std::memory_order_seq_cst) != 0) sched_yield();
}

// False: somebody else has the signal or the timer.
bool TakeSignal() {
  struct sigaction now;
  itimerval timer;
  if (sigaction(SIGPROF, nullptr, &now) != 0 ||
      getitimer(ITIMER_PROF, &timer) != 0 || timer.it_value.tv_sec != 0 ||
      timer.it_value.tv_usec != 0) {
    return false;
  }
  if ((now.sa_flags & SA_SIGINFO) != 0) {
    return now.sa_sigaction == &OnProfileSignal;
  }
  if (now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN) return false;
  struct sigaction ours = {};
  ours.sa_sigaction = &OnProfileSignal;
  ours.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  return sigaction(SIGPROF, &ours, nullptr) == 0;  // [PF3]
}

using Counts = std::map<std::vector<std::uintptr_t>, std::uintptr_t>;

Counts CountStacks(const Samples& from) {
  Counts counts;
  // relaxed: nobody writes any more [PF1].
  const std::size_t used = from.used.load(std::memory_order_relaxed);
  for (std::size_t at = 0; at < used && at < kMaxWords;) {
    const std::size_t size = from.words[at];
    if (size == 0) break;  // The first that had no room.
    const auto* const begin = &from.words[at + 1];
    std::vector<std::uintptr_t> stack(begin, begin + size);
    // The interrupted instruction itself, not one past it.
    --stack[0];
    ++counts[std::move(stack)];
    at += size + 1;
  }
  return counts;
}

// "CPU profiles" of gperftools (cpuprofile-fileformat.html): words, then the
// mappings as text.
std::string ToProfile(const Counts& counts) {
  constexpr std::uintptr_t kPeriodUs = 1'000'000 / CpuProfile::kHz;
  std::vector<std::uintptr_t> words = {0, 3, 0, kPeriodUs, 0};
  for (const auto& [stack, count] : counts) {
    words.push_back(count);
    words.push_back(stack.size());
    words.insert(words.end(), stack.begin(), stack.end());
  }
  words.insert(words.end(), {0, 1, 0});
  std::ostringstream text;
  text.write(reinterpret_cast<const char*>(words.data()),
             static_cast<std::streamsize>(words.size() * sizeof(words[0])));
  text << std::ifstream("/proc/self/maps").rdbuf();
  return std::move(text).str();
}

}  // namespace

Expected<std::unique_ptr<CpuProfile>, Status> CpuProfile::Start() {
  PrepareBacktraces();
  ScopedLock guard(profile_lock);
  if (samples != nullptr) {
    return Status(EBUSY, "there is a CPU profile in the making: wait for it");
  }
  if (!TakeSignal()) {
    return Status(EBUSY,
                  "another profiler of this process has SIGPROF or its timer "
                  "(ITIMER_PROF): stop it");
  }
  auto fresh = std::make_unique<Samples>();
  std::unique_ptr<CpuProfile> profile(new CpuProfile);
  samples = fresh.release();  // From here on nothing throws.
  // seq_cst: publishes the samples to handlers [PF1].
  active.store(samples, std::memory_order_seq_cst);
  const timeval period{.tv_sec = 0, .tv_usec = 1'000'000 / kHz};
  const itimerval timer{.it_interval = period, .it_value = period};
  setitimer(ITIMER_PROF, &timer, nullptr);
  profile->running_ = true;
  return profile;
}

CpuProfile::~CpuProfile() {
  if (!running_) return;
  ScopedLock guard(profile_lock);
  EndSampling();
  delete std::exchange(samples, nullptr);
}

std::string CpuProfile::Finish() {
  std::unique_ptr<Samples> taken;
  {
    ScopedLock guard(profile_lock);
    EndSampling();
    taken.reset(std::exchange(samples, nullptr));
  }
  running_ = false;
  // relaxed: nobody writes any more [PF1].
  lost_ = taken->lost.load(std::memory_order_relaxed);
  return ToProfile(CountStacks(*taken));
}

}  // namespace flare
