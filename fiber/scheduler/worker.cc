#include "flare/fiber/scheduler/worker.h"

#include <cxxabi.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/diagnostics/stack_sampler.h"
#include "flare/fiber/diagnostics/thread_exit.h"
#include "flare/fiber/scheduler/membarrier.h"
#include "flare/fiber/scheduler/schedule.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/stack/context.h"
#include "flare/fiber/stack/sanitizer.h"
#include "flare/fiber/stack/stack_overflow.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

thread_local Worker* current_worker = nullptr;

}  // namespace

// The empty asm keeps the compiler from seeing that this only reads a variable:
// it might otherwise reuse an earlier result after a suspension.
[[gnu::noinline]] Worker* CurrentWorker() noexcept {
  asm volatile("" ::: "memory");
  return current_worker;
}

[[gnu::noinline]] void ReplaceCurrentWorker(Worker* instead) noexcept {
  current_worker = instead;
}

Worker::Worker(SchedulingGroup* group, std::size_t index, std::size_t number,
               Schedule* schedule)
    : group_(group),
      index_(index),
      number_(number),
      schedule_(schedule),
      maintenance_interval_(schedule == nullptr ? kMaintenanceInterval : 1),
      can_claim_(schedule == nullptr && MembarrierAvailable()),
      random_(static_cast<std::uint32_t>(index * 2654435761U + 1)),
      timers_(NowNs()) {
  if (schedule != nullptr && schedule->deterministic()) {
    probe_.next_at_ns = kNoDeadline;
  }
}

Worker::~Worker() { KeepSpares(0); }

void Worker::Start() {
  thread_ = std::thread([this] { ThreadMain(); });
}

void Worker::Join() {
  if (thread_.joinable()) thread_.join();
}

void Worker::ThreadMain() {
  const std::string name =
      "flare_" + std::to_string(group_->index()) + "/" + std::to_string(index_);
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  prctl(PR_SET_TIMERSLACK, 1000);  // ns
  group_->PlaceThread(index_);
  if (schedule_ != nullptr) schedule_->OnThreadStart();

  current_worker = this;
  // relaxed: only the number.
  thread_id_.store(static_cast<pid_t>(syscall(SYS_gettid)),
                   std::memory_order_relaxed);
  AcceptStackSampling();
  InstallOverflowHandlerForThread();
  ThreadMutex::CountHeldIn(&thread_locks_held_);
  errno_ = &errno;
  exception_globals_ =
      reinterpret_cast<Carrier::ExceptionGlobals*>(abi::__cxa_get_globals());
  ForbidThreadExit();
  BeginAfterSleep();
  thread_tsan_fiber_ = sanitizer::CurrentTsanFiber();

  current_ = TakeSpare();
  sanitizer::StartSwitch(
      &thread_fake_stack_,
      static_cast<char*>(current_->low_) + current_->stacks_->guard_size(),
      current_->stacks_->stack_size() - current_->stacks_->guard_size(),
      current_->tsan_fiber_);
  flare_switch_context(&thread_stack_pointer_, current_->TakeStackPointer(),
                       this);
  // The group has stopped.
  AllowThreadExit();
  sanitizer::FinishSwitch(thread_fake_stack_);
  current_->Destroy();
  KeepSpares(0);
  while (nodes_ != nullptr) ReturnNodes();
  ThreadMutex::CountHeldIn(nullptr);
  current_worker = nullptr;
}

void Worker::LeaveToThread() {
  sanitizer::StartSwitch(nullptr, thread_stack_bottom_, thread_stack_size_,
                         thread_tsan_fiber_);
  flare_switch_context(&current_->stack_pointer_, thread_stack_pointer_, this);
}

Task* Worker::Next() {
  if (handed_to_loop_ != nullptr) {
    Bump(counters_.tasks);
    return std::exchange(handed_to_loop_, nullptr);
  }
  if (--until_maintenance_ == 0) [[unlikely]] {
    Maintain();
  }
  Task* task = run_queue_.Pop();
  if (task == nullptr) [[unlikely]] {
    task = NextWhenEmpty();
  }
  Bump(counters_.tasks);
  return task;
}

// Long tasks: more often than every so many.
std::uint32_t Worker::TasksUntilMaintenance() const {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(
      kMaintenanceNs / mean_task_ns_, 1, maintenance_interval_));
}

