// Where the memory was allocated that the process holds now.
#ifndef FLARE_BASE_HEAP_PROFILE_H_
#define FLARE_BASE_HEAP_PROFILE_H_

#include <string>

#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace flare {

// Returns jemalloc's samples, one for each 512 KiB allocated unless it was told
// otherwise, in the form of gperftools' heap profiles, which pprof,
// google-pprof and jeprof read. Memory that is kept for reuse is in it.
//
// Fails with ENOTSUP, and a text that says what to do, if the process has
// another allocator, or one that takes no samples: that is decided when it
// starts. Any thread; blocks it for some milliseconds.
Expected<std::string, Status> TakeHeapProfile();

// Turns jemalloc's own form, which only jeprof reads, into that of gperftools.
// Fails with EINVAL if `dump` isn't one.
Expected<std::string, Status> ConvertHeapProfile(const std::string& dump);

}  // namespace flare

#endif  // FLARE_BASE_HEAP_PROFILE_H_
