#include "flare/fiber/scheduler/membarrier.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "glog/logging.h"

namespace flare::fiber {
namespace {

long Membarrier(int command) { return syscall(__NR_membarrier, command, 0, 0); }

}  // namespace

bool MembarrierAvailable() {
  static const bool available = [] {
    const long commands = Membarrier(MEMBARRIER_CMD_QUERY);
    return commands > 0 && (commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0 &&
           Membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
  }();
  return available;
}

void MembarrierAll() {
  const long result = Membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  PCHECK(result == 0) << "membarrier";
}

}  // namespace flare::fiber
