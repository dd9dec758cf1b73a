#include "flare/fiber/diagnostics/thread_lock_check.h"

#include <atomic>
#include <string>

#include "flare/base/backtrace.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/thread_stack.h"
#include "flare/fiber/scheduler/worker.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

std::atomic<ThreadLockCheck> configured{ThreadLockCheck::kOff};

}  // namespace

void SetThreadLockCheck(ThreadLockCheck check) {
  // relaxed: set before the workers that read it start.
  configured.store(check, std::memory_order_relaxed);
  ThreadMutex::SetCheck(check != ThreadLockCheck::kOff);
}

void ReportSuspensionUnderLock(const WaitReason& reason) {
  const Carrier* const self = CurrentCarrier();
  std::string text = "fiber ";
  text += self->name == nullptr ? "without name"
                                : '"' + std::string(self->name) + '"';
  text += " is suspended (" + std::string(reason.what) +
          ") while its thread holds a ThreadMutex. Unlock it before, or use "
          "fiber::Mutex. Suspended here:\n";
  const Backtrace here = CurrentBacktrace(/*skip=*/1);
  const auto locks = ThreadMutex::HeldByThisThread();
  RunOnThreadStack([&] {
    text += here.ToString();
    for (const ThreadMutex::Held& held : locks) {
      text += "  locked here:\n" + held.where.ToString();
    }
  });
  // relaxed: see SetThreadLockCheck.
  LOG_IF(FATAL,
         configured.load(std::memory_order_relaxed) == ThreadLockCheck::kAbort)
      << text;
  LOG(ERROR) << text;
  ThreadMutex::ForgetHeld();
}

}  // namespace flare::fiber
