// [EC1] A value is published into its slot once, constructed, by a
//       compare-exchange; a thread that loses that drops its own value.
// [EC2] Chunks are added at the end, in the same way, and never removed while
//       the context lives.
// [EC3] A stop is requested once: the thread that sets cause_, under
//       stop_lock_, calls request_stop(), without it. The stop state is made
//       once, under the same lock. So a token that was made before is told by
//       that call, and one that is made later is born stopped.
// [EC4] The owner is told of the first token under stop_lock_, and Disown()
//       takes that: an owner that has called it isn't called any more, nor is
//       it inside OnWatched().
// [EC5] A part keeps the whole alive, and has nothing but a value of one local
//       that isn't the whole's. So stops and other values are looked for in the
//       outermost whole.
#include "flare/fiber/execution_context.h"

#include <string>

#include "flare/base/backtrace.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/current_fiber.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

// noinline: the address of a thread-local must not be kept across a suspension.
// The asm hides that it is always the same variable's: compilers otherwise
// take it to the caller all the same.
[[gnu::noinline]] ExecutionContext** ThreadPlace() {
  static thread_local ExecutionContext* context = nullptr;
  ExecutionContext** place = &context;
  asm volatile("" : "+r"(place) : : "memory");
  return place;
}

}  // namespace

// Before main() others may set it in any order, so it is there from the start.
constinit ExecutionContext::AnyLocalsFlag ExecutionContext::any_locals_;

const char* ToString(StopCause cause) {
  switch (cause) {
    case StopCause::kNone:
      break;
    case StopCause::kCancelled:
      return "it was cancelled";
    case StopCause::kCallerGone:
      return "the caller is gone";
    case StopCause::kDeadline:
      return "its deadline has passed";
    case StopCause::kShuttingDown:
      return "the server stops";
  }
  return "it wasn't stopped";
}

RefPtr<ExecutionContext> ExecutionContext::Create(std::int64_t deadline_ns,
                                                  Owner* owner) {
  return MakeRefCounted<ExecutionContext>(deadline_ns, owner);
}

std::stop_token ExecutionContext::stop_token() {
  if (whole_ != nullptr) return OutermostWhole()->stop_token();
  {
    ScopedLock guard(stop_lock_);
    if (stop_.stop_possible()) return stop_.get_token();
  }
  NoteUse();
  std::stop_source fresh;  // Allocates: not under the lock.
  ScopedLock guard(stop_lock_);
  if (!stop_.stop_possible()) {
    stop_.swap(fresh);
    // relaxed: under the lock.
    StopCause cause = cause_.load(std::memory_order_relaxed);
    if (cause == StopCause::kNone && owner_ != nullptr) {
      cause = owner_->OnWatched();  // [EC4]
      // release: as in RequestStop.
      cause_.store(cause, std::memory_order_release);
    }
    // There are no callbacks yet [EC3].
    if (cause != StopCause::kNone) stop_.request_stop();
  }
  return stop_.get_token();
}

bool ExecutionContext::RequestStop(StopCause cause) {
  if (whole_ != nullptr) return OutermostWhole()->RequestStop(cause);
  NoteUse();
  std::stop_source stop(std::nostopstate);
  {
    ScopedLock guard(stop_lock_);
    // relaxed: under the lock.
    if (cause_.load(std::memory_order_relaxed) != StopCause::kNone) {
      return false;
    }
    // release: pairs with the acquire in stop_cause [EC3].
    cause_.store(cause, std::memory_order_release);
    stop = stop_;
  }
  stop.request_stop();
  return true;
}

namespace {

std::atomic<ExecutionContext::Describer> describer{nullptr};

}  // namespace

void ExecutionContext::SetDescriber(Describer d) {
  describer.store(d, std::memory_order_relaxed);  // A function, that's all.
}

