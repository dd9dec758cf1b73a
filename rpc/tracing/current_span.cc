#include "flare/rpc/tracing/current_span.h"

#include "flare/fiber/execution_context.h"

namespace flare {
namespace {

// That there is one makes each request have a context: no program that is
// without tracing may be linked with it.
const fiber::ExecutionLocal<RefPtr<RecordedSpan>> current_span;

}  // namespace

RefPtr<RecordedSpan>* CurrentRecordedSpan() { return current_span.get(); }

}  // namespace flare
