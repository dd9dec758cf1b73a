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
#include "flare/rpc/server/served_stream.h"
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
  // All must outlive it. `stream`: that of the call. `owner`: of the context.
  OwnCall(const Request& request, CallAdmission* admission,
          CallContext* context, ServedStream* stream,
          fiber::ExecutionContext::Owner* owner)
      : request_(request),
        admission_(admission),
        context_(context),
        stream_(stream),
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
  ServedStream* const stream_;
  fiber::ExecutionContext::Owner* const owner_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_OWN_CALL_H_
