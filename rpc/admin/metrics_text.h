// Metrics in Prometheus' text format, version 0.0.4.
#ifndef FLARE_RPC_ADMIN_METRICS_TEXT_H_
#define FLARE_RPC_ADMIN_METRICS_TEXT_H_

#include <ostream>

#include "flare/rpc/metrics.h"

namespace flare::rpc {

// The Content-Type, without the character set.
inline constexpr char kMetricsTextType[] = "text/plain; version=0.0.4";

// One metric with all of its series; nothing if there are none. '?' takes the
// place of bytes that aren't UTF-8.
void WriteMetric(const metrics::Snapshot& metric, std::ostream& out);

}  // namespace flare::rpc

#endif  // FLARE_RPC_ADMIN_METRICS_TEXT_H_
