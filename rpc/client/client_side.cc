// Rules:
//  [CP1] Shutdown(), one at a time, takes the client side through kShuttingDown
//        to kShut. It becomes kOpen again from kShut only, and not while there
//        is a ClientSideEnd; so after the Shutdown() within one it stays kShut.
//  [CP2] Names are refreshed while it is kOpen, and until Shutdown() stops that
//        during kShuttingDown. That resumes under mutex_, together with the
//        change to kOpen: so never while it is being stopped, nor while the
//        client side stays kShut.
//  [CP3] A pool adds sets of connections under mutex_ and while it is kOpen. So
//        Shutdown(), which changes that under mutex_ first and asks the pools
//        afterwards, misses none.
#include "flare/rpc/client/client_side.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/event.h"
#include "flare/fiber/mutex.h"
#include "flare/rpc/name_resolver.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {
namespace {

std::array<std::atomic<std::uint64_t>, 5> event_counts;

std::uint64_t EventCount(ClientEvent event) {
  // relaxed: a statistic.
  return event_counts[static_cast<std::size_t>(event)].load(
      std::memory_order_relaxed);
}

class ClientSide {
 public:
  static ClientSide* Instance() {
    static ClientSide* const side = new ClientSide();  // Never destroyed.
    return side;
  }

  void Join(const std::shared_ptr<ClientSideMember>& member) {
    ScopedLock guard(mutex_);
    std::erase_if(members_, [](const auto& m) { return m.expired(); });
    members_.push_back(member);
  }

  void IfOpen(const std::function<void()>& f) {
    ScopedLock guard(mutex_);
    if (state_ == State::kOpen) f();  // [CP3]
  }

  void Open() {
    ScopedLock guard(mutex_);
    if (state_ != State::kShut || ending_) return;  // [CP1]
    state_ = State::kOpen;
    ResumeNameResolution();  // [CP2]
  }

  void SetEnding(bool ending) {
    ScopedLock guard(mutex_);
    ending_ = ending;
  }

  bool IsOpen() {
    ScopedLock guard(mutex_);
    return state_ == State::kOpen;
  }

  void Shutdown() {
    ScopedLock alone(shutdown_mutex_);
    std::vector<std::shared_ptr<ClientSideMember>> members;
    {
      ScopedLock guard(mutex_);
      state_ = State::kShuttingDown;
      for (const auto& weak : members_) {
        if (auto member = weak.lock()) members.push_back(std::move(member));
      }
    }
    for (const auto& member : members) member->Shutdown();  // [CP3]
    // A pool that ends here closes nothing: it has no connections.
    members.clear();
    AwaitNoConnections();
    StopNameResolution();  // [CP2]
    ScopedLock guard(mutex_);
    state_ = State::kShut;
  }

  void ConnectionBorn() {
    ScopedLock guard(live_lock_);
    ++live_;
  }
  void ConnectionGone() {
    ScopedLock guard(live_lock_);
    if (--live_ == 0 && all_gone_ != nullptr) all_gone_->Set();
  }

 private:
  enum class State { kOpen, kShuttingDown, kShut };

  void AwaitNoConnections() {
    fiber::Event gone;
    {
      ScopedLock guard(live_lock_);
      if (live_ == 0) return;
      all_gone_ = &gone;
    }
    gone.Wait();
    ScopedLock guard(live_lock_);
    all_gone_ = nullptr;
  }

  fiber::Mutex shutdown_mutex_;  // One at a time.
  ThreadMutex mutex_;
  State state_ FLARE_GUARDED_BY(mutex_) = State::kOpen;
  bool ending_ FLARE_GUARDED_BY(mutex_) = false;
  std::vector<std::weak_ptr<ClientSideMember>> members_
      FLARE_GUARDED_BY(mutex_);

  Spinlock live_lock_;
  std::size_t live_ FLARE_GUARDED_BY(live_lock_) = 0;
  fiber::Event* all_gone_ FLARE_GUARDED_BY(live_lock_) = nullptr;
};

}  // namespace

void ShutdownClientSide() { ClientSide::Instance()->Shutdown(); }

ClientSideEnd::ClientSideEnd() { ClientSide::Instance()->SetEnding(true); }

ClientSideEnd::~ClientSideEnd() { ClientSide::Instance()->SetEnding(false); }

void OpenClientSide() { ClientSide::Instance()->Open(); }

bool IsClientSideOpen() { return ClientSide::Instance()->IsOpen(); }

flare::Status ShutDownStatus() {
  return flare::Status(STATUS_CHANNEL_SHUTDOWN,
                       "the client side of this process is being shut down");
}

void JoinClientSide(const std::shared_ptr<ClientSideMember>& member) {
  ClientSide::Instance()->Join(member);
}

void IfClientSideIsOpen(const std::function<void()>& f) {
  ClientSide::Instance()->IfOpen(f);
}

ClientStatistics GetClientStatistics() {
  return {.connections_opened = EventCount(ClientEvent::kOpened),
          .connections_failed = EventCount(ClientEvent::kFailed),
          .connections_broken = EventCount(ClientEvent::kBroken),
          .connections_idle_closed = EventCount(ClientEvent::kIdleClosed),
          .late_replies = EventCount(ClientEvent::kLateReply)};
}

void CountClientEvent(ClientEvent event) {
  // relaxed: a statistic.
  event_counts[static_cast<std::size_t>(event)].fetch_add(
      1, std::memory_order_relaxed);
}

void ConnectionBorn() { ClientSide::Instance()->ConnectionBorn(); }
void ConnectionGone() { ClientSide::Instance()->ConnectionGone(); }

}  // namespace flare::rpc
