#include "example/rpc/load_generator.h"

#include <algorithm>

#include "example/rpc/call_loop.h"
#include "flare/base/clock.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/this_fiber.h"

namespace example {

using namespace std::literals;

namespace {

// Up to here all loops start at once.
constexpr std::size_t kNoRampUpNeeded = 100;
constexpr std::size_t kRampUpSteps = 1000;  // Of a millisecond each.

}  // namespace

LoadGenerator::LoadGenerator(const LoadOptions& options, CallRecorder* recorder)
    : options_(options), recorder_(recorder), running_(options.max_pending) {}

LoadGenerator::~LoadGenerator() {
  if (ramp_up_.joinable()) ramp_up_.join();
}

flare::Status LoadGenerator::Open() {
  const flare::RpcChannel::Options channel_options{.override_nslb =
                                                       options_.override_nslb};
  for (std::size_t i = 0; i != flare::fiber::GetSchedulingGroupCount(); ++i) {
    auto channel = std::make_unique<flare::RpcChannel>();
    if (!channel->Open(options_.server_addr, channel_options)) {
      return channel->status();
    }
    channels_.push_back(std::move(channel));
  }
  return flare::Status();
}

void LoadGenerator::Start() {
  schedule_.emplace(options_.qps, options_.requests, flare::NowNs());
  loops_.reserve(options_.max_pending);
  for (std::size_t i = 0; i != options_.max_pending; ++i) {
    const std::size_t group = i % channels_.size();
    loops_.push_back(CallLoop::Create(options_, group, channels_[group].get(),
                                      &*schedule_, recorder_, &running_));
  }
  ramp_up_ = flare::Fiber([this] { RampUp(); });
}

void LoadGenerator::RampUp() {
  const std::size_t per_step = loops_.size() <= kNoRampUpNeeded
                                   ? loops_.size()
                                   : loops_.size() / kRampUpSteps + 1;
  for (std::size_t i = 0; i < loops_.size(); i += per_step) {
    if (i != 0 && !schedule_->stopped()) flare::this_fiber::SleepFor(1ms);
    const std::size_t end = std::min(i + per_step, loops_.size());
    for (std::size_t j = i; j != end; ++j) loops_[j]->Start();
  }
}

void LoadGenerator::Stop() { schedule_->Stop(); }

}  // namespace example
