// [BP1] A region is in one of: the hands of Run(), the queue, the hands of one
//       thread. The queue isn't empty only while as many threads as may be are
//       busy: a thread that becomes free looks there, under lock_, before it
//       becomes idle, and Run() looks for idle ones before it queues. So
//       does each other one that leaves live_, under lock_: a thread that ends,
//       and a Run() that fails to start one.
// [BP2] A thread that is idle is in the idle list. The code that takes it out,
//       under lock_, wakes it, by one Assign(). If its time is up it takes
//       itself out, or finds that it has been taken out and waits for the
//       assignment. A new thread waits for its first assignment without being
//       in the list, so that its starter has filled in its member thread_
//       before.
// [BP3] A thread that ends leaves itself to be joined and deleted by the next
//       one to end, the last one by Stop(). So nobody else waits for it, and
//       when Stop() has joined that last one, all have ended.
#include "flare/fiber/scheduler/blocking_pool.h"

#include <cxxabi.h>
#include <pthread.h>

#include <cerrno>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/futex.h"
#include "flare/base/topology.h"
#include "flare/fiber/scheduler/fork_guard.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/shutdown.h"
#include "flare/fiber/scheduler/thread_hooks.h"
#include "flare/fiber/stack/context.h"
#include "flare/fiber/stack/sanitizer.h"
#include "flare/fiber/stack/stack.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

thread_local BlockingThread* current_thread = nullptr;

}  // namespace

BlockingThread::BlockingThread(BlockingPool* pool, std::uint64_t number)
    : pool_(pool), number_(number), thread_([this] { Main(); }) {}

// The empty asm: as in CurrentWorker().
[[gnu::noinline]] BlockingVisit* BlockingThread::CurrentVisit() noexcept {
  asm volatile("" ::: "memory");
  return current_thread == nullptr ? nullptr : current_thread->visit_;
}

void BlockingThread::Main() {
  const std::string name = "flare_blk/" + std::to_string(number_);
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  current_thread = this;
  errno_ = &errno;
  exception_globals_ =
      reinterpret_cast<Carrier::ExceptionGlobals*>(abi::__cxa_get_globals());
  tsan_fiber_ = sanitizer::CurrentTsanFiber();
  OnFiberThreadStart();
  do {
    while (BlockingVisit* const visit = pool_->Next(this)) Serve(visit);
  } while (!pool_->End(this));  // This may be gone after it.
  OnFiberThreadEnd();
}

void BlockingThread::Serve(BlockingVisit* visit) {
  SchedulingGroup* const group = visit->group;
  Carrier* const carrier = visit->carrier;
  RunNear(group);
  visit_ = visit;
  RunVisit(visit);
  if (IsForkedChild()) DieAsForkedChild();  // By code in the region.
  visit_ = nullptr;
  // The region, on the fiber's stack, is over once somebody resumes that.
  group->Inject(carrier->resume_task());
  pool_->shutdown_->RemoveOutsider();
}

// Returns after the region was left.
void BlockingThread::RunVisit(BlockingVisit* visit) {
  visit->thread = this;
  Carrier* const carrier = visit->carrier;
  sanitizer::StartSwitch(
      &fake_stack_,
      static_cast<char*>(carrier->low_) + carrier->stacks_->guard_size(),
      carrier->stacks_->stack_size() - carrier->stacks_->guard_size(),
      carrier->tsan_fiber_);
  // blocking_region.cc [BR4]
  flare_switch_context(&stack_pointer_, carrier->TakeStackPointer(), this);
  sanitizer::FinishSwitch(fake_stack_);
}

// A thread starts with the CPUs of the worker that started it.
void BlockingThread::RunNear(SchedulingGroup* group) {
  if (group == group_) return;
  group_ = group;
  if (group->cpus().empty()) return;
  const Status bound = SetThreadAffinity(group->cpus());
  LOG_IF(ERROR, !bound.ok()) << bound.message();
}

void BlockingThread::Assign(BlockingVisit* visit) {
  assignment_ = visit;
  std::atomic<std::uint32_t>* const word = &assigned_;
  // release: pairs with the acquire in Next [BP2]. After it the thread may be
  // gone; waking a futex that nobody sleeps on any more is harmless.
  word->store(1, std::memory_order_release);
  FutexWake(word, 1);
}

BlockingPool::BlockingPool(std::size_t limit, std::int64_t idle_ns,
                           Shutdown* shutdown)
    : limit_(limit), idle_ns_(idle_ns), shutdown_(shutdown) {}

BlockingPool::~BlockingPool() {
  CHECK_EQ(live_.load(), 0U) << "a BlockingPool ends before its threads";
}

void BlockingPool::Queue(BlockingVisit* visit) {
  visit->next = nullptr;
  (queue_tail_ != nullptr ? queue_tail_->next : queue_head_) = visit;
  queue_tail_ = visit;
}

BlockingVisit* BlockingPool::Dequeue() {
  BlockingVisit* const visit = queue_head_;
  if (visit == nullptr) return nullptr;
  queue_head_ = visit->next;
  if (queue_head_ == nullptr) queue_tail_ = nullptr;
  return visit;
}

