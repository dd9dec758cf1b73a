// jemalloc's control interface (its manual: MALLCTL NAMESPACE), which a program
// may be without: it is null there.
#ifndef FLARE_BASE_JEMALLOC_H_
#define FLARE_BASE_JEMALLOC_H_

#include <cstddef>

extern "C" {
// Any thread. Returns 0 or an errno.
[[gnu::weak]] int mallctl(const char* name, void* old_value,
                          std::size_t* old_size, void* new_value,
                          std::size_t new_size);
}

#endif  // FLARE_BASE_JEMALLOC_H_
