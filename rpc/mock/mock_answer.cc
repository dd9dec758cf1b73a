#include "flare/rpc/mock/mock_answer.h"

#include <chrono>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/stream/call_stream.h"
#include "glog/logging.h"

namespace flare::testing {
namespace {

const char* StreamsOf(bool client, bool server) {
  if (client) return server ? "both sides stream" : "the client streams";
  return server ? "the server streams" : "neither side streams";
}

std::string NameOf(const google::protobuf::Descriptor* type) {
  return std::string(type->full_name());
}

}  // namespace

MockAnswer::MockAnswer(Status failure) : failure_(std::move(failure)) {
  CHECK(!failure_.ok()) << "a mock's failure is a status other than success";
}

std::string MockAnswer::WhyNotFor(
    const google::protobuf::MethodDescriptor& method) const {
  const auto* const wanted = method.output_type();
  if (response_ != nullptr && response_->GetDescriptor() != wanted) {
    return "its response is a " + NameOf(wanted) + ", not a " +
           NameOf(response_->GetDescriptor());
  }
  if (!handler_) return "";
  if (types_.client_streams != method.client_streaming() ||
      types_.server_streams != method.server_streaming()) {
    return std::string(StreamsOf(method.client_streaming(),
                                 method.server_streaming())) +
           "; in the function's parameters " +
           StreamsOf(types_.client_streams, types_.server_streams);
  }
  if (types_.request != method.input_type() || types_.response != wanted) {
    return "its messages are " + NameOf(method.input_type()) + " and " +
           NameOf(wanted) + ", the function's are " + NameOf(types_.request) +
           " and " + NameOf(types_.response);
  }
  return "";
}

void MockAnswer::Run(const google::protobuf::MethodDescriptor& method,
                     const google::protobuf::Message* request,
                     google::protobuf::Message* response,
                     RpcServerController* controller) const {
  if (delay_ns_ > 0 &&
      !this_fiber::SleepFor(controller->GetStopToken(),
                            std::chrono::nanoseconds(delay_ns_))) {
    return controller->SetFailed("the caller has gone");
  }
  if (handler_) return handler_(request, response, controller);
  if (response_ != nullptr) return GiveResponse(method, response, controller);
  controller->SetFailed(failure_.code(), failure_.message());
}

void MockAnswer::GiveResponse(const google::protobuf::MethodDescriptor& method,
                              google::protobuf::Message* response,
                              RpcServerController* controller) const {
  const RefPtr<rpc::CallStream> stream = controller->stream();
  if (method.client_streaming()) {
    Buffer request;
    StreamError error;
    while (stream->Read(&request, rpc::CallStream::kNever, &error)) {
    }
  }
  if (!method.server_streaming()) return response->CopyFrom(*response_);
  // If it can't be written the caller has gone.
  static_cast<void>(stream->WriteMessage(*response_, /*last=*/false,
                                         rpc::CallStream::kNever));
}

}  // namespace flare::testing
