#include "example/rpc/call_sequence.h"

#include <algorithm>
#include <utility>

#include "example/rpc/any_call.h"
#include "example/rpc/recording_json.h"
#include "example/rpc/report.h"
#include "flare/base/clock.h"
#include "flare/base/random.h"
#include "flare/rpc/rpc_status.h"
#include "glog/logging.h"

namespace example {
namespace {

// Without pauses, a server that is away would make the callers spin. The first
// one is short; each further failure in a row doubles it.
constexpr std::int64_t kShortestPause = flare::kNsPerMs;
// There was no connection, or it broke. However long that takes: thousands of
// callers that are refused wait for each other.
constexpr std::int64_t kLongestPauseUnreachable = flare::kNsPerSecond;
// Any other failure that isn't the service's, and comes so fast that it may not
// have been to the server.
constexpr std::int64_t kInstantly = flare::kNsPerMs;
constexpr std::int64_t kLongestPause = 10 * flare::kNsPerMs;

// Does this failure say that there is nobody to send calls to?
bool IsUnreachable(int status) {
  using namespace flare::rpc;  // NOLINT: its status codes.
  switch (status) {
    case STATUS_CHANNEL_SHUTDOWN:
    case STATUS_FAIL_TO_CONNECT:
    case STATUS_GET_ROUTE:
    case STATUS_GET_ROUTE_ALL_DISABLED:
    case STATUS_INVALID_CHANNEL:
    case STATUS_IO_ERROR:
    case STATUS_NO_PEER:
      return true;
    default:
      return false;
  }
}

// True at most once per second.
bool MayLog(std::int64_t now_ns) {
  constexpr std::int64_t kInterval = flare::kNsPerSecond;
  static std::atomic<std::int64_t> next_ns{0};
  // relaxed: it only decides who logs.
  std::int64_t next = next_ns.load(std::memory_order_relaxed);
  return now_ns >= next &&
         next_ns.compare_exchange_strong(next, now_ns + kInterval,
                                         std::memory_order_relaxed);
}

// `reason`: why the call failed; "": it didn't.
void LogChange(const RecordedOutcome& recorded, const std::string& server_addr,
               int status, const std::string& reason) {
  LOG(WARNING) << "Call of " << recorded.method << " recorded at "
               << RecordedTimeText(recorded.received_unix_ns) << " to "
               << server_addr << ": "
               << (recorded.status == status
                       ? "another reply"
                       : DescribeStatus(recorded.status) + " became " +
                             DescribeStatus(status))
               << (reason.empty() ? "" : ": ") << reason;
}

}  // namespace

CallSequence::CallSequence(const Load& load, std::unique_ptr<Call> call,
                           std::uint64_t number)
    : load_(load),
      call_(std::move(call)),
      random_state_(flare::MixBits(load.options.seed + number)) {
  plan_.body_size = load.options.body.size();
}

bool CallSequence::Next(std::int64_t now_ns) {
  const auto claim = load_.schedule->Next(now_ns);
  if (!claim) return false;
  claim_ = *claim;
  plan_.number = claim_.number;
  const LoadOptions& options = load_.options;
  // Draws from the upper 53 bits, which a double holds.
  plan_.tail =
      options.tail_ratio > 0 &&
      static_cast<double>(Random() >> 11) * 0x1p-53 < options.tail_ratio;
  recorder_ = plan_.tail ? &load_.recorder->tail : &load_.recorder->ordinary;
  if (options.body_sizes) plan_.body_size = options.body_sizes->Draw(Random());
  return true;
}

std::int64_t CallSequence::send_at() const {
  return std::max(claim_.due_ns, pause_until_ns_);
}

bool CallSequence::GivesUp() const {
  if (!load_.schedule->Revoked(claim_)) return false;
  if (load_.schedule->paced()) load_.schedule->NoteUnsent(claim_);
  return true;
}

void CallSequence::Send(std::int64_t now_ns, google::protobuf::Closure* done) {
  sent_ns_ = now_ns;
  if (!load_.schedule->paced()) claim_.due_ns = now_ns;
  call_->Start(plan_, done);
}

void CallSequence::Ended(std::int64_t now_ns) {
  if (const int status = call_->status(); status != 0) [[unlikely]] {
    NoteFailure(status, call_->error(), now_ns);
  } else if (load_.options.verify && !call_->ReplyIsEcho()) [[unlikely]] {
    NoteFailure(flare::rpc::STATUS_MALFORMED_DATA,
                "The reply differs from the request.", now_ns);
  } else {
    // max: clocks of two threads may differ by a microsecond.
    recorder_->Succeeded(std::max<std::int64_t>(now_ns - claim_.due_ns, 0));
    if (load_.options.any_method != nullptr) [[unlikely]] {
      if (load_.options.any_method->streams()) {
        recorder_->HadMessages(call_->messages());
      }
    }
    if (load_.options.replay != nullptr) [[unlikely]] {
      Compare(0, "", now_ns);
    }
    pause_ns_ = 0;
  }
}

void CallSequence::Compare(int status, const std::string& reason,
                           std::int64_t now_ns) {
  const auto recorded = call_->recorded();
  if (!recorded) return;
  if (recorded->status != status) {
    recorder_->HadOtherStatus(recorded->status, status);
  } else if (!recorded->same_reply) {
    recorder_->HadOtherReply();
  } else {
    return;
  }
  if (MayLog(now_ns)) {
    LogChange(*recorded, load_.options.server_addr, status, reason);
  }
}

std::uint64_t CallSequence::Random() {
  return random_state_ = flare::MixBits(random_state_);
}

void CallSequence::NoteFailure(int status, const std::string& reason,
                               std::int64_t now_ns) {
  recorder_->Failed(status);
  if (load_.options.replay != nullptr) {
    Compare(status, reason, now_ns);
  } else if (MayLog(now_ns)) {
    LOG(WARNING) << "Call failed with " << DescribeStatus(status) << ": "
                 << reason;
  }
  // A service that fails its calls on purpose is called on at full speed. So is
  // one with an answer that fails --verify.
  const bool reached = call_->status() == 0 || call_->FailedByService();
  const bool unreachable = !reached && IsUnreachable(status);
  if (!unreachable && (reached || now_ns - sent_ns_ >= kInstantly)) {
    pause_ns_ = 0;
    return;
  }
  pause_ns_ =
      std::clamp(2 * pause_ns_, kShortestPause,
                 unreachable ? kLongestPauseUnreachable : kLongestPause);
  // Shorter by up to half, or all callers would come back at once.
  const auto less = flare::MixBits(random_state_ ^ pause_ns_) %
                    static_cast<std::uint64_t>(pause_ns_ / 2);
  pause_until_ns_ = now_ns + pause_ns_ - static_cast<std::int64_t>(less);
}

}  // namespace example
