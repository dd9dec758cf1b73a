#include "flare/rpc/rate_limiter.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/read_file.h"
#include "flare/rpc/admission/admission_counters.h"
#include "flare/rpc/admission/rate_limit_rules.h"
#include "flare/rpc/admission/token_bucket.h"
#include "flare/rpc/rpc_status.h"

namespace flare {

class RateLimiter::Limit {
 public:
  explicit Limit(RateLimit limit)
      : limit_(std::move(limit)),
        rate_(rpc::TokenRate::Of(
            limit_.rate,
            limit_.burst != 0 ? limit_.burst : std::max(limit_.rate, 1.0))),
        counters_(*rpc::AdmissionCountersOf(limit_.name)) {
    if (limit_.per != RateLimit::Per::kServer) {
      callers_.emplace(limit_.max_callers);
    }
  }

  bool IsFor(const InterceptedCall& call) const {
    return rpc::IsLimitFor(limit_.methods, call.method());
  }

  rpc::TokenBucket* BucketOf(const InterceptedCall& call, std::int64_t now_ns) {
    return callers_ ? callers_->Find(HashOf(call), now_ns) : &whole_;
  }

  const std::string& name() const { return limit_.name; }
  bool only_count() const { return limit_.only_count; }
  const rpc::TokenRate& token_rate() const { return rate_; }
  rpc::AdmissionCounters& counters() const { return counters_; }

 private:
  static std::uint64_t HashOfText(std::string_view text) {
    return std::hash<std::string_view>()(text);
  }

  static std::uint64_t HashOfAddress(const InterceptedCall& call) {
    Endpoint address = call.peer();
    address.set_port(0);
    return address.Hash();
  }

  static std::uint64_t HashOfCaller(const InterceptedCall& call) {
    // Kinds of names are kept apart: a name by authentication isn't that of a
    // certificate.
    const RpcServerController& controller = call.controller();
    if (!controller.caller().empty()) return HashOfText(controller.caller());
    const PeerIdentity* const shown = controller.peer_identity();
    if (shown != nullptr && shown->verified) {
      return HashOfText(shown->subject) + 1;
    }
    return HashOfAddress(call) + 2;
  }

  std::uint64_t HashOf(const InterceptedCall& call) const {
    switch (limit_.per) {
      case RateLimit::Per::kMethod:
        return HashOfText(call.method());
      case RateLimit::Per::kCaller:
        return HashOfCaller(call);
      case RateLimit::Per::kAddress:
        return HashOfAddress(call);
      default:
        break;
    }
    const std::optional<std::string_view> value =
        call.http_request() != nullptr
            ? call.http_request()->headers()->TryGet(limit_.metadata)
            : call.controller().GetRequestMetadata().Get(limit_.metadata);
    return HashOfText(value.value_or(std::string_view()));
  }

  const RateLimit limit_;
  const rpc::TokenRate rate_;
  rpc::AdmissionCounters& counters_;
  rpc::TokenBucket whole_;
  std::optional<rpc::CallerBuckets> callers_;
};

Expected<std::shared_ptr<RateLimiter>> RateLimiter::Create(
    RateLimiterOptions options) {
  const auto fail = [](std::string why) {
    return flare::Status(rpc::STATUS_FAILED, std::move(why));
  };
  std::vector<RateLimit> all = std::move(options.limits);
  for (const RateLimit& limit : all) {
    const std::string mistake = rpc::MistakeOf(limit);
    if (!mistake.empty()) {
      return fail("limit \"" + limit.name + "\": " + mistake);
    }
  }
  if (!options.limits_file.empty()) {
    const auto text = ReadFile(options.limits_file, rpc::kMaxRateLimitsBytes);
    if (!text) return text.error();
    auto limits = rpc::ParseRateLimits(*text);
    if (!limits) {
      return fail(options.limits_file + ':' + limits.error().message());
    }
    std::move(limits->begin(), limits->end(), std::back_inserter(all));
  }
  if (all.size() > kMaxLimits) {
    return fail("there are " + std::to_string(all.size()) +
                " limits by rate: a limiter has at most " +
                std::to_string(kMaxLimits) + "; add a second one");
  }
  std::set<std::string> names;
  std::vector<std::unique_ptr<Limit>> limits;
  for (RateLimit& limit : all) {
    if (!names.insert(limit.name).second) {
      return fail("there are two limits named \"" + limit.name +
                  "\": metrics couldn't tell them apart");
    }
    limits.push_back(std::make_unique<Limit>(std::move(limit)));
  }
  return std::shared_ptr<RateLimiter>(new RateLimiter(std::move(limits)));
}

RateLimiter::RateLimiter(std::vector<std::unique_ptr<Limit>> limits)
    : limits_(std::move(limits)) {}

RateLimiter::~RateLimiter() = default;

void RateLimiter::Intercept(InterceptedCall& call, ServerNext& next) {
  const std::int64_t now_ns = NowNs();
  // Tokens that the call has, to be given back if a later limit refuses it.
  struct Taken {
    Limit* limit;
    rpc::TokenBucket* bucket;
  };
  std::array<Taken, kMaxLimits> taken;
  std::size_t count = 0;
  for (const std::unique_ptr<Limit>& limit : limits_) {
    if (!limit->IsFor(call)) continue;
    rpc::TokenBucket* const bucket = limit->BucketOf(call, now_ns);
    const std::int64_t wait_ns = bucket->Take(limit->token_rate(), now_ns);
    if (wait_ns == 0) {
      taken[count++] = {limit.get(), bucket};
    } else if (limit->only_count()) {
      limit->counters().would_refuse.Add();
    } else {
      for (std::size_t i = 0; i != count; ++i) {
        taken[i].bucket->GiveBack(taken[i].limit->token_rate());
      }
      return Refuse(*limit, wait_ns, &call);
    }
  }
  for (std::size_t i = 0; i != count; ++i) {
    taken[i].limit->counters().admitted.Add();
  }
  next.Run();
}

void RateLimiter::Refuse(const Limit& limit, std::int64_t wait_ns,
                         InterceptedCall* call) {
  limit.counters().refused.Add();
  call->SetFailed(rpc::STATUS_OVERLOADED,
                  "The call is beyond the rate limit \"" + limit.name() +
                      "\": call less often.");
  // Rounded up: a caller that waits for so long finds a token.
  const std::string seconds =
      std::to_string((wait_ns + 999'999'999) / 1'000'000'000);
  if (HttpResponse* const response = call->http_response()) {
    response->set_status(HttpStatus::TooManyRequests);
    response->headers()->Set("Retry-After", seconds);
    return;
  }
  call->controller().AddResponseMetadata("retry-after", seconds);
  call->controller().AddResponseMetadata(
      "grpc-retry-pushback-ms",
      std::to_string((wait_ns + 999'999) / 1'000'000));
}

}  // namespace flare
