// A list of servers that is looked for again in the background, as long as
// there are calls. The common part of resolvers.

#ifndef FLARE_RPC_NAMING_BACKGROUND_RESOLUTION_H_
#define FLARE_RPC_NAMING_BACKGROUND_RESOLUTION_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/mutex.h"
#include "flare/rpc/name_resolution.h"

namespace flare::rpc {

// RpcChannelOptions::name_update_interval. None: the flag's.
using UpdateInterval = std::optional<std::chrono::nanoseconds>;

using Resolution = Expected<std::shared_ptr<NameResolution>, flare::Status>;

// Its members must be owned by a std::shared_ptr.
class BackgroundResolution
    : public NameResolution,
      public std::enable_shared_from_this<BackgroundResolution> {
 public:
  // Spawns a refresh if it is time for one.
  std::uint64_t Version() final;
  std::vector<Peer> Peers() final;
  flare::Status Failure() final;

 protected:
  explicit BackgroundResolution(const UpdateInterval& interval)
      : interval_(interval) {}

  // On a fiber, between RefreshGate's Enter() and Leave(), one at a time: a
  // slow look-up isn't followed by a queue of others. May end early if the gate
  // closes.
  virtual void Refresh() = 0;

  // The next members are for constructors and Refresh().

  // How long look-ups are good for, by the options or else the flag.
  std::int64_t IntervalNs() const;
  // When the next refresh is due; without this, after the interval.
  void RefreshAfter(std::int64_t ns);
  // The servers are these. A new version, if they or their attributes differ.
  void Set(std::vector<Peer> peers);
  // Why some or all aren't known now, or ok. For Failure(); true: it is new.
  bool SetFailure(flare::Status failure);

  const UpdateInterval& interval() const { return interval_; }

 private:
  void RefreshIfDue();

  const UpdateInterval interval_;
  fiber::Mutex refresh_mutex_;
  Spinlock lock_;
  std::vector<Peer> peers_ FLARE_GUARDED_BY(lock_);
  flare::Status failure_ FLARE_GUARDED_BY(lock_);
  std::atomic<std::uint64_t> version_{1};
  std::atomic<std::int64_t> next_refresh_ns_{0};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_NAMING_BACKGROUND_RESOLUTION_H_
