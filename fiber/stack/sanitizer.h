// Tells the sanitizers about stack switches; nothing in ordinary builds.

#ifndef FLARE_FIBER_SANITIZER_H_
#define FLARE_FIBER_SANITIZER_H_

#include <cstddef>

#include "flare/base/sanitizer.h"

#ifdef FLARE_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef FLARE_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace flare::fiber::sanitizer {

// Before leaving a stack for [bottom, bottom + size). `fake_stack`: where the
// stack being left keeps its shadow state; nullptr if it is left for good.
inline void StartSwitch([[maybe_unused]] void** fake_stack,
                        [[maybe_unused]] const void* bottom,
                        [[maybe_unused]] std::size_t size,
                        [[maybe_unused]] void* tsan_fiber) {
#ifdef FLARE_ASAN
  __sanitizer_start_switch_fiber(fake_stack, bottom, size);
#endif
#ifdef FLARE_TSAN
  __tsan_switch_to_fiber(tsan_fiber, 0);
#endif
}

// First thing after arriving on a stack; `fake_stack` as given when it was
// left, nullptr the first time. `from_*`: the stack that was left, where asked
// for.
inline void FinishSwitch([[maybe_unused]] void* fake_stack,
                         [[maybe_unused]] const void** from_bottom = nullptr,
                         [[maybe_unused]] std::size_t* from_size = nullptr) {
#ifdef FLARE_ASAN
  __sanitizer_finish_switch_fiber(fake_stack, from_bottom, from_size);
#endif
}

inline void* CreateTsanFiber() {
#ifdef FLARE_TSAN
  return __tsan_create_fiber(0);
#else
  return nullptr;
#endif
}

inline void DestroyTsanFiber([[maybe_unused]] void* fiber) {
#ifdef FLARE_TSAN
  __tsan_destroy_fiber(fiber);
#endif
}

inline void* CurrentTsanFiber() {
#ifdef FLARE_TSAN
  return __tsan_get_current_fiber();
#else
  return nullptr;
#endif
}

}  // namespace flare::fiber::sanitizer

#endif  // FLARE_FIBER_SANITIZER_H_
