#include "flare/base/thread_mutex.h"

#include <algorithm>

namespace flare {
namespace {

// Destructors of other thread-local objects may still lock when ours is gone.
thread_local bool state_destroyed = false;

struct ThreadState {
  std::vector<ThreadMutex::Held> held;
  std::uint32_t* count = nullptr;

  ~ThreadState() { state_destroyed = true; }

  void Publish() const {
    if (count != nullptr) *count = static_cast<std::uint32_t>(held.size());
  }
};

// Never inlined: the caller may have come from another thread. The asm hides
// that the address is always the same variable's: compilers otherwise take it
// to the caller all the same.
[[gnu::noinline]] ThreadState& OwnState() {
  static thread_local ThreadState state;
  ThreadState* mine = &state;
  asm volatile("" : "+r"(mine) : : "memory");
  return *mine;
}

}  // namespace

void ThreadMutex::NoteLocked() {
  if (state_destroyed) return;
  ThreadState& state = OwnState();
  state.held.push_back({this, CurrentBacktrace(/*skip=*/1)});
  noted_ = true;
  state.Publish();
}

void ThreadMutex::NoteUnlocked() noexcept {
  ThreadState& state = OwnState();
  noted_ = false;
  std::erase_if(state.held, [this](const Held& h) { return h.mutex == this; });
  state.Publish();
}

void ThreadMutex::CountHeldIn(std::uint32_t* count) noexcept {
  OwnState().count = count;
  OwnState().Publish();
}

std::vector<ThreadMutex::Held> ThreadMutex::HeldByThisThread() {
  return OwnState().held;
}

void ThreadMutex::ForgetHeld() noexcept {
  ThreadState& state = OwnState();
  for (const Held& held : state.held) held.mutex->noted_ = false;
  state.held.clear();
  state.Publish();
}

}  // namespace flare
