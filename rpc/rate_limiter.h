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

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/rate_limit.h"

namespace flare {

struct RateLimiterOptions {
  std::vector<RateLimit> limits = {};
  // A file of further limits. Read again after it has changed: limits that are
  // the same as before keep their tokens, others begin with all of theirs. If
  // the new version has a mistake all limits stay as they were, and the log
  // names the mistake and its place.
  std::string limits_file = "";
  // Between two looks at the file, which calls cause. 0: it isn't read again.
  std::chrono::nanoseconds reload_interval = std::chrono::seconds(1);
};

// A call needs a token of each limit that is for it. Without one it isn't run
// and fails with rpc::STATUS_OVERLOADED: over gRPC RESOURCE_EXHAUSTED, over
// HTTP 503, of an HTTP handler 429. `retry-after` says after how many seconds
// there will be a token; for gRPC `grpc-retry-pushback-ms` does.
//
// Thread-safe. A call costs a compare-exchange for each limit, and with a file
// that is read again a spinlock for the copy of a pointer. Nothing allocates,
// except to refuse; only a call that looks at the file blocks its fiber
// (io/reload_gate.h). May be used by several servers, which then share its
// buckets.
class RateLimiter final : public ServerInterceptor,
                          public std::enable_shared_from_this<RateLimiter> {
 public:
  static constexpr std::size_t kMaxLimits = 32;

  // Reads the file, which blocks the thread. Fails if that can't be read or has
  // a mistake ("limits.json:3:14: rate: ..."), or if a limit has one.
  static Expected<std::shared_ptr<RateLimiter>> Create(
      RateLimiterOptions options);

  ~RateLimiter() override;

  void Intercept(InterceptedCall& call, ServerNext& next) override;

 private:
  class Admission;
  class File;
  class Limit;
  using Limits = std::vector<std::shared_ptr<Limit>>;

  RateLimiter(Limits limits, std::unique_ptr<File> file);

  // Blocks the thread.
  void CheckFile() FLARE_EXCLUDES(lock_);
  std::shared_ptr<const Limits> file_limits() const FLARE_EXCLUDES(lock_);
  void Refuse(const Limit& limit, std::int64_t wait_ns, InterceptedCall* call);

  const Limits limits_;               // These never change.
  const std::unique_ptr<File> file_;  // Null: no file is read again.
  mutable Spinlock lock_;
  std::shared_ptr<const Limits> file_limits_ FLARE_GUARDED_BY(lock_);
};

}  // namespace flare

#endif  // FLARE_RPC_RATE_LIMITER_H_
