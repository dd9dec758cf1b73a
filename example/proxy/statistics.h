// A proxy's statistics: as a line for the log, as text, as JSON. docs/proxy.md
// describes the figures.

#ifndef EXAMPLE_PROXY_STATISTICS_H_
#define EXAMPLE_PROXY_STATISTICS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "example/proxy/health_checker.h"
#include "example/proxy/proxy.h"
#include "example/proxy/upstream.h"

namespace example::proxy {

// One moment of a proxy.
struct Snapshot {
  struct UpstreamRow {
    std::string name;
    std::string address;
    Upstream::Statistics connections;
    HealthChecker::Statistics health;
  };

  double uptime_s = 0;
  bool draining = false;
  // How many configurations there have been: 1 at first, and one more with each
  // reload that took effect.
  std::uint64_t generation = 1;
  std::uint64_t reloads_refused = 0;
  std::string last_reload_error;  // Empty: the last reload took effect.
  std::vector<std::string> listening;
  ProxyStatistics sessions;
  std::vector<std::uint64_t> sessions_per_group;
  std::uint64_t access_log_dropped = 0;
  std::uint64_t log_lines_lost = 0;
  std::vector<UpstreamRow> upstreams;
};

// About the `seconds` from `before` to `now`.
std::string StatisticsLine(const Snapshot& before, const Snapshot& now,
                           double seconds);

// Lines of "name value", then a table of the upstreams.
std::string StatisticsText(const Snapshot& snapshot);

std::string StatisticsJson(const Snapshot& snapshot);

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_STATISTICS_H_
