// Counters of the requests of all HttpClients of the process, for the page
// /metrics.
//
//   HttpClientCounters::Of("https://example.com", /*connected=*/true)
//       ->End(200, ns);
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
  // No HttpErrorCode and no status: other errors, and statuses that HTTP hasn't
  // got, both of interceptors.
  static constexpr int kUnknown = -1;

  // Those of requests to a server: by the status of their responses, or by the
  // HttpErrorCode of those that got none, which is no status. Servers that no
  // request has `connected` to share "(other)", so that hosts that aren't there
  // take no place, and so do those beyond metrics::kMaxSeries. Valid until the
  // process ends.
  static CallCells* Of(const std::string& server, bool connected);

  // By server.
  static std::map<std::string, CallCells::Values> Read();
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_CLIENT_HTTP_CLIENT_COUNTERS_H_
