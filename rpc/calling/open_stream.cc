#include "flare/rpc/open_stream.h"

#include <utility>

#include "flare/rpc/client/intercepted_stream.h"
#include "flare/rpc/client/stream_opener.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_status.h"

namespace flare {

RefPtr<rpc::CallStream> rpc::OpenStream(
    google::protobuf::RpcChannel* channel,
    const google::protobuf::MethodDescriptor* method,
    RpcClientController* controller, const google::protobuf::Message* request) {
  auto* const ours = dynamic_cast<RpcChannel*>(channel);
  if (ours == nullptr) {
    return StreamOpener::Failed(
        flare::Status(STATUS_NOT_SUPPORTED,
                      "streaming calls need a flare::RpcChannel"),
        controller);
  }
  return ours->OpenStream(method, controller, request);
}

RefPtr<rpc::CallStream> RpcChannel::OpenStream(
    const google::protobuf::MethodDescriptor* method,
    RpcClientController* controller, const google::protobuf::Message* request) {
  if (controller != nullptr) controller->ClearOutcome();
  if (route_ == nullptr) return rpc::StreamOpener::Failed(status_, controller);
  const RpcClientController defaults;
  rpc::StreamOpener::Arguments arguments{
      .route = route_.Get(),
      .method = method,
      .wishes = controller != nullptr ? controller : &defaults,
      .controller = controller,
      .request = request};
  if (interceptors_ != nullptr) [[unlikely]] {
    return rpc::OpenInterceptedStream(interceptors_, arguments);
  }
  return rpc::StreamOpener::Open(std::move(arguments));
}

}  // namespace flare
