// Counters of the requests of all HttpClients of the process, for the page
// /metrics.
//
//   CallCells* const cells = HttpClientCounters::Of("https://example.com");
//   cells->End(200, ns);
//
// Any thread; nothing blocks for long.
#ifndef FLARE_RPC_HTTP_CLIENT_HTTP_CLIENT_COUNTERS_H_
#define FLARE_RPC_HTTP_CLIENT_HTTP_CLIENT_COUNTERS_H_

#include <map>
#include <string>

#include "flare/rpc/call_cells.h"

namespace flare::rpc {

class HttpClientCounters {
 public:
  // Those of requests to a server: by the status of their responses, or by the
  // HttpErrorCode of those that got none, which is no status. Servers beyond
  // metrics::kMaxSeries share "(other)". Valid until the process ends.
  static CallCells* Of(const std::string& server);

  // By server.
  static std::map<std::string, CallCells::Values> Read();
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_CLIENT_HTTP_CLIENT_COUNTERS_H_
