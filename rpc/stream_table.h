// The streams of one connection, by the number that its protocol has for each.
//
// Any thread; nothing blocks. Allocates when a stream is added.
#ifndef FLARE_RPC_STREAM_TABLE_H_
#define FLARE_RPC_STREAM_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "flare/base/random.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_wire.h"

namespace flare::rpc {

class StreamTable {
  // Peers choose the numbers of some protocols, and could choose such that
  // would all be in one bucket.
  struct Hash {
    std::size_t operator()(std::uint64_t id) const noexcept {
      static const std::uint64_t seed =
          (std::uint64_t{std::random_device{}()} << 32) |
          std::random_device{}();
      return MixBits(MixBits(id ^ seed) + seed);
    }
  };
  using Streams =
      std::unordered_map<std::uint64_t, RefPtr<StreamReceiver>, Hash>;

 public:
  // False: that number is taken, or the table is closed.
  [[nodiscard]] bool Add(std::uint64_t id, RefPtr<StreamReceiver> stream) {
    ScopedLock guard(lock_);
    return !closed_ && streams_.emplace(id, std::move(stream)).second;
  }

  // Null if there is none.
  RefPtr<StreamReceiver> Find(std::uint64_t id) const {
    ScopedLock guard(lock_);
    const auto found = streams_.find(id);
    return found == streams_.end() ? nullptr : found->second;
  }

  void Remove(std::uint64_t id) {
    RefPtr<StreamReceiver> dropped;  // Its destructor runs without the lock.
    ScopedLock guard(lock_);
    const auto found = streams_.find(id);
    if (found == streams_.end()) return;
    dropped = std::move(found->second);
    streams_.erase(found);
    ++removed_;
  }

  // How many were removed since it was asked before.
  std::size_t TakeRemoved() {
    ScopedLock guard(lock_);
    return std::exchange(removed_, 0);
  }

  std::size_t size() const {
    ScopedLock guard(lock_);
    return streams_.size();
  }

  // The connection is closed: all streams end, and none is added any more.
  void Close(const flare::Status& why) noexcept {
    Streams streams;
    {
      ScopedLock guard(lock_);
      closed_ = true;
      streams.swap(streams_);
    }
    if (streams.empty()) return;
    const flare::Status reason =
        flare::Status::Lenient(STATUS_IO_ERROR, why.message());
    for (const auto& [id, stream] : streams) stream->OnReset(reason);
  }

  // The peer sends no more.
  void EndInput(std::string_view why) {
    if (size() == 0) return;
    const flare::Status reason = flare::Status::Lenient(STATUS_IO_ERROR, why);
    for (const auto& stream : All()) stream->OnInputLost(reason);
  }

 private:
  std::vector<RefPtr<StreamReceiver>> All() const {
    std::vector<RefPtr<StreamReceiver>> all;
    ScopedLock guard(lock_);
    all.reserve(streams_.size());
    for (const auto& [id, stream] : streams_) all.push_back(stream);
    return all;
  }

  mutable ThreadMutex lock_;
  bool closed_ FLARE_GUARDED_BY(lock_) = false;
  // See TakeRemoved().
  std::size_t removed_ FLARE_GUARDED_BY(lock_) = 0;
  Streams streams_ FLARE_GUARDED_BY(lock_);
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_STREAM_TABLE_H_