std::string ExecutionContext::DescribeOwner(const ExecutionContext* context)
    FLARE_NO_THREAD_SAFETY_ANALYSIS {
  // relaxed: see SetDescriber().
  const Describer describe = describer.load(std::memory_order_relaxed);
  if (context == nullptr || describe == nullptr) return "";
  // Parts have no owner [EC5]. Memory that is something else by now may look
  // like parts without an end.
  constexpr int kMostParts = 64;
  static_assert(sizeof(context->whole_) == sizeof(context));
  for (int i = 0; i != kMostParts; ++i) {
    const ExecutionContext* whole = nullptr;
    ReadOwnMemory(&context->whole_, &whole, sizeof(whole));
    if (whole == nullptr) break;
    context = whole;
  }
  Owner* owner = nullptr;
  // Its address alone is used.
  if (ReadOwnMemory(&context->owner_, &owner, sizeof(owner)) != sizeof(owner) ||
      owner == nullptr) {
    return "";
  }
  std::string text = describe(owner);
  Owner* again = nullptr;
  ReadOwnMemory(&context->owner_, &again, sizeof(again));
  return again == owner ? text : "";
}

void ExecutionContext::Disown() {
  ScopedLock guard(stop_lock_);
  owner_ = nullptr;
}

void* ExecutionContext::operator new(std::size_t) {
  return PoolAllocate<sizeof(ExecutionContext)>();
}

void ExecutionContext::operator delete(void* memory) {
  PoolFree<sizeof(ExecutionContext)>(memory);
}

ExecutionContext** ExecutionContext::Place() {
  Carrier* const carrier = CurrentFiber();  // Also in a region.
  return carrier != nullptr ? &carrier->execution_context : ThreadPlace();
}

ExecutionContext* ExecutionContext::Current() { return *Place(); }

std::size_t ExecutionContext::AllocateSlot() {
  static std::atomic<std::size_t> next{0};
  // relaxed: only the number matters.
  return next.fetch_add(1, std::memory_order_relaxed);
}

std::atomic<ExecutionContext::Value*>& ExecutionContext::ValueAt(
    std::size_t slot) {
  Chunk* chunk = &first_;
  for (; slot >= kChunkSlots; slot -= kChunkSlots) {
    // acquire: pairs with the release in the exchange below [EC2].
    Chunk* next = chunk->next.load(std::memory_order_acquire);
    if (next == nullptr) {
      auto* const fresh = new Chunk();
      // acq_rel: release pairs with the acquires here and above [EC2].
      if (chunk->next.compare_exchange_strong(next, fresh,
                                              std::memory_order_acq_rel)) {
        next = fresh;
      } else {
        delete fresh;
      }
    }
    chunk = next;
  }
  return chunk->values[slot];
}

void DieOutsideOfContexts() {
  LOG(FATAL)
      << "an ExecutionLocal was asked for its value by code that runs in "
         "no ExecutionContext: begin one by "
         "ExecutionContext::Create()->Execute(...), or look at get(), "
         "which is nullptr then";
}

// The last reference is gone: nobody else is here. Values may not ask for
// others of the same context meanwhile: it is nobody's current one.
ExecutionContext::~ExecutionContext() {
  if (part_value_ != nullptr) part_value_->destroy(part_value_);
  for (Chunk* chunk = &first_; chunk != nullptr;) {
    for (auto& place : chunk->values) {
      // relaxed: the drop of the last reference orders it (ref_ptr.h).
      Value* const value = place.load(std::memory_order_relaxed);
      if (value != nullptr) value->destroy(value);
    }
    Chunk* const next = chunk->next.load(std::memory_order_relaxed);
    if (chunk != &first_) delete chunk;
    chunk = next;
  }
  // One by one, not each within the end of its part: stacks are small.
  RefPtr<ExecutionContext> whole = std::move(whole_);
  while (whole != nullptr && whole->HasOneRef()) {
    whole = std::move(whole->whole_);
  }
}

}  // namespace flare::fiber
