#include "benchmark/baseline/call.h"

#include <utility>

#include "benchmark/baseline/server_connection.h"
#include "flare/base/compression.h"
#include "flare/base/object_pool.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/wire/payload.h"

namespace baseline {

using flare::rpc::OutboundResponse;
using flare::rpc::ParseResult;

namespace {

constexpr std::size_t kMaxKept = 4096;  // Bytes of a body.

}  // namespace

Call* Call::New() { return flare::ObjectPool<Call>::Get(); }

void Call::Recycle() {
  if (std::exchange(large_, false)) messages_ = {};
  request.Clear();
  response = OutboundResponse();
  outcome_ = Outcome::kReply;
  flare::ObjectPool<Call>::Put(this);
}

bool Call::Parse(Methods methods) {
  const ParseResult result = protocol->Parse(&request);
  if (result != ParseResult::kOk) {
    outcome_ =
        result == ParseResult::kReject ? Outcome::kRejected : Outcome::kClose;
    return false;
  }
  if (IsCompressed(request.head.compression)) {
    Fail(flare::Status(flare::rpc::STATUS_NOT_SUPPORTED,
                       "baseline servers don't decompress"));
    return false;
  }
  const std::string_view method = request.head.method;
  is_relay_ = method == kRelayMethod;
  if (method == kEchoMethod) {
    return ParseMessage<example::protobuf_echo::EchoRequest>();
  }
  if (is_relay_ && methods == Methods::kEchoAndRelay) {
    return ParseMessage<example::protobuf_echo::RelayRequest>();
  }
  Fail(flare::Status(
      flare::rpc::STATUS_METHOD_NOT_FOUND,
      "there is no method " + std::string(method) + " in this server"));
  return false;
}

template <class Request>
bool Call::ParseMessage() {
  auto* const message = this->message<Request>();
  // Also if it can't be parsed: some of it may have been.
  large_ = request.body.size() > kMaxKept;
  const flare::Status parsed =
      flare::rpc::ParsePayload(request.head.format, request.body, message);
  if (!parsed.ok()) {
    Fail(parsed);
    return false;
  }
  request.body.Clear();
  const auto work = example::RequestedWork(*message);
  if (!work) {
    Fail(flare::Status(flare::rpc::STATUS_FAILED, work.error().message()));
    return false;
  }
  requested_work_ = *work;
  body_ = message->mutable_body();
  return true;
}

void Call::Answer(const std::string& body) {
  if (is_relay_) {
    AnswerAs<example::protobuf_echo::RelayResponse>(body);
  } else {
    AnswerAs<example::protobuf_echo::EchoResponse>(body);
  }
}

template <class Response>
void Call::AnswerAs(const std::string& body) {
  auto* const message = this->message<Response>();
  message->set_body(body);
  large_ = large_ || body.size() > kMaxKept;
  const flare::Status status = flare::rpc::SerializePayload(
      request.head.format, *message, &response.body);
  if (!status.ok()) return Fail(status);
}

void Call::AnswerWithEcho() {
  Answer(*body_);
  response.attachment = std::move(request.attachment);
}

void Call::Fail(const flare::Status& status) {
  error_ = status.message();
  response = OutboundResponse();
  response.status = status.code();
  response.description = error_;
}

void Call::Reply() {
  switch (outcome_) {
    case Outcome::kReply:
      protocol->Write(request.ticket, std::move(response));
      break;
    case Outcome::kRejected:
      protocol->WriteRejection(request);
      break;
    case Outcome::kClose:
      connection->Close();
      break;
  }
  ServerConnection* const its_connection = connection;
  Recycle();
  its_connection->CallFinished();
}

}  // namespace baseline
