#include "flare/fiber/scheduler/shuffle.h"

#include <sched.h>

#include <charconv>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>

#include "flare/base/clock.h"
#include "flare/base/cpu.h"
#include "flare/base/random.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

constexpr const char* kVariable = "FLARE_SHUFFLE_SEED";

std::string_view Requested() {
  const char* const value = std::getenv(kVariable);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

}  // namespace

std::uint64_t ShuffledSchedule::Random() {
  // relaxed: each draw only has to be another one.
  return MixBits(seed_ + drawn_.fetch_add(1, std::memory_order_relaxed));
}

// Now and then as if the thread had been preempted, briefly or for a turn.
void ShuffledSchedule::BeforeTask(std::int64_t) {
  const std::uint64_t random = Random();
  if (random % 64 == 0) {
    const auto length = static_cast<std::int64_t>((random >> 32) % 20'000);
    for (const std::int64_t end = NowNs() + length; NowNs() < end;) CpuRelax();
  } else if (random % 64 == 1) {
    sched_yield();
  }
}

std::size_t ShuffledSchedule::ChooseTask(std::size_t queued) {
  return Random() % queued;
}

bool ShuffledSchedule::GiveAway() { return Random() % 16 == 0; }

bool IsShuffleRequested() { return !Requested().empty(); }

Expected<std::shared_ptr<Schedule>, Status> ScheduleFromEnvironment() {
  const std::string_view text = Requested();
  if (text.empty()) return std::shared_ptr<Schedule>();
  std::uint64_t seed = 0;
  if (text == "random") {
    seed = std::random_device()();
  } else {
    const char* const end = text.data() + text.size();
    const auto [parsed, error] = std::from_chars(text.data(), end, seed);
    if (error != std::errc() || parsed != end) {
      return Status(-1, std::string(kVariable) + " is \"" + std::string(text) +
                            "\"; it must be a number or \"random\"");
    }
  }
  LOG(WARNING) << "schedules are shuffled: " << kVariable << "=" << seed;
  return std::shared_ptr<Schedule>(std::make_shared<ShuffledSchedule>(seed));
}

}  // namespace flare::fiber
