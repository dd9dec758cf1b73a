#include "flare/fiber/diagnostics/debug_layout.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "flare/base/backtrace.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/scheduler/worker_state.h"
#include "flare/fiber/shared_mutex.h"

namespace flare::fiber {

// Knows the private parts of Carrier, Worker and the mutexes. offsetof() is
// fine with GCC and clang for any class without virtual bases.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
struct FiberInspector {
  static constexpr std::size_t kResumeRun =
      offsetof(Carrier, resume_) + offsetof(Task, run);
  static constexpr std::size_t kResumeCarrier =
      offsetof(Carrier, resume_) + offsetof(Carrier::ResumeTask, carrier);
  static constexpr std::size_t kStackPointer =
      offsetof(Carrier, stack_pointer_);
  static constexpr std::size_t kSuspended = offsetof(Carrier, suspended);
  static constexpr std::size_t kSuspendedAt =
      offsetof(Carrier, suspended_at_ns);
  static constexpr std::size_t kFiberId = offsetof(Carrier, fiber_id);
  static constexpr std::size_t kEntry = offsetof(Carrier, entry);
  static constexpr std::size_t kName = offsetof(Carrier, name);
  static constexpr std::size_t kReason = offsetof(Carrier, reason);
  static constexpr std::size_t kExecutionContext =
      offsetof(Carrier, execution_context);
  static constexpr Task::Run kResume = &Carrier::Resume;

  static const void* CurrentOf(const WorkerState& worker) {
    return &worker.current_;
  }

  // Where its holder is in the object that somebody waits for; 0: it has none.
  static std::size_t HolderIn(const WaitReason& reason) {
    if (reason.what == Mutex::kName) return offsetof(Mutex, holder_);
    return reason.what == SharedMutex::kToWrite ||
                   reason.what == SharedMutex::kToRead
               ? offsetof(SharedMutex, holder_)
               : 0;
  }
};
#pragma GCC diagnostic pop

static_assert(sizeof(std::atomic<bool>) == 1);
static_assert(sizeof(std::atomic<const void*>) == sizeof(std::uintptr_t));

extern "C" constinit const DebugLayout flare_debug_layout = {
    .version = 1,
    .regions = &first_stack_region,
    .carrier_bytes = kCarrierBytes,
    .resume_function = FiberInspector::kResume,
    .resume_run = FiberInspector::kResumeRun,
    .resume_carrier = FiberInspector::kResumeCarrier,
    .stack_pointer = FiberInspector::kStackPointer,
    .suspended = FiberInspector::kSuspended,
    .suspended_at_ns = FiberInspector::kSuspendedAt,
    .fiber_id = FiberInspector::kFiberId,
    .entry = FiberInspector::kEntry,
    .name = FiberInspector::kName,
    .reason_what = FiberInspector::kReason + offsetof(WaitReason, what),
    .reason_object = FiberInspector::kReason + offsetof(WaitReason, object),
};

bool operator==(const CarrierView& a, const CarrierView& b) {
  return a.fiber_id == b.fiber_id && a.entry == b.entry && a.name == b.name &&
         a.reason.what == b.reason.what && a.reason.object == b.reason.object &&
         a.suspended_at_ns == b.suspended_at_ns && a.suspended == b.suspended &&
         a.stack_pointer == b.stack_pointer &&
         a.execution_context == b.execution_context;
}

bool ReadCarrier(std::uintptr_t place, CarrierView* view) noexcept {
  // Linkers that drop unreferenced sections (--gc-sections) must keep it.
  asm volatile("" : : "r"(&flare_debug_layout));
  char copy[sizeof(Carrier)];
  if (ReadOwnMemory(reinterpret_cast<const void*>(place), copy, sizeof(copy)) !=
      sizeof(copy)) {
    return false;
  }
  const auto get = [&copy](std::size_t offset, auto* field) {
    std::memcpy(field, copy + offset, sizeof(*field));
  };
  Task::Run resume_function = nullptr;
  std::uintptr_t self = 0;
  get(FiberInspector::kResumeRun, &resume_function);
  get(FiberInspector::kResumeCarrier, &self);
  if (resume_function != FiberInspector::kResume || self != place) {
    return false;
  }
  unsigned char suspended = 0;
  get(FiberInspector::kSuspended, &suspended);
  view->suspended = suspended != 0;
  get(FiberInspector::kStackPointer, &view->stack_pointer);
  get(FiberInspector::kSuspendedAt, &view->suspended_at_ns);
  get(FiberInspector::kFiberId, &view->fiber_id);
  get(FiberInspector::kEntry, &view->entry);
  get(FiberInspector::kName, &view->name);
  get(FiberInspector::kReason, &view->reason);
  get(FiberInspector::kExecutionContext, &view->execution_context);
  return true;
}

std::string ReadName(const char* name) {
  char copy[63];
  if (name == nullptr) return "";
  const std::size_t got = ReadOwnMemory(name, copy, sizeof(copy));
  return std::string(copy, std::find(copy, copy + got, '\0'));
}

std::uintptr_t ReadHolder(const WaitReason& reason) noexcept {
  const std::size_t offset = FiberInspector::HolderIn(reason);
  if (offset == 0) return 0;
  std::uintptr_t holder = 0;
  ReadOwnMemory(static_cast<const char*>(reason.object) + offset, &holder,
                sizeof(holder));
  return holder;
}

std::uintptr_t ReadCurrentCarrier(const WorkerState& worker) noexcept {
  std::uintptr_t current = 0;
  ReadOwnMemory(FiberInspector::CurrentOf(worker), &current, sizeof(current));
  return current;
}

SavedContext ReadContext(const char (&frame)[kContextBytes]) noexcept {
#if defined(__x86_64__)
  constexpr std::size_t kFramePointer = 48;
  constexpr std::size_t kReturnAddress = 56;
#else
  constexpr std::size_t kFramePointer = 0;
  constexpr std::size_t kReturnAddress = 8;
#endif
  SavedContext context;
  std::memcpy(&context.frame_pointer, frame + kFramePointer, 8);
  std::memcpy(&context.return_address, frame + kReturnAddress, 8);
  return context;
}

}  // namespace flare::fiber