void Worker::Maintain() {
  current_->entry = nullptr;
  if (schedule_ != nullptr) [[unlikely]] {
    schedule_->BeforeTask(group_->SleepDeadline(*this, /*in_poller=*/true));
  }
  const std::int64_t now = NowNs();
  UpdateEstimate(now);
  until_maintenance_ = TasksUntilMaintenance();
  group_->FireTimers(now);
  Keep(TakeInjected(ShareOfInjected()));
  LookForIoBetweenTasks(now);
  if (now >= probe_.next_at_ns) Probe(now);
  if (group_->shortage().any()) [[unlikely]] {
    EaseShortage();
  }
  if (group_->HasSurplus()) [[unlikely]] {
    NoteSurplus(now);
  } else {
    surplus_since_ns_ = 0;
  }
  if (now >= next_trim_ns_) [[unlikely]] {
    TrimSpares(now);
  }
  if (schedule_ != nullptr) [[unlikely]] {
    Reorder();
  }
}

void Worker::Reorder() {
  const std::uint32_t queued = run_queue_.size();
  if (queued == 0) return;
  if (group_->size() > 1 && schedule_->GiveAway()) {
    if (Task* const task = run_queue_.Pop()) group_->Inject(task);
    return;
  }
  if (queued == 1) return;
  // What is popped leaves room; thieves only make more.
  for (std::size_t i = schedule_->ChooseTask(queued); i > 0; --i) {
    if (Task* const task = run_queue_.Pop()) run_queue_.Push(task);
  }
}

Task* Worker::NextWhenEmpty() {
  // While there are further tasks the next one's comes at once.
  current_->entry = nullptr;
  ran_out_ = true;
  bool searching = std::exchange(retiring_, false) && Retire();
  for (;;) {
    if (Task* const task = LookAround(std::exchange(searching, false))) {
      WakeForInjected();
      MaybeWakeHelper();
      return task;
    }
    const std::int64_t now = NowNs();
    UpdateEstimate(now);
    group_->FireTimers(now);
    Task* task = Pop();
    if (task == nullptr && invited_by_ != nullptr) [[unlikely]] {
      task = FireNeighboursTimers(now);
    }
    if (task != nullptr) {
      WakeForInjected();
      return task;
    }
    if (group_->shutdown_->finished()) return nullptr;
    if (group_->shortage().any()) EaseShortage();
    if (now >= next_trim_ns_) TrimSpares(now);
    if (schedule_ != nullptr &&
        schedule_->OnIdle(group_->SleepDeadline(*this, /*in_poller=*/true))) {
      continue;
    }
    searching = Sleep();
    task = Pop();
    if (task == nullptr) continue;
    if (searching) {
      group_->EndSearch();
      WakeForInjected();
      MaybeWakeHelper();  // Keep() saw us searching.
    }
    return task;
  }
}

// Everything that takes no look at the clock. If `searching` the worker counts
// as one that searches, which ends here.
Task* Worker::LookAround(bool searching) {
  Task* task = FromInjectionQueue();
  // Before stealing: nobody has touched their data yet.
  if (task == nullptr) task = FromPendingEvents();
  if (task == nullptr) task = FromDeferred();
  if (task == nullptr && !searching) searching = group_->BeginSearch();
  if (task == nullptr && searching) task = Steal();
  if (searching) group_->EndSearch();
  return task;
}

// Until there may be something to do. True: as SchedulingGroup::Park.
bool Worker::Sleep() {
  TaskList ready;
  Bump(counters_.parks);
  const bool searching = group_->Park(this, &ready);
  const bool any = !ready.empty();
  KeepReady(std::move(ready));
  BeginAfterSleep();
  if (any) Probe(estimate_since_ns_);
  return searching;
}

// Whoever was awake meanwhile knows better how long tasks take: a worker that
// takes them for shorter than they are takes more than its share.
void Worker::BeginAfterSleep() {
  estimate_since_ns_ = NowNs();
  if (const std::int64_t known = group_->mean_task_ns();
      known > 2 * mean_task_ns_) {
    SetEstimate(known);
  }
  until_maintenance_ = TasksUntilMaintenance();
}

// The queues of workers that sleep in their tasks, or are stolen from, differ
// in length: what is at the end of a long one would be overtaken by all that
// comes later and finds a short one. The injection queue has one end for all;
// once long tasks are there, later ones go behind them.
void Worker::PushAll(TaskList&& tasks) {
  const bool behind =
      keep_limit_ < run_queue_.capacity() && group_->injected() != 0;
  const std::uint32_t room = behind ? 0 : Room();
  if (tasks.size() <= room) [[likely]] {
    return Keep(std::move(tasks));
  }
  TaskList kept;
  while (kept.size() < room) kept.PushBack(tasks.PopFront());
  Keep(std::move(kept));
  group_->InjectAll(std::move(tasks));
}

