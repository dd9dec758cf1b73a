// Counters of limits by their names, and of files of limits, for the page
// /metrics.
#ifndef FLARE_RPC_ADMISSION_ADMISSION_COUNTERS_H_
#define FLARE_RPC_ADMISSION_ADMISSION_COUNTERS_H_

#include <string>

#include "flare/rpc/metrics.h"

namespace flare::rpc {

// The counters of all limits with one name.
struct AdmissionCounters {
  metrics::Counter admitted;
  metrics::Counter refused;
  metrics::Counter would_refuse;  // For limits that only count.
};

// The counters of a file of limits: versions of it that took effect, the first
// included, and those with a mistake.
struct LimitsFileCounters {
  metrics::Counter used;
  metrics::Counter wrong;
};

// Those of the name, made if there are none. Stay until the process ends. All
// names beyond metrics::kMaxSeries share those of "(other)". Thread-safe.
AdmissionCounters* AdmissionCountersOf(const std::string& name);
LimitsFileCounters* LimitsFileCountersOf(const std::string& file);

// flare_rate_limit_calls_total, with labels `limit` and `outcome`; without
// series if there are no limits.
metrics::Snapshot ReadAdmissionCounters();
// flare_rate_limit_file_versions_total, with labels `file` and `outcome`;
// without series if there are no files.
metrics::Snapshot ReadLimitsFileCounters();

}  // namespace flare::rpc

#endif  // FLARE_RPC_ADMISSION_ADMISSION_COUNTERS_H_
