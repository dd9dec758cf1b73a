// An echo server's work for a call before it answers, so that its calls take
// time as those of real services do. Knows nothing of fibers: servers that have
// some sleep them with DoWork() of serving.h.
//
//   auto work = MakeWorkSource("sleep_thread", 50, "poisson");  // From flags.
//   ...
//   DoWorkOnThread(work->Draw());  // In the handler.

#ifndef EXAMPLE_RPC_WORK_H_
#define EXAMPLE_RPC_WORK_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace example {

// The numbers are those of `Work` in echo_service.proto.
enum class WorkKind {
  kNone = 0,
  kSleepThread = 1,  // Blocks the thread in the kernel.
  kSleepFiber = 2,   // Suspends the fiber.
  kSpin = 3,         // Keeps a CPU busy.
};

// "none", "sleep_thread", "sleep_fiber" or "spin".
std::optional<WorkKind> ParseWorkKind(std::string_view name);

struct Work {
  WorkKind kind = WorkKind::kNone;
  std::chrono::microseconds length{0};
};

// The work that a request asks for in its fields `work` and `work_us`: kNone if
// it has none. Fails if the kind isn't known or the length exceeds 10 seconds.
flare::Expected<Work, flare::Status> RequestedWork(int kind,
                                                   std::uint32_t length_us);

template <class Request>
flare::Expected<Work, flare::Status> RequestedWork(const Request& request) {
  return RequestedWork(request.work(), request.work_us());
}

// Says the work for each call. A plain value; Draw() is thread-safe.
class WorkSource {
 public:
  enum class Distribution { kFixed, kPoisson };

  WorkSource() = default;  // Nothing.
  WorkSource(const Work& work, Distribution distribution)
      : work_(work), distribution_(distribution) {}

  // kPoisson: of a length with the given mean, at most twenty times that.
  Work Draw() const;

 private:
  Work work_;
  Distribution distribution_ = Distribution::kFixed;
};

// From the values of --work, --work_us and --work_dist, which an error names.
flare::Expected<WorkSource, flare::Status> MakeWorkSource(
    std::string_view kind, int length_us, std::string_view distribution);

// Does it on the calling thread and returns when it's done. kSleepFiber sleeps
// the thread: there is no fiber.
void DoWorkOnThread(const Work& work);

}  // namespace example

#endif  // EXAMPLE_RPC_WORK_H_
