#include "flare/fiber/scheduler/worker.h"

#include <cxxabi.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/cpu.h"
#include "flare/base/object_pool.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/scheduler/fiber_locals.h"
#include "flare/fiber/scheduler/membarrier.h"
#include "flare/fiber/scheduler/neighbours.h"
#include "flare/fiber/scheduler/poller.h"
#include "flare/fiber/scheduler/schedule.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/thread_hooks.h"
#include "flare/fiber/stack/context.h"
#include "flare/fiber/stack/sanitizer.h"
#include "flare/fiber/stack/stack.h"
#include "flare/fiber/stack/stack_use.h"
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

[[gnu::noinline]] std::size_t CurrentWorkerNumberOr(std::size_t none) noexcept {
  asm volatile("" ::: "memory");
  const Worker* const worker = current_worker;
  return worker == nullptr ? none : worker->number();
}

[[gnu::noinline]] void ReplaceCurrentWorker(Worker* instead) noexcept {
  current_worker = instead;
}

Worker::Worker(SchedulingGroup* group, std::size_t index, std::size_t number,
               Schedule* schedule)
    : WorkerState(index, number, group->stacks(), &Worker::EnterLoop,
                  group->stack_idle_ns()),
      group_(group),
      spawn_nodes_(group->node()),
      schedule_(schedule),
      maintenance_interval_(schedule == nullptr ? kMaintenanceInterval : 1),
      can_claim_(schedule == nullptr && MembarrierAvailable()),
      random_(static_cast<std::uint32_t>(index * 2654435761U + 1)),
      probe_(&group->ready_delays()) {
  if (schedule != nullptr && schedule->deterministic()) probe_.Disable();
}

Worker::~Worker() = default;

std::unique_ptr<WorkerState> Worker::Make(SchedulingGroup* group,
                                          std::size_t index, std::size_t number,
                                          Schedule* schedule) {
  return std::make_unique<Worker>(group, index, number, schedule);
}

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
  PrepareThreadForPools();
  group_->PlaceThread(index_);
  if (schedule_ != nullptr) schedule_->OnThreadStart();

  current_worker = this;
  // relaxed: only the number.
  thread_id_.store(static_cast<pid_t>(syscall(SYS_gettid)),
                   std::memory_order_relaxed);
  ThreadMutex::CountHeldIn(&thread_locks_held_);
  errno_ = &errno;
  exception_globals_ =
      reinterpret_cast<Carrier::ExceptionGlobals*>(abi::__cxa_get_globals());
  OnFiberThreadStart();
  BeginAfterSleep();
  thread_tsan_fiber_ = sanitizer::CurrentTsanFiber();

  current_ = spares_.Take();
  sanitizer::StartSwitch(
      &thread_fake_stack_,
      static_cast<char*>(current_->low_) + current_->stacks_->guard_size(),
      current_->stacks_->stack_size() - current_->stacks_->guard_size(),
      current_->tsan_fiber_);
  flare_switch_context(&thread_stack_pointer_, current_->TakeStackPointer(),
                       this);
  // The group has stopped.
  OnFiberThreadEnd();
  sanitizer::FinishSwitch(thread_fake_stack_);
  current_->Destroy();
  spares_.Keep(0);
  spawn_nodes_.ReturnAll();
  ThreadMutex::CountHeldIn(nullptr);
  current_worker = nullptr;
}

void Worker::LeaveToThread() {
  sanitizer::StartSwitch(nullptr, thread_stack_bottom_, thread_stack_size_,
                         thread_tsan_fiber_);
  flare_switch_context(&current_->stack_pointer_, thread_stack_pointer_, this);
}

void Worker::EnterLoop(void* carrier, void* worker) {
  auto* const self = static_cast<Carrier*>(carrier);
  static_cast<Worker*>(worker)->AfterSwitch(self);
  if (IsStackProfileOn()) {
    Loop<true>(self);
  } else {
    Loop<false>(self);
  }
}

