// Counters of the requests of all clients of one kind, by server, for the page
// /metrics.
//
//   static auto* const cells = new ServerCells(/*usual=*/0);
//   cells->Of(server, /*connected=*/true)->End(status, ns);
//
// Any thread; nothing blocks for long.
#ifndef FLARE_RPC_CLIENT_SERVER_CELLS_H_
#define FLARE_RPC_CLIENT_SERVER_CELLS_H_

#include <map>
#include <string>

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/rpc/call_cells.h"

namespace flare::rpc {

// To be kept until the process ends: requests may end while it does.
class ServerCells {
 public:
  // `usual`: see CallCells.
  explicit ServerCells(int usual) : usual_(usual) {}

  // Servers that no request has `connected` to share "(other)", so that hosts
  // that aren't there take no place, and so do those beyond
  // metrics::kMaxSeries. Valid as long as this object.
  CallCells* Of(const std::string& server, bool connected);

  // By server.
  std::map<std::string, CallCells::Values> Read() const;

 private:
  const int usual_;
  mutable ThreadMutex lock_;
  std::map<std::string, CallCells> servers_ FLARE_GUARDED_BY(lock_);
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_SERVER_CELLS_H_
