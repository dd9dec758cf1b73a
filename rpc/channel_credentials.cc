#include "flare/rpc/channel_credentials.h"

#include <algorithm>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/blocking_region.h"
#include "flare/rpc/rpc_status.h"
#include "glog/logging.h"

namespace flare {
namespace {

using namespace std::literals;

constexpr std::int64_t kForever = INT64_MAX;
// Less would keep the thread busy with credentials that have expired already.
constexpr std::chrono::nanoseconds kShortestRenewal = 10ms;

std::int64_t ExpiryNs(std::chrono::steady_clock::time_point when) {
  return when == std::chrono::steady_clock::time_point::max()
             ? kForever
             : ToSteadyNs(when);
}

}  // namespace

Expected<std::shared_ptr<ChannelCredentials>> ChannelCredentials::Create(
    Fetch fetch, ChannelCredentialsOptions options) {
  std::shared_ptr<ChannelCredentials> made(
      new ChannelCredentials(std::move(fetch), std::move(options)));
  auto first = made->Ask();
  if (!first) return first.error();
  const bool expires = (*first)->expires_ns != kForever;
  const std::chrono::nanoseconds renewal = made->RenewalOf(**first);
  {
    ScopedLock guard(made->lock_);
    made->current_ = *std::move(first);
  }
  if (expires) {
    made->thread_ =
        std::thread([raw = made.get(), renewal] { raw->RunRenewals(renewal); });
  }
  return made;
}

ChannelCredentials::ChannelCredentials(Fetch fetch,
                                       ChannelCredentialsOptions options)
    : fetch_(std::move(fetch)), options_(std::move(options)) {}

ChannelCredentials::~ChannelCredentials() {
  {
    const std::scoped_lock guard(ending_mutex_);
    ending_ = true;
  }
  ending_changed_.notify_all();
  // The last channel may end on a fiber: others of its worker go on meanwhile.
  if (thread_.joinable()) fiber::RunBlocking([this] { thread_.join(); });
}

Status ChannelCredentials::AddTo(Metadata* metadata) const {
  std::shared_ptr<const Current> current;
  {
    ScopedLock guard(lock_);
    current = current_;
  }
  if (metadata->Contains(options_.name)) return {};
  const std::int64_t now_ns = NowNs();
  if (now_ns < current->expires_ns) {
    return metadata->Add(options_.name, current->value);
  }
  std::string why;
  {
    ScopedLock guard(lock_);
    why = last_error_;
  }
  return Status(rpc::STATUS_UNAUTHENTICATED,
                "the channel's credential (" + options_.name + ") expired " +
                    std::to_string((now_ns - current->expires_ns) / kNsPerMs) +
                    " ms ago and isn't renewed: " +
                    (why.empty() ? "the renewal hasn't ended" : why));
}

// --- renewals --------------------------------------------------------------

Expected<std::shared_ptr<const ChannelCredentials::Current>>
ChannelCredentials::Ask() const {
  auto fetched = fetch_();
  if (!fetched) return fetched.error();
  Metadata probe;
  if (Status added = probe.Add(options_.name, fetched->value); !added.ok()) {
    return added;
  }
  return std::make_shared<const Current>(
      Current{.value = std::move(fetched->value),
              .expires_ns = ExpiryNs(fetched->expires)});
}

std::chrono::nanoseconds ChannelCredentials::RenewalOf(
    const Current& current) const {
  const std::chrono::nanoseconds left(
      std::max<std::int64_t>(0, current.expires_ns - NowNs()));
  return std::max(kShortestRenewal, left - std::min(options_.ahead, left / 2));
}

void ChannelCredentials::RunRenewals(std::chrono::nanoseconds first) {
  std::chrono::nanoseconds next = first;
  while (SleepFor(next)) {
    auto renewed = Ask();
    if (renewed && (*renewed)->expires_ns <= NowNs()) {
      renewed = Status(rpc::STATUS_UNAUTHENTICATED,
                       "the new one has expired already");
    }
    if (!renewed) {
      LOG(WARNING) << "a channel's credential (" << options_.name
                   << ") can't be renewed: " << renewed.error().ToString();
      std::string why = renewed.error().ToString();
      ScopedLock guard(lock_);
      last_error_.swap(why);
      next = std::max(kShortestRenewal, options_.retry_after);
      continue;
    }
    if ((*renewed)->expires_ns == kForever) {
      ScopedLock guard(lock_);
      current_.swap(*renewed);
      return;
    }
    next = RenewalOf(**renewed);
    std::string none;
    ScopedLock guard(lock_);
    current_.swap(*renewed);
    last_error_.swap(none);
  }
}

bool ChannelCredentials::SleepFor(std::chrono::nanoseconds span) {
  // Far ends would overflow the clock.
  const auto bounded = std::min<std::chrono::nanoseconds>(span, 24h * 365);
  std::unique_lock guard(ending_mutex_);
  return !ending_changed_.wait_for(guard, bounded, [this] { return ending_; });
}

}  // namespace flare
