#include "flare/rpc/fan_out/parallel_channel.h"

#include <google/protobuf/message.h>

#include <cstddef>
#include <utility>

namespace flare {

ParallelChannel::ParallelChannel(
    std::vector<std::shared_ptr<google::protobuf::RpcChannel>> channels,
    Options options)
    : settings_(std::make_shared<const rpc::FanOutCall::Settings>(
          rpc::FanOutCall::Settings{std::move(channels), std::move(options)})) {
}

void ParallelChannel::CallMethod(
    const google::protobuf::MethodDescriptor* method,
    google::protobuf::RpcController* controller,
    const google::protobuf::Message* request,
    google::protobuf::Message* response, google::protobuf::Closure* done) {
  const std::size_t channels = settings_->channels.size();
  const auto to_all = [channels](const google::protobuf::Message&,
                                 std::vector<rpc::FanOutCall::Part>* parts) {
    for (std::size_t i = 0; i != channels; ++i) {
      parts->push_back({.channel = i, .own = nullptr});
    }
    return Status();
  };
  rpc::FanOutCall::Run(settings_, to_all,
                       {method, controller, request, response, done});
}

}  // namespace flare
