// The common part of the servers of this folder: reading their address from
// flags, counting and doing their work, and running until a signal ends them.

#ifndef EXAMPLE_RPC_SERVING_H_
#define EXAMPLE_RPC_SERVING_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "example/rpc/thread_slot.h"
#include "example/rpc/work.h"
#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/hand_over.h"
#include "flare/rpc/server.h"

namespace example {

// `ip` may be IPv4 or IPv6. The error names the unreadable one.
flare::Expected<flare::Endpoint> ParseListenAddress(const std::string& ip,
                                                    int port);

// Counts requests. Thread-safe; nothing blocks.
class RequestCounter {
 public:
  void Add() {
    // relaxed: a statistic, nothing is published by it.
    slots_[ThreadSlot()].count.fetch_add(1, std::memory_order_relaxed);
  }

  std::uint64_t Total() const {
    std::uint64_t total = 0;
    for (const Slot& slot : slots_) {
      total += slot.count.load(std::memory_order_relaxed);  // As in Add.
    }
    return total;
  }

 private:
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> count{0};
  };
  std::array<Slot, kThreadSlots> slots_;
};

// Blocks the fiber or the worker, as the kind says, until it's done. Fails if
// the call is cancelled meanwhile, as when its caller is killed; of kind
// kSleepFiber only.
flare::Status DoWork(const Work& work);

// Does the work of `request`'s fields `work` and `work_us`, or that of `usual`
// if there is none. Fails, having done nothing, if it asks for something
// impossible; and as DoWork().
template <class Request>
flare::Status WorkOn(const Request& request, const WorkSource& usual) {
  const auto requested = RequestedWork(request);
  if (!requested) return requested.error();
  const Work work =
      requested->kind == WorkKind::kNone ? usual.Draw() : *requested;
  if (work.kind == WorkKind::kNone) return flare::Status();
  return DoWork(work);
}

// Starts `server` and blocks the fiber until the process is told to quit,
// logging "Processed N request(s) in 1 second." each second; then stops the
// server gracefully and logs the total. Returns the program's exit status: 1
// if the server could not be started (it has logged why). With `hand_over`, on
// which the server listens, a successor may take over meanwhile. `on_serving`
// is called when the server takes calls; if it fails the status is 1, too.
int ServeUntilQuitSignal(
    flare::Server* server, const RequestCounter& counter,
    std::unique_ptr<flare::HandOver> hand_over = nullptr,
    const std::function<flare::Status()>& on_serving = nullptr);

}  // namespace example

#endif  // EXAMPLE_RPC_SERVING_H_
