// A way to a service: its servers, the choice of the next one, and their
// protocol. Calls go through generated stubs:
//
//   flare::RpcChannel channel;
//   if (!channel.Open("flare://10.0.0.1:5567,10.0.0.2:5567")) {
//     std::cerr << channel.status().ToString();
//   }
//   EchoService_SyncStub stub(&channel);          // x.flare.pb.h
//   auto reply = stub.Echo(request, &controller);
//
//   EchoService_Stub stock(&channel);             // in the same header
//   stock.Echo(&controller, &request, &response, nullptr);  // blocks
//   stock.Echo(&controller, &request, &response, done);     // doesn't
//
// A channel is cheap: connections don't belong to it. They are shared by all
// channels of its pool (connection_pool.h; one for the process by default) that
// lead to the same server with the same protocol and the same settings.
//
// URI: protocol "://" address.
//   protocol  flare, http+pb (or http), http+proto3-json, http+pb-text,
//             baidu-std, bolt, trpc, ...; each with "tls+" before it for
//             TLS, as in tls+flare://10.0.0.1:5567 (Options::tls)
//   address   what the name resolver understands. For "list", the default:
//             one or more of 1.2.3.4:5, [::1]:5, unix:/path and host:5,
//             separated by commas. Host names are looked up when the channel
//             is opened and again, in the background, every
//             flare_name_resolver_update_interval_seconds. Each address of a
//             name is a server, except those without a route. Calls to one
//             that can't be connected to go to another one.

#ifndef FLARE_RPC_RPC_CHANNEL_H_
#define FLARE_RPC_RPC_CHANNEL_H_

#include <google/protobuf/service.h>

#include <memory>
#include <string>
#include <vector>

#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/rpc/rpc_channel_options.h"

namespace flare {

class CallPolicies;
class RpcClientController;

namespace rpc {
class CallStream;
class Route;
}  // namespace rpc

// Open() and destruction must not run at the same time as anything else on the
// same channel; CallMethod is thread-safe. A channel may be destroyed while
// calls that don't block are under way.
class RpcChannel : public google::protobuf::RpcChannel {
 public:
  using Options = RpcChannelOptions;

  // Makes a channel that isn't open: every call fails with
  // STATUS_INVALID_CHANNEL.
  RpcChannel();
  // Opens the channel as Open() does, blocking included; look at status() for
  // the outcome, or just see calls fail.
  explicit RpcChannel(const std::string& uri);
  RpcChannel(const std::string& uri, const Options& options);
  ~RpcChannel() override;

  RpcChannel(const RpcChannel&) = delete;
  RpcChannel& operator=(const RpcChannel&) = delete;

  // True if the channel can be used; no connection is made yet. False, with
  // the reason in status() and in the log, if the URI can't be read, the
  // protocol, resolver or balancer isn't known (the text lists those that are),
  // or a host name can't be resolved. In that last case calls go to the servers
  // that are known, or fail with STATUS_NO_PEER if there are none, and the name
  // is looked up again while there are calls, every
  // --flare_name_resolver_update_interval_seconds: so the channel recovers by
  // itself. May be called again. Blocks the fiber (or
  // the plain thread) while host names are looked up, which may take seconds;
  // without any it doesn't block.
  bool Open(const std::string& uri);
  bool Open(const std::string& uri, const Options& options);

  // Returns the result of Open(): why the channel can't be used, or couldn't
  // when it was opened; STATUS_INVALID_CHANNEL and a text.
  const Status& status() const { return status_; }

  // Called by stubs. `controller` may be null. With `done` == nullptr blocks
  // the fiber (or the plain thread) until the call has ended. Else returns at
  // once and runs `done` exactly once, on a fiber of its own, never before
  // CallMethod could return; `response` and `controller` must live until then.
  // `request` isn't used any more once CallMethod has returned.
  //
  // When `done` runs, nothing of the call is used by the framework any more:
  // it may start the next one with the same objects, or free them. But once a
  // call has failed with STATUS_CHANNEL_SHUTDOWN, as flare::Start() is ending,
  // neither `done` nor a fiber may go on calling: the end waits for them.
  //
  // A controller that is not an RpcClientController gets SetFailed(text) if the
  // call fails.
  //
  // Codes of failures that come from this side: see rpc_client_controller.h.
  void CallMethod(const google::protobuf::MethodDescriptor* method,
                  google::protobuf::RpcController* controller,
                  const google::protobuf::Message* request,
                  google::protobuf::Message* response,
                  google::protobuf::Closure* done) override;

  // Begins a streaming call; for generated code (open_stream.h).
  RefPtr<rpc::CallStream> OpenStream(
      const google::protobuf::MethodDescriptor* method,
      RpcClientController* controller,
      const google::protobuf::Message* request);

 private:
  RefPtr<rpc::Route> route_;
  // Null: there are none.
  std::shared_ptr<const std::vector<std::shared_ptr<ClientInterceptor>>>
      interceptors_;
  std::shared_ptr<const CallPolicies> policies_;  // Null: there are none.
  bool wraps_calls_ = false;                      // There is one of the two.
  Status status_;
};

}  // namespace flare

#endif  // FLARE_RPC_RPC_CHANNEL_H_
