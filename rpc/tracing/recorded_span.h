// A span that runs. Behind handles (span.h) and interceptors.
//
// Thread-safe. Additions wait for each other on a fiber::Mutex.
#ifndef FLARE_RPC_TRACING_RECORDED_SPAN_H_
#define FLARE_RPC_TRACING_RECORDED_SPAN_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "flare/base/ref_ptr.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/mutex.h"
#include "flare/rpc/message_observer.h"
#include "flare/rpc/tracing/span_data.h"
#include "flare/rpc/tracing/trace_context.h"
#include "flare/rpc/tracing/trace_headers.h"

namespace flare {

class RecordedSpan final : public RefCounted<RecordedSpan> {
 public:
  using Value = decltype(SpanAttribute::value);

  // One that is recorded if the context is sampled. It began at `start_ns`, in
  // NowNs() time.
  RecordedSpan(TraceContext context, std::int64_t start_ns,
               SharedBaggage baggage = {});

  const TraceContext& context() const { return context_; }
  // Empty if there is none.
  std::string_view baggage() const {
    return baggage_ == nullptr ? std::string_view() : *baggage_;
  }
  // The place of its children in the trace.
  TraceOrigin AsOrigin() const;
  bool recording() const { return context_.sampled; }

  // No effect when it has ended, or isn't recorded.
  void SetAttribute(std::string_view name, Value value);
  void AddEvent(std::string_view name);
  // Count those that there is no memory for.
  void DropAttribute();
  void DropEvent();
  void Count(const ObservedMessage& message);

  // Ends it. The facts in `outcome` are taken over: all except context, times,
  // traffic, attributes and events, which the span has itself. Null if it isn't
  // recorded, or has ended before.
  std::shared_ptr<const SpanData> End(SpanData outcome);

 private:
  struct Counter {
    std::atomic<std::uint64_t> messages{0};
    std::atomic<std::uint64_t> bytes{0};

    void Add(std::size_t size);
    SpanData::Traffic Read() const;
  };

  const TraceContext context_;
  const std::int64_t start_ns_;
  const SharedBaggage baggage_;
  Counter received_;
  Counter sent_;
  fiber::Mutex mutex_;
  bool ended_ FLARE_GUARDED_BY(mutex_) = false;
  // Holds attributes and events alone.
  SpanData added_ FLARE_GUARDED_BY(mutex_);
};

}  // namespace flare

#endif  // FLARE_RPC_TRACING_RECORDED_SPAN_H_
