// Fibers that wait for sockets, for tests.

#ifndef FLARE_IO_TESTING_SOCKET_WAITERS_H_
#define FLARE_IO_TESTING_SOCKET_WAITERS_H_

#include <cstddef>

#include "flare/fiber/fiber_list.h"
#include "flare/fiber/testing/eventually.h"

namespace flare::io::testing {

// Blocks the thread until `count` fibers wait for sockets. For plain threads: a
// fiber would hold the worker that has to run the others.
[[nodiscard]] inline bool SocketWaiters(std::size_t count) {
  return fiber::testing::Eventually([&] {
    std::size_t waiting = 0;
    fiber::VisitFibers([&](const fiber::FiberSnapshot& fiber) {
      if (fiber.waits_for == "Socket") ++waiting;
    });
    return waiting == count;
  });
}

}  // namespace flare::io::testing

#endif  // FLARE_IO_TESTING_SOCKET_WAITERS_H_
