// Resets of unary calls over `flare`, both sides. When a caller gives up a
// call, the client sends a frame with the call's id and the field `reset`,
// without a request_meta (rpc_meta.h).
//
// Peers that don't know such frames never get one. The first requests of a
// connection ask, by `heeds_resets`, whether the server knows them. A server
// that does says so at once, in a frame of its own. The client keeps calls that
// are given up earlier, and resets them when that frame has come.
//
// One object per connection. Functions whose comment begins with "Reader:" are
// for the connection's reader; the others are thread-safe. Nothing blocks.
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
#include "flare/rpc/stream_wire.h"
#include "flare/rpc/wire/flood_guard.h"

namespace flare::rpc {

struct RpcMeta;

class FlareServerResets {
 public:
  // Resets in a second; the server ignores further ones.
  static constexpr int kMaxResets = FloodGuard::kMaxNotices;

  explicit FlareServerResets(ReplySink* sink) : sink_(sink) {}

  // Reader: takes a frame of a unary call. True: it was a reset. False: it is a
  // request; if that asked for resets, this has answered.
  bool Take(const RpcMeta& meta);

  // Whether the caller has given that call up.
  bool Has(std::uint64_t id) const {
    const Table* const table = Shared();
    return table != nullptr && Find(*table, id) != nullptr;
  }
  // Forgets a call that ends. Returns whether the caller had given it up.
  bool Remove(std::uint64_t id) {
    Table* const table = Shared();
    if (table == nullptr) [[likely]]
      return false;
    return RemoveFrom(table, id);
  }

 private:
  // Ids of the latest resets, each in the slot of its last bits; 0: none. Ids
  // count up, so only a much later id overwrites one. A call whose reset is
  // forgotten goes on, unless its code had watched it by then. The id of a
  // reset that comes after the reply to its call stays.
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
  // Call it first. Without an output the client neither asks nor sends.
  void SetOutput(StreamOutput* output) { output_ = output; }

  // Whether the request with that id should ask: those with the first ids, also
  // when the ids have come around, so that the server forgets the old ones.
  bool Asks(std::uint64_t id) const {
    return id <= kAskingCalls && output_ != nullptr;
  }

  // Tells the server that nobody waits for the reply: now if the server is
  // known to heed resets, else in OnHeeded().
  void Reset(std::uint64_t id);

  // Reader: the server has said that it knows resets. False: not for the first
  // time.
  [[nodiscard]] bool OnHeeded();

 private:
  // Several, as the first may fail before it is written, and an id that has
  // come around may belong to a call that is still under way.
  static constexpr std::uint64_t kAskingCalls = 16;
  // Calls that may wait to be reset.
  static constexpr std::size_t kMostWaiting = 64;

  void Send(std::uint64_t id);

  StreamOutput* output_ = nullptr;
  ThreadMutex lock_;
  bool heeded_ FLARE_GUARDED_BY(lock_) = false;
  std::vector<std::uint64_t> waiting_ FLARE_GUARDED_BY(lock_);
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_FLARE_RESETS_H_