void Worker::Keep(TaskList&& tasks) {
  if (tasks.empty()) return;
  while (Task* const task = tasks.PopFront()) {
    if (!run_queue_.Push(task)) [[unlikely]] {
      Overflow(task);
    }
  }
  MaybeWakeHelper();
}

// The ring is full: the older half goes to the injection queue, where all
// workers of the group look.
void Worker::Overflow(Task* task) {
  Bump(counters_.overflows);
  TaskList half = run_queue_.TakeHalf();
  half.PushBack(task);
  group_->InjectAll(std::move(half));
}

void Worker::WakeHelper(std::uint32_t queued) {
  if (group_->CanWake()) group_->Wake(queued / wake_backlog_ > 1 ? 2 : 1);
}

// What producers did not wake anybody for, as we were searching [P4].
void Worker::WakeForInjected() {
  if (const std::size_t injected = group_->injected(); injected != 0) {
    group_->WakeFor(injected);
  }
  group_->WakeForAside();  // Somebody may have counted on us for those, too.
}

void Worker::Probe(std::int64_t now_ns) {
  // acquire: pairs with the release below: its time has been read.
  if (run_queue_.size() == 0 || now_ns < probe_.next_at_ns ||
      probe_.queued.load(std::memory_order_acquire)) {
    return;
  }
  probe_.next_at_ns = now_ns + kProbeIntervalNs;
  probe_.queued_at_ns = now_ns;
  probe_.group = group_;
  // relaxed: read by this thread only until the task has run.
  probe_.queued.store(true, std::memory_order_relaxed);
  probe_.run = &DelayProbe::Run;
  if (!run_queue_.Push(&probe_)) Overflow(&probe_);
}

void Worker::DelayProbe::Run(Task* self) {
  auto* const probe = static_cast<DelayProbe*>(self);
  probe->group->ready_delays().Record(
      std::max<std::int64_t>(0, NowNs() - probe->queued_at_ns));
  // release: pairs with the acquire in Probe.
  probe->queued.store(false, std::memory_order_release);
}

void Worker::UpdateEstimate(std::int64_t now_ns) {
  // relaxed: written by this thread.
  const std::uint64_t tasks = counters_.tasks.load(std::memory_order_relaxed);
  const auto ran = static_cast<std::int64_t>(tasks - estimate_tasks_);
  if (ran == 0) {
    estimate_since_ns_ = now_ns;
    return;
  }
  const std::int64_t sample = (now_ns - estimate_since_ns_) / ran;
  SetEstimate(std::max<std::int64_t>(1, (3 * mean_task_ns_ + sample) / 4));
  // Not each time: siblings read it.
  if (const std::int64_t known = group_->mean_task_ns();
      mean_task_ns_ > 2 * known || 2 * mean_task_ns_ < known) {
    group_->set_mean_task_ns(mean_task_ns_);
  }
  estimate_tasks_ = tasks;
  estimate_since_ns_ = now_ns;
}

void Worker::SetEstimate(std::int64_t mean_task_ns) {
  mean_task_ns_ = mean_task_ns;
  wake_backlog_ = TasksIn(group_->wake_threshold_ns());
  keep_limit_ = TasksIn(kKeepNs);
  if (can_claim_) {
    constexpr std::int64_t kClaimNs = 2000;  // What may be held up unseen.
    run_queue_.set_claim_limit(static_cast<std::uint32_t>(
        std::clamp<std::int64_t>(kClaimNs / mean_task_ns_, 1, 8)));
  }
}

// Half the room, or what is taken would spill what is there. Tasks that
// resubmit themselves may leave none for ever: then one, every fourth time. One
// each time would make the ring grow, as tasks mostly queue others.
std::size_t Worker::ShareOfInjected() {
  if (const std::uint32_t room = Room(); room > 0) return (room + 1) / 2;
  return ++turns_without_room_ % 4 == 0 ? 1 : 0;
}

// From one to as many as fit the ring.
std::uint32_t Worker::TasksIn(std::int64_t ns) const {
  return static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(ns / mean_task_ns_, 1, run_queue_.capacity()));
}

}  // namespace flare::fiber
