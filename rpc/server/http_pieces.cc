#include "flare/rpc/server/http_pieces.h"

#include <cerrno>
#include <utility>

#include "flare/rpc/http/http_ticket.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/server/reply_turn_event.h"

namespace flare::rpc {
namespace {

flare::Status Closed() {
  return flare::Status(STATUS_IO_ERROR, "the connection is closed");
}

}  // namespace

flare::Status HttpPieces::Write(Buffer piece) {
  if (!begun() && !Begin()) return Closed();
  if (ticket_->As<HttpTicket>().head_only) {
    return flare::Status(STATUS_IO_ERROR, "this reply has no body");
  }
  connection_->WaitForRoom();
  return protocol_->WriteHttpPiece(*ticket_, std::move(piece)) ? flare::Status()
                                                               : Closed();
}

void HttpPieces::Abort() {
  connection_->Close(
      flare::Status(ECONNABORTED, "a handler gave its reply up"));
}

bool HttpPieces::Begin() {
  // There are no chunks: the end of the connection is that of the body.
  if (request_->http.version() == HttpVersion::kHttp10) {
    connection_->NoteBodyToTheEnd();
  }
  ReplyTicket ticket = request_->ticket;
  for (;;) {
    connection_->WaitForRoom();
    ReplyTurnEvent turn;
    switch (protocol_->BeginHttp(request_->http.version(), *response_, &ticket,
                                 &turn)) {
      case ReplyTurn::kNow:
        ticket_ = ticket;
        if (IsFailure(response_->status())) {
          connection_->state().CountFailure(connection_->group(),
                                            ServerState::Failure::kOther);
        }
        return true;
      case ReplyTurn::kNever:
        return false;
      case ReplyTurn::kLater:
        turn.Wait();
    }
  }
}

}  // namespace flare::rpc
