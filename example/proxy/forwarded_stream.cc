#include "example/proxy/forwarded_stream.h"

#include <cstddef>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/ref_ptr.h"
#include "flare/fiber/async.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/open_stream.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream/call_stream.h"

namespace example::proxy {
namespace {

using flare::RefPtr;
using flare::StreamError;
using flare::rpc::CallStream;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

std::unique_ptr<Message> NewMessage(Messages* messages,
                                    const google::protobuf::Descriptor* type) {
  return std::unique_ptr<Message>(messages->factory.GetPrototype(type)->New());
}

// From the caller to the server. May go on for a little when the call is over,
// so it uses nothing else of it.
void PassRequestsOn(const RefPtr<CallStream>& from,
                    const RefPtr<CallStream>& to,
                    const MethodDescriptor* method, Messages* messages) {
  const auto message = NewMessage(messages, method->input_type());
  StreamError error;
  while (from->ReadMessage(message.get(), CallStream::kNever, &error)) {
    // If it can't be sent the server's outcome says why.
    if (!to->WriteMessage(*message, /*last=*/false, CallStream::kNever)) return;
  }
  if (error == StreamError::EndOfStream) {
    to->CloseWriting();
  } else {
    to->Cancel();
  }
}

// The metadata that the server has sent since the last time.
class ResponseMetadata {
 public:
  ResponseMetadata(const flare::RpcClientController* from,
                   flare::RpcServerController* to)
      : from_(from), to_(to) {}

  void PassOn(bool trailing) {
    std::size_t i = 0;
    for (const auto [name, value] : from_->GetResponseMetadata()) {
      if (i++ < passed_on_) continue;
      // Metadata without a name in the caller's protocol is left out, and
      // logged.
      static_cast<void>(trailing ? to_->AddResponseTrailer(name, value)
                                 : to_->AddResponseMetadata(name, value));
    }
    passed_on_ = i;
  }

 private:
  const flare::RpcClientController* const from_;
  flare::RpcServerController* const to_;
  std::size_t passed_on_ = 0;
};

// From the server to the caller, until the server's end. False: the caller
// takes no more.
bool PassRepliesOn(const RefPtr<CallStream>& from, const RefPtr<CallStream>& to,
                   Message* message, ResponseMetadata* metadata) {
  StreamError error;
  while (from->ReadMessage(message, CallStream::kNever, &error)) {
    metadata->PassOn(/*trailing=*/false);
    if (!to->WriteMessage(*message, /*last=*/false, CallStream::kNever)) {
      return false;
    }
  }
  return true;
}

// The single reply of a call. False: none came.
bool ReadReply(const RefPtr<CallStream>& from, Message* response,
               ResponseMetadata* metadata) {
  StreamError error;
  if (!from->ReadMessage(response, CallStream::kNever, &error)) return false;
  metadata->PassOn(/*trailing=*/false);
  flare::Buffer none;
  if (from->Read(&none, CallStream::kNever, &error)) from->Cancel();
  return true;
}

}  // namespace

void ForwardMetadata(const flare::RpcServerController& caller,
                     flare::RpcClientController* forwarding) {
  for (const auto [name, value] : caller.GetRequestMetadata()) {
    // Received metadata may exceed the limits for sending.
    if (flare::Metadata().Add(name, value).ok()) {
      forwarding->AddMetadata(name, value);
    }
  }
}

void ForwardStream(flare::RpcChannel* channel, const MethodDescriptor* method,
                   std::shared_ptr<Messages> messages, bool metadata,
                   flare::RpcServerController* caller, const Message* request,
                   Message* response) {
  flare::RpcClientController forwarding;
  if (const auto deadline = caller->GetTimeout()) {
    forwarding.SetTimeout(*deadline);
  }
  if (metadata) ForwardMetadata(*caller, &forwarding);
  const RefPtr<CallStream> client = caller->stream();
  const RefPtr<CallStream> server =
      flare::rpc::OpenStream(channel, method, &forwarding,
                             method->client_streaming() ? nullptr : request);
  if (method->client_streaming()) {
    static_cast<void>(flare::fiber::Async([client, server, method, messages] {
      PassRequestsOn(client, server, method, messages.get());
    }));
  }
  ResponseMetadata response_metadata(&forwarding, caller);
  bool replied = true;
  if (!method->server_streaming()) {
    replied = ReadReply(server, response, &response_metadata);
  } else if (!PassRepliesOn(
                 server, client,
                 NewMessage(messages.get(), method->output_type()).get(),
                 &response_metadata)) {
    server->Cancel();
    // The last read lets go of `forwarding`.
    StreamError error;
    flare::Buffer none;
    while (server->Read(&none, CallStream::kNever, &error)) none.Clear();
  }
  const flare::Status status = server->status();
  response_metadata.PassOn(/*trailing=*/true);
  if (!status.ok()) {
    if (response != nullptr) response->Clear();
    caller->SetFailed(status.code(), status.message());
  } else if (!replied) {
    caller->SetFailed(flare::rpc::STATUS_MALFORMED_DATA,
                      "The server has ended the call without its reply.");
  } else if (method->server_streaming()) {
    client->CloseWriting();
  }
}

}  // namespace example::proxy
