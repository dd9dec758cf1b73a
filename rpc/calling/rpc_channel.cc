#include "flare/rpc/rpc_channel.h"

#include <google/protobuf/message.h>

#include <utility>

#include "flare/rpc/client/client_call.h"
#include "flare/rpc/client/intercepted_call.h"
#include "flare/rpc/client/route.h"
#include "flare/rpc/extension.h"
#include "flare/rpc/rpc_status.h"
#include "glog/logging.h"

namespace flare {
namespace {

// Those of extensions are the outermost.
rpc::ClientInterceptors InterceptorsOf(const RpcChannelOptions& options) {
  rpc::ClientInterceptors all;
  if (options.extensions) {
    for (const auto& extension : InstalledExtensions()) {
      if (extension->client_interceptor != nullptr) {
        all.push_back(extension->client_interceptor);
      }
    }
  }
  all.insert(all.end(), options.interceptors.begin(),
             options.interceptors.end());
  return all;
}

}  // namespace

RpcChannel::RpcChannel()
    : status_(rpc::STATUS_INVALID_CHANNEL, "the channel was not opened") {}

RpcChannel::RpcChannel(const std::string& uri) { Open(uri); }

RpcChannel::RpcChannel(const std::string& uri, const Options& options) {
  Open(uri, options);
}

RpcChannel::~RpcChannel() = default;

bool RpcChannel::Open(const std::string& uri) { return Open(uri, Options()); }

bool RpcChannel::Open(const std::string& uri, const Options& options) {
  interceptors_ = nullptr;
  if (rpc::ClientInterceptors all = InterceptorsOf(options); !all.empty()) {
    interceptors_ =
        std::make_shared<const rpc::ClientInterceptors>(std::move(all));
  }
  policies_ = options.policies;
  wraps_calls_ = interceptors_ != nullptr || policies_ != nullptr;
  RefPtr<rpc::Route> later;
  auto route = rpc::Route::Create(uri, options, &later);
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
  const rpc::ClientCall::Arguments arguments{.route = route_.Get(),
                                             .refusal = &status_,
                                             .method = method,
                                             .controller = controller,
                                             .request = request,
                                             .response = response,
                                             .done = done};
  if (wraps_calls_ && route_ != nullptr) [[unlikely]] {
    return rpc::InterceptedClientCall::Run({interceptors_, policies_},
                                           arguments);
  }
  rpc::ClientCall::Run(arguments);
}

}  // namespace flare
