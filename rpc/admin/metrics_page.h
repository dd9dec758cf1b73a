// The page /metrics: the library's counters, and the metrics of the program
// (metrics.h), in Prometheus' text format. docs/metrics.md lists them.
#ifndef FLARE_RPC_ADMIN_METRICS_PAGE_H_
#define FLARE_RPC_ADMIN_METRICS_PAGE_H_

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "flare/rpc/call_cells.h"
#include "flare/rpc/server_statistics.h"

namespace flare::rpc {

// Any thread. Reads files of /proc, and counts the descriptors there.
void WriteMetricsPage(const ServerStatistics& server,
                      const std::vector<ServerMethodStatistics>& methods,
                      const std::map<std::string, CallCells::Values>& handlers,
                      std::ostream& out);

}  // namespace flare::rpc

#endif  // FLARE_RPC_ADMIN_METRICS_PAGE_H_
