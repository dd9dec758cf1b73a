#include "flare/rpc/server/connection_set.h"

#include <mutex>

#include "flare/base/clock.h"
#include "glog/logging.h"

namespace flare::rpc {

ConnectionSet::ConnectionSet(std::size_t max_open) : max_open_(max_open) {}

ConnectionSet::~ConnectionSet() {
  CHECK_EQ(live_count_, 0u) << "a connection outlives its server's state";
}

bool ConnectionSet::Add(ServedConnection* connection) {
  ScopedLock guard(mutex_);
  ++live_count_;
  if (open_count_ == max_open_) return false;
  ++open_count_;
  open_.PushBack(connection);
  return true;
}

void ConnectionSet::Closed(ServedConnection* connection) {
  ScopedLock guard(mutex_);
  open_.Remove(connection);
  if (--open_count_ == 0) changed_.notify_all();
}

void ConnectionSet::Gone() {
  ScopedLock guard(mutex_);
  if (--live_count_ == 0) changed_.notify_all();
}

std::size_t ConnectionSet::open() const {
  ScopedLock guard(mutex_);
  return open_count_;
}

bool ConnectionSet::WaitUntilGone(std::int64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(
      lock, ToTimePoint(deadline_ns),
      [this]() FLARE_NO_THREAD_SAFETY_ANALYSIS { return live_count_ == 0; });
}

void ConnectionSet::WaitUntilClosed() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this]() FLARE_NO_THREAD_SAFETY_ANALYSIS {
    return open_count_ == 0;
  });
}

}  // namespace flare::rpc
