// When a channel leaves a server alone that takes calls but doesn't answer them
// well: `RpcChannel::Options::health`. It has no effect with a single server.
//
//   options.health.consecutive_failures = 10;
//
// A server is *ejected* for one of three reasons: calls to it fail one after
// the other, they fail more often than those of the others, or they take much
// longer. It then gets no calls for a while. After that one call, the
// probe, goes to it: if the probe fails, the server is left alone for twice as
// long; if it is answered, the server's share of calls grows back slowly.
//
// Servers that can't be connected to aren't ejected: connections have a
// back-off of their own (docs/calls.md#servers-that-are-down).
// docs/resilience.md says what to expect.

#ifndef FLARE_RPC_HEALTH_OPTIONS_H_
#define FLARE_RPC_HEALTH_OPTIONS_H_

#include <chrono>
#include <cstddef>

namespace flare {

struct HealthOptions {
  // False: nothing is ejected, and recovered servers get their share at once.
  bool enabled = true;

  // So many calls fail, and none is answered in between: by time-outs, broken
  // connections, replies that can't be read or refusals of a server that is out
  // of service. Calls that fail together, as their connection breaks, count as
  // one. Refusals of an overloaded server don't count, nor do other failures
  // that a server reports. Unless all are time-outs, the server must have
  // failed three times the share of calls that the others have, as below, in
  // the current and the latest interval. 0: not a reason.
  std::size_t consecutive_failures = 5;
  // This share of a server's calls fails by any of these, or by refusals of an
  // overloaded server, and that is three times the share of the other servers.
  // Other failures that a server reports don't count. Shares are compared once
  // in an `interval`, but not before some server has had `min_calls` calls;
  // those of servers with fewer calls say nothing. 0: not a reason.
  double error_rate = 0.05;
  std::size_t min_calls = 50;
  // A call is slow if it takes so many times the median of the servers' means,
  // and at least `slow_from`; if it is still under way, that is soon noticed. A
  // server is ejected if half of its latest calls are slow, at least
  // `slow_calls` of them being compared, and if fewer than a tenth of the other
  // servers' calls are. 0: not a reason.
  double latency_factor = 10;
  std::chrono::nanoseconds slow_from = std::chrono::milliseconds(5);
  std::size_t slow_calls = 20;
  // Latencies are compared ten times in it.
  std::chrono::nanoseconds interval = std::chrono::seconds(1);

  // No more than this share of the servers is ejected at a time, but one of two
  // may always be.
  double max_ejected_share = 0.5;
  // Ejections are ignored while fewer than this share of the servers are left,
  // those that can't be connected to being gone, too: else the rest would get
  // more than it can do.
  double panic_below = 0.3;

  // How long the first ejection lasts; each following one twice as long, up to
  // the second number, less a random part of up to a quarter.
  std::chrono::nanoseconds first_ejection = std::chrono::seconds(1);
  std::chrono::nanoseconds max_ejection = std::chrono::seconds(30);
  // So long after its recovery a server has its whole share again; it begins
  // with a tenth. Servers that are added to a list begin so, too. 0: at once.
  std::chrono::nanoseconds slow_start = std::chrono::seconds(5);
};

}  // namespace flare

#endif  // FLARE_RPC_HEALTH_OPTIONS_H_
