#include "flare/rpc/server/served_stream.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "flare/base/clock.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/server/reply_turn_event.h"

namespace flare::rpc {
namespace {

using fiber::StopCause;

// Why a call stops whose stream has failed.
StopCause CauseOf(const flare::Status& why) {
  switch (why.code()) {
    case STATUS_TIMEOUT:
      return StopCause::kDeadline;
    case STATUS_IO_ERROR:
      return StopCause::kCallerGone;
    default:
      return StopCause::kCancelled;
  }
}

}  // namespace

ServedStream::Mismatch ServedStream::MismatchOf(const Method& method,
                                                const ServerProtocol& protocol,
                                                const ReplyTicket& ticket) {
  if (method.descriptor->client_streaming()) {
    return {"is a streaming method: it can't be called with a single message.",
            FailureDetail::kMediaType};
  }
  if (!method.streaming()) {
    return {"isn't a streaming method: it is called with a single message."};
  }
  return {protocol.WhyNoReplyStream(ticket), FailureDetail::kMediaType};
}

void ServedStream::Take(RefPtr<StreamReceiver> stream) {
  stream_ =
      RefPtr<CallStream>(adopt_ref, static_cast<CallStream*>(stream.Leak()));
}

flare::Status ServedStream::ReadSingle(std::chrono::nanoseconds timeout,
                                       Buffer* message) {
  const std::int64_t deadline_ns = timeout.count() > 0
                                       ? SaturatingAdd(NowNs(), ToNs(timeout))
                                       : CallStream::kNever;
  StreamError error;
  if (stream_->Read(message, deadline_ns, &error)) return flare::Status();
  flare::Status status = stream_->status();
  if (!status.ok()) return status;
  if (error == StreamError::Timeout) {
    return flare::Status(STATUS_TIMEOUT,
                         "the call's message took too long to arrive "
                         "(--flare_rpc_server_message_timeout)");
  }
  return flare::Status(STATUS_MALFORMED_DATA,
                       "a stream of requests without a message");
}

ServedStream::Opened ServedStream::OpenReply(CallConnection* connection,
                                             ServerProtocol* protocol,
                                             const ReplyTicket& ticket,
                                             PayloadFormat format,
                                             std::int64_t deadline_ns) {
  expected_ = true;
  for (;;) {
    connection->WaitForRoom();
    ReplyTurnEvent event;
    const ReplyTurn turn = protocol->AskToStream(ticket, &event);
    if (turn == ReplyTurn::kNow) break;
    if (turn == ReplyTurn::kNever) return Opened::kRefused;
    event.Wait();
  }
  StreamOpening opening{.format = format,
                        .send_window = StreamWindow::kInitial};
  if (deadline_ns != 0) {
    opening.timeout_ms = static_cast<std::uint32_t>(
        std::max<std::int64_t>(deadline_ns - NowNs(), 0) / kNsPerMs + 1);
  }
  stream_ = connection->StartStream(opening, protocol->OpenReplyStream(ticket));
  return stream_ == nullptr ? Opened::kClosed : Opened::kOpen;
}

void ServedStream::StopOnFailure(RefPtr<fiber::ExecutionContext> context) {
  stream_->SetOnFailed(
      [context = std::move(context)](const flare::Status& why) {
        context->RequestStop(CauseOf(why));
      });
}

}  // namespace flare::rpc
