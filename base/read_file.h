// Reading files that people write: settings, descriptions of a machine.

#ifndef FLARE_BASE_READ_FILE_H_
#define FLARE_BASE_READ_FILE_H_

#include <cstddef>
#include <string>

#include "flare/base/expected.h"

namespace flare {

// All of a file of at most `max_bytes`; of one without end, such as /dev/zero,
// little more is read. Blocks the thread, not only the fiber. Errors: the
// system's, EFBIG if there is more; the message names the file.
Expected<std::string> ReadFile(const std::string& path, std::size_t max_bytes);

// A text that changes when the file is written to or replaced; empty if there
// is none. A reader of files that change asks for it before it reads, and keeps
// it after that, so that no version is missed. Blocks the thread.
std::string VersionOfFile(const std::string& path);

}  // namespace flare

#endif  // FLARE_BASE_READ_FILE_H_
