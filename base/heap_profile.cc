#include "flare/base/heap_profile.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include "flare/base/jemalloc.h"

namespace flare {
namespace {

bool IsOn(const char* setting) {
  bool on = false;
  std::size_t size = sizeof(on);
  return mallctl(setting, &on, &size, nullptr, 0) == 0 && on;
}

Status CheckAllocator() {
  if (mallctl == nullptr) {
    return Status(ENOTSUP,
                  "the allocator of this program isn't jemalloc, which takes "
                  "profiles: start it with libjemalloc.so.2 in LD_PRELOAD, and "
                  "MALLOC_CONF=prof:true");
  }
  if (!IsOn("config.prof")) {
    return Status(ENOTSUP,
                  "this program's jemalloc can't take profiles: it has to be "
                  "built with --enable-prof, as Debian's is");
  }
  if (!IsOn("opt.prof")) {
    return Status(ENOTSUP,
                  "the heap of this process isn't profiled: start it with "
                  "MALLOC_CONF=prof:true in its environment");
  }
  return Status();
}

constexpr std::string_view kHeapMagic = "heap_v2/";
constexpr std::string_view kTotals = "t*:";

std::string_view TrimLeft(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  return text;
}

// "  t*: 28: 1024 [0: 0]", the numbers of all threads; empty for other lines.
std::string_view TotalsOf(std::string_view line) {
  line = TrimLeft(line);
  if (!line.starts_with(kTotals)) return {};
  return TrimLeft(line.substr(kTotals.size()));
}

}  // namespace

// jemalloc has a line with a stack, "@ 0x1 0x2", before lines with its numbers;
// gperftools one line for both, "28: 1024 [0: 0] @ 0x1 0x2". The header has the
// sums, and ends with the form and the mean distance of samples.
Expected<std::string, Status> ConvertHeapProfile(const std::string& dump) {
  std::istringstream in(dump);
  std::string line;
  if (!std::getline(in, line) || !line.starts_with(kHeapMagic)) {
    return Status(EINVAL, "this is no heap profile of jemalloc");
  }
  std::string stack = "@ " + line;  // The sums' line comes first.
  std::string text = "heap profile: ";
  while (std::getline(in, line) && line != "MAPPED_LIBRARIES:") {
    if (line.starts_with('@')) {
      stack = line;
    } else if (const std::string_view totals = TotalsOf(line);
               !totals.empty()) {
      text += std::string(totals) + " " + stack + "\n";
    }
  }
  text += "\nMAPPED_LIBRARIES:\n";
  while (std::getline(in, line)) text += line + "\n";
  return text;
}

Expected<std::string, Status> TakeHeapProfile() {
  if (Status status = CheckAllocator(); !status.ok()) return status;
  const int fd = memfd_create("heap", MFD_CLOEXEC);
  if (fd < 0) return StatusFromErrno(errno, "make a file in memory");
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const char* name = path.c_str();
  const int error = mallctl("prof.dump", nullptr, nullptr, &name, sizeof(name));
  std::ostringstream dump;
  if (error == 0) dump << std::ifstream(path).rdbuf();
  close(fd);
  if (error != 0)
    return StatusFromErrno(error, "have jemalloc write a profile");
  return ConvertHeapProfile(std::move(dump).str());
}

}  // namespace flare
