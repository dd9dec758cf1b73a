// Rules:
//  [HS1] An entry is in going_on_ from Begin() to End(), or until it is asked
//        to make way; in waiting_ from a BeginStep() that was false until it
//        gets its turn. Its owner doesn't end it while it waits.
//  [HS2] A turn that ends passes on to the first that waits: steps_ changes
//        only where nobody waits. So nobody waits while fewer steps run than
//        may.
//  [HS3] lock_ is held for the lists only. OnTurn(), and the function that ends
//        the oldest, run other code of the owner and are called without it. An
//        entry that waits can't end before its turn; the function holds a
//        reference to the owner.
#include "flare/io/handshakes.h"

#include <algorithm>

namespace flare::io {

Handshakes::Handshakes(std::size_t steps_at_once)
    : steps_at_once_(std::max<std::size_t>(1, steps_at_once)) {}

void Handshakes::Begin(Entry* entry) {
  const ScopedLock guard(lock_);
  going_on_.PushBack(entry);
}

void Handshakes::End(Entry* entry) {
  const ScopedLock guard(lock_);
  if (static_cast<IntrusiveListNode<ByAge>*>(entry)->linked()) {
    going_on_.Remove(entry);
  }
}

bool Handshakes::MakeRoom() {
  std::function<void()> end_oldest;
  {
    const ScopedLock guard(lock_);
    Entry* const oldest = going_on_.Front();
    if (oldest == nullptr) return false;
    end_oldest = oldest->MakeWay();  // First, as it might throw.
    going_on_.Remove(oldest);
  }
  end_oldest();  // [HS3]
  return true;
}

bool Handshakes::BeginStep(Entry* entry) {
  const ScopedLock guard(lock_);
  if (steps_ != steps_at_once_) {
    ++steps_;
    return true;
  }
  waiting_.PushBack(entry);
  return false;
}

void Handshakes::EndStep() {
  Entry* next;
  {
    const ScopedLock guard(lock_);
    next = waiting_.Front();
    if (next == nullptr) {
      --steps_;
      return;
    }
    waiting_.Remove(next);  // [HS2]
  }
  next->OnTurn();
}

}  // namespace flare::io
