// The page /inspect/traces: spans that the process has kept.
//
//   ?trace=ID      the spans of one trace, as a tree, with their attributes
//   ?method=TEXT   spans whose names contain it
//   ?failed=1      spans of calls that failed
//   ?sort=slow     the slowest first, rather than the last
//   ?n=50          at most so many
//
// Browsers (that accept text/html) get HTML, others text.
#ifndef FLARE_RPC_TRACING_TRACES_PAGE_H_
#define FLARE_RPC_TRACING_TRACES_PAGE_H_

#include "flare/rpc/http_message.h"
#include "flare/rpc/tracing/tracer.h"

namespace flare {

void WriteTracesPage(const Tracer& tracer, const HttpRequest& request,
                     HttpResponse* response);

}  // namespace flare

#endif  // FLARE_RPC_TRACING_TRACES_PAGE_H_
