#include "benchmark/baseline/worker_pool.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <utility>

namespace baseline {

WorkerPool::WorkerPool(std::size_t threads, const example::WorkSource& work)
    : work_(work) {
  for (std::size_t i = 0; i != threads; ++i) {
    threads_.emplace_back([this] { Work(); });
    ::pthread_setname_np(threads_.back().native_handle(), "worker");
  }
}

WorkerPool::~WorkerPool() {
  {
    std::scoped_lock lock(mutex_);
    stopped_ = true;
  }
  wanted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  while (Call* const call = queue_.PopFront()) call->Recycle();
}

void WorkerPool::Submit(CallQueue&& calls) {
  std::size_t wake;
  {
    std::scoped_lock lock(mutex_);
    wake = std::min(calls.size(), waiting_);
    queue_.TakeAll(&calls);
  }
  for (std::size_t i = 0; i != wake; ++i) wanted_.notify_one();
}

void WorkerPool::Work() {
  prctl(PR_SET_TIMERSLACK, 1000);  // ns; as loops and flare's workers.
  for (;;) {
    Call* call;
    {
      std::unique_lock lock(mutex_);
      ++waiting_;
      wanted_.wait(lock, [this] { return stopped_ || !queue_.empty(); });
      --waiting_;
      if (stopped_) return;
      call = queue_.PopFront();
    }
    call->Serve(Call::Methods::kEcho, work_, [] {});
    call->connection->loop()->Post(call);
  }
}

}  // namespace baseline
