// One caller's calls, one after the other: when to send the next one, its plan,
// and its outcome. Its driver only has to wait and to send:
//
//   while (calls.Next(NowNs())) {
//     ...wait until calls.send_at()...
//     calls.Send(NowNs(), nullptr);
//     calls.Ended(NowNs());
//   }

#ifndef EXAMPLE_RPC_CALL_SEQUENCE_H_
#define EXAMPLE_RPC_CALL_SEQUENCE_H_

#include <google/protobuf/service.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "example/rpc/call.h"
#include "example/rpc/call_recorder.h"
#include "example/rpc/load_options.h"
#include "example/rpc/schedule.h"
#include "flare/base/clock.h"
#include "flare/fiber/event.h"

namespace example {

// Where the outcomes go.
struct LoadRecorder {
  CallRecorder ordinary;
  CallRecorder tail;
};

// How many callers are left.
class CallerCount {
 public:
  explicit CallerCount(std::size_t callers) : left_(callers) {}

  // A caller's last act.
  void OneEnded() {
    // acq_rel: the last one publishes the work of all to the waiter.
    if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    ended_ns_ = flare::NowNs();
    all_ended_.Set();
  }
  // Blocks the fiber. False: the deadline passed first.
  bool WaitUntilAllEnded(std::int64_t deadline_ns) {
    return all_ended_.WaitUntil(deadline_ns);
  }
  // When the last one ended, a time of NowNs(); nothing: it hasn't.
  std::optional<std::int64_t> ended_ns() const {
    if (!all_ended_.IsSet()) return std::nullopt;
    return ended_ns_;
  }
  std::size_t left() const {
    return left_.load(std::memory_order_relaxed);  // For people.
  }

 private:
  std::atomic<std::size_t> left_;
  std::int64_t ended_ns_ = 0;  // Written before all_ended_ is set.
  flare::fiber::Event all_ended_;
};

// The common state of all callers of a load.
struct Load {
  const LoadOptions& options;
  Schedule* schedule;
  LoadRecorder* recorder;
  CallerCount* running;
};

// Not thread-safe.
class CallSequence {
 public:
  // A caller that waits looks this often whether the run is over.
  static constexpr std::int64_t kLongestWait = 50'000'000;

  // Sequences of different numbers draw different sizes and tails.
  CallSequence(const Load& load, std::unique_ptr<Call> call,
               std::uint64_t number);

  // Claims the next call. False: there is none left.
  bool Next(std::int64_t now_ns);
  // When to send it: when it is due, or later after failures. Waiting ends when
  // GivesUp() does.
  std::int64_t send_at() const;
  // True: don't send the call that Next() has claimed, which is noted if it was
  // due. The last call of the sequence.
  [[nodiscard]] bool GivesUp() const;
  // As Call::Start().
  void Send(std::int64_t now_ns, google::protobuf::Closure* done);
  // The call that Send() started has ended.
  void Ended(std::int64_t now_ns);

 private:
  std::uint64_t Random();
  // Compares the outcome with the recorded one. `reason`: of a failure, or "".
  void Compare(int status, const std::string& reason, std::int64_t now_ns);
  void NoteFailure(int status, const std::string& reason, std::int64_t now_ns);

  const Load load_;
  const std::unique_ptr<Call> call_;
  std::uint64_t random_state_;
  CallPlan plan_;
  CallRecorder* recorder_ = nullptr;  // The one for the kind of `plan_`.

  Schedule::Claim claim_;     // When the call should have been sent ...
  std::int64_t sent_ns_ = 0;  // ... and when it was.
  std::int64_t pause_ns_ = 0;
  std::int64_t pause_until_ns_ = 0;
};

}  // namespace example

#endif  // EXAMPLE_RPC_CALL_SEQUENCE_H_
