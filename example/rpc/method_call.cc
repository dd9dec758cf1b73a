#include "example/rpc/method_call.h"

#include <memory>
#include <utility>

#include "flare/base/ref_ptr.h"
#include "flare/fiber/fiber.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream/call_stream.h"
#include "flare/rpc/stream/open_stream.h"

namespace example {
namespace {

using flare::Status;
using flare::rpc::CallStream;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

bool Streams(const MethodDescriptor* method) {
  return method->client_streaming() || method->server_streaming();
}

CallOutcome CallUnary(flare::RpcChannel* channel, const MethodSource& source,
                      const MethodDescriptor* method,
                      flare::RpcClientController* controller,
                      const Message& request, const CallEnds& ends) {
  CallOutcome outcome;
  const auto reply = source.NewMessage(method->output_type());
  channel->CallMethod(method, controller, &request, reply.get(), nullptr);
  if (controller->Failed()) {
    outcome.call = Status(controller->ErrorCode(), controller->ErrorText());
  } else {
    outcome.output = ends.take_reply(*reply);
  }
  return outcome;
}

// Sends requests until there are no more, or the call is over.
Status SendRequests(CallStream* stream, const CallEnds& ends,
                    Message* request) {
  while (true) {
    request->Clear();
    const auto more = ends.next_request(request);
    if (!more) {
      stream->Cancel();
      return more.error();
    }
    if (!*more) break;
    if (!stream->WriteMessage(*request, /*last=*/false, CallStream::kNever)) {
      return {};  // Whoever reads finds out why.
    }
  }
  stream->CloseWriting();
  return {};
}

// Reads the only reply of a call, which counts once the call has succeeded.
bool ReadOnlyReply(CallStream* stream, const MethodSource& source,
                   Message* reply, Status* why) {
  flare::StreamError error;
  if (!stream->ReadMessage(reply, CallStream::kNever, &error)) {
    *why = stream->status();
    if (why->ok()) {
      *why = Status(flare::rpc::STATUS_MALFORMED_DATA,
                    "the call ended without a reply");
    }
    return false;
  }
  const auto none = source.NewMessage(reply->GetDescriptor());
  if (stream->ReadMessage(none.get(), CallStream::kNever, &error)) {
    stream->Cancel();
    *why = Status(flare::rpc::STATUS_MALFORMED_DATA,
                  "the server has sent more than one reply");
    return false;
  }
  *why = stream->status();
  return why->ok();
}

void ReadReplies(CallStream* stream, const MethodSource& source,
                 const MethodDescriptor* method, const CallEnds& ends,
                 CallOutcome* outcome) {
  const auto reply = source.NewMessage(method->output_type());
  if (!method->server_streaming()) {
    if (ReadOnlyReply(stream, source, reply.get(), &outcome->call)) {
      outcome->output = ends.take_reply(*reply);
    }
    return;
  }
  flare::StreamError error;
  while (stream->ReadMessage(reply.get(), CallStream::kNever, &error)) {
    outcome->output = ends.take_reply(*reply);
    if (!outcome->output.ok()) return stream->Cancel();
    reply->Clear();
  }
  outcome->call = stream->status();
}

}  // namespace

CallOutcome CallMethod(flare::RpcChannel* channel, const MethodSource& source,
                       const MethodDescriptor* method,
                       flare::RpcClientController* controller,
                       const CallEnds& ends) {
  CallOutcome outcome;
  const auto request = source.NewMessage(method->input_type());
  if (!method->client_streaming()) {
    if (auto filled = ends.next_request(request.get()); !filled) {
      outcome.input = filled.error();
      return outcome;
    }
  }
  if (!Streams(method)) {
    return CallUnary(channel, source, method, controller, *request, ends);
  }
  const auto stream = flare::rpc::OpenStream(
      channel, method, controller,
      method->client_streaming() ? nullptr : request.get());
  flare::Fiber sender;
  if (method->client_streaming()) {
    sender = flare::Fiber([&] {
      outcome.input = SendRequests(stream.Get(), ends, request.get());
    });
  }
  ReadReplies(stream.Get(), source, method, ends, &outcome);
  if (ends.stop_requests) ends.stop_requests();
  if (sender.joinable()) sender.join();
  return outcome;
}

}  // namespace example
