// Calls of methods by name, with messages as bytes: for gateways, proxies and
// tools, which don't have the code that protoc generates.
//
//   flare::GenericStub stub("flare://10.0.0.1:5567");
//   auto reply = stub.Call("example.Shop.Find", request_bytes, &controller);
//   if (!reply) return reply.error();
//   response.ParseFromString(flare::FlattenSlow(*reply));
//
// Messages are in protobuf's binary format where the channel's protocol is
// binary, and else as that protocol has them (JSON over http+proto3-json). The
// client's counters count all such calls as one method,
// "flare.rpc.Generic.Call"; interceptors, policies and traces know them by
// their names.
#ifndef FLARE_RPC_GENERIC_STUB_H_
#define FLARE_RPC_GENERIC_STUB_H_

#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/stub.h"

namespace flare {

// Made of a channel or a URI, as other stubs are (stub.h). Thread-safe.
class GenericStub : public rpc::StubBase {
 public:
  using StubBase::StubBase;

  // Calls a unary method, "package.Service.Method", and returns the bytes of
  // its response. Blocks the fiber (or thread) until the call has ended.
  // `controller` may be null; raw bytes that were set there don't count, and
  // there are none behind the call. The channel must be an RpcChannel.
  Expected<Buffer> Call(std::string_view method, Buffer request,
                        RpcClientController* controller = nullptr) const;
};

}  // namespace flare

#endif  // FLARE_RPC_GENERIC_STUB_H_
