// Where the span of the call that is served is kept: in its execution context.
#ifndef FLARE_RPC_TRACING_CURRENT_SPAN_H_
#define FLARE_RPC_TRACING_CURRENT_SPAN_H_

#include "flare/base/ref_ptr.h"
#include "flare/rpc/tracing/recorded_span.h"

namespace flare {

// The place in the current context; null outside of contexts. Written by the
// interceptor of a server, before others run in the context.
RefPtr<RecordedSpan>* CurrentRecordedSpan();

}  // namespace flare

#endif  // FLARE_RPC_TRACING_CURRENT_SPAN_H_
