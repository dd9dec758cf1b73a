// How many calls a server runs, and that there are no more than it may: a
// semaphore that never blocks, and in which workers touch no lines of others
// for each call.
//
// Each worker has a slot with places in it that it may give to calls, and puts
// those of calls that end on it there; the places outside of slots are shared.
// A worker without places takes some of the shared ones, and if there are none,
// those that it needs from the others' slots, so that a call is refused only if
// there is no place anywhere. Rules in call_limit.cc.
#ifndef FLARE_RPC_SERVER_CALL_LIMIT_H_
#define FLARE_RPC_SERVER_CALL_LIMIT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "flare/base/cpu.h"

namespace flare::rpc {

class CallLimit {
 public:
  // Before anything else; the runtime must be running.
  void SetUp(std::size_t limit);

  // Any thread; nothing blocks.

  // Asks to run `n` more calls. Returns how many may, each of which is to
  // Leave(): fewer if there would be more than the limit.
  [[nodiscard]] std::size_t Enter(std::size_t n);
  void Leave();
  // For a caller that has fiber::GetCurrentWorkerIndex() at hand, as it is
  // since its fiber was suspended last.
  void Leave(std::size_t worker);

  // Calls that run, and that were let in; approximate while calls come and go.
  std::uint64_t running() const;
  std::uint64_t entered() const;

 private:
  // Its worker's. Holds the places put here less those taken.
  struct alignas(kCacheLine) Slot {
    std::atomic<std::uint64_t> put{0};
    std::atomic<std::uint64_t> taken{0};  // By anybody.
    std::atomic<std::uint64_t> entered{0};
  };

  Slot* SlotOf(std::size_t worker);
  static std::uint64_t Take(Slot* from, std::uint64_t most);
  static std::uint64_t Put(Slot* mine, std::uint64_t n);
  std::uint64_t TakeMore(Slot* mine, std::uint64_t wanted);

  std::uint64_t limit_ = 0;
  std::uint64_t batch_ = 0;  // Places that are taken or given back together.
  std::size_t slots_ = 0;    // One for each worker; none if batch_ is 0.
  std::unique_ptr<Slot[]> slot_;
  Slot shared_;  // Shared by all, so that additions are read-modify-writes.
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_CALL_LIMIT_H_
