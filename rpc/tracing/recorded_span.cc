#include "flare/rpc/tracing/recorded_span.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/string.h"

namespace flare {
namespace {

std::int64_t UnixNow() { return ToNs(ReadSystemClock().time_since_epoch()); }

// At most that many bytes, all of them UTF-8, as the text may come from a peer
// and a collector refuses batches that have others.
std::string TextOf(std::string_view text, std::size_t most) {
  std::string result;
  while (!text.empty()) {
    const std::size_t size = Utf8SequenceLength(text);
    const std::string_view next = size == 0 ? "?" : text.substr(0, size);
    if (result.size() + next.size() > most) break;
    result += next;
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return result;
}

}  // namespace

RecordedSpan::RecordedSpan(TraceContext context, std::int64_t start_ns,
                           SharedBaggage baggage)
    : context_(std::move(context)),
      start_ns_(start_ns),
      baggage_(std::move(baggage)) {}

TraceOrigin RecordedSpan::AsOrigin() const {
  return {.parent = context_, .sampled = context_.sampled, .baggage = baggage_};
}

void RecordedSpan::SetAttribute(std::string_view name, Value value) {
  if (!recording()) return;
  if (auto* const text = std::get_if<std::string>(&value)) {
    *text = TextOf(*text, SpanData::kMaxValueBytes);
  }
  SpanAttribute attribute{.name = TextOf(name, SpanData::kMaxNameBytes),
                          .value = std::move(value)};
  ScopedLock guard(mutex_);
  if (ended_) return;
  const auto same = std::find_if(
      added_.attributes.begin(), added_.attributes.end(),
      [&](const SpanAttribute& other) { return other.name == attribute.name; });
  if (same != added_.attributes.end()) {
    *same = std::move(attribute);
  } else if (added_.attributes.size() < SpanData::kMaxAttributes) {
    added_.attributes.push_back(std::move(attribute));
  } else {
    ++added_.dropped_attributes;
  }
}

void RecordedSpan::AddEvent(std::string_view name) {
  if (!recording()) return;
  SpanEvent event{.unix_ns = UnixNow(),
                  .name = TextOf(name, SpanData::kMaxNameBytes)};
  ScopedLock guard(mutex_);
  if (ended_) return;
  if (added_.events.size() < SpanData::kMaxEvents) {
    added_.events.push_back(std::move(event));
  } else {
    ++added_.dropped_events;
  }
}

void RecordedSpan::DropAttribute() {
  ScopedLock guard(mutex_);
  ++added_.dropped_attributes;
}

void RecordedSpan::DropEvent() {
  ScopedLock guard(mutex_);
  ++added_.dropped_events;
}

void RecordedSpan::Count(const ObservedMessage& message) {
  const bool received =
      message.direction == ObservedMessage::Direction::kReceived;
  (received ? received_ : sent_).Add(message.bytes);
}

std::shared_ptr<const SpanData> RecordedSpan::End(SpanData outcome) {
  if (!recording()) return nullptr;
  auto data = std::make_shared<SpanData>(std::move(outcome));
  data->context = context_;
  data->duration_ns = std::max<std::int64_t>(NowNs() - start_ns_, 0);
  data->start_unix_ns = UnixNow() - data->duration_ns;
  data->name = TextOf(data->name, SpanData::kMaxNameBytes);
  data->peer = TextOf(data->peer, SpanData::kMaxValueBytes);
  data->error = TextOf(data->error, SpanData::kMaxValueBytes);
  data->received = received_.Read();
  data->sent = sent_.Read();
  ScopedLock guard(mutex_);
  if (std::exchange(ended_, true)) return nullptr;
  data->attributes = std::move(added_.attributes);
  data->events = std::move(added_.events);
  data->dropped_attributes = added_.dropped_attributes;
  data->dropped_events = added_.dropped_events;
  return data;
}

// relaxed, all: counts that order nothing else.
void RecordedSpan::Counter::Add(std::size_t size) {
  messages.fetch_add(1, std::memory_order_relaxed);
  bytes.fetch_add(size, std::memory_order_relaxed);
}

SpanData::Traffic RecordedSpan::Counter::Read() const {
  return {.messages = messages.load(std::memory_order_relaxed),
          .bytes = bytes.load(std::memory_order_relaxed)};
}

}  // namespace flare
