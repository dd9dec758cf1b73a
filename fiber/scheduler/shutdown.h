// The orderly end of a runtime: its workers leave together, once there is
// nothing left to run in any group, so that tasks that a last task hands to
// another group still run.

#ifndef FLARE_FIBER_SHUTDOWN_H_
#define FLARE_FIBER_SHUTDOWN_H_

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

namespace flare::fiber {

class Shutdown {
 public:
  // A group of workers that take part. Any thread may call these.
  class Member {
   public:
    // All of its workers are marked as idle, and then nothing is queued there;
    // seq_cst [SD1] [SD2].
    virtual bool LooksIdle() const noexcept = 0;
    // How often workers have come out of sleep; seq_cst [SD1].
    virtual std::uint64_t rouses() const noexcept = 0;
    virtual void WakeAllIdle() = 0;

   protected:
    virtual ~Member() = default;
  };

  // Before the workers start.
  void SetMembers(std::vector<Member*> members) {
    members_ = std::move(members);
  }

  // From here on nothing may come from outside. Doesn't wait.
  void Request();

  bool requested() const noexcept {
    // seq_cst: pairs with the store in Request; see scheduling_group.cc [P2].
    return requested_.load(std::memory_order_seq_cst);
  }

  // There is nothing to run, and there never will be.
  bool finished() const noexcept {
    // seq_cst: pairs with the store in FinishIfQuiescent; see
    // scheduling_group.cc [P2].
    return finished_.load(std::memory_order_seq_cst);
  }

  // By a worker that has marked itself as idle, or after the last outsider is
  // removed: if all workers have, no group has anything queued, and there are
  // no outsiders, this is the end, and all are woken to see it.
  void FinishIfQuiescent();

  // The end at once, for a runtime that has only some of its workers and was
  // given nothing to run.
  void Finish();

  // A fiber leaves the workers for another thread, as blocking regions do, and
  // will queue itself in a group again. Added on a worker; removed, by any
  // thread, after it is queued. The end waits for it.
  void AddOutsider();
  void RemoveOutsider();

 private:
  bool AllIdle() const;
  std::uint64_t CountRouses() const;
  void WakeAll();

  std::vector<Member*> members_;
  std::atomic<bool> requested_{false};
  std::atomic<bool> finished_{false};
  std::atomic<std::uint64_t> outsiders_{0};
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_SHUTDOWN_H_
