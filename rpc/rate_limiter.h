// Limits of the calls in a second: an interceptor of a server that refuses
// calls beyond a rate, of all callers together, of each method, or of each
// caller.
//
//   auto limiter = flare::RateLimiter::Create({.limits = {
//       {.name = "all", .rate = 10'000},
//       {.name = "search", .methods = {"shop.Catalog.Search"},
//        .per = flare::RateLimit::Per::kCaller, .rate = 20, .burst = 40}}});
//   if (!limiter) return Fail(limiter.error().message());
//   server.AddInterceptor(*limiter);
//
// For calls in all protocols, unary or streaming (a stream is one call), and
// for HTTP handlers. docs/admission.md has the form of files, the answers that
// refused callers get, and metrics. Against a server that is too slow, whatever
// its callers' rates, see docs/overload.md.
#ifndef FLARE_RPC_RATE_LIMITER_H_
#define FLARE_RPC_RATE_LIMITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flare/base/expected.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/rate_limit.h"

namespace flare {

struct RateLimiterOptions {
  std::vector<RateLimit> limits = {};
  // A file of further limits, read once.
  std::string limits_file = "";
};

// A call needs a token of each limit that is for it. Without one it isn't run
// and fails with rpc::STATUS_OVERLOADED: over gRPC RESOURCE_EXHAUSTED, over
// HTTP 503, of an HTTP handler 429. `retry-after` says after how many seconds
// there will be a token; for gRPC `grpc-retry-pushback-ms` does.
//
// Thread-safe, without a lock: a compare-exchange for each limit. Neither
// blocks nor allocates, except to refuse. May be used by several servers, which
// then share its buckets.
class RateLimiter final : public ServerInterceptor {
 public:
  static constexpr std::size_t kMaxLimits = 32;

  // Reads the file, which blocks the thread. Fails if that can't be read or has
  // a mistake ("limits.json:3:14: rate: ..."), or if a limit has one.
  static Expected<std::shared_ptr<RateLimiter>> Create(
      RateLimiterOptions options);

  ~RateLimiter() override;

  void Intercept(InterceptedCall& call, ServerNext& next) override;

 private:
  class Limit;

  explicit RateLimiter(std::vector<std::unique_ptr<Limit>> limits);

  void Refuse(const Limit& limit, std::int64_t wait_ns, InterceptedCall* call);

  const std::vector<std::unique_ptr<Limit>> limits_;
};

}  // namespace flare

#endif  // FLARE_RPC_RATE_LIMITER_H_
