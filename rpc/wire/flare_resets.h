// Calls of one message that their callers give up, over `flare`, both sides: a
// frame with the call's id and the field `reset`, without a request_meta
// (rpc_meta.h).
//
// Peers that don't know such frames never get one. The first requests of a
// connection ask for them, by `heeds_resets`; a server that knows them says so
// at once, in a frame of its own. A call that is given up before that is reset
// then.
//
// One object per connection. Functions of the reader say so; the others are
// thread-safe. Nothing blocks.
#ifndef FLARE_RPC_WIRE_FLARE_RESETS_H_
#define FLARE_RPC_WIRE_FLARE_RESETS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/rpc/server_protocol.h"
#include "flare/rpc/stream/stream_wire.h"
#include "flare/rpc/wire/flood_guard.h"

namespace flare::rpc {

struct RpcMeta;

class FlareServerResets {
 public:
  // More in a second are passed over.
  static constexpr int kMaxResets = FloodGuard::kMaxNotices;

  explicit FlareServerResets(ReplySink* sink) : sink_(sink) {}

  // The reader's: a frame of a call of one message. True: it was a reset.
  // False: it is a request, which may have asked.
  bool Take(const RpcMeta& meta);

  // Whether the caller has given that call up.
  bool Has(std::uint64_t id) const {
    const Table* const table = Shared();
    return table != nullptr && Find(*table, id) != nullptr;
  }
  // The call ends. Returns whether the caller has given it up.
  bool Remove(std::uint64_t id) {
    Table* const table = Shared();
    if (table == nullptr) [[likely]]
      return false;
    return RemoveFrom(table, id);
  }

 private:
  // Ids of the latest resets, each in the slot of its last bits; 0: none. Ids
  // count up, so that one is overwritten by one much later. A call whose reset
  // is forgotten goes on, unless somebody had watched it. Resets may come
  // behind the replies of their calls: their ids stay.
  static constexpr std::size_t kSlots = 1024;
  using Table = std::array<std::atomic<std::uint32_t>, kSlots>;

  Table* Shared() const {
    // acquire: pairs with the release in Take, so that the slots are empty at
    // first [FR1].
    return shared_.load(std::memory_order_acquire);
  }
  static const std::atomic<std::uint32_t>* Find(const Table& table,
                                                std::uint64_t id) {
    const auto& slot = table[id % kSlots];
    // relaxed: a watch is ordered by the lock of its list; others may miss it.
    const bool found = slot.load(std::memory_order_relaxed) == id && id != 0;
    return found ? &slot : nullptr;
  }
  [[gnu::cold, gnu::noinline]] static bool RemoveFrom(Table* table,
                                                      std::uint64_t id);
  void Answer(std::uint64_t id);

  ReplySink* const sink_;
  std::atomic<Table*> shared_{nullptr};  // table_'s, once there is one.
  std::unique_ptr<Table> table_;         // The reader's.
  bool told_ = false;                    // The reader's: that it knows resets.
  FloodGuard guard_{kMaxResets};         // The reader's.
};

class FlareClientResets {
 public:
  // Before all else; without one nothing is asked nor sent.
  void SetOutput(StreamOutput* output) { output_ = output; }

  // Whether the request with that id is to ask. It's the first one again when
  // the ids have come around, so that the server forgets the old ones.
  bool Asks(std::uint64_t id) const {
    return id <= kAskingCalls && output_ != nullptr &&
           // relaxed: a fact that doesn't change.
           (id == 1 || !heeded_.load(std::memory_order_relaxed));
  }

  // Tells the server that nobody waits for the reply, if it wants to know; else
  // as soon as it does.
  void Reset(std::uint64_t id);

  // The reader's: the server knows resets. False: it has said so before.
  [[nodiscard]] bool OnHeeded();

 private:
  // More than one, as the first may fail before it is written.
  static constexpr std::uint64_t kAskingCalls = 3;
  // Calls that may wait to be reset.
  static constexpr std::size_t kMostWaiting = 64;

  void Send(std::uint64_t id);

  StreamOutput* output_ = nullptr;
  ThreadMutex lock_;
  std::atomic<bool> heeded_{false};  // Written under lock_.
  std::vector<std::uint64_t> waiting_ FLARE_GUARDED_BY(lock_);
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_FLARE_RESETS_H_
