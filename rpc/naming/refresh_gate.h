// Look-ups of names that go on in the background, so that the end of the
// process knows of them and needn't wait for their answers.

#ifndef FLARE_RPC_NAMING_REFRESH_GATE_H_
#define FLARE_RPC_NAMING_REFRESH_GATE_H_

#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>

#include "flare/base/expected.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/mutex.h"

namespace flare::rpc {

// Refreshes under way in the process, so that the end can wait for them. They
// don't wait for the system's resolver then, which may take half a minute: each
// look-up has a thread of its own and shares its result with the waiting
// refresh, if there still is one.
//
// `open_` becomes false under mutex_. It becomes true without that, since a
// fiber may be suspended for it, but never during Close() [CP2]: so a refresh
// that has entered finds it false from the next Close() on, which waits until
// the refresh has left.
class RefreshGate {
 public:
  static RefreshGate* Instance();

  // Don't call it while Close() runs. Doesn't block.
  void Open();
  // False: no refresh may begin.
  bool Enter();
  void Leave();
  // Waits for the refreshes that have entered.
  void Close();

  // Between Enter() and Leave(): the result of `f`, an Expected<..., Status>,
  // on a thread of its own. Nothing: the gate is closed, at the beginning or
  // while `f` takes its time, which then goes on by itself. So `f` owns its
  // data.
  template <class F>
  std::optional<std::invoke_result_t<F>> Ask(F f)
      FLARE_NO_THREAD_SAFETY_ANALYSIS {
    using Answer = std::invoke_result_t<F>;
    std::unique_lock lock(mutex_);
    if (!IsOpen()) return std::nullopt;
    auto answer = std::make_shared<std::optional<Answer>>();
    try {
      std::thread([this, f = std::move(f), answer]() mutable {
        Answer found = f();
        ScopedLock guard(mutex_);
        answer->emplace(std::move(found));
        changed_.notify_all();
      }).detach();
    } catch (const std::system_error& error) {
      return Answer(
          flare::Status(EAGAIN, std::string("no thread: ") + error.what()));
    }
    changed_.wait(lock, [&]() FLARE_NO_THREAD_SAFETY_ANALYSIS {
      return answer->has_value() || !IsOpen();
    });
    return std::move(*answer);
  }

 private:
  bool IsOpen() const {
    // relaxed: see Open() and Close().
    return open_.load(std::memory_order_relaxed);
  }

  fiber::Mutex mutex_;
  // Notified when an answer is there, the gate closes, or nothing runs.
  fiber::ConditionVariable changed_;
  std::atomic<bool> open_{true};
  int running_ FLARE_GUARDED_BY(mutex_) = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_NAMING_REFRESH_GATE_H_
