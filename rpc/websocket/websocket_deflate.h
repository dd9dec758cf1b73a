// The extension permessage-deflate of WebSocket (RFC 7692): how both sides
// agree on it. Messages are compressed one by one here ("no context takeover"),
// so that a socket holds no contexts of the library. Pure functions; nothing
// blocks.
#ifndef FLARE_RPC_WEBSOCKET_WEBSOCKET_DEFLATE_H_
#define FLARE_RPC_WEBSOCKET_WEBSOCKET_DEFLATE_H_

#include <optional>
#include <string>
#include <string_view>

#include "flare/rpc/http_message.h"

namespace flare::rpc {

// The parameters of an offer, or of the answer to one.
struct WebSocketDeflate {
  bool server_no_context_takeover = false;
  bool client_no_context_takeover = false;
  // 8 to 15; nullopt: not given.
  std::optional<int> server_max_window_bits;
  std::optional<int> client_max_window_bits;  // 0: without a value.
};

// Reads one extension of Sec-WebSocket-Extensions. nullopt: it is another one,
// or has a parameter that is wrong, unknown or given twice.
std::optional<WebSocketDeflate> ParseWebSocketDeflate(std::string_view text);

// The first offer of the request that can be accepted; nullopt: there is none.
// Offers for a window of 2^8 bytes can't, as zlib has none.
std::optional<WebSocketDeflate> ChooseWebSocketDeflate(
    const HttpRequest& request);

// The answer to such an offer, for Sec-WebSocket-Extensions.
std::string WebSocketDeflateAnswer(const WebSocketDeflate& offer);

// A client's offer.
inline constexpr std::string_view kWebSocketDeflateOffer =
    "permessage-deflate; server_no_context_takeover; "
    "client_no_context_takeover";

// Whether a server may answer that offer so.
bool IsWebSocketDeflateAnswer(std::string_view text);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WEBSOCKET_WEBSOCKET_DEFLATE_H_
