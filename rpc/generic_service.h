// A service for all methods that a server has no other service for: for
// gateways and proxies, which pass messages on without knowing their types.
//
//   class Gateway : public flare::GenericService {
//     void Call(std::string_view method, flare::Buffer request,
//               flare::Buffer* response,
//               flare::RpcServerController* controller) override {
//       auto reply = stub_.Call(method, std::move(request));
//       if (!reply) {
//         return controller->SetFailed(reply.error().code(),
//                                      reply.error().message());
//       }
//       *response = *std::move(reply);
//     }
//     flare::GenericStub stub_{"flare://10.0.0.1:5567"};
//   };
//
//   server.SetGenericService(std::make_unique<Gateway>());
//
// It gets unary calls over all protocols, with messages in protobuf's binary
// format, decompressed. Calls with text or JSON for messages, and streaming
// ones, fail. Metadata, attachments, deadlines and cancellation are the
// controller's, as for other methods; interceptors and rules of access see
// calls by the names of their methods. Limits, counters and statistics count
// all of them as one method, "flare.rpc.Generic.Call".
#ifndef FLARE_RPC_GENERIC_SERVICE_H_
#define FLARE_RPC_GENERIC_SERVICE_H_

#include <string_view>

#include "flare/base/buffer.h"
#include "flare/rpc/rpc_server_controller.h"

namespace flare {

class GenericService {
 public:
  virtual ~GenericService();

  // Answers one call. Runs on a fiber, for any number of calls at a time; may
  // block it. `method` is what the caller says: "package.Service.Method" as a
  // rule, but any bytes are possible. It lives as long as the call. The
  // response is empty at first; it isn't sent if the call fails, except over
  // flare.
  virtual void Call(std::string_view method, Buffer request, Buffer* response,
                    RpcServerController* controller) = 0;
};

}  // namespace flare

#endif  // FLARE_RPC_GENERIC_SERVICE_H_
