#include "flare/fiber/scheduler/carrier.h"

#include <new>

#include "flare/fiber/stack/context.h"
#include "flare/fiber/stack/sanitizer.h"
#include "flare/fiber/stack/stack.h"
#include "glog/logging.h"

namespace flare::fiber {

Carrier::Carrier(StackAllocator* stacks, void* low, Entry enter)
    : stacks_(stacks), low_(low) {
  resume_.run = &Carrier::Resume;
  resume_.carrier = this;
  tsan_fiber_ = sanitizer::CreateTsanFiber();
  // Everything below this object is the stack.
  stack_pointer_ = MakeContext(this, enter, this);
}

Carrier* Carrier::Create(StackAllocator* stacks, Entry enter) {
  void* const low = stacks->Allocate();
  if (low == nullptr) return nullptr;
  char* const place =
      static_cast<char*>(low) + stacks->stack_size() - kCarrierBytes;
  return new (place) Carrier(stacks, low, enter);
}

const char* Carrier::usable_low() const noexcept {
  return low() + stacks_->guard_size();
}

const char* Carrier::high() const noexcept {
  return low() + stacks_->stack_size();
}

void Carrier::Destroy() {
  sanitizer::DestroyTsanFiber(tsan_fiber_);
#ifdef FLARE_ASAN
  // Frames that were switched away from for good left their shadow poisoned.
  __asan_unpoison_memory_region(
      static_cast<char*>(low_) + stacks_->guard_size(),
      stacks_->stack_size() - stacks_->guard_size());
#endif
  StackAllocator* const stacks = stacks_;
  void* const low = low_;
  this->~Carrier();
  stacks->Free(low);
}

// The function of resume tasks, by which they are known.
void Carrier::Resume(Task*) {
  LOG(FATAL) << "a resume task is for the loop to see to, not to be called";
}

}  // namespace flare::fiber
