// What a RpcServerController asks of the call that it belongs to, while that is
// open.
#ifndef FLARE_RPC_SERVED_CALL_H_
#define FLARE_RPC_SERVED_CALL_H_

#include <google/protobuf/stubs/callback.h>

#include <stop_token>

#include "flare/io/tls_options.h"

namespace flare::rpc {

class CallStream;

class ServedCall {
 public:
  // Of a streaming call that has begun, else null.
  virtual CallStream* stream() const = 0;
  // Of the client; null if it has shown no certificate.
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
