#include "flare/rpc/naming/dns_resolution.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/fiber/blocking_region.h"
#include "flare/rpc/naming/dns_query.h"
#include "flare/rpc/naming/refresh_gate.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

// A record with a time to live of 0 isn't asked for before each call, and one
// that is good for a day is asked for again, as people make mistakes.
constexpr std::int64_t kLeastNs = kNsPerSecond;
constexpr std::int64_t kMostNs = 300 * kNsPerSecond;

// After failures, doubled from the first.
constexpr std::int64_t kMostAfterFailuresNs = 30 * kNsPerSecond;

using Answer = Expected<DnsAnswer, flare::Status>;

Answer AskOnAThread(const DnsQuestion& question) {
  std::optional<Answer> answer;
  try {
    fiber::RunBlocking(
        [&] { std::thread([&] { answer.emplace(AskDns(question)); }).join(); });
  } catch (const std::system_error& error) {
    return flare::Status(EAGAIN, std::string("no thread: ") + error.what());
  }
  return *std::move(answer);
}

class DnsResolution final : public BackgroundResolution {
 public:
  // Blocks, as it asks.
  DnsResolution(DnsQuestion question, const UpdateInterval& interval)
      : BackgroundResolution(interval), question_(std::move(question)) {
    Take(AskOnAThread(question_));
  }

 private:
  void Refresh() override {
    auto answer = RefreshGate::Instance()->Ask(
        [question = question_] { return AskDns(question); });
    if (answer) Take(*std::move(answer));
  }

  void Take(Answer answer) {
    if (!answer) {
      RefreshAfter(interval() ? IntervalNs() : after_failure_ns_);
      after_failure_ns_ = std::min(2 * after_failure_ns_, kMostAfterFailuresNs);
      if (SetFailure(answer.error())) {
        LOG(WARNING) << (Peers().empty()
                             ? "no server is known yet: "
                             : "servers that were known stay in use: ")
                     << answer.error().message();
      }
      return;
    }
    after_failure_ns_ = kLeastNs;
    RefreshAfter(
        interval() ? IntervalNs()
                   : std::clamp(ToNs(answer->time_to_live), kLeastNs, kMostNs));
    Set(std::move(answer->peers));
    if (SetFailure({})) {
      LOG(INFO) << "DNS answers for \"" << question_.name << "\" again";
    }
  }

  const DnsQuestion question_;
  // For refreshes, and the constructor.
  std::int64_t after_failure_ns_ = kLeastNs;
};

}  // namespace

Resolution ResolveDns(std::string_view address,
                      const UpdateInterval& interval) {
  auto question = ReadDnsQuestion(address);
  if (!question) return question.error();
  std::shared_ptr<NameResolution> resolution =
      std::make_shared<DnsResolution>(*std::move(question), interval);
  return resolution;
}

}  // namespace flare::rpc
