#include "flare/base/memory_policy.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <string>
#include <vector>

namespace flare {
namespace {

constexpr int kBitsPerWord = sizeof(unsigned long) * CHAR_BIT;
constexpr int kMaxNode = 1023;  // More than any kernel is built for.

}  // namespace

Status PreferMemoryOf(int node, void* address, std::size_t bytes) {
  if (node < 0 || node > kMaxNode) {
    return Status(EINVAL, "there is no NUMA node " + std::to_string(node));
  }
  std::vector<unsigned long> mask((kMaxNode + 1) / kBitsPerWord);
  mask[static_cast<std::size_t>(node / kBitsPerWord)] |=
      1UL << (node % kBitsPerWord);
  // The kernel ignores the last of the bits it is told to read.
  if (syscall(SYS_mbind, address, bytes, MPOL_PREFERRED, mask.data(),
              kMaxNode + 2, 0) == 0) {
    return Status();
  }
  return StatusFromErrno(
      errno, "no preference for memory of NUMA node " + std::to_string(node));
}

std::optional<int> MemoryNodeOf(const void* address) {
  // Unlike get_mempolicy() this doesn't touch the page in order to answer.
  void* page = const_cast<void*>(address);
  int node = -1;
  if (syscall(SYS_move_pages, 0, 1, &page, nullptr, &node, 0) != 0 ||
      node < 0) {
    return std::nullopt;
  }
  return node;
}

}  // namespace flare
