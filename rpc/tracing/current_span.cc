#include "flare/rpc/tracing/current_span.h"

#include <new>
#include <utility>

namespace flare {
namespace {

// That there is one makes each request have a context: no program that is
// without tracing may be linked with it.
const fiber::ExecutionLocal<RefPtr<RecordedSpan>> current_span;

const RefPtr<RecordedSpan> no_span;

}  // namespace

const RefPtr<RecordedSpan>* CurrentRecordedSpan() {
  try {
    return current_span.get();
  } catch (const std::bad_alloc&) {  // A context without the place has no span.
    return &no_span;
  }
}

void SetCurrentRecordedSpan(RefPtr<RecordedSpan> span) {
  try {
    if (auto* const place = current_span.get()) *place = std::move(span);
  } catch (const std::bad_alloc&) {  // No call fails for want of a span.
  }
}

RefPtr<fiber::ExecutionContext> NewContextOfSpan(
    RefPtr<fiber::ExecutionContext> whole, RefPtr<RecordedSpan> span) {
  if (whole != nullptr) {
    return current_span.MakePart(std::move(whole), std::move(span));
  }
  auto context = fiber::ExecutionContext::Create();
  *current_span.GetFrom(context.Get()) = std::move(span);
  return context;
}

}  // namespace flare
