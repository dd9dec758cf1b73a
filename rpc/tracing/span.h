// The span of a running call, to which a program adds attributes and events.
//
//   flare::Span span = flare::CurrentSpan();   // In a method or a handler.
//   span.SetAttribute("cache.hit", false);
//   span.AddEvent("asking the database");
//   LOG(INFO) << "slow, trace " << span.trace_id();
#ifndef FLARE_RPC_TRACING_SPAN_H_
#define FLARE_RPC_TRACING_SPAN_H_

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "flare/base/ref_ptr.h"
#include "flare/rpc/tracing/trace_context.h"

namespace flare {

class RecordedSpan;

// A handle of a span that runs, or of none: then nothing happens. May be kept;
// once the span has ended, nothing more is added to it. Copies are the same
// span. Thread-safe, nothing blocks. Attributes and events that there is no
// memory for are counted as those beyond a span's limits are.
class Span {
 public:
  Span();
  explicit Span(RefPtr<RecordedSpan> span);
  Span(const Span&);
  Span(Span&&) noexcept;
  Span& operator=(const Span&);
  Span& operator=(Span&&) noexcept;
  ~Span();

  // Whether attributes and events are kept: the trace is sampled.
  bool recording() const;
  // 32 digits, for log lines, of traces that aren't sampled, too; empty if
  // there is no span.
  std::string trace_id() const;
  // To hand on by other ways than calls. All 0 if there is no span.
  TraceContext context() const;

  // With TracingOptions::baggage: the baggage of the call that is served, as
  // its header has it ("name=value,..."), and the value of one name, without
  // escapes. Empty, and nullopt, if there is none.
  std::string baggage() const;
  std::optional<std::string> baggage(std::string_view name) const;

  // One of that name is replaced.
  void SetAttribute(std::string_view name, std::string_view value);
  void SetAttribute(std::string_view name, const char* value) {
    SetAttribute(name, std::string_view(value));
  }
  void SetAttribute(std::string_view name, bool value);
  void SetAttribute(std::string_view name, double value);
  void SetAttribute(std::string_view name, std::integral auto value) {
    SetInteger(name, static_cast<std::int64_t>(value));
  }
  // Something that happens now.
  void AddEvent(std::string_view name);

 private:
  template <class Value>
  void Set(std::string_view name, Value value);
  void SetInteger(std::string_view name, std::int64_t value);

  RefPtr<RecordedSpan> span_;  // Null: none.
};

// The span of the innermost part (scoped_span.h) that the code runs in, else of
// the call that is served: in its method, its HTTP handler, and wherever its
// execution context is (fiber/execution_context.h). None without tracing
// (tracing.h), and outside of both.
Span CurrentSpan();

}  // namespace flare

#endif  // FLARE_RPC_TRACING_SPAN_H_
