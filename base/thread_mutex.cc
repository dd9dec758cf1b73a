#include "flare/base/thread_mutex.h"

#include <algorithm>

namespace flare {
namespace {

struct ThreadState {
  std::vector<ThreadMutex::Held> held;
  std::uint32_t* count = nullptr;
  // Being destroyed; destructors of other thread-local objects may still lock.
  bool ended = false;

  ~ThreadState() { ended = true; }

  void Publish() const {
    if (count != nullptr) *count = static_cast<std::uint32_t>(held.size());
  }
};

// Never inlined: the caller may have come from another thread.
[[gnu::noinline]] ThreadState& State() {
  asm volatile("");
  static thread_local ThreadState state;
  return state;
}

}  // namespace

void ThreadMutex::NoteLocked() {
  ThreadState& state = State();
  if (state.ended) return;
  state.held.push_back({this, CurrentBacktrace(/*skip=*/1)});
  noted_ = true;
  state.Publish();
}

void ThreadMutex::NoteUnlocked() noexcept {
  ThreadState& state = State();
  noted_ = false;
  std::erase_if(state.held, [this](const Held& h) { return h.mutex == this; });
  state.Publish();
}

void ThreadMutex::CountHeldIn(std::uint32_t* count) noexcept {
  State().count = count;
  State().Publish();
}

std::vector<ThreadMutex::Held> ThreadMutex::HeldByThisThread() {
  return State().held;
}

void ThreadMutex::ForgetHeld() noexcept {
  ThreadState& state = State();
  for (const Held& held : state.held) held.mutex->noted_ = false;
  state.held.clear();
  state.Publish();
}

}  // namespace flare
