// The handshake of WebSocket (RFC 6455, 4): fields of a request and of its
// answer. Pure functions, which don't block.
#ifndef FLARE_RPC_WEBSOCKET_WEBSOCKET_HANDSHAKE_H_
#define FLARE_RPC_WEBSOCKET_WEBSOCKET_HANDSHAKE_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/status.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/websocket/websocket_deflate.h"

namespace flare::rpc {

// A new Sec-WebSocket-Key, and the Sec-WebSocket-Accept that answers a key.
std::string NewWebSocketKey();
std::string WebSocketAcceptOf(std::string_view key);

// Whether the request asks for a WebSocket as it should. If not, it is answered
// in *response: 426 if it doesn't ask for one of version 13, else 400.
bool CheckWebSocketRequest(const HttpRequest& request, HttpResponse* response);

// Whether a page of the request's origin, if it has one, may connect. `allowed`
// is as WebSocketServerOptions::origins.
bool IsWebSocketOriginAllowed(const HttpRequest& request,
                              const std::vector<std::string>& allowed);

// The first subprotocol offered by the request that is `known`; empty: none.
std::string ChooseWebSocketSubprotocol(const HttpRequest& request,
                                       const std::vector<std::string>& known);

// The fields of the answer 101, behind those in *fields.
void AddWebSocketAnswer(const HttpRequest& request,
                        std::string_view subprotocol,
                        const std::optional<WebSocketDeflate>& deflate,
                        HttpHeaders* fields);

// The offer of a client, and the server's choice.
struct WebSocketOffer {
  std::vector<std::string> subprotocols = {};  // Tokens of HTTP.
  bool deflate = false;
};
struct WebSocketChoice {
  std::string subprotocol = {};
  bool deflate = false;
};

// The field lines of a client's request, each with its CRLF.
std::string WebSocketRequestLines(std::string_view key,
                                  const WebSocketOffer& offer);

// Looks at the answer 101 to a request with `key`, and sets *choice. A failure
// has no code of meaning.
flare::Status CheckWebSocketAnswer(const HttpResponse& answer,
                                   std::string_view key,
                                   const WebSocketOffer& offer,
                                   WebSocketChoice* choice);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WEBSOCKET_WEBSOCKET_HANDSHAKE_H_