// Inlined into its two callers: see SwitchContext().
inline Worker* Worker::SwitchTo(Carrier* from, Carrier* to) {
  current_ = to;
  sanitizer::StartSwitch(
      &from->asan_fake_stack_,
      static_cast<char*>(to->low_) + to->stacks_->guard_size(),
      to->stacks_->stack_size() - to->stacks_->guard_size(), to->tsan_fiber_);
  auto* const now = static_cast<Worker*>(
      SwitchContext(&from->stack_pointer_, to->TakeStackPointer(), this));
  now->AfterSwitch(from);
  return now;
}

// Without noexcept: an exception that leaves a task finds no handler up to the
// end of the stack, and so ends the process where it was thrown, with nothing
// unwound (terminate_handler.h).
template <bool kProfiled>
void Worker::Loop(Carrier* self) {
  if constexpr (kProfiled) StartStackProfile(self->usable_low());
  Worker* worker = CurrentWorker();
  Task* task = worker->NextOnArrival();
  for (;;) {
    if (task == nullptr) worker->LeaveToThread();
    if (Carrier::IsResumption(task)) {
      // This carrier, with no task on it, becomes a spare; the thread continues
      // the suspended fiber. It comes back when the spare is needed.
      Bump(worker->counters_.resumes);
      worker->vacated_ = self;
      worker = worker->SwitchTo(
          self, static_cast<Carrier::ResumeTask*>(task)->carrier);
      task = worker->NextOnArrival();
      continue;
    }
    self->entry = task->run;
    task->run(task);
    worker = CurrentWorker();  // Possibly another one than before [C3].
    if (self->locals != nullptr) [[unlikely]] {
      DestroyFiberLocals(self);  // May block, as part of the task.
      worker = CurrentWorker();
    }
    RestoreFloatingPointModes();  // [C5]
    self->fiber_id = 0;
    self->name = nullptr;
    if constexpr (kProfiled) {
      RecordStackUse(self->usable_low(), self->high(),
                     reinterpret_cast<const void*>(self->entry));
    }
    task = worker->Next();
  }
}

void SuspendFiber(WaitReason reason, void (*hook)(void*), void* argument) {
  Worker* const worker = CurrentWorker();
  Carrier* const self = worker->current_;
  Worker::Bump(worker->counters_.suspends);

  self->group_ = worker->group_;
  self->errno_ = *worker->errno_;  // [C4]
  Carrier::ExceptionGlobals* const exceptions = worker->exception_globals_;
  const bool in_exception =
      exceptions->caught != nullptr || exceptions->uncaught != 0;
  if (in_exception) [[unlikely]] {
    self->exception_globals_ = *exceptions;
    *exceptions = {};
  }

  self->reason = reason;
  self->suspended_at_ns = worker->estimate_since_ns_;
  // relaxed: a reader knows that it sees a snapshot.
  self->suspended.store(true, std::memory_order_relaxed);

  worker->hook_ = hook;
  worker->hook_argument_ = argument;
  // Here, where all arguments are stored away, it costs nothing.
  if (worker->thread_locks_held_ != 0) [[unlikely]] {
    OnSuspensionUnderLock(self->reason);
  }
  Worker* const now = worker->SwitchTo(self, worker->NextCarrier());  // [C3]
  // relaxed: a reader sees a snapshot.
  self->suspended.store(false, std::memory_order_relaxed);
  *now->errno_ = self->errno_;
  if (in_exception) [[unlikely]] {
    *now->exception_globals_ = self->exception_globals_;
  }
}

void ResumeFiber(Carrier* carrier) {
  SchedulingGroup* const group = carrier->group_;
  Worker* const worker = CurrentWorker();
  if (worker != nullptr && worker->group() == group) [[likely]] {
    worker->Push(carrier->resume_task());
  } else {
    group->Inject(carrier->resume_task());
  }
}

Carrier* CurrentCarrier() {
  Worker* const worker = CurrentWorker();
  return worker == nullptr ? nullptr : worker->current();
}

// Where to go on when the current task suspends: straight in the fiber that is
// next in the queue, if a fiber comes next, and else in the loop.
Carrier* Worker::NextCarrier() {
  if (--until_maintenance_ == 0) [[unlikely]] {
    until_maintenance_ = 1;  // For the loop.
    return spares_.Take();
  }
  Task* const task = run_queue_.Pop();
  if (task == nullptr) return spares_.Take();
  if (!Carrier::IsResumption(task)) {
    handed_to_loop_ = task;
    return spares_.Take();
  }
  Bump(counters_.tasks);
  Bump(counters_.resumes);
  return static_cast<Carrier::ResumeTask*>(task)->carrier;
}

