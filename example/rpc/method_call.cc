#include "example/rpc/method_call.h"

#include "flare/base/buffer.h"
#include "flare/fiber/fiber.h"
#include "flare/rpc/open_stream.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream/call_stream.h"

namespace example {
namespace {

using flare::Status;
using flare::rpc::CallStream;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

bool Streams(const MethodDescriptor* method) {
  return method->client_streaming() || method->server_streaming();
}

CallOutcome CallUnary(flare::RpcChannel* channel,
                      const MethodDescriptor* method,
                      flare::RpcClientController* controller,
                      const Message& request, Message* reply,
                      const CallEnds& ends) {
  CallOutcome outcome;
  channel->CallMethod(method, controller, &request, reply, nullptr);
  if (controller->Failed()) {
    outcome.call = Status(controller->ErrorCode(), controller->ErrorText());
  } else {
    outcome.output = ends.take_reply();
  }
  return outcome;
}

// Sends requests until there are no more, or the call is over.
Status SendRequests(CallStream* stream, const CallEnds& ends) {
  while (true) {
    const auto request = ends.next_request();
    if (!request) {
      stream->Cancel();
      return request.error();
    }
    if (*request == nullptr) break;
    if (!stream->WriteMessage(**request, /*last=*/false, CallStream::kNever)) {
      return {};  // The reader of replies finds out why.
    }
  }
  stream->CloseWriting();
  return {};
}

// Reads the only reply of a call, which counts once the call has succeeded.
Status ReadOnlyReply(CallStream* stream, Message* reply) {
  flare::StreamError error;
  if (!stream->ReadMessage(reply, CallStream::kNever, &error)) {
    Status why = stream->status();
    if (!why.ok()) return why;
    return Status(flare::rpc::STATUS_MALFORMED_DATA,
                  "the call ended without a reply");
  }
  flare::Buffer another;
  if (stream->Read(&another, CallStream::kNever, &error)) {
    stream->Cancel();
    return Status(flare::rpc::STATUS_MALFORMED_DATA,
                  "the server has sent more than one reply");
  }
  return stream->status();
}

void ReadReplies(CallStream* stream, const MethodDescriptor* method,
                 Message* reply, const CallEnds& ends, CallOutcome* outcome) {
  reply->Clear();
  if (!method->server_streaming()) {
    outcome->call = ReadOnlyReply(stream, reply);
    if (outcome->call.ok()) outcome->output = ends.take_reply();
    return;
  }
  flare::StreamError error;
  while (stream->ReadMessage(reply, CallStream::kNever, &error)) {
    outcome->output = ends.take_reply();
    if (!outcome->output.ok()) return stream->Cancel();
    reply->Clear();
  }
  outcome->call = stream->status();
}

}  // namespace

CallOutcome CallMethod(flare::RpcChannel* channel,
                       const MethodDescriptor* method,
                       flare::RpcClientController* controller, Message* reply,
                       const CallEnds& ends) {
  CallOutcome outcome;
  const Message* only_request = nullptr;
  if (!method->client_streaming()) {
    const auto request = ends.next_request();
    if (!request) {
      outcome.input = request.error();
      return outcome;
    }
    only_request = *request;
  }
  if (!Streams(method)) {
    return CallUnary(channel, method, controller, *only_request, reply, ends);
  }
  const auto stream =
      flare::rpc::OpenStream(channel, method, controller, only_request);
  flare::Fiber sender;
  if (method->client_streaming()) {
    sender =
        flare::Fiber([&] { outcome.input = SendRequests(stream.Get(), ends); });
  }
  ReadReplies(stream.Get(), method, reply, ends, &outcome);
  if (ends.stop_requests) ends.stop_requests();
  if (sender.joinable()) sender.join();
  return outcome;
}

}  // namespace example
