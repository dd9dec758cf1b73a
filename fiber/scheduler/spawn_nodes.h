// The memory that spawned closures are stored in (fiber/task.h: SpawnNode):
// each worker keeps some, and those of a NUMA node pass on their surplus.

#ifndef FLARE_FIBER_SPAWN_NODES_H_
#define FLARE_FIBER_SPAWN_NODES_H_

#include <cstddef>
#include <new>

namespace flare::fiber {

inline constexpr std::size_t kSpawnNodeBytes = 128;

// Those of one worker; by its thread only.
class SpawnNodes {
 public:
  // `numa_node` may be -1, for groups that aren't bound.
  explicit SpawnNodes(int numa_node) : numa_node_(numa_node) {}

  SpawnNodes(const SpawnNodes&) = delete;
  SpawnNodes& operator=(const SpawnNodes&) = delete;

  // kSpawnNodeBytes of memory, from operator new at some time.
  void* Take() {
    if (first_ == nullptr) [[unlikely]] {
      Refill();
    }
    Node* const node = first_;
    first_ = node->next;
    --count_;
    return node;
  }
  void Put(void* memory) {
    first_ = new (memory) Node{first_};
    if (++count_ >= 2 * kBatch) [[unlikely]] {
      ReturnBatch();
    }
  }

  // Gives all to the other workers, or back.
  void ReturnAll();

 private:
  static constexpr std::size_t kBatch = 256;

  struct Node {
    Node* next;
  };

  void Refill();
  // Gives one batch away.
  void ReturnBatch();

  Node* first_ = nullptr;
  std::size_t count_ = 0;
  const int numa_node_;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_SPAWN_NODES_H_
