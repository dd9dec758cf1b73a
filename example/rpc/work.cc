#include "example/rpc/work.h"

#include <algorithm>
#include <cerrno>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "flare/base/clock.h"

namespace example {
namespace {

using namespace std::literals;

constexpr std::chrono::microseconds kLongest = 10s;
// As in the published test, where 50 us on average are 1000 at most.
constexpr int kPoissonLimit = 20;

constexpr std::pair<std::string_view, WorkKind> kKinds[] = {
    {"none", WorkKind::kNone},
    {"sleep_thread", WorkKind::kSleepThread},
    {"sleep_fiber", WorkKind::kSleepFiber},
    {"spin", WorkKind::kSpin},
};

flare::Status Bad(std::string text) { return {EINVAL, std::move(text)}; }

void Spin(std::chrono::microseconds length) {
  const std::int64_t end = flare::NowNs() + flare::ToNs(length);
  while (flare::NowNs() < end) continue;
}

}  // namespace

std::optional<WorkKind> ParseWorkKind(std::string_view name) {
  for (const auto& [text, kind] : kKinds) {
    if (text == name) return kind;
  }
  return std::nullopt;
}

flare::Expected<Work, flare::Status> RequestedWork(int kind,
                                                   std::uint32_t length_us) {
  const Work work{static_cast<WorkKind>(kind),
                  std::chrono::microseconds(length_us)};
  if (work.kind < WorkKind::kNone || work.kind > WorkKind::kSpin) {
    return Bad("the request asks for work of kind " + std::to_string(kind) +
               ", which isn't known");
  }
  if (work.length > kLongest) {
    return Bad("the request asks for " + std::to_string(length_us) +
               " us of work; 10 s are the most");
  }
  return work;
}

// Never inlined: a fiber may go on on another thread after it has blocked, and
// the compiler must not keep the address of the old thread's generator.
[[gnu::noinline]] Work WorkSource::Draw() const {
  if (distribution_ == Distribution::kFixed || work_.length == 0us) {
    return work_;
  }
  static thread_local std::mt19937 generator{std::random_device{}()};
  const auto mean = work_.length.count();
  std::poisson_distribution<std::int64_t> length(static_cast<double>(mean));
  return {work_.kind, std::chrono::microseconds(
                          std::min(length(generator), kPoissonLimit * mean))};
}

flare::Expected<WorkSource, flare::Status> MakeWorkSource(
    std::string_view kind, int length_us, std::string_view distribution) {
  const auto parsed = ParseWorkKind(kind);
  if (!parsed) {
    return Bad("--work=" + std::string(kind) +
               " is not known; known are none, sleep_thread, sleep_fiber "
               "and spin.");
  }
  const std::chrono::microseconds length(length_us);
  if (length < 0us || length > kLongest) {
    return Bad("--work_us=" + std::to_string(length_us) +
               " must be between 0 and 10000000.");
  }
  if (distribution != "fixed" && distribution != "poisson") {
    return Bad("--work_dist=" + std::string(distribution) +
               " is not known; known are fixed and poisson.");
  }
  return WorkSource({*parsed, length},
                    distribution == "fixed"
                        ? WorkSource::Distribution::kFixed
                        : WorkSource::Distribution::kPoisson);
}

void DoWorkOnThread(const Work& work) {
  switch (work.kind) {
    case WorkKind::kNone:
      return;
    case WorkKind::kSleepThread:
    case WorkKind::kSleepFiber:
      return std::this_thread::sleep_for(work.length);
    case WorkKind::kSpin:
      return Spin(work.length);
  }
}

}  // namespace example
