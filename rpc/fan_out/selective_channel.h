// Calls one of several channels, each in turn, and another one if that fails:
// for clusters, zones or protocols that can stand in for each other.
//
//   flare::SelectiveChannel any({near, far});           // shared_ptr's
//   EchoService_SyncStub stub(&any);
//   auto reply = stub.Echo(request, &controller);
//
// See docs/fan_out.md. Several servers behind one channel need none of this:
// a channel's load balancer chooses among them.
//
// A channel that has turned a call away, or couldn't be connected to, is tried
// after the others for a second. The controller's timeout is that of all
// attempts together; without one each has the default of its channel. The
// outcome, with its attachment, metadata and server, is that of the last
// attempt. Streaming methods fail with STATUS_NOT_SUPPORTED, and so do raw
// bytes.
#ifndef FLARE_RPC_FAN_OUT_SELECTIVE_CHANNEL_H_
#define FLARE_RPC_FAN_OUT_SELECTIVE_CHANNEL_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/service.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace flare {

namespace rpc {
struct SelectiveChannels;
}  // namespace rpc

// CallMethod is thread-safe. A channel may be destroyed while calls that don't
// block are under way.
class SelectiveChannel : public google::protobuf::RpcChannel {
 public:
  struct Options {
    // Channels that a call may try. 0: all.
    std::size_t max_attempts = 0;
    // The first channel is preferred, and then the second, and so on. False:
    // each call begins with the next one.
    bool in_order = false;
    // Whether a call that failed with `code` goes to another channel. Null:
    // if no server has run it (rpc::WasNotRun()); after a broken connection
    // only if its .proto says that the method is idempotent.
    std::function<bool(const google::protobuf::MethodDescriptor& method,
                       int code)>
        try_another = nullptr;
  };

  // Channels may be of any class whose calls don't block if they have `done`.
  explicit SelectiveChannel(
      std::vector<std::shared_ptr<google::protobuf::RpcChannel>> channels);
  SelectiveChannel(
      std::vector<std::shared_ptr<google::protobuf::RpcChannel>> channels,
      Options options);
  ~SelectiveChannel() override;

  // As that of RpcChannel: blocks without `done`; with it, `done` runs once, on
  // a fiber. `request` isn't used any more once this has returned.
  void CallMethod(const google::protobuf::MethodDescriptor* method,
                  google::protobuf::RpcController* controller,
                  const google::protobuf::Message* request,
                  google::protobuf::Message* response,
                  google::protobuf::Closure* done) override;

 private:
  const std::shared_ptr<rpc::SelectiveChannels> channels_;
};

}  // namespace flare

#endif  // FLARE_RPC_FAN_OUT_SELECTIVE_CHANNEL_H_
