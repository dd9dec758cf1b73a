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

}  // namespace

LoadGenerator::LoadGenerator(const LoadOptions& options, LoadRecorder* recorder)
    : options_(options), recorder_(recorder), running_(options.max_pending) {}

LoadGenerator::~LoadGenerator() {
  if (ramp_up_.joinable()) ramp_up_.join();
}

flare::Status LoadGenerator::Open() {
  auto target = OpenTarget(options_);
  if (!target) return target.error();
  target_ = *std::move(target);
  return flare::Status();
}

void LoadGenerator::Start(bool warm_up) {
  schedule_.emplace(options_.qps, warm_up ? 0 : options_.requests,
                    flare::NowNs());
  const Load load{options_, &*schedule_, recorder_, &running_};
  callers_.reserve(options_.max_pending);
  for (std::size_t i = 0; i != options_.max_pending; ++i) {
    const std::size_t group = i % flare::fiber::GetSchedulingGroupCount();
    callers_.push_back(NewCaller(load, target_->NewCall(group), i, group));
  }
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
    if (schedule_->over()) break;
    const std::size_t end = std::min(started + per_step, callers_.size());
    for (; started != end; ++started) callers_[started]->Start();
  }
  // The others would find nothing left to do.
  for (; started != callers_.size(); ++started) running_.OneEnded();
}

void LoadGenerator::EndWarmUp() {
  if (options_.requests != 0) {
    schedule_->Limit(options_.requests, flare::NowNs());
  }
}

void LoadGenerator::Stop() { schedule_->Stop(); }

}  // namespace example
