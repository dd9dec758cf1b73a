// Where the span of the call that is served, or of a part of it, is kept: in
// its execution context.
#ifndef FLARE_RPC_TRACING_CURRENT_SPAN_H_
#define FLARE_RPC_TRACING_CURRENT_SPAN_H_

#include "flare/base/ref_ptr.h"
#include "flare/fiber/execution_context.h"
#include "flare/rpc/tracing/recorded_span.h"

namespace flare {

// The place in the current context; null outside of contexts, and where there
// is no memory for it. Written by the
// interceptor of a server, before others run in the context.
RefPtr<RecordedSpan>* CurrentRecordedSpan();

// A context for a part of the work in `whole`, whose span is `span`. A context
// of its own if `whole` is null.
RefPtr<fiber::ExecutionContext> NewContextOfSpan(
    RefPtr<fiber::ExecutionContext> whole, RefPtr<RecordedSpan> span);

}  // namespace flare

#endif  // FLARE_RPC_TRACING_CURRENT_SPAN_H_
