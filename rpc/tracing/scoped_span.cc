#include "flare/rpc/tracing/scoped_span.h"

#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/ref_ptr.h"
#include "flare/fiber/execution_context.h"
#include "flare/rpc/tracing/current_span.h"
#include "flare/rpc/tracing/recorded_span.h"
#include "flare/rpc/tracing/trace_headers.h"
#include "flare/rpc/tracing/tracer.h"
#include "glog/logging.h"

namespace flare {

struct ScopedSpan::Part {
  std::shared_ptr<Tracer> tracer;
  RefPtr<RecordedSpan> span;
  SpanData outcome;
  int exceptions;  // In flight when it began.
  fiber::ExecutionContextScope scope;
};

namespace {

// The facts that a new part begins with. No tracer: there is no part.
struct Beginning {
  std::shared_ptr<Tracer> tracer = nullptr;
  TraceOrigin origin = {};
};

Beginning FindBeginning() {
  const RefPtr<RecordedSpan>* const current = CurrentRecordedSpan();
  if (current == nullptr) return {.tracer = Tracer::Installed()};
  if (*current == nullptr || !(*current)->recording()) return {};
  return {.tracer = Tracer::Installed(), .origin = (*current)->AsOrigin()};
}

}  // namespace

ScopedSpan::ScopedSpan(std::string_view name) {
  try {
    part_ = Begin(name);
  } catch (const std::bad_alloc&) {  // The program's code goes on without it.
    if (const auto tracer = Tracer::Installed()) tracer->Drop();
  }
  Span current = CurrentSpan();  // The part's, if there is one.
  // A part that is lost leaves its parent's span alone.
  if (part_ != nullptr || !current.recording()) {
    Span::operator=(std::move(current));
  }
}

std::unique_ptr<ScopedSpan::Part> ScopedSpan::Begin(std::string_view name) {
  Beginning beginning = FindBeginning();
  if (beginning.tracer == nullptr) return nullptr;
  RefPtr<RecordedSpan> span = beginning.tracer->Begin(
      SpanKind::kInternal, name, beginning.origin, NowNs());
  SpanData outcome;
  outcome.kind = SpanKind::kInternal;
  const auto& parent = beginning.origin.parent;
  outcome.parent_id = parent ? parent->span_id : 0;
  if (span->recording()) outcome.name = name;
  auto context = NewContextOfSpan(fiber::ExecutionContext::Capture(), span);
  return std::unique_ptr<Part>(
      new Part{.tracer = std::move(beginning.tracer),
               .span = std::move(span),
               .outcome = std::move(outcome),
               .exceptions = std::uncaught_exceptions(),
               .scope = fiber::ExecutionContextScope(std::move(context))});
}

ScopedSpan::~ScopedSpan() {
  if (part_ == nullptr) return;
  if (!part_->scope.IsInnermost()) {  // A stranger's context would be lost.
    LOG(FATAL) << "a ScopedSpan ends in another fiber than it began in, as "
                  "behind a co_await, or before another one that began later: "
                  "it has to be a local variable of a scope without co_await";
  }
  try {
    SpanData outcome = std::move(part_->outcome);
    if (!outcome.failed && std::uncaught_exceptions() > part_->exceptions) {
      outcome.failed = true;
      outcome.error = "an exception ended it";
    }
    part_->tracer->End(part_->span.Get(), std::move(outcome));
  } catch (const std::bad_alloc&) {  // No reason to end the process.
    part_->tracer->Drop();
  }
}

void ScopedSpan::SetFailed(std::string_view error) {
  if (part_ == nullptr || !part_->span->recording()) return;
  part_->outcome.failed = true;
  try {
    part_->outcome.error = error;
  } catch (const std::bad_alloc&) {  // It has failed all the same.
  }
}

}  // namespace flare
