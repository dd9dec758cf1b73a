// The memory that spawned closures are stored in (task.h: SpawnNode): each
// worker keeps some, and those of a NUMA node pass on what they have too much
// of.
#include <cstddef>
#include <new>
#include <vector>

#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/worker.h"
#include "flare/fiber/task.h"

namespace flare::fiber {
namespace {

// Spawn nodes that workers of one NUMA node have too many of, in chains of one
// batch.
class NodeStore {
 public:
  // `numa_node` may be -1, for groups that aren't bound.
  static NodeStore& Of(int numa_node) {
    static auto* const stores = new NodeStore[kStores];  // Outlive all threads.
    return stores[static_cast<std::size_t>(numa_node + 1) % kStores];
  }

  void* TakeChain() {
    ScopedLock guard(lock_);
    if (chains_.empty()) return nullptr;
    void* const chain = chains_.back();
    chains_.pop_back();
    return chain;
  }

  // False: full.
  bool PutChain(void* chain) {
    ScopedLock guard(lock_);
    if (chains_.size() >= kMaxChains) return false;
    chains_.push_back(chain);
    return true;
  }

 private:
  // For 32 nodes and none; more share them.
  static constexpr std::size_t kStores = 33;
  static constexpr std::size_t kMaxChains = 256;

  Spinlock lock_;
  std::vector<void*> chains_ FLARE_GUARDED_BY(lock_);
};

}  // namespace

void Worker::RefillNodes() {
  nodes_ = static_cast<FreeNode*>(NodeStore::Of(group_->node()).TakeChain());
  if (nodes_ == nullptr) {
    for (std::size_t i = 0; i < kNodeBatch; ++i) {
      nodes_ = new (::operator new(kSpawnNodeBytes)) FreeNode{nodes_};
    }
  }
  node_count_ = 0;
  for (FreeNode* node = nodes_; node != nullptr; node = node->next) {
    ++node_count_;
  }
}

// Gives one batch away.
void Worker::ReturnNodes() {
  FreeNode* const chain = nodes_;
  FreeNode* last = chain;
  std::size_t count = 1;
  while (count < kNodeBatch && last->next != nullptr) {
    last = last->next;
    ++count;
  }
  nodes_ = last->next;
  node_count_ -= count;
  last->next = nullptr;
  if (NodeStore::Of(group_->node()).PutChain(chain)) return;
  for (FreeNode* node = chain; node != nullptr;) {
    FreeNode* const next = node->next;
    ::operator delete(node);
    node = next;
  }
}

SpawnNode AllocateSpawnNode() {
  Worker* const worker = CurrentWorker();
  return {worker != nullptr ? worker->AllocateNode()
                            : ::operator new(kSpawnNodeBytes),
          worker};
}

void FreeSpawnNode(void* memory) noexcept {
  Worker* const worker = CurrentWorker();
  if (worker != nullptr) {
    worker->RecycleNode(memory);
  } else {
    ::operator delete(memory);
  }
}

}  // namespace flare::fiber
