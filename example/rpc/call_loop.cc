#include "example/rpc/call_loop.h"

#include <algorithm>
#include <utility>

#include "flare/base/clock.h"

namespace example {

CallLoop::CallLoop(const Load& load, std::unique_ptr<Call> call,
                   std::size_t number, std::size_t group)
    : calls_(load, std::move(call), number),
      running_(load.running),
      group_(group) {
  Task::run = [](Task* self) { static_cast<CallLoop*>(self)->Resume(); };
  set_callback([](Timer* self) {
    auto* const loop = static_cast<CallLoop*>(self);
    flare::fiber::SubmitTo(loop->group_, loop);
  });
}

void CallLoop::Start() { flare::fiber::SubmitTo(group_, this); }

void CallLoop::Resume() {
  const std::int64_t now = flare::NowNs();
  if (!std::exchange(begun_, true)) return Continue(now);
  if (calls_.GivesUp()) return running_->OneEnded();
  WaitOrSend(now);
}

void CallLoop::Run() {
  const std::int64_t now = flare::NowNs();
  calls_.Ended(now);
  Continue(now);
}

void CallLoop::Continue(std::int64_t now_ns) {
  if (!calls_.Next(now_ns)) return running_->OneEnded();
  WaitOrSend(now_ns);
}

void CallLoop::WaitOrSend(std::int64_t now_ns) {
  if (const std::int64_t send_at = calls_.send_at(); send_at > now_ns) {
    return flare::fiber::ArmTimer(
        this, std::min(send_at, now_ns + CallSequence::kLongestWait));
  }
  calls_.Send(now_ns, this);
}

}  // namespace example
