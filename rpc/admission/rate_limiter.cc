#include "flare/rpc/rate_limiter.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/read_file.h"
#include "flare/io/reload_gate.h"
#include "flare/rpc/admission/admission_counters.h"
#include "flare/rpc/admission/rate_limit_rules.h"
#include "flare/rpc/admission/token_bucket.h"
#include "flare/rpc/rpc_status.h"
#include "glog/logging.h"

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

  // One for each of `wanted`. Those that are in `old`, too, are taken over with
  // their tokens. Fails if `others` and these don't go together.
  static Expected<Limits> MakeAll(std::vector<RateLimit> wanted,
                                  const Limits& others, const Limits& old);

  bool IsFor(const InterceptedCall& call) const {
    return rpc::IsLimitFor(limit_.methods, call.method());
  }

  rpc::TokenBucket* BucketOf(const InterceptedCall& call, std::int64_t now_ns) {
    return callers_ ? callers_->Find(HashOf(call), now_ns) : &whole_;
  }

  const RateLimit& definition() const { return limit_; }
  const std::string& name() const { return limit_.name; }
  bool only_count() const { return limit_.only_count; }
  const rpc::TokenRate& token_rate() const { return rate_; }
  rpc::AdmissionCounters& counters() const { return counters_; }

 private:
  static std::uint64_t HashOfText(std::string_view text) {
    return std::hash<std::string_view>()(text);
  }

  std::uint64_t HashOfAddress(const InterceptedCall& call) const {
    return call.peer().Network(limit_.ipv4_prefix, limit_.ipv6_prefix).Hash();
  }

  std::uint64_t HashOfCaller(const InterceptedCall& call) const {
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

// The file, and the last look at it.
class RateLimiter::File {
 public:
  File(std::string path, std::chrono::nanoseconds reload_interval)
      : path_(std::move(path)),
        gate_(reload_interval),
        counters_(*rpc::LimitsFileCountersOf(path_)) {}

  io::ReloadGate& gate() { return gate_; }
  const std::string& path() const { return path_; }

  // Reads all of it, which blocks the thread. Limits that are in `old`, too,
  // are taken over from there. Fails if there is a mistake, or if `others` and
  // the file don't go together.
  Expected<Limits> Read(const Limits& others, const Limits& old) const;

  // For one thread at a time. IsDue() returns whether this version of the file
  // must be read: it is a new one, or was unusable, maybe half written. The
  // others take the outcome, after which the version isn't new any more;
  // Failed() returns whether that is news.
  std::string Version() const { return VersionOfFile(path_); }
  bool IsDue(const std::string& version) const {
    return version != version_ || !complaint_.empty();
  }
  void Succeeded(std::string version) {
    version_ = std::move(version);
    complaint_.clear();
    counters_.used.Add();
  }
  bool Failed(std::string version, std::string complaint) {
    const bool is_news = version != version_ || complaint != complaint_;
    version_ = std::move(version);
    complaint_ = std::move(complaint);
    if (is_news) counters_.wrong.Add();
    return is_news;
  }

 private:
  const std::string path_;
  io::ReloadGate gate_;
  std::string version_;    // The one that was read last.
  std::string complaint_;  // Empty: the file was usable at the last look.
  rpc::LimitsFileCounters& counters_;
};

namespace {

flare::Status Mistake(std::string why) {
  return flare::Status(rpc::STATUS_FAILED, std::move(why));
}

}  // namespace

Expected<RateLimiter::Limits> RateLimiter::File::Read(const Limits& others,
                                                      const Limits& old) const {
  const auto text = ReadFile(path_, rpc::kMaxRateLimitsBytes);
  if (!text) return text.error();
  auto wanted = rpc::ParseRateLimits(*text);
  if (!wanted) return Mistake(path_ + ':' + wanted.error().message());
  return Limit::MakeAll(*std::move(wanted), others, old);
}

Expected<RateLimiter::Limits> RateLimiter::Limit::MakeAll(
    std::vector<RateLimit> wanted, const Limits& others, const Limits& old) {
  if (const std::size_t all = wanted.size() + others.size(); all > kMaxLimits) {
    return Mistake("there are " + std::to_string(all) +
                   " limits by rate: a limiter has at most " +
                   std::to_string(kMaxLimits) + "; add a second one");
  }
  std::set<std::string> names;
  for (const auto& other : others) names.insert(other->name());
  Limits limits;
  for (RateLimit& limit : wanted) {
    if (!names.insert(limit.name).second) {
      return Mistake("there are two limits named \"" + limit.name +
                     "\": metrics couldn't tell them apart");
    }
    const auto same = std::find_if(
        old.begin(), old.end(),
        [&](const auto& known) { return known->definition() == limit; });
    limits.push_back(
        same != old.end() ? *same : std::make_shared<Limit>(std::move(limit)));
  }
  return limits;
}

Expected<std::shared_ptr<RateLimiter>> RateLimiter::Create(
    RateLimiterOptions options) {
  for (const RateLimit& limit : options.limits) {
    const std::string mistake = rpc::MistakeOf(limit);
    if (!mistake.empty()) {
      return Mistake("limit \"" + limit.name + "\": " + mistake);
    }
  }
  auto limits = Limit::MakeAll(std::move(options.limits), {}, {});
  if (!limits) return limits.error();
  std::unique_ptr<File> file;
  Limits of_file;
  if (!options.limits_file.empty()) {
    file = std::make_unique<File>(std::move(options.limits_file),
                                  options.reload_interval);
    std::string version = file->Version();
    auto read = file->Read(*limits, {});
    if (!read) return read.error();
    file->Succeeded(std::move(version));
    of_file = *std::move(read);
    if (options.reload_interval.count() <= 0) {  // They never change either.
      limits->insert(limits->end(), of_file.begin(), of_file.end());
      file.reset();
    }
  }
  std::shared_ptr<RateLimiter> limiter(
      new RateLimiter(*std::move(limits), std::move(file)));
  const ScopedLock guard(limiter->lock_);
  limiter->file_limits_ = std::make_shared<const Limits>(std::move(of_file));
  return limiter;
}

RateLimiter::RateLimiter(Limits limits, std::unique_ptr<File> file)
    : limits_(std::move(limits)), file_(std::move(file)) {}

RateLimiter::~RateLimiter() = default;

void RateLimiter::CheckFile() {
  std::string version = file_->Version();
  if (!file_->IsDue(version)) return;
  auto read = file_->Read(limits_, *file_limits());
  if (!read) {
    if (file_->Failed(std::move(version), read.error().message())) {
      LOG(ERROR) << "limits by rate stay as they were: "
                 << read.error().message();
    }
    return;
  }
  const std::size_t count = read->size();
  auto limits = std::make_shared<const Limits>(*std::move(read));
  {
    const ScopedLock guard(lock_);
    file_limits_.swap(limits);
  }
  // Behind all that may throw for want of memory: the next look reads the
  // version again then.
  file_->Succeeded(std::move(version));
  LOG(INFO) << "limits by rate are now those of " << file_->path() << ": "
            << count;
}

std::shared_ptr<const RateLimiter::Limits> RateLimiter::file_limits() const {
  const ScopedLock guard(lock_);
  return file_limits_;
}

// The tokens of one call, to be given back if a later limit refuses it.
class RateLimiter::Admission {
 public:
  explicit Admission(const InterceptedCall& call)
      : call_(call), now_ns_(NowNs()) {}

  // Takes a token of each limit that is for the call. Returns the limit that
  // refuses it; null: none does.
  const Limit* Enter(const Limits& limits) {
    for (const std::shared_ptr<Limit>& limit : limits) {
      if (!limit->IsFor(call_)) continue;
      rpc::TokenBucket* const bucket = limit->BucketOf(call_, now_ns_);
      wait_ns_ = bucket->Take(limit->token_rate(), now_ns_);
      if (wait_ns_ == 0) {
        taken_[count_++] = {limit.get(), bucket};
      } else if (limit->only_count()) {
        limit->counters().would_refuse.Add();
      } else {
        GiveBack();
        return limit.get();
      }
    }
    return nullptr;
  }
  void Count() {
    for (std::size_t i = 0; i != count_; ++i) {
      taken_[i].limit->counters().admitted.Add();
    }
  }
  // Until the limit that refuses the call has a token.
  std::int64_t wait_ns() const { return wait_ns_; }

 private:
  struct Taken {
    Limit* limit;
    rpc::TokenBucket* bucket;
  };

  void GiveBack() {
    for (std::size_t i = 0; i != count_; ++i) {
      taken_[i].bucket->GiveBack(taken_[i].limit->token_rate());
    }
  }

  const InterceptedCall& call_;
  const std::int64_t now_ns_;
  std::int64_t wait_ns_ = 0;
  std::size_t count_ = 0;
  std::array<Taken, kMaxLimits> taken_;
};

void RateLimiter::Intercept(InterceptedCall& call, ServerNext& next) {
  {
    if (file_ != nullptr) {
      file_->gate().LookIfDue(this, &RateLimiter::CheckFile);
    }
    // Held, as a look at the file may replace them meanwhile.
    const auto of_file = file_ != nullptr ? file_limits() : nullptr;
    Admission admission(call);
    const Limit* refusing = admission.Enter(limits_);
    if (refusing == nullptr && of_file != nullptr) {
      refusing = admission.Enter(*of_file);
    }
    if (refusing != nullptr) {
      return Refuse(*refusing, admission.wait_ns(), &call);
    }
    admission.Count();
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
