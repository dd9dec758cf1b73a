#include "flare/fiber/coroutine.h"

#include <exception>
#include <new>
#include <utility>

#include "flare/base/describe_exception.h"
#include "flare/base/object_pool.h"
#include "flare/base/string.h"
#include "flare/fiber/scheduler/runtime_state.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

// Calls `f` with a pool's size for frames of `size` bytes, or with 0 if they
// are too large for the pools.
template <class F>
auto WithFrameSize(std::size_t size, F f) {
  if (size <= 128) return f.template operator()<128>();
  if (size <= 256) return f.template operator()<256>();
  if (size <= 512) return f.template operator()<512>();
  if (size <= 1024) return f.template operator()<1024>();
  return f.template operator()<0>();
}

}  // namespace

void* AllocateCoroutine(std::size_t size) {
  return WithFrameSize(size, [size]<std::size_t kSize>() {
    if constexpr (kSize != 0) {
      return PoolAllocate<kSize>();
    } else {
      return ::operator new(size);
    }
  });
}

void FreeCoroutine(void* memory, std::size_t size) noexcept {
  WithFrameSize(size, [memory]<std::size_t kSize>() {
    if constexpr (kSize != 0) {
      PoolFree<kSize>(memory);
    } else {
      ::operator delete(memory);
    }
  });
}

void LogCoroutineException() {
  const std::exception_ptr exception = std::current_exception();
  if (exception == nullptr) throw;  // No exception of C++: the thread's end.
  // One per second, so that a peer can't fill the disk.
  LOG_EVERY_T(ERROR, 1) << "an exception left a coroutine, whose future is "
                           "broken: "
                        << OneLine(DescribeException(exception));
}

void SuspendedCoroutine::Suspend(std::coroutine_handle<> coroutine) {
  coroutine_ = coroutine;
  group_ = NearestGroup()->index();
  context_ = ExecutionContext::Capture();
}

template <auto kStep>
void SuspendedCoroutine::GoOn() {
  run = [](Task* self) {
    auto* const suspended = static_cast<SuspendedCoroutine*>(self);
    // It is gone as soon as the coroutine goes on.
    const std::coroutine_handle<> coroutine = suspended->coroutine_;
    WithExecutionContextIfPresent(std::move(suspended->context_),
                                  [coroutine] { (coroutine.*kStep)(); });
  };
  SubmitTo(group_, this);
}

void SuspendedCoroutine::Resume() { GoOn<&std::coroutine_handle<>::resume>(); }

void SuspendedCoroutine::Destroy() {
  // At exit, for example: a promise of a static.
  if (CurrentRuntime() == nullptr) return coroutine_.destroy();
  GoOn<&std::coroutine_handle<>::destroy>();
}

}  // namespace flare::fiber
