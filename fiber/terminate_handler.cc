#include "flare/fiber/terminate_handler.h"

#include <cxxabi.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <typeinfo>

#include "flare/base/backtrace.h"
#include "flare/fiber/carrier.h"
#include "flare/fiber/fiber_list.h"
#include "flare/fiber/scheduling_group.h"
#include "flare/fiber/worker.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

std::terminate_handler previous = nullptr;

// "std::runtime_error: what()", as far as it can be told.
std::string DescribeException(const std::exception_ptr& exception) {
  const std::type_info* const type = abi::__cxa_current_exception_type();
  std::string text = "an exception of unknown type";
  if (type != nullptr) {
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> name(
        abi::__cxa_demangle(type->name(), nullptr, nullptr, &status),
        &std::free);
    text = name != nullptr ? name.get() : type->name();
  }
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& e) {
    text += std::string(": ") + e.what();
  } catch (...) {
  }
  return text;
}

std::string DescribeFiber(const Carrier& fiber, const Worker& worker) {
  std::string text = "fiber ";
  text += fiber.name == nullptr ? "without name"
                                : '"' + std::string(fiber.name) + '"';
  if (fiber.fiber_id != 0) text += ", id " + std::to_string(fiber.fiber_id);
  return text + ", entry " +
         EntryName(reinterpret_cast<const void*>(fiber.entry)) +
         ", on worker " + std::to_string(worker.group()->index()) + '/' +
         std::to_string(worker.index());
}

void Report(const Carrier& fiber, const Worker& worker) {
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
  try {
    std::thread(log).join();
  } catch (const std::system_error&) {  // No more threads.
    log();
  }
}

void OnTerminate() {
  Worker* const worker = CurrentWorker();
  if (worker != nullptr && worker->current() != nullptr) {
    Report(*worker->current(), *worker);
  }
  if (previous != nullptr) previous();
  std::abort();
}

}  // namespace

void InstallTerminateHandler() {
  static const bool installed = [] {
    previous = std::get_terminate();
    std::set_terminate(&OnTerminate);
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace flare::fiber