void BlockingPool::AddIdle(BlockingThread* thread) {
  thread->idle_ = true;
  thread->idle_previous_ = nullptr;
  thread->idle_next_ = idle_;
  if (idle_ != nullptr) idle_->idle_previous_ = thread;
  idle_ = thread;
}

void BlockingPool::RemoveIdle(BlockingThread* thread) {
  thread->idle_ = false;
  BlockingThread* const previous = thread->idle_previous_;
  BlockingThread* const next = thread->idle_next_;
  (previous != nullptr ? previous->idle_next_ : idle_) = next;
  if (next != nullptr) next->idle_previous_ = previous;
}

void BlockingPool::Run(BlockingVisit* visit) {
  BlockingThread* thread = nullptr;
  std::uint64_t number = 0;
  {
    ScopedLock guard(lock_);
    // relaxed: under the lock.
    const std::uint32_t live = live_.load(std::memory_order_relaxed);
    if (idle_ != nullptr) {
      thread = idle_;
      RemoveIdle(thread);
    } else if (live < limit_) {
      // relaxed: under the lock.
      live_.store(live + 1, std::memory_order_relaxed);
      number = started_++;
    } else {
      Queue(visit);
      return;
    }
  }
  if (thread != nullptr) {
    thread->Assign(visit);
  } else {
    StartThread(visit, number);
  }
}

void BlockingPool::StartThread(BlockingVisit* visit, std::uint64_t number) {
  try {
    (new BlockingThread(this, number))->Assign(visit);
    return;
  } catch (const std::bad_alloc&) {  // As below; a text would take memory.
  } catch (const std::system_error& error) {
    LOG_EVERY_N(ERROR, 100)
        << "can't start another thread for blocking regions: " << error.what()
        << "; they wait for the ones there are, or hold up workers";
  }
  BlockingThread* thread = nullptr;
  BlockingVisit* left = nullptr;
  {
    ScopedLock guard(lock_);
    // relaxed: under the lock.
    const std::uint32_t live = live_.load(std::memory_order_relaxed) - 1;
    live_.store(live, std::memory_order_relaxed);
    thread = idle_;  // One may have become so meanwhile.
    if (thread != nullptr) {
      RemoveIdle(thread);
    } else {
      Queue(visit);
      if (live > 0) return;  // That one looks there [BP1].
      left = std::exchange(queue_head_, nullptr);
      queue_tail_ = nullptr;
    }
  }
  if (thread != nullptr) {
    thread->Assign(visit);
    return;
  }
  while (left != nullptr) {
    BlockingVisit* const each = left;
    left = each->next;  // It may be gone once its fiber goes on.
    each->group->Inject(each->carrier->resume_task());
    shutdown_->RemoveOutsider();
  }
}

BlockingVisit* BlockingPool::Next(BlockingThread* thread) {
  bool first = thread->group_ == nullptr;
  std::int64_t deadline = kNoDeadline;
  if (!first) {
    ScopedLock guard(lock_);
    if (BlockingVisit* const visit = Dequeue()) return visit;  // [BP1]
    if (stopping_) return nullptr;
    AddIdle(thread);
    deadline = SaturatingAdd(NowNs(), idle_ns_);
  }
  // acquire: pairs with the release in Assign [BP2].
  while (thread->assigned_.load(std::memory_order_acquire) == 0) {
    if (NowNs() >= deadline) {
      ScopedLock guard(lock_);
      if (thread->idle_) {
        RemoveIdle(thread);
        return nullptr;
      }
      deadline = kNoDeadline;  // [BP2]
    }
    FutexWait(&thread->assigned_, 0, deadline);
  }
  // relaxed: nobody assigns before this thread is idle again.
  thread->assigned_.store(0, std::memory_order_relaxed);
  return thread->assignment_;
}

bool BlockingPool::End(BlockingThread* thread) {
  BlockingThread* predecessor = nullptr;
  {
    ScopedLock guard(lock_);
    if (queue_head_ != nullptr) return false;     // [BP1]
    predecessor = std::exchange(ended_, thread);  // [BP3]
    // release: pairs with the acquire in Stop.
    live_.store(live_.load(std::memory_order_relaxed) - 1,
                std::memory_order_release);
  }
  FutexWake(&live_, 1);
  if (predecessor == nullptr) return true;
  predecessor->thread_.join();
  delete predecessor;
  return true;
}

void BlockingPool::Stop() {
  {
    ScopedLock guard(lock_);
    stopping_ = true;
    while (BlockingThread* const thread = idle_) {
      RemoveIdle(thread);
      thread->Assign(nullptr);
    }
  }
  // acquire: pairs with the release in End.
  while (const std::uint32_t live = live_.load(std::memory_order_acquire)) {
    FutexWait(&live_, live, kNoDeadline);
  }
  BlockingThread* last = nullptr;
  {
    ScopedLock guard(lock_);
    last = std::exchange(ended_, nullptr);
  }
  if (last == nullptr) return;
  last->thread_.join();  // [BP3]
  delete last;
}

}  // namespace flare::fiber
