// Something that RpcClientController::StartCancel() can end: an attempt of a
// call (client/client_call.h), a call that is made of others
// (client/composite_call.h), or a stream (stream/call_stream.h).
#ifndef FLARE_RPC_CANCEL_TARGET_H_
#define FLARE_RPC_CANCEL_TARGET_H_

namespace flare::rpc {

class CancelTarget {
 public:
  // Runs on the canceller's thread, while the end of the call waits for it. So
  // it must neither block nor run what follows the end, which is for fibers: a
  // call that is made of others cancels those.
  virtual void Cancel() = 0;

 protected:
  ~CancelTarget() = default;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CANCEL_TARGET_H_