// Arriving on `self`, maybe on another thread than it was left by.
void Worker::AfterSwitch(Carrier* self) {
  const void* bottom = nullptr;
  std::size_t size = 0;
  sanitizer::FinishSwitch(self->asan_fake_stack_, &bottom, &size);
  if (thread_stack_size_ == 0) {  // The first switch of this thread.
    thread_stack_bottom_ = bottom;
    thread_stack_size_ = size;
  }
  if (vacated_ != nullptr) {  // [C2]
    spares_.Add(vacated_);
    vacated_ = nullptr;
  } else if (hook_ != nullptr) {
    void (*const hook)(void*) = hook_;
    hook_ = nullptr;
    hook(hook_argument_);
  }
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
  if (probe_.due(now)) Probe(now);
  if (group_->shortage().any()) [[unlikely]] {
    EaseShortage();
  }
  if (group_->HasSurplus()) [[unlikely]] {
    NoteSurplus(now);
  } else {
    surplus_since_ns_ = 0;
  }
  if (now >= spares_.next_trim_ns()) [[unlikely]] {
    spares_.Trim(now);
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
  // Popped tasks leave room; thieves only make more.
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
    if (group_->finished()) return nullptr;
    if (group_->shortage().any()) EaseShortage();
    if (now >= spares_.next_trim_ns()) spares_.Trim(now);
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

// Workers that were awake meanwhile know better how long tasks take: a worker
// that takes them for shorter than they are takes more than its share.
void Worker::BeginAfterSleep() {
  estimate_since_ns_ = NowNs();
  if (const std::int64_t known = group_->mean_task_ns();
      known > 2 * mean_task_ns_) {
    SetEstimate(known);
  }
  until_maintenance_ = TasksUntilMaintenance();
}

// The queues of workers that sleep in their tasks, or are stolen from, differ
// in length: the tasks at the end of a long one would be overtaken by all later
// ones that find a short one. The injection queue has one end for all; once
// long tasks are there, later ones go behind them.
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

// Wakes workers for tasks for which producers woke nobody, as we were searching
// [P4].
void Worker::WakeForInjected() {
  if (const std::size_t injected = group_->injected(); injected != 0) {
    group_->WakeFor(injected);
  }
  group_->WakeForAside();  // Somebody may have counted on us for those, too.
}

void Worker::Probe(std::int64_t now_ns) {
  if (run_queue_.size() == 0 || !probe_.Begin(now_ns)) return;
  if (!run_queue_.Push(&probe_)) Overflow(&probe_);
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
  // Seldom, as siblings read it.
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
    constexpr std::int64_t kClaimNs = 2000;  // Work that may be held up unseen.
    run_queue_.set_claim_limit(static_cast<std::uint32_t>(
        std::clamp<std::int64_t>(kClaimNs / mean_task_ns_, 1, 8)));
  }
}

// Half the room, or the taken tasks would spill the queued ones. Tasks that
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

// --- IO ---

void Worker::LookForIo() {
  // Before further events are fetched, for which it would wait again.
  if (group_->pending_events() == 0) Keep(group_->TakeDeferred());
  if (!group_->TryAcquirePoller()) return;
  TaskList ready;
  Bump(counters_.polls);
  group_->poller()->Poll(0, &ready);
  group_->ReleasePoller();
  KeepReady(std::move(ready));
}

// While the ring isn't empty, and maybe never is.
void Worker::LookForIoBetweenTasks(std::int64_t now_ns) {
  const auto has_room = [this] {
    return run_queue_.size() < run_queue_.capacity() / 2;
  };
  maintained_without_pause_ =
      std::exchange(ran_out_, false) ? 0 : maintained_without_pause_ + 1;
  // A ring that is half full would overflow with the tasks of IO: its oldest
  // tasks would have to wait behind newer ones. They do so now and then, as
  // tasks that resubmit themselves may leave no room for ever.
  if (!has_room() && maintained_without_pause_ % 4 != 3) return;
  // A sibling's look just now has found the same.
  if (group_->pending_events() == 0 && schedule_ == nullptr &&
      !group_->TakeTurnToLook(now_ns, kMaintenanceNs)) {
    return;
  }
  LookForIo();
  // Events come one by one to a worker that runs out of tasks in between, even
  // if rarely, as their data is in the caches then. To one that doesn't,
  // several at a time.
  if (maintained_without_pause_ < kEndless) return;
  for (int i = 1; i < kEventsAtATime && has_room(); ++i) {
    if (group_->pending_events() == 0) return;
    LookForIo();
  }
}

// Pending events are work for a sibling, too: a task for each event, and one at
// least that it leads to.
void Worker::KeepReady(TaskList&& tasks) {
  Keep(std::move(tasks));
  const std::size_t pending = group_->pending_events();
  if (pending == 0) return;
  const auto expected =
      static_cast<std::uint32_t>(run_queue_.size() + 2 * pending);
  if (expected >= wake_backlog_) WakeHelper(expected);
}

// Where there are many workers, some often find the poller taken. One that
// didn't wait would steal half of a sibling's ring, each of whose tasks the
// sibling has in its cache, or sleep.
Task* Worker::FromPendingEvents() {
  int looks = group_->limit() > 2 ? kPollerLooks : 0;
  while (group_->pending_events() != 0) {
    if (looks > 0 && group_->anybody_polls()) {
      // Reads no number of events, which the worker in the poller writes.
      do {
        CpuRelax();
      } while (--looks > 0 && group_->anybody_polls());
      continue;
    }
    LookForIo();
    Task* const task = Pop();
    if (task != nullptr || --looks <= 0) return task;
  }
  return nullptr;
}

Task* Worker::FromDeferred() {
  if (group_->deferred() == 0) return nullptr;
  Keep(group_->TakeDeferred());
  return Pop();
}

bool Worker::PushBehindEvents(Task* task) {
  const std::size_t queued = run_queue_.size();
  const std::size_t pending = group_->pending_events();
  if (queued <= kFewTasks && pending == 0) return false;
  if (std::max(queued, pending) > keep_limit_) return false;
  group_->DeferTask(task);
  return true;
}

bool Worker::PushBehindOthers(Task* task, std::size_t most_events) {
  if (run_queue_.size() <= kFewTasks) {
    const std::size_t pending = group_->pending_events();
    if (pending == 0 || pending > most_events) return false;
    LookForIo();
  }
  const std::uint32_t queued = run_queue_.size();
  if (queued == 0 || queued > keep_limit_) return false;
  Push(task);
  return true;
}

// --- Tasks of others ---

// A fair share, so that one worker doesn't run alone the tasks of many.
TaskList Worker::TakeInjected(std::size_t most) {
  if (most == 0) return TaskList();
  if (group_->shortage().aside() != 0) [[unlikely]] {
    TaskList aside = TakeAside(most);
    if (!aside.empty()) return aside;
  }
  InjectionQueue& queue = group_->injection();
  const std::size_t size = queue.size();
  if (size == 0) return TaskList();
  return queue.Take(std::min(size / group_->limit() + 1, most));
}

// With an empty ring.
Task* Worker::FromInjectionQueue() {
  return PushAllButFirst(TakeInjected(std::max(keep_limit_ / 2, 1U)));
}

Task* Worker::PushAllButFirst(TaskList&& tasks) {
  Task* const first = tasks.PopFront();
  while (Task* const task = tasks.PopFront()) {
    if (!run_queue_.Push(task)) Overflow(task);
  }
  return first;
}

Task* Worker::Steal() {
  random_ = random_ * 1664525U + 1013904223U;
  const std::size_t workers = group_->size();
  const std::size_t start = (random_ >> 8) % workers;
  for (std::size_t i = 0; i < workers; ++i) {
    WorkerState* const victim = group_->worker((start + i) % workers);
    if (victim == this) continue;
    if (Task* const task = StealFrom(&victim->run_queue())) return task;
  }
  return group_->neighbours().empty() ? nullptr : StealFromNeighbours();
}

Task* Worker::StealFromNeighbours() {
  Neighbours& neighbours = group_->neighbours();
  SchedulingGroup* const inviting = neighbours.TakeInvitation();
  ++steal_attempts_;
  for (SchedulingGroup* const victim :
       {inviting, std::exchange(last_victim_, nullptr),
        neighbours.ChooseNear(steal_attempts_, random_ >> 16),
        neighbours.ChooseFar(steal_attempts_, random_ >> 16)}) {
    if (victim == nullptr) continue;
    if (Task* const task = StealFromGroup(victim)) {
      last_victim_ = victim;
      Bump(neighbours.IsFar(victim) ? counters_.far_steals
                                    : counters_.near_steals);
      return task;
    }
  }
  invited_by_ = inviting;
  return nullptr;
}

// Fires timers of the group that invited us. This is no part of the search:
// while somebody is counted as searching, nobody else is woken [P4], and
// callbacks may take their time.
Task* Worker::FireNeighboursTimers(std::int64_t now_ns) {
  SchedulingGroup* const inviting = std::exchange(invited_by_, nullptr);
  // Tasks that they submit go to our queue, fibers that they wake to their own.
  inviting->FireTimers(now_ns);
  if (Task* const task = Pop()) return task;
  Task* const task = StealFromGroup(inviting);
  if (task != nullptr) MaybeWakeHelper();
  return task;
}

Task* Worker::StealFromGroup(SchedulingGroup* victim) {
  for (std::size_t i = 0; i < victim->size(); ++i) {
    WorkerState* const worker = victim->worker((random_ + i) % victim->size());
    if (Task* const task = StealFrom(&worker->run_queue())) return task;
  }
  // The tasks in its shared queue are its own workers' as long as one can be
  // woken.
  if (victim->CanWake()) return nullptr;
  const std::size_t most = std::max(keep_limit_ / 2, 1U);
  Task* const task = PushAllButFirst(victim->injection().Take(
      std::min<std::size_t>(victim->injected() / 2 + 1, most)));
  if (task != nullptr) Bump(counters_.steals);
  return task;
}

Task* Worker::StealFrom(RunQueue* victim) {
  Task* task = nullptr;
  if (victim->rescue_wanted()) [[unlikely]] {
    task = victim->RescueInto(&run_queue_);
  }
  if (task == nullptr) task = victim->StealInto(&run_queue_);
  if (task != nullptr) Bump(counters_.steals);
  return task;
}

// --- More workers than should run ---

// Some that seem to run may have just been blocked, and not be marked yet: so
// not at once, and not without asking.
void Worker::NoteSurplus(std::int64_t now_ns) {
  if (surplus_since_ns_ == 0) surplus_since_ns_ = now_ns;
  if (now_ns - surplus_since_ns_ < kSurplusNs) return;
  if (spares_.empty()) return;  // spare_carriers.cc [ST6]
  surplus_since_ns_ = 0;
  group_->MarkBlocked(group_->LookAtOthers(*this).running);
  if (!group_->HasSurplus()) return;
  retiring_ = true;  // In NextWhenEmpty.
  TaskList all;
  while (Task* const task = run_queue_.Pop()) all.PushBack(task);
  group_->Return(std::move(all));
}

bool Worker::Retire() {
  Bump(counters_.parks);
  const bool woken = group_->Retire(this);
  BeginAfterSleep();
  return woken;
}

// --- Running out of stacks ---

// [ST2]
Task* Worker::NextWithoutSpare() {
  if (spares_.Get()) return Next();
  StackShortage& shortage = group_->shortage();
  shortage.Begin(index_);
  Task* task = Next();
  while (task != nullptr && !Carrier::IsResumption(task) && spares_.empty() &&
         !spares_.Get()) {
    group_->PutAside(task);
    task = Next();
  }
  shortage.End(index_);
  return task;
}

TaskList Worker::TakeAside(std::size_t most) {
  if (spares_.empty()) return TaskList();  // We are short ourselves.
  // No more than can suspend, lest they come back.
  return group_->shortage().TakeAside(std::min(most, spares_.size()));
}

void Worker::EaseShortage() {
  if (!spares_.empty()) {
    spares_.Keep(2);  // [ST4]
  } else if (spares_.Get()) {
    group_->shortage().End(index_);  // [ST6]
  } else {
    group_->PassAsideOn();
  }
}

}  // namespace flare::fiber
