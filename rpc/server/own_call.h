// A request that serves itself, as a call of its server: the server's services
// for it (own_request.h).
#ifndef FLARE_RPC_SERVER_OWN_CALL_H_
#define FLARE_RPC_SERVER_OWN_CALL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "flare/base/endpoint.h"
#include "flare/base/function.h"
#include "flare/base/status.h"
#include "flare/fiber/execution_context.h"
#include "flare/rpc/own_request.h"
#include "flare/rpc/server/call_admission.h"
#include "flare/rpc/server/call_connection.h"
#include "flare/rpc/server/call_context.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

// One thread at a time, on which OwnRequestHost says what blocks.
class OwnCall final : public OwnRequestHost {
 public:
  struct Request {
    CallConnection* connection;
    ServerProtocol* protocol;
    const ReplyTicket* ticket;
    std::int64_t received_ns;
    std::int64_t dispatched_ns;
  };
  // All must outlive it. `owner`: of the context.
  OwnCall(const Request& request, CallAdmission* admission,
          CallContext* context, fiber::ExecutionContext::Owner* owner)
      : request_(request),
        admission_(admission),
        context_(context),
        owner_(owner) {}

  const Endpoint& peer() const override { return request_.connection->peer(); }
  const PeerIdentity* peer_identity() const override {
    return request_.connection->peer_identity();
  }
  std::int64_t received_ns() const override { return request_.received_ns; }
  std::int64_t dispatched_ns() const override { return request_.dispatched_ns; }
  const ReplyTicket& ticket() const override { return *request_.ticket; }

  void Run(const Function<void()>& code) override;
  void LogException(const std::string& what) override;
  void CountFailure(int status) override;

  void WaitToReply(std::size_t bytes) override;
  ReplyTurn WaitForTurn(
      const Function<ReplyTurn(ReplyTurnWaiter*)>& ask) override;
  ReplyTurn WaitForTurnOr(const Function<ReplyTurn(ReplyTurnWaiter*)>& ask,
                          const Function<void()>& give_up) override;
  void WaitForRoom() override;

  bool EnterStream(std::string_view* why) override;
  // It has entered: its connection counts it as a streaming call.
  bool is_stream() const { return is_stream_; }
  void LeaveStream() override { admission_->LeaveStream(request_.connection); }
  io::StreamConnection* connection() override {
    return request_.connection->output();
  }

  void LeaveLimits() override;
  void ResetOnClose() override { request_.connection->ResetOnClose(); }
  void Close(const flare::Status& why) override {
    request_.connection->Close(why);
  }

 private:
  void StopMetering() {
    admission_->StopMetering(&request_.connection->state());
  }

  Request request_;
  CallAdmission* const admission_;
  CallContext* const context_;
  fiber::ExecutionContext::Owner* const owner_;
  bool is_stream_ = false;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_OWN_CALL_H_
