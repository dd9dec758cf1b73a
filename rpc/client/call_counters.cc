// Rules:
//  [MK1] A list only grows, at its front, by nodes that don't change any more.
//        Threads that add a method at once may make two nodes for it, with the
//        same number. The cells of a number are stored before its nodes are
//        made, under the registry's lock, which the maker of a node takes.
#include "flare/rpc/client/call_counters.h"

#include <compare>
#include <map>
#include <memory>
#include <new>

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/rpc/metrics.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {

class ClientCallRegistry {
 public:
  // Never destroyed: calls may end while the process does.
  static ClientCallRegistry* Get() {
    static ClientCallRegistry* const registry = new ClientCallRegistry;
    return registry;
  }

  std::uint16_t Find(const std::string& uri,
                     const google::protobuf::MethodDescriptor& method)
      FLARE_EXCLUDES(lock_) {
    const ScopedLock guard(lock_);
    const bool streams = method.client_streaming() || method.server_streaming();
    Key key{uri, std::string(method.full_name())};
    if (known_.size() >= metrics::kMaxSeries && !known_.contains(key)) {
      key = {"(other)", "(other)"};
    }
    if (const auto found = known_.find(key); found != known_.end()) {
      found->second.streams |= streams;
      return found->second.number;
    }
    const auto number = static_cast<std::uint16_t>(known_.size() + 1);
    auto cells = std::make_unique<ClientCallCells>();
    known_.emplace(std::move(key), Known{number, streams});
    // relaxed: [MK1].
    MethodCallCounters::numbered_[number].store(cells.release(),
                                                std::memory_order_relaxed);
    return number;
  }

  std::vector<ClientCalls> Read() const FLARE_EXCLUDES(lock_) {
    std::vector<ClientCalls> all;
    const ScopedLock guard(lock_);
    for (const auto& [key, known] : known_) {
      // relaxed: stored under the lock.
      const ClientCallCells* const cells =
          MethodCallCounters::numbered_[known.number].load(
              std::memory_order_relaxed);
      // relaxed: a number.
      const std::int64_t open =
          cells->open_streams.load(std::memory_order_relaxed);
      all.push_back({.channel = key.channel,
                     .method = key.method,
                     .streams = known.streams,
                     .values = cells->calls.Read(),
                     .open_streams = open});
    }
    return all;
  }

 private:
  struct Key {
    std::string channel;
    std::string method;
    auto operator<=>(const Key&) const = default;
  };
  struct Known {
    std::uint16_t number;
    bool streams;  // One of the methods with this name, or of the others.
  };
  static_assert(metrics::kMaxSeries + 2 <= MethodCallCounters::kNumbers);

  mutable ThreadMutex lock_;
  std::map<Key, Known> known_ FLARE_GUARDED_BY(lock_);
};

constinit std::array<std::atomic<ClientCallCells*>,
                     MethodCallCounters::kNumbers>
    MethodCallCounters::numbered_{};

MethodCallCounters::~MethodCallCounters() {
  for (std::atomic<Node*>& list : lists_) {
    // relaxed: no other thread uses the list any more.
    Node* node = list.load(std::memory_order_relaxed);
    while (node != nullptr) delete std::exchange(node, node->next);
  }
}

std::uint16_t MethodCallCounters::Add(
    const google::protobuf::MethodDescriptor* method) {
  try {
    const std::uint16_t number = ClientCallRegistry::Get()->Find(uri_, *method);
    std::atomic<Node*>* const list = ListOf(method);
    // relaxed: the exchange below reads it anew if it has changed.
    auto node = std::make_unique<Node>(
        Node{method, number, list->load(std::memory_order_relaxed)});
    // release: pairs with the acquire in Of [MK1].
    while (!list->compare_exchange_weak(node->next, node.get(),
                                        std::memory_order_release,
                                        std::memory_order_relaxed)) {
    }
    static_cast<void>(node.release());
    return number;
  } catch (const std::bad_alloc&) {
    return kNone;
  }
}

std::vector<ClientCalls> ReadClientCalls() {
  return ClientCallRegistry::Get()->Read();
}

}  // namespace flare::rpc
