#include "example/rpc/load_generator.h"

#include <algorithm>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/this_fiber.h"

namespace example {

using namespace std::literals;

namespace {

// Up to here all callers start at once.
constexpr std::size_t kNoRampUpNeeded = 100;
constexpr std::size_t kRampUpSteps = 1000;
constexpr auto kRampUpStep = 1ms;

// Threads and fibers take so long to start that many of them in a row would
// keep a worker from the calls under way.
constexpr std::size_t kStartedInARow = 1000;

// Callers for calls at a fixed rate are started so long before these are due:
// a step of the ramp-up may be late by as much.
constexpr std::int64_t kAhead = 50 * flare::kNsPerMs;

}  // namespace

LoadGenerator::LoadGenerator(const LoadOptions& options, LoadRecorder* recorder)
    : options_(options),
      recorder_(recorder),
      schedule_(options.qps, /*limit=*/0, /*start_ns=*/0),
      running_(options.max_pending) {
  if (options.replay == nullptr) return;
  schedule_.NumberCalls();
  schedule_.Follow(options.pace);
}

LoadGenerator::~LoadGenerator() {
  if (ramp_up_.joinable()) ramp_up_.join();
}

flare::Status LoadGenerator::Open() {
  auto target = OpenTarget(options_);
  if (!target) return target.error();
  target_ = *std::move(target);
  const Load load{options_, &schedule_, recorder_, &running_};
  callers_.reserve(options_.max_pending);
  for (std::size_t i = 0; i != options_.max_pending; ++i) {
    const std::size_t group = i % flare::fiber::GetSchedulingGroupCount();
    callers_.push_back(NewCaller(load, target_->NewCall(group), i, group));
  }
  return flare::Status();
}

void LoadGenerator::Start(bool warm_up) {
  schedule_.StartAt(flare::NowNs());
  if (!warm_up) EndWarmUp();
  ramp_up_ = flare::Fiber([this] { RampUp(); });
}

void LoadGenerator::RampUp() {
  const std::size_t per_step = callers_.size() <= kNoRampUpNeeded
                                   ? callers_.size()
                                   : callers_.size() / kRampUpSteps + 1;
  // Steps that are late don't make the later ones late.
  const auto begin = flare::ReadSteadyClock();
  std::size_t started = 0;
  for (int step = 0; started != callers_.size(); ++step) {
    if (step != 0) flare::this_fiber::SleepUntil(begin + step * kRampUpStep);
    if (schedule_.over()) break;
    const std::size_t end = std::min(
        std::max(started + per_step, CallersNeeded()), callers_.size());
    while (started != end) {
      callers_[started]->Start();
      if (++started % kStartedInARow == 0) flare::this_fiber::Yield();
    }
  }
  // The others would find nothing left to do.
  for (; started != callers_.size(); ++started) running_.OneEnded();
}

// With as many callers as calls that are due, none of these waits for a caller
// that hasn't been started, which would show as the server's latency. Others
// stay for later steps: callers that wait look now and then whether the run is
// over (CallSequence::kLongestWait), which all at once would be a burst, too.
std::size_t LoadGenerator::CallersNeeded() const {
  if (!schedule_.paced()) return 0;
  return schedule_.DueBefore(flare::NowNs() + kAhead);
}

void LoadGenerator::EndWarmUp() {
  if (options_.requests != 0) {
    schedule_.Limit(options_.requests, flare::NowNs());
  }
}

void LoadGenerator::End() { schedule_.End(flare::NowNs()); }

void LoadGenerator::Stop() { schedule_.Stop(); }

}  // namespace example
