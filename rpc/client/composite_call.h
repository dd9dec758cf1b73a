// One call, as its caller sees it, that is made of calls with controllers of
// their own ("parts"): the calls of a fan-out, the attempts of a hedged call.
// It is the caller's side of it: the options of the parts, the work of
// StartCancel(), and how the outcome gets into the caller's controller.
//
//   CompositeCall call(controller);  // Of any class, or null.
//   for (auto& part : parts) call.Prepare(&part.controller);
//   call.Begin(this);  // Whom StartCancel() tells, to end the parts.
//   ...                // Parts are made, and end.
//   call.End();        // Nobody is told any more.
//   call.TakeOutcome(&parts[0].controller);  // Or Fail(); or a success.
//   call.Tell();       // To controllers of other classes.
//
// Not thread-safe; nothing blocks.
#ifndef FLARE_RPC_CLIENT_COMPOSITE_CALL_H_
#define FLARE_RPC_CLIENT_COMPOSITE_CALL_H_

#include <google/protobuf/service.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "flare/base/buffer.h"
#include "flare/base/status.h"
#include "flare/rpc/cancel_target.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/rpc_client_controller.h"

namespace flare::rpc {

// In a `catch (...)`: the failure of a call whose own code, `where`, has
// thrown. Lets pthread_exit() go on. Without memory the status has no text.
flare::Status StatusOfException(const char* where);

class CompositeCall {
 public:
  // `controller` must live until End().
  explicit CompositeCall(google::protobuf::RpcController* controller);
  CompositeCall(const CompositeCall&) = delete;
  CompositeCall& operator=(const CompositeCall&) = delete;

  // Fails with STATUS_NOT_SUPPORTED if the caller wants bytes in place of
  // messages, which nothing can be merged from.
  flare::Status CheckHasMessages() const;

  // Fails with STATUS_NOT_SUPPORTED if AddMetadata() has refused an entry.
  flare::Status CheckMetadata() const;

  // Gives a part the caller's options: deadline, metadata, attachment and so
  // on. A deadline that is a span began with this.
  void Prepare(RpcClientController* part) const;
  // The outcome of a part that couldn't be started. Doesn't throw.
  static void FailPart(RpcClientController* part, const flare::Status& why);
  // The caller's deadline; nullopt if it has named none.
  std::optional<std::int64_t> deadline_ns() const { return deadline_ns_; }

  // From here to End() StartCancel() calls target->Cancel(). If it was called
  // before, this does so; both may, so a second time must do no harm.
  void Begin(CancelTarget* target);
  // Waits for a Cancel() that runs on another thread.
  void End();

  // The outcome, after End().
  void TakeOutcome(RpcClientController* part);
  // Data of a reply that no part has got.
  struct Reply {
    Buffer attachment = {};
    Buffer raw_bytes = {};
    std::unique_ptr<Metadata> metadata = nullptr;  // Null: none.
  };
  void TakeReply(Reply reply);
  void Fail(int code, std::string text);
  void FailAsCancelled();
  // The outcome that there is now is the call's. The caller's controller may be
  // gone from here on, when the caller's `done` has run.
  void Tell();

 private:
  // For callers without a controller of this library.
  RpcClientController own_;
  RpcClientController* ours_ = &own_;
  google::protobuf::RpcController* foreign_ = nullptr;
  std::optional<std::int64_t> deadline_ns_;
  CancelTarget* target_ = nullptr;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_COMPOSITE_CALL_H_
