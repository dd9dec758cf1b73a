// Something that RpcClientController::StartCancel() can end beside a call: a
// call that is made of others (client/composite_call.h).
#ifndef FLARE_RPC_CANCEL_TARGET_H_
#define FLARE_RPC_CANCEL_TARGET_H_

namespace flare::rpc {

class CancelTarget {
 public:
  // Runs on the canceller's thread, while the end of the call waits for it. So
  // it must neither block nor end the call in place: it cancels the calls that
  // this one is made of, whose ends run on fibers.
  virtual void Cancel() = 0;

 protected:
  ~CancelTarget() = default;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CANCEL_TARGET_H_
