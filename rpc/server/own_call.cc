#include "flare/rpc/server/own_call.h"

#include "flare/base/clock.h"
#include "flare/fiber/runtime.h"
#include "flare/rpc/server/handler_exception.h"
#include "flare/rpc/server/reply_turn_event.h"
#include "flare/rpc/server/server_state.h"

namespace flare::rpc {

void OwnCall::Run(const Function<void()>& code) {
  context_->Open(owner_, /*deadline_ns=*/0);
  const fiber::BorrowedExecutionContextScope scope(context_->Get());
  code();
}

void OwnCall::LogException(const std::string& what) {
  TakeHandlerException(what);
}

void OwnCall::CountFailure(int status) {
  request_.connection->state().CountFailure(request_.connection->group(),
                                            ServerState::FailureOf(status));
}

void OwnCall::WaitToReply(std::size_t bytes) {
  CallConnection* const connection = request_.connection;
  // Without a place: exempt requests are served in the reader then, which must
  // not wait, or the whole connection would.
  if (!admission_->has_place() || connection->HasRoom()) return;
  admission_->HoldReply(connection, bytes);
  if (!fiber::IsFiberWorker()) return;
  StopMetering();
  const std::int64_t began_ns = NowNs();
  connection->WaitForTurn(request_.protocol, ticket(), /*patient=*/true);
  request_.dispatched_ns += NowNs() - began_ns;
}

ReplyTurn OwnCall::WaitForTurn(
    const Function<ReplyTurn(ReplyTurnWaiter*)>& ask) {
  for (;;) {
    WaitForRoom();
    ReplyTurnEvent event;
    const ReplyTurn turn = ask(&event);
    if (turn != ReplyTurn::kLater) return turn;
    StopMetering();
    event.Wait();
  }
}

ReplyTurn OwnCall::WaitForTurnOr(
    const Function<ReplyTurn(ReplyTurnWaiter*)>& ask,
    const Function<void()>& give_up) {
  for (;;) {
    WaitForRoom();
    ReplyTurnEvent event;
    const ReplyTurn turn = ask(&event);
    if (turn != ReplyTurn::kLater) return turn;
    StopMetering();
    if (event.WaitFor(request_.connection->output_timeout())) continue;
    give_up();
    event.Wait();
    return ReplyTurn::kNever;
  }
}

void OwnCall::WaitForRoom() {
  if (request_.connection->HasOutputRoom()) return;
  StopMetering();
  request_.connection->WaitForRoom();
}

bool OwnCall::EnterStream(std::string_view* why) {
  StopMetering();
  if (!admission_->EnterStream(request_.connection, why)) return false;
  if (!stream_->counted()) {
    stream_->NoteCounted();
    request_.connection->TurnIntoStream();
  }
  return true;
}

void OwnCall::LeaveLimits() {
  admission_->Leave(&request_.connection->state(),
                    fiber::GetCurrentWorkerIndex());
}

}  // namespace flare::rpc
