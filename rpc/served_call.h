// A call as its RpcServerController knows it, while it is open.
#ifndef FLARE_RPC_SERVED_CALL_H_
#define FLARE_RPC_SERVED_CALL_H_

#include <google/protobuf/stubs/callback.h>

#include <stop_token>

#include "flare/io/tls_options.h"

namespace flare::rpc {

class CallStream;

class ServedCall {
 public:
  // Null unless it is a streaming call that has begun.
  virtual CallStream* stream() const = 0;
  // The client's; null if it has shown no certificate.
  virtual const PeerIdentity* peer_identity() const = 0;
  // Sends the response as it is now, unless that was done. May block.
  virtual void WriteResponse() = 0;

  virtual bool IsCanceled() const = 0;
  virtual std::stop_token stop_token() = 0;
  virtual void NotifyOnCancel(google::protobuf::Closure* callback) = 0;

 protected:
  ~ServedCall() = default;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVED_CALL_H_
