// Attempts of one call side by side (HedgingPolicy in policy/call_policies.h).
#ifndef FLARE_RPC_CLIENT_HEDGED_CALL_H_
#define FLARE_RPC_CLIENT_HEDGED_CALL_H_

#include <google/protobuf/message.h>
#include <google/protobuf/service.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <stop_token>

#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/semaphore.h"
#include "flare/rpc/cancel_target.h"
#include "flare/rpc/client/client_call.h"
#include "flare/rpc/client/composite_call.h"
#include "flare/rpc/policy/method_policy.h"
#include "flare/rpc/rpc_client_controller.h"

namespace flare::rpc {

class HedgedCall final : private CancelTarget {
 public:
  // `arguments` as for PolicyCall::Run(). All must outlive it.
  HedgedCall(MethodPolicy* policy, const ClientCall::Arguments& arguments,
             std::int64_t deadline_ns);

  // Blocks until the end of the call, and of all its attempts.
  void Run();

 private:
  struct Attempt final : google::protobuf::Closure {
    void Run() override;

    HedgedCall* owner = nullptr;
    RpcClientController controller;
    std::unique_ptr<google::protobuf::Message> response;
    Attempt* next_ended = nullptr;
  };

  void Begin();
  Attempt* AddAttempt();
  void Start(Attempt* attempt);
  [[nodiscard]] bool MayBegin();
  Attempt* AwaitEnd(std::int64_t until_ns);
  [[nodiscard]] bool IsLast(const Attempt& ended);
  bool IsCancelled();
  void CancelAttempts();
  void Cancel() override;
  void TakeOutcome(Attempt* attempt);

  MethodPolicy* const policy_;
  const HedgingPolicy& hedging_;
  const ClientCall::Arguments& arguments_;
  const std::int64_t deadline_ns_;
  const std::int64_t began_ns_;
  CompositeCall call_;
  // That of the context in which the call is made, if it counts.
  std::stop_token stop_;
  std::uint32_t peer_;         // The last attempt's.
  std::size_t begun_ = 0;      // Attempts, ...
  std::size_t under_way_ = 0;  // ... and those of them whose end wasn't seen.
  std::int64_t next_ns_ = 0;   // When another attempt is due.
  bool no_more_ = false;       // No further attempt may begin.
  flare::Status refusal_;      // No attempt could be made.
  fiber::Semaphore news_{0};   // An end, or a cancellation.

  Spinlock lock_;
  std::deque<Attempt> attempts_ FLARE_GUARDED_BY(lock_);
  // Those that have ended, and weren't seen: linked, as that takes no memory.
  Attempt* first_ended_ FLARE_GUARDED_BY(lock_) = nullptr;
  Attempt* last_ended_ FLARE_GUARDED_BY(lock_) = nullptr;
  bool cancelled_ FLARE_GUARDED_BY(lock_) = false;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_HEDGED_CALL_H_
