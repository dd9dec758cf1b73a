// The pages of --admin:
//
//   /             the list of pages
//   /stats        statistics as text
//   /stats.json   the same as JSON
//   /ready        200 while clients are accepted, 503 from the drain's begin on
//
// and those of rpc/admin/inspect_pages.h.

#ifndef EXAMPLE_PROXY_ADMIN_PAGES_H_
#define EXAMPLE_PROXY_ADMIN_PAGES_H_

#include <functional>

#include "example/proxy/statistics.h"
#include "flare/rpc/server.h"

namespace example::proxy {

// Adds them to `server`, which isn't started yet. `take_snapshot` is called
// from any worker until the server has stopped.
void AddAdminPages(std::function<Snapshot()> take_snapshot,
                   flare::Server* server);

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_ADMIN_PAGES_H_
