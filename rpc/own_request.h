// Requests that aren't calls of methods, such as those of a browser for a page.
// Their protocol puts such an object into the InboundRequest. The server treats
// the request as a call where limits are concerned, and has it serve itself.
#ifndef FLARE_RPC_OWN_REQUEST_H_
#define FLARE_RPC_OWN_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "flare/base/endpoint.h"
#include "flare/base/function.h"
#include "flare/base/status.h"
#include "flare/io/tls_options.h"

namespace flare::io {
class StreamConnection;
}  // namespace flare::io

namespace flare::rpc {

class ReplyTicket;
class ReplyTurnWaiter;
enum class ReplyTurn;

// Functions that such a request may ask of its server while it is served. By
// one thread at a time.
class OwnRequestHost {
 public:
  virtual const Endpoint& peer() const = 0;
  // Null: it has shown no certificate.
  virtual const PeerIdentity* peer_identity() const = 0;
  // When the request was read, and when its task began (NowNs()).
  virtual std::int64_t received_ns() const = 0;
  virtual std::int64_t dispatched_ns() const = 0;
  // The request's.
  virtual const ReplyTicket& ticket() const = 0;

  // Calls code of the user's, in the request's execution context. Lets its
  // exceptions pass.
  virtual void Run(const Function<void()>& code) = 0;
  // In a `catch (...)`: logs that the exception has left `what`.
  virtual void LogException(const std::string& what) = 0;

  // Counts the request as failed, with that status (rpc_status.h).
  virtual void CountFailure(int status) = 0;

  // Before a reply of so many bytes is made: blocks while the connection has no
  // room for it, and while many replies wait for an earlier one.
  virtual void WaitToReply(std::size_t bytes) = 0;
  // Asks until the answer isn't kLater, and blocks in between.
  virtual ReplyTurn WaitForTurn(
      const Function<ReplyTurn(ReplyTurnWaiter*)>& ask) = 0;
  // Waits for the turn, as long as a kLater is followed by a turn within
  // Server::Options::output_timeout. Else calls `give_up`, which must have the
  // waiter told, and returns kNever.
  virtual ReplyTurn WaitForTurnOr(
      const Function<ReplyTurn(ReplyTurnWaiter*)>& ask,
      const Function<void()>& give_up) = 0;
  // Blocks while much output waits for the peer to take it.
  virtual void WaitForRoom() = 0;

  // The request is one that lasts: takes the place of a streaming call, until
  // LeaveStream(). False: there is none, as *why says.
  [[nodiscard]] virtual bool EnterStream(std::string_view* why) = 0;
  // No effect if there is none to be given back.
  virtual void LeaveStream() = 0;
  // The connection, for those that switch to a protocol of their own.
  virtual io::StreamConnection* connection() = 0;

  // Called before the reply is sent: a client that has got it may send the next
  // request, so this one must not count under the limits any more.
  virtual void LeaveLimits() = 0;

  // The reply ends where the connection does: that must be a reset unless it
  // is complete.
  virtual void ResetOnClose() = 0;
  // Closes the connection at once.
  virtual void Close(const flare::Status& why) = 0;

 protected:
  ~OwnRequestHost() = default;
};

class OwnRequest {
 public:
  // The request is answered, by its protocol, when one of these returns; one is
  // called, once. Serve may block.
  virtual void Serve(OwnRequestHost* host) = 0;
  // The server is overloaded, or stops, as `text` says. Doesn't block.
  virtual void Refuse(std::string_view text, OwnRequestHost* host) = 0;

  // Whether it is served where others are refused. Must not block for long then
  // in Serve, as it may be called by the connection's reader.
  virtual bool IsExempt() const = 0;

  // The last use of the object, which goes back to its pool.
  virtual void Recycle() = 0;

 protected:
  ~OwnRequest() = default;
};

struct OwnRequestRecycler {
  void operator()(OwnRequest* request) const { request->Recycle(); }
};
using OwnRequestPtr = std::unique_ptr<OwnRequest, OwnRequestRecycler>;

}  // namespace flare::rpc

#endif  // FLARE_RPC_OWN_REQUEST_H_
