#include "example/rpc/blocking_caller.h"

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "example/rpc/flag_errors.h"
#include "flare/base/clock.h"
#include "flare/fiber/this_fiber.h"
#include "glog/logging.h"

namespace example {
namespace {

// A measurement with fewer callers than asked for would be of something else.
// Others run already, so no destructors.
[[noreturn]] void GiveUp(std::size_t number, std::size_t callers,
                         const std::system_error& why) {
  LOG(ERROR) << "Can't start a thread for caller " << number + 1 << " of "
             << callers << ": " << why.what()
             << ". Lower --callers, use --caller_kind=fiber, or raise the "
                "limit of threads (ulimit -u, the cgroup's pids.max, "
                "kernel.threads-max) or of memory (ulimit -v).";
  google::FlushLogFiles(google::INFO);
  std::_Exit(kBadFlags);
}

}  // namespace

BlockingCaller::BlockingCaller(const Load& load, std::unique_ptr<Call> call,
                               std::size_t number, std::size_t group)
    : calls_(load, std::move(call), number),
      running_(load.running),
      kind_(load.options.caller_kind),
      number_(number),
      callers_(load.options.max_pending),
      group_(group) {}

BlockingCaller::~BlockingCaller() {
  if (fiber_.joinable()) fiber_.join();
  if (thread_.joinable()) thread_.join();
}

void BlockingCaller::Start() {
  if (kind_ == CallerKind::kThread) {
    try {
      thread_ = std::thread([this] { Run(); });
    } catch (const std::system_error& error) {
      GiveUp(number_, callers_, error);
    }
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
      if (calls_.GivesUp()) return running_->OneEnded();
    }
    calls_.Send(now, nullptr);
    now = flare::NowNs();
    calls_.Ended(now);
  }
  running_->OneEnded();
}

}  // namespace example
