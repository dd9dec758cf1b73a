// Where the span of the call that is served, or of a part of it, is kept: in
// its execution context.
#ifndef FLARE_RPC_TRACING_CURRENT_SPAN_H_
#define FLARE_RPC_TRACING_CURRENT_SPAN_H_

#include "flare/base/ref_ptr.h"
#include "flare/fiber/execution_context.h"
#include "flare/rpc/tracing/recorded_span.h"

namespace flare {

// The span that is kept in the current context: a null RefPtr if there is none,
// also for want of memory for its place. Null outside of contexts.
const RefPtr<RecordedSpan>* CurrentRecordedSpan();
// Keeps `span` in the current context, before others run there. No effect
// outside of contexts, and without memory for its place.
void SetCurrentRecordedSpan(RefPtr<RecordedSpan> span);

// A context for a part of the work in `whole`, whose span is `span`. A context
// of its own if `whole` is null.
RefPtr<fiber::ExecutionContext> NewContextOfSpan(
    RefPtr<fiber::ExecutionContext> whole, RefPtr<RecordedSpan> span);

}  // namespace flare

#endif  // FLARE_RPC_TRACING_CURRENT_SPAN_H_
