// Supports the code that protoc-gen-flare-rpc generates (x.flare.pb.h). Users
// meet it as the base of their stubs:
//
//   EchoService_SyncStub stub("flare://127.0.0.1:5567");  // its own channel
//   EchoService_SyncStub stub(&channel);                  // somebody else's
//   EchoService_SyncStub stub(std::move(channel));        // a unique_ptr's
//
//   flare::RpcClientController controller;
//   auto reply = stub.Echo(request, &controller);         // blocks the fiber
//   if (!reply) return reply.error();                     // code and text
//   Use(reply->body());
//
//   EchoService_AsyncStub async(&channel);
//   auto future = async.Echo(request, &controller);       // does not block
//   auto reply = flare::fiber::BlockingGet(std::move(future));
//
// Streaming methods give a StreamReader, or a pair of that and a StreamWriter
// (stream_reader.h, stream_writer.h); of an X_AsyncStub their Async forms:
//
//   auto [reader, writer] = stub.Chat(&controller);
//   writer.Write(request);
//   auto reply = reader.Read();
//
// A call's controller must live until its reader and writer are gone.
//
// Stubs are thread-safe. One over somebody else's channel is cheap. One that is
// made from a URI opens a channel, which may block (RpcChannel::Open): make it
// once, not for each call. The request is not used any more once a call has
// returned, be it blocking or not.

#ifndef FLARE_RPC_STUB_H_
#define FLARE_RPC_STUB_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/service.h>

#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "flare/base/expected.h"
#include "flare/base/future.h"
#include "flare/base/object_pool.h"
#include "flare/base/status.h"
#include "flare/rpc/open_stream.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"

namespace flare::rpc {

// The base of X_SyncStub and X_AsyncStub.
class StubBase {
 public:
  // The channel must outlive the stub, and the calls that it makes.
  explicit StubBase(google::protobuf::RpcChannel* channel);

  // The stub owns the channel. Calls that don't block may outlive it if the
  // channel allows that, as flare::RpcChannel does.
  explicit StubBase(std::unique_ptr<google::protobuf::RpcChannel> channel)
      : StubBase(channel.get()) {
    owned_ = std::move(channel);
  }

  // Opens a channel (see RpcChannel::Open: it may resolve host names). If that
  // fails, the reason is logged and each call fails with it.
  explicit StubBase(const std::string& uri)
      : StubBase(std::make_unique<RpcChannel>(uri)) {}
  StubBase(const std::string& uri, const RpcChannel::Options& options)
      : StubBase(std::make_unique<RpcChannel>(uri, options)) {}

  google::protobuf::RpcChannel* channel() const { return channel_; }

 protected:
  // Blocks the fiber (or thread) until the call has ended. Without a controller
  // (nullptr) it brings its own.
  template <class Response>
  Expected<Response, ::flare::Status> CallAndWait(
      const google::protobuf::MethodDescriptor* method,
      const google::protobuf::Message& request,
      RpcClientController* controller) const;
  template <class Response>
  Expected<Response, ::flare::Status> CallAndWait(
      const google::protobuf::MethodDescriptor* method,
      const google::protobuf::Message& request) const;

  // Doesn't block. Code that waits for the future runs where the channel runs
  // completions: on a fiber, for flare::RpcChannel. `controller` must live
  // until the future has its value. Dropping the future doesn't end the call:
  // RpcClientController::StartCancel() does.
  template <class Response>
  Future<Expected<Response, ::flare::Status>> CallWithFuture(
      const google::protobuf::MethodDescriptor* method,
      const google::protobuf::Message& request,
      RpcClientController* controller = nullptr) const;

  // Begin calls of streaming methods: of those whose service alone streams, and
  // of the others. Both return at once, or once there is a connection.
  template <class Reader>
  Reader OpenReader(const google::protobuf::MethodDescriptor* method,
                    const google::protobuf::Message& request,
                    RpcClientController* controller = nullptr) const {
    return Reader(OpenStream(channel_, method, controller, &request));
  }
  template <class Reader, class Writer>
  std::pair<Reader, Writer> OpenReaderAndWriter(
      const google::protobuf::MethodDescriptor* method,
      RpcClientController* controller = nullptr) const {
    auto stream = OpenStream(channel_, method, controller, nullptr);
    return {Reader(stream, !method->server_streaming()), Writer(stream)};
  }

