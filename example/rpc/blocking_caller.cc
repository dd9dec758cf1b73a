#include "example/rpc/blocking_caller.h"

#include <algorithm>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/this_fiber.h"

namespace example {

BlockingCaller::BlockingCaller(const Load& load, std::unique_ptr<Call> call,
                               std::size_t number, std::size_t group)
    : calls_(load, std::move(call), number),
      running_(load.running),
      kind_(load.options.caller_kind),
      group_(group) {}

BlockingCaller::~BlockingCaller() {
  if (fiber_.joinable()) fiber_.join();
  if (thread_.joinable()) thread_.join();
}

void BlockingCaller::Start() {
  if (kind_ == CallerKind::kThread) {
    thread_ = std::thread([this] { Run(); });
  } else {
    flare::Fiber::Attributes attributes;
    attributes.scheduling_group = group_;
    fiber_ = flare::Fiber(attributes, [this] { Run(); });
  }
}

void BlockingCaller::Run() {
  std::int64_t now = flare::NowNs();
  while (calls_.Next(now)) {
    for (std::int64_t send_at = calls_.send_at(); send_at > now;
         now = flare::NowNs()) {
      flare::this_fiber::SleepUntilNs(
          std::min(send_at, now + CallSequence::kLongestWait));
      if (calls_.stopped()) return running_->OneEnded();
    }
    calls_.Send(now, nullptr);
    now = flare::NowNs();
    calls_.Ended(now);
  }
  running_->OneEnded();
}

}  // namespace example
