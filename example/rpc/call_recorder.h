// How calls ended, counted by all workers at once.

#ifndef EXAMPLE_RPC_CALL_RECORDER_H_
#define EXAMPLE_RPC_CALL_RECORDER_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "example/rpc/thread_slot.h"
#include "flare/base/histogram.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"

namespace example {

// Messages of streaming calls.
struct MessageCounts {
  std::uint64_t sent = 0;
  std::uint64_t received = 0;

  std::uint64_t total() const { return sent + received; }
  void Add(const MessageCounts& other) {
    sent += other.sent;
    received += other.received;
  }
};

// A plain value.
struct CallStatistics {
  flare::Histogram latency_ns;            // For calls that succeeded.
  std::map<int, std::uint64_t> failures;  // By status.
  MessageCounts messages;                 // For streams that succeeded.
  // Recorded calls that ended otherwise than recorded: by the recorded status
  // and the one of now, and those with the same status and another reply.
  std::map<std::pair<int, int>, std::uint64_t> changed_statuses;
  std::uint64_t changed_replies = 0;

  std::uint64_t successes() const { return latency_ns.count(); }
  std::uint64_t failure_count() const;
  std::uint64_t changes() const;
  // Adds the counts of `other`.
  void Merge(const CallStatistics& other);
};

// Thread-safe. Recording takes a lock that only this thread uses, except when
// Take() looks; nothing is lost and nothing counted twice.
class CallRecorder {
 public:
  void Succeeded(std::int64_t latency_ns);
  void Failed(int status);
  // After Succeeded(), of a streaming call.
  void HadMessages(const MessageCounts& messages);

  // After Succeeded() or Failed(), of a recorded call.
  void HadOtherStatus(int recorded, int now);
  void HadOtherReply();

  // Returns the records since the last call, and forgets them.
  CallStatistics Take();

 private:
  struct alignas(64) Slot {
    CallStatistics& MadeStatistics() FLARE_REQUIRES(lock);

    flare::Spinlock lock;
    // Takes 34 KiB, so it is made by the first call.
    std::unique_ptr<CallStatistics> statistics FLARE_GUARDED_BY(lock);
  };
  std::array<Slot, kThreadSlots> slots_;
};

}  // namespace example

#endif  // EXAMPLE_RPC_CALL_RECORDER_H_
