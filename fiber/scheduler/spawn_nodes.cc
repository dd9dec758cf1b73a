#include "flare/fiber/scheduler/spawn_nodes.h"

#include <vector>

#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"

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

void SpawnNodes::Refill() {
  first_ = static_cast<Node*>(NodeStore::Of(numa_node_).TakeChain());
  if (first_ == nullptr) {
    for (std::size_t i = 0; i < kBatch; ++i) {
      first_ = new (::operator new(kSpawnNodeBytes)) Node{first_};
    }
  }
  count_ = 0;
  for (Node* node = first_; node != nullptr; node = node->next) ++count_;
}

void SpawnNodes::ReturnBatch() {
  Node* const chain = first_;
  Node* last = chain;
  std::size_t count = 1;
  while (count < kBatch && last->next != nullptr) {
    last = last->next;
    ++count;
  }
  first_ = last->next;
  count_ -= count;
  last->next = nullptr;
  if (NodeStore::Of(numa_node_).PutChain(chain)) return;
  for (Node* node = chain; node != nullptr;) {
    Node* const next = node->next;
    ::operator delete(node);
    node = next;
  }
}

void SpawnNodes::ReturnAll() {
  while (first_ != nullptr) ReturnBatch();
}

}  // namespace flare::fiber
