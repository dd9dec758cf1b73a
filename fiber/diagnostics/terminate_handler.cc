#include "flare/fiber/diagnostics/terminate_handler.h"

#include <exception>
#include <string>

#include "flare/base/backtrace.h"
#include "flare/base/describe_exception.h"
#include "flare/fiber/blocking_region.h"
#include "flare/fiber/fiber_list.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/current_fiber.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/thread_stack.h"
#include "flare/fiber/scheduler/worker.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

std::terminate_handler previous_handler = nullptr;

// Where it runs: a worker, or, without one, a blocking region.
std::string DescribeFiber(const Carrier& fiber, const Worker* worker) {
  std::string text = "fiber ";
  text += fiber.name == nullptr ? "without name"
                                : '"' + std::string(fiber.name) + '"';
  if (fiber.fiber_id != 0) text += ", id " + std::to_string(fiber.fiber_id);
  text += ", entry " + EntryName(reinterpret_cast<const void*>(fiber.entry));
  if (worker == nullptr) return text + ", in a BlockingRegion";
  return text + ", on worker " + std::to_string(worker->group()->index()) +
         '/' + std::to_string(worker->index());
}

void Report(const Carrier& fiber, const Worker* worker) {
  const Backtrace backtrace = CurrentBacktrace(/*skip=*/1);
  const std::exception_ptr exception = std::current_exception();
  std::string what;
  if (exception != nullptr) what = DescribeException(exception);
  // Making text takes more stack than may be left here.
  const auto log = [&] {
    LOG(ERROR) << (what.empty() ? "std::terminate() was called in "
                                : "an exception left ")
               << DescribeFiber(fiber, worker)
               << (what.empty() ? ". Called here:\n"
                                : ": " + what + ". Thrown here:\n")
               << backtrace.ToString();
    google::FlushLogFiles(google::INFO);
  };
  RunOnThreadStack(log);
}

void OnTerminate() {
  if (const Carrier* const fiber = CurrentFiber()) {
    Report(*fiber, CurrentWorker());
  }
  if (previous_handler != nullptr) previous_handler();
  std::abort();
}

}  // namespace

void InstallTerminateHandler() {
  static const bool installed = [] {
    previous_handler = std::get_terminate();
    std::set_terminate(&OnTerminate);
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace flare::fiber
