#include "flare/rpc/http_pieces.h"

#include <cerrno>
#include <utility>

#include "flare/fiber/event.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {
namespace {

class Waiter final : public ReplyTurnWaiter {
 public:
  void OnTurn() override { told_.Set(); }
  void Wait() { told_.Wait(); }

 private:
  fiber::Event told_;
};

flare::Status Closed() {
  return flare::Status(STATUS_IO_ERROR, "the connection is closed");
}

}  // namespace

flare::Status HttpPieces::Write(Buffer piece) {
  if (!begun() && !Begin()) return Closed();
  if (ticket_->head_only) {
    return flare::Status(STATUS_IO_ERROR, "this reply has no body");
  }
  connection_->BlockForRoom();
  return protocol_->WriteHttpPiece(*ticket_, std::move(piece)) ? flare::Status()
                                                               : Closed();
}

void HttpPieces::Abort() {
  flare::Status why(ECONNABORTED, "a handler gave its reply up");
  // Without chunks the end of the connection would be that of the body.
  if (begun() && !ticket_->chunked) return connection_->Reset(std::move(why));
  connection_->Cut(std::move(why));
}

bool HttpPieces::Begin() {
  ReplyTicket ticket = request_->ticket;
  for (;;) {
    connection_->BlockForRoom();
    Waiter waiter;
    switch (protocol_->BeginHttp(request_->http.version(), *response_, &ticket,
                                 &waiter)) {
      case ReplyTurn::kNow:
        ticket_ = ticket;
        return true;
      case ReplyTurn::kNever:
        return false;
      case ReplyTurn::kLater:
        // The replies before it leave sooner or later: on a connection that was
        // closed, too, as their handlers end.
        waiter.Wait();
    }
  }
}

}  // namespace flare::rpc
