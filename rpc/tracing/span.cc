#include "flare/rpc/tracing/span.h"

#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "flare/rpc/tracing/baggage.h"
#include "flare/rpc/tracing/current_span.h"
#include "flare/rpc/tracing/recorded_span.h"

namespace flare {

Span::Span(RefPtr<RecordedSpan> span) : span_(std::move(span)) {}
Span::Span() = default;
Span::Span(const Span&) = default;
Span::Span(Span&&) noexcept = default;
Span& Span::operator=(const Span&) = default;
Span& Span::operator=(Span&&) noexcept = default;
Span::~Span() = default;

bool Span::recording() const { return span_ != nullptr && span_->recording(); }

std::string Span::trace_id() const {
  return span_ == nullptr ? "" : span_->context().trace_id.ToString();
}

TraceContext Span::context() const {
  return span_ == nullptr ? TraceContext() : span_->context();
}

std::string Span::baggage() const {
  return span_ == nullptr ? "" : std::string(span_->baggage());
}

std::optional<std::string> Span::baggage(std::string_view name) const {
  if (span_ == nullptr) return std::nullopt;
  return FindBaggage(span_->baggage(), name);
}

template <class Value>
void Span::Set(std::string_view name, Value value) {
  if (!recording()) return;
  bool memory = true;
  try {
    // A copy only of values that are kept.
    if constexpr (std::is_same_v<Value, std::string_view>) {
      span_->SetAttribute(name, std::string(value));
    } else {
      span_->SetAttribute(name, value);
    }
  } catch (const std::bad_alloc&) {  // The program's call is what matters.
    memory = false;
  }
  // Waits for a lock, which may suspend the fiber: not within a catch block.
  if (!memory) span_->DropAttribute();
}

void Span::SetAttribute(std::string_view name, std::string_view value) {
  Set(name, value);
}
void Span::SetAttribute(std::string_view name, bool value) { Set(name, value); }
void Span::SetAttribute(std::string_view name, double value) {
  Set(name, value);
}
void Span::SetInteger(std::string_view name, std::int64_t value) {
  Set(name, value);
}

void Span::AddEvent(std::string_view name) {
  if (!recording()) return;
  bool memory = true;
  try {
    span_->AddEvent(name);
  } catch (const std::bad_alloc&) {
    memory = false;
  }
  if (!memory) span_->DropEvent();  // As in Set().
}

Span CurrentSpan() {
  const RefPtr<RecordedSpan>* const span = CurrentRecordedSpan();
  return span == nullptr ? Span() : Span(*span);
}

}  // namespace flare
