#include "flare/rpc/stream/open_stream.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/execution_context.h"
#include "flare/rpc/client/client_connection.h"
#include "flare/rpc/client/context_stop.h"
#include "flare/rpc/client/route.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {
namespace {

RefPtr<CallStream> FailedStream(const flare::Status& why,
                                RpcClientController* controller) {
  RefPtr<CallStream> stream = CallStream::Create({.controller = controller});
  stream->Fail(why);
  return stream;
}

// A stream belongs to the call in whose context it was opened.
struct FailWithContext {
  RefPtr<CallStream> stream;
  fiber::ExecutionContext* context;
  void operator()() const {
    // Its deadline is the stream's, whose own timer says so.
    if (context->stop_cause() == fiber::StopCause::kDeadline &&
        context->deadline_ns() != 0) {
      return;
    }
    stream->Fail(ContextEnded(*context));
  }
};

// What is left until then, as the server is told; 0: no limit.
std::uint32_t TimeoutOnWire(std::int64_t deadline_ns, std::int64_t now_ns) {
  if (deadline_ns == CallStream::kNever) return 0;
  const std::int64_t ms = (deadline_ns - now_ns - 1) / kNsPerMs + 1;
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(
      ms, 1, std::numeric_limits<std::uint32_t>::max()));
}

}  // namespace

RefPtr<CallStream> OpenStream(google::protobuf::RpcChannel* channel,
                              const google::protobuf::MethodDescriptor* method,
                              RpcClientController* controller,
                              const google::protobuf::Message* request) {
  auto* const ours = dynamic_cast<RpcChannel*>(channel);
  if (ours == nullptr) {
    return FailedStream(
        flare::Status(STATUS_NOT_SUPPORTED,
                      "streaming calls need a flare::RpcChannel"),
        controller);
  }
  return ours->OpenStream(method, controller, request);
}

}  // namespace flare::rpc

namespace flare {

RefPtr<rpc::CallStream> RpcChannel::OpenStream(
    const google::protobuf::MethodDescriptor* method,
    RpcClientController* controller, const google::protobuf::Message* request) {
  using rpc::CallStream;
  using rpc::ClientConnection;

  if (route_ == nullptr) return rpc::FailedStream(status_, controller);
  const std::int64_t now = NowNs();
  const rpc::ClientSettings& settings = route_->settings();
  const RpcClientController defaults;
  const RpcClientController& wishes =
      controller != nullptr ? *controller : defaults;
  fiber::ExecutionContext* const context =
      settings.inherits_context && wishes.GetInheritsContext()
          ? fiber::ExecutionContext::Current()
          : nullptr;
  const std::int64_t deadline =
      rpc::DeadlineIn(context, wishes.DeadlineFrom(now).value_or(SaturatingAdd(
                                   now, ToNs(settings.stream_timeout))));
  if (deadline <= now) {
    return rpc::FailedStream(Status(rpc::STATUS_TIMEOUT,
                                    "the deadline had passed before the "
                                    "stream was opened"),
                             controller);
  }
  rpc::Route::Choice choice;
  auto acquired = route_->AcquireForStream(deadline, &choice);
  if (!acquired) return rpc::FailedStream(acquired.error(), controller);
  ClientConnection* const connection = *acquired;
  auto wire = connection->protocol().OpenStream(
      {.method = method->full_name(),
       .timeout_ms = rpc::TimeoutOnWire(deadline, now),
       .shared = connection->kind() == ConnectionKind::kMultiplexed},
      connection);
  if (wire == nullptr) {
    connection->Release(/*clean=*/false);
    return rpc::FailedStream(
        Status(rpc::STATUS_NOT_SUPPORTED,
               route_->protocol() + " has no streaming calls"),
        controller);
  }
  RefPtr<CallStream> stream = CallStream::Create(
      {.format = route_->format(),
       .deadline_ns = deadline,
       .controller = controller,
       .on_detached = [connection] { connection->Release(/*clean=*/false); }});
  if (!stream->Start(std::move(wire), connection->output())) {
    stream->OnReset(connection->close_reason());
    return stream;
  }
  if (context != nullptr) {
    stream->KeepUntilDetached(
        std::make_shared<rpc::ContextStop<rpc::FailWithContext>>(
            context, rpc::FailWithContext{stream, context}));
  }
  if (request != nullptr) {
    // If it can't be sent the first read says why.
    static_cast<void>(stream->WriteMessage(*request, /*last=*/true, deadline));
  }
  return stream;
}

}  // namespace flare