 private:
  std::unique_ptr<google::protobuf::RpcChannel> owned_;
  google::protobuf::RpcChannel* channel_;
};

// The descriptor of a service whose generated code is linked into the program;
// ends the process with a message if there is none.
const google::protobuf::ServiceDescriptor* FindGeneratedService(
    const std::string& full_name);

// Each ends the process with a message: a service object was handed a method
// that is not its own. That is a mistake in a program; input of peers can't
// lead to it.
[[noreturn]] void DieOfForeignMethod(
    const google::protobuf::MethodDescriptor* method,
    const google::protobuf::ServiceDescriptor* service);
[[noreturn]] void UnreachableMethod(
    const google::protobuf::MethodDescriptor* method);

// In a `catch (...)` around a blocking method: fails its call with the
// exception as the reason, and logs it.
void FailByException(const google::protobuf::MethodDescriptor* method,
                     google::protobuf::RpcController* controller);

// Runs `done` when `ended`, the future that an asynchronous method has
// returned, is ready; at once if it isn't valid. A future whose promise was
// dropped fails the call. Without `done` it waits.
void RunWhenReady(Future<> ended,
                  const google::protobuf::MethodDescriptor* method,
                  google::protobuf::RpcController* controller,
                  google::protobuf::Closure* done);

// A streaming method of the stock X_Stub: `controller`, an RpcClientController,
// gets the stream. Then `done` runs, if there is one.
void OpenStreamInController(google::protobuf::RpcChannel* channel,
                            const google::protobuf::MethodDescriptor* method,
                            google::protobuf::RpcController* controller,
                            const google::protobuf::Message* request,
                            google::protobuf::Closure* done);

inline void CheckMethodBelongsTo(
    const google::protobuf::MethodDescriptor* method,
    const google::protobuf::ServiceDescriptor* service) {
  if (method->service() != service) [[unlikely]] {
    DieOfForeignMethod(method, service);
  }
}

// ---------------------------------------------------------------------------
// Implementation
// ---------------------------------------------------------------------------

template <class Response>
Expected<Response, ::flare::Status> TakeOutcome(
    const RpcClientController& controller, Response* response) {
  if (controller.Failed()) {
    return ::flare::Status(controller.ErrorCode(), controller.ErrorText());
  }
  return std::move(*response);
}

// The state that a call with a future keeps until it has ended: the closure
// that the channel runs, and all that must live until then. One pooled piece of
// memory.
template <class Response>
class FutureCall final : public google::protobuf::Closure {
 public:
  using Outcome = Expected<Response, ::flare::Status>;

  // Freed by Run(). Without a controller it brings its own.
  static FutureCall* Create(RpcClientController* controller) {
    return new (PoolAllocate<sizeof(FutureCall)>()) FutureCall(controller);
  }

  Future<Outcome> GetFuture() { return promise_.GetFuture(); }
  RpcClientController* controller() { return controller_; }
  Response* response() { return &response_; }

  // The call has ended. The waiter for the future may free the controller, so
  // it is set last, when nothing of this is left.
  void Run() override {
    Outcome outcome = TakeOutcome(*controller_, &response_);
    Promise<Outcome> promise = std::move(promise_);
    this->~FutureCall();
    PoolFree<sizeof(FutureCall)>(this);
    promise.SetValue(std::move(outcome));
  }

 private:
  explicit FutureCall(RpcClientController* controller)
      : controller_(controller != nullptr ? controller
                                          : &own_controller_.emplace()) {}
  ~FutureCall() override = default;

  std::optional<RpcClientController> own_controller_;
  RpcClientController* controller_;
  Response response_;
  Promise<Outcome> promise_;
};

template <class Response>
Expected<Response, ::flare::Status> StubBase::CallAndWait(
    const google::protobuf::MethodDescriptor* method,
    const google::protobuf::Message& request,
    RpcClientController* controller) const {
  if (controller == nullptr) return CallAndWait<Response>(method, request);
  Response response;
  channel_->CallMethod(method, controller, &request, &response, nullptr);
  return TakeOutcome(*controller, &response);
}

template <class Response>
Expected<Response, ::flare::Status> StubBase::CallAndWait(
    const google::protobuf::MethodDescriptor* method,
    const google::protobuf::Message& request) const {
  RpcClientController controller;
  return CallAndWait<Response>(method, request, &controller);
}

template <class Response>
Future<Expected<Response, ::flare::Status>> StubBase::CallWithFuture(
    const google::protobuf::MethodDescriptor* method,
    const google::protobuf::Message& request,
    RpcClientController* controller) const {
  auto* call = FutureCall<Response>::Create(controller);
  // Before the call: it may have ended, and be gone, when CallMethod returns.
  auto future = call->GetFuture();
  channel_->CallMethod(method, call->controller(), &request, call->response(),
                       call);
  return future;
}

}  // namespace flare::rpc

#endif  // FLARE_RPC_STUB_H_
