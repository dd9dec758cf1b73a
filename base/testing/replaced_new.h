// Replaces the operators `new` and `delete` of a test's program, so that it can
// count allocations and have them fail. Include it in one file of the program,
// which defines OnAllocation():
//
//   void flare::testing::OnAllocation(std::size_t bytes) {
//     if (bytes >= too_large) throw std::bad_alloc();
//   }
#ifndef FLARE_BASE_TESTING_REPLACED_NEW_H_
#define FLARE_BASE_TESTING_REPLACED_NEW_H_

#include <cstddef>
#include <cstdlib>
#include <new>

namespace flare::testing {

// Called before each allocation, on its thread; may throw std::bad_alloc. Must
// not allocate.
void OnAllocation(std::size_t bytes);

inline void* AllocateOrThrow(std::size_t size, std::size_t align) {
  OnAllocation(size);
  size = (size + align - 1) / align * align;
  if (void* const memory = std::aligned_alloc(align, size)) return memory;
  throw std::bad_alloc();
}

}  // namespace flare::testing

// Never inlined: the compiler would see malloc's memory meet delete.
[[gnu::noinline]] void* operator new(std::size_t size) {
  return flare::testing::AllocateOrThrow(size, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new[](std::size_t size) {
  return flare::testing::AllocateOrThrow(size, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t align) {
  return flare::testing::AllocateOrThrow(size, static_cast<std::size_t>(align));
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t,
                                       std::align_val_t) noexcept {
  std::free(p);
}

#endif  // FLARE_BASE_TESTING_REPLACED_NEW_H_
