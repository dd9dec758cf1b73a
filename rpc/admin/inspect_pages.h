// The pages under /inspect that every server has, for people who look at a
// running process:
//
//   /inspect             the list of pages; as links for browsers
//   /inspect/server      counters of this server (ServerStatistics)
//   /inspect/methods     counters and latencies of each method
//                        (ServerMethodStatistics)
//   /inspect/channels    channels of the process, and the state of their
//                        servers; 1,000 channels and 20,000 servers at most
//   /inspect/scheduler   counters of the fiber runtime, per task, too, and
//                        how long ready tasks waited to be run
//   /inspect/fibers      fibers: their tasks, waits and places; of
//                        20,000 at most, for at most a second
//   /inspect/stacks      how deep stacks got, by the function that tasks start
//                        with, and the size this suggests; without
//                        --flare_fiber_stack_profile, that nothing is known
//   /inspect/flags       flags, and changes of some of them (flags_page.h)
//   /inspect/profile/... profiles of CPU, heap and waits for locks
//   /inspect/contention  waits for locks, as a text (profile_pages.h, both)
//   /metrics             all counters and latencies, and the program's own
//                        (metrics.h), as Prometheus reads them; four at a time
//                        in a process, on threads of their own
//
// The pages of methods, channels, fibers and stacks are made one at a time in a
// process, on a thread of their own; requests meanwhile are answered 503.
// Places in code are offsets in files, not addresses.
//
// Plain text; for server and scheduler one "name value" a line, for methods a
// table, whose columns are named by the first line without a "#". The clients
// that are answered on the port of the service: builtin_pages.h.
// --flare_rpc_server_pages=none (or Server::Options) leaves them out there, and
// with them the protocol "http" where neither it nor a handler was added. An
// admin port has all of them.
#ifndef FLARE_RPC_ADMIN_INSPECT_PAGES_H_
#define FLARE_RPC_ADMIN_INSPECT_PAGES_H_

#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "flare/rpc/admin/page_credentials.h"
#include "flare/rpc/call_cells.h"
#include "flare/rpc/http/http_routes.h"
#include "flare/rpc/server_statistics.h"

namespace flare::rpc {

enum class PagesFor {
  kEveryone,
  kLoopback,   // Others are answered 403.
  kAdminPort,  // Everyone there; one at a time anyway.
};

struct PageAccess {
  PagesFor who = PagesFor::kLoopback;
  // Those that readers must show; null: none.
  std::shared_ptr<PageCredentials> credentials = nullptr;
  bool change_flags = false;      // Readers may.
  bool profiles = false;          // Readers get them.
  std::stop_token stopping = {};  // The server's, for pages that wait.
};

// Adds them to `routes`, exempt from the limits of calls, except where there is
// a handler for the path already. The functions are called from any worker
// while the routes exist.
void AddInspectPages(
    std::function<ServerStatistics()> statistics,
    std::function<std::vector<ServerMethodStatistics>()> method_statistics,
    std::function<std::map<std::string, CallCells::Values>()> http_statistics,
    const PageAccess& access, HttpRoutes* routes);

}  // namespace flare::rpc

#endif  // FLARE_RPC_ADMIN_INSPECT_PAGES_H_
