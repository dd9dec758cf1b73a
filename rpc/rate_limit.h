// A limit of the calls in a second, for RateLimiter (rate_limiter.h). A plain
// value.
#ifndef FLARE_RPC_RATE_LIMIT_H_
#define FLARE_RPC_RATE_LIMIT_H_

#include <cstddef>
#include <string>
#include <vector>

namespace flare {

struct RateLimit {
  // Calls that share a bucket of tokens.
  enum class Per {
    kServer,    // All calls that the limit is for.
    kMethod,    // Those of one method, or of one path of HTTP.
    kCaller,    // Those of one caller: by RpcServerController::caller(), else
                // by its verified certificate, else by its address.
    kAddress,   // Those from one address, or network, whatever the port.
    kMetadata,  // Those with the same value of an entry of metadata, or of a
                // field of HTTP; calls without it share one.
  };

  // Appears in metrics and in the text of refusals. Each limit of a limiter has
  // a name of its own.
  std::string name = "";
  // "*", "package.Service.Method", "package.Service.*", "/path" or "/path/*".
  // "*" is for all except the pages under /inspect and /metrics.
  std::vector<std::string> methods = {"*"};
  Per per = Per::kServer;
  // The name of the entry, in lower case. For kMetadata only.
  std::string metadata = "";
  // Calls in a second: 0.001 to 1,000,000.
  double rate = 0;
  // Calls at once after a pause: at least 1, at most those of a day. 0: the
  // calls of a second, but at least one.
  double burst = 0;
  // Callers that are told apart by address are so by the first bits of it, 0 to
  // 32 and 0 to 128. An IPv4 address in the form of IPv6 is one of IPv4. A home
  // or a host usually has all IPv6 addresses with the same 64 bits.
  unsigned ipv4_prefix = 32;
  unsigned ipv6_prefix = 64;
  // Refuses nothing, but counts the calls that it would refuse.
  bool only_count = false;
  // Callers (or methods) that are told apart: 1 to 1,000,000. Each takes 16
  // bytes. Further ones share a bucket until others have paused.
  std::size_t max_callers = 10'000;

  bool operator==(const RateLimit&) const = default;
};

}  // namespace flare

#endif  // FLARE_RPC_RATE_LIMIT_H_
