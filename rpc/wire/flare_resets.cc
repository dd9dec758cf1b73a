#include "flare/rpc/wire/flare_resets.h"

#include <utility>

#include "flare/base/clock.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/wire/flare_frame.h"
#include "flare/rpc/wire/rpc_meta.h"

namespace flare::rpc {
namespace {

RpcMeta MetaOfCall(std::uint64_t id) {
  RpcMeta meta;
  meta.correlation_id = id;
  meta.method_type = kMethodTypeSingle;
  return meta;
}

}  // namespace

bool FlareServerResets::Take(const RpcMeta& meta) {
  if (meta.has_request) {
    if (meta.heeds_resets) Answer(meta.correlation_id);
    return false;
  }
  if (meta.reset == 0) return false;
  const std::uint64_t id = meta.correlation_id;
  if (id >> 32 != 0 || !guard_.Admit(NowNs())) return true;
  if (table_ == nullptr) {
    table_ = std::make_unique<Table>();
    // release: pairs with the acquire in Shared [FR1].
    shared_.store(table_.get(), std::memory_order_release);
  }
  // relaxed: see Find.
  (*table_)[id % kSlots].store(static_cast<std::uint32_t>(id),
                               std::memory_order_relaxed);
  sink_->StopLeftCalls();
  return true;
}

// Ids from `id` on are new, or have come around: their old resets go.
void FlareServerResets::Answer(std::uint64_t id) {
  if (table_ != nullptr) {
    for (auto& slot : *table_) {
      // relaxed, both: see Find.
      if (slot.load(std::memory_order_relaxed) >= id) {
        slot.store(0, std::memory_order_relaxed);
      }
    }
  }
  if (std::exchange(told_, true)) return;
  BufferBuilder out;
  AppendFlare<FlareAsk::kForResets>(MetaOfCall(0), Buffer(), Buffer(), &out);
  static_cast<void>(sink_->WriteSoon(out.DestructiveGet()));
}

bool FlareServerResets::RemoveFrom(Table* table, std::uint64_t id) {
  if (Find(*table, id) == nullptr) return false;
  auto expected = static_cast<std::uint32_t>(id);
  // relaxed: see Find. A later id may have taken the slot.
  static_cast<void>((*table)[id % kSlots].compare_exchange_strong(
      expected, 0, std::memory_order_relaxed));
  return true;
}

void FlareClientResets::Reset(std::uint64_t id) {
  if (output_ == nullptr) return;
  {
    ScopedLock guard(lock_);
    if (!heeded_) {
      if (waiting_.size() < kMostWaiting) waiting_.push_back(id);
      return;
    }
  }
  Send(id);
}

bool FlareClientResets::OnHeeded() {
  std::vector<std::uint64_t> waiting;
  {
    ScopedLock guard(lock_);
    if (std::exchange(heeded_, true)) return false;
    waiting.swap(waiting_);
  }
  if (output_ == nullptr) return true;
  for (const std::uint64_t id : waiting) Send(id);
  return true;
}

// If the output has no room for the frame, the call goes on.
void FlareClientResets::Send(std::uint64_t id) {
  RpcMeta meta = MetaOfCall(id);
  meta.reset = STATUS_FAILED;
  BufferBuilder out;
  AppendFlare(meta, Buffer(), Buffer(), &out);
  static_cast<void>(output_->WriteSoon(out.DestructiveGet()));
}

}  // namespace flare::rpc
