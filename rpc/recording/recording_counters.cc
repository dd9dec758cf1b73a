#include "flare/rpc/recording/recording_counters.h"

namespace flare {
namespace {

Expected<RecordingCounters, Status> MakeCounters() {
  const auto calls = metrics::NewCounterFamily(
      "call_recorder_calls_total",
      "Calls that the recorder was to record, by what became of them.",
      {"outcome"});
  if (!calls) return calls.error();
  const auto bytes = metrics::NewCounter("call_recorder_bytes_total",
                                         "Bytes of recorded calls in files.");
  if (!bytes) return bytes.error();
  return RecordingCounters{.recorded = calls->With("recorded"),
                           .over_limit = calls->With("over_limit"),
                           .queue_full = calls->With("queue_full"),
                           .not_written = calls->With("not_written"),
                           .streaming = calls->With("streaming"),
                           .bytes = *bytes};
}

}  // namespace

const Expected<RecordingCounters, Status>& RecordingCounters::Get() {
  static const auto* const counters =
      new Expected<RecordingCounters, Status>(MakeCounters());
  return *counters;
}

}  // namespace flare
