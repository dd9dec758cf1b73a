// A call that is made again and again with the same objects, so that a round
// allocates nothing; over the RPC stack or plain HTTP.

#ifndef EXAMPLE_RPC_CALL_H_
#define EXAMPLE_RPC_CALL_H_

#include <google/protobuf/service.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "example/rpc/call_recorder.h"
#include "example/rpc/load_options.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace example {

// How this one differs from the one before.
struct CallPlan {
  bool tail = false;
  std::size_t body_size = 0;
  std::uint64_t number = 0;  // In a load that numbers its calls.
};

// The recorded outcome of a call that is sent again (replay.h).
struct RecordedOutcome {
  int status = 0;
  bool same_reply = true;   // As far as replies are compared.
  std::string_view method;  // As long as the call is there.
  std::int64_t received_unix_ns = 0;
};

// Not thread-safe.
class Call {
 public:
  virtual ~Call() = default;

  // Makes the call. `done` runs when it has ended, on whatever thread, maybe
  // before this has returned; it must not block, and may start the next call
  // or let somebody destroy this one. Null: blocks the fiber or the thread
  // until the call has ended.
  virtual void Start(const CallPlan& plan, google::protobuf::Closure* done) = 0;

  // These are of a call that has ended. 0: it was answered.
  virtual int status() const = 0;
  virtual std::string error() const = 0;
  // For a failure: is it the service's own answer, and no sign that it can't be
  // reached?
  virtual bool FailedByService() const = 0;
  // Did the reply hold what the request did?
  virtual bool ReplyIsEcho() const = 0;
  // For a streaming call.
  virtual MessageCounts messages() const { return {}; }
  // Nothing: it isn't a recorded call.
  virtual std::optional<RecordedOutcome> recorded() const {
    return std::nullopt;
  }
};

// Whom calls go to.
class Target {
 public:
  virtual ~Target() = default;
  // A call made from scheduling group `group`. The target must outlive it.
  virtual std::unique_ptr<Call> NewCall(std::size_t group) const = 0;
};

// Finds out whether the target can be called at all: the URI, the protocol,
// host names. Makes no connection. `options` must outlive the target.
flare::Expected<std::unique_ptr<Target>, flare::Status> OpenTarget(
    const LoadOptions& options);

}  // namespace example

#endif  // EXAMPLE_RPC_CALL_H_
