// The request of a client for a WebSocket, and the switch of its connection.
// One fiber or thread at a time; nothing blocks.
#ifndef FLARE_RPC_HTTP_CLIENT_WEBSOCKET_OPENING_H_
#define FLARE_RPC_HTTP_CLIENT_WEBSOCKET_OPENING_H_

#include <memory>
#include <string>

#include "flare/base/expected.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/rpc/http_client/http_connections.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/websocket/websocket_handshake.h"
#include "flare/rpc/websocket/websocket_session.h"
#include "flare/rpc/websocket_options.h"

namespace flare::rpc {

// "http://..." for "ws://...", https for wss. Fails with
// ERROR_PROTOCOL_NOT_SUPPORTED for others.
Expected<std::string, flare::Status> HttpUrlOfWebSocket(const std::string& url);

class WebSocketOpening {
 public:
  // One that was switched and not taken is abandoned.
  ~WebSocketOpening() { Drop(); }

  // `options` must outlive it. Fails with ERROR_INVALID_REQUEST if a
  // subprotocol is no token.
  static Expected<std::unique_ptr<WebSocketOpening>, flare::Status> Create(
      const WebSocketClientOptions& options);

  // The fields of the request, each with its CRLF.
  const std::string& lines() const { return lines_; }
  // Has the connection go on as a WebSocket, if the answer is a good 101.
  // `kept` lives as long as that.
  flare::Status Switch(const HttpResponse& answer,
                       HttpConnections::Lease* lease,
                       std::shared_ptr<const void> kept);
  // The share of the first handle. Null: it hasn't been switched.
  std::shared_ptr<WebSocketSession> Take();

 private:
  explicit WebSocketOpening(const WebSocketClientOptions& options);
  void Drop();

  const WebSocketClientOptions& options_;
  const std::string key_;
  const WebSocketOffer offer_;
  const std::string lines_;
  RefPtr<WebSocketSession> session_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_CLIENT_WEBSOCKET_OPENING_H_
