// Two fibers: the caller's, which waits in OpenInterceptedStream(), and one for
// the interceptors.
//
//  [IS1] The interceptors' fiber uses the caller's controller and `opened` only
//        until HandOver(), which comes once. Interceptors have a controller of
//        their own.
#include "flare/rpc/client/intercepted_stream.h"

#include <google/protobuf/message.h>

#include <memory>
#include <utility>

#include "flare/fiber/async.h"
#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {

// Where the caller waits. A member of a class that others name, and so not in
// the anonymous namespace.
struct Opened {
  fiber::Event event;
  RefPtr<CallStream> stream;
};

// On the interceptors' fiber.
class InterceptedStream {
 public:
  InterceptedStream(std::shared_ptr<const ClientInterceptors> interceptors,
                    const StreamOpener::Arguments& arguments, Opened* opened)
      : interceptors_(std::move(interceptors)),
        arguments_(arguments),
        route_(ref_ptr, arguments.route),
        opened_(opened) {
    controller_.TakeWishesOf(*arguments.wishes);
    if (arguments.request != nullptr) {
      request_.reset(arguments.request->New());
      request_->CopyFrom(*arguments.request);
    }
    arguments_.request = request_.get();
    arguments_.wishes = &controller_;
  }

  void Run() {
    const ClientSettings& settings = route_->settings();
    ClientInterceptedCall call(
        arguments_.method, arguments_.method->full_name(), &controller_,
        request_.get(),
        /*response=*/nullptr, route_->traits().metadata,
        settings.stream_timeout, settings.inherits_context);
    const auto run = [&] { RunCall(call); };
    ClientInterceptorChain(*interceptors_, &call, run).Run();
    if (opened_ == nullptr) return;
    HandOver(StreamOpener::Failed(
        controller_.Failed()
            ? flare::Status(controller_.ErrorCode(), controller_.ErrorText())
            : flare::Status(STATUS_NOT_SUPPORTED,
                            "an interceptor has not made a streaming call, "
                            "whose messages only the server has"),
        arguments_.controller));
  }

 private:
  void RunCall(ClientInterceptedCall& call) {
    if (opened_ == nullptr) {
      return controller_.SetFailed(
          STATUS_NOT_SUPPORTED,
          "a streaming call that has begun can't be made again");
    }
    controller_.ClearOutcome();
    arguments_.observer = call.observer();
    arguments_.metadata = std::make_shared<Metadata>();
    std::unique_ptr<StreamWire> wire = call.TakeWire();
    const RefPtr<CallStream> stream =
        wire != nullptr ? StreamOpener::OpenOn(std::move(wire), arguments_)
                        : StreamOpener::Open(arguments_);
    if (arguments_.controller != nullptr) {
      controller_.remote_peer_ = arguments_.controller->remote_peer_;
    }
    if (stream->started()) {
      HandOver(stream);
      stream->WaitForEnd();
    }
    const flare::Status status = stream->status();
    if (!status.ok()) controller_.SetFailed(status.code(), status.message());
    controller_.AddStreamMetadata(
        std::make_unique<Metadata>(std::move(*arguments_.metadata)));
  }

  void HandOver(RefPtr<CallStream> stream) {
    Opened* const opened = std::exchange(opened_, nullptr);
    opened->stream = std::move(stream);
    opened->event.Set();  // [IS1]
  }

  const std::shared_ptr<const ClientInterceptors> interceptors_;
  StreamOpener::Arguments arguments_;
  const RefPtr<Route> route_;
  Opened* opened_;  // Null: the caller goes on.
  RpcClientController controller_;
  std::unique_ptr<google::protobuf::Message> request_;
};

RefPtr<CallStream> OpenInterceptedStream(
    const std::shared_ptr<const ClientInterceptors>& interceptors,
    const StreamOpener::Arguments& arguments) {
  Opened opened;
  auto call =
      std::make_unique<InterceptedStream>(interceptors, arguments, &opened);
  fiber::Spawn([call = std::move(call),
                context = fiber::ExecutionContext::Capture()]() mutable {
    const fiber::ExecutionContextScope scope(std::move(context));
    call->Run();
    call = nullptr;
  });
  opened.event.Wait();
  return std::move(opened.stream);
}

}  // namespace flare::rpc
