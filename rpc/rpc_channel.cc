#include "flare/rpc/rpc_channel.h"

#include <utility>

#include "flare/rpc/client/client_call.h"
#include "flare/rpc/client/route.h"
#include "flare/rpc/rpc_status.h"
#include "glog/logging.h"

namespace flare {

RpcChannel::RpcChannel()
    : status_(rpc::STATUS_INVALID_CHANNEL, "the channel was not opened") {}

RpcChannel::RpcChannel(const std::string& uri) { Open(uri); }

RpcChannel::RpcChannel(const std::string& uri, const Options& options) {
  Open(uri, options);
}

RpcChannel::~RpcChannel() = default;

bool RpcChannel::Open(const std::string& uri) { return Open(uri, Options()); }

bool RpcChannel::Open(const std::string& uri, const Options& options) {
  RefPtr<rpc::Route> later;
  auto route =
      rpc::Route::Create(uri,
                         {.max_packet_size = options.maximum_packet_size,
                          .nslb = options.override_nslb,
                          .kind = options.connection_kind},
                         &later);
  if (!route) {
    route_ = std::move(later);
    status_ = std::move(route).error();
    LOG(ERROR) << status_.message();
    return false;
  }
  route_ = *std::move(route);
  status_ = Status();
  return true;
}

void RpcChannel::CallMethod(const google::protobuf::MethodDescriptor* method,
                            google::protobuf::RpcController* controller,
                            const google::protobuf::Message* request,
                            google::protobuf::Message* response,
                            google::protobuf::Closure* done) {
  rpc::ClientCall::Run({.route = route_.Get(),
                        .refusal = &status_,
                        .method = method,
                        .controller = controller,
                        .request = request,
                        .response = response,
                        .done = done});
}

}  // namespace flare
