#include "flare/rpc/http_client/websocket_opening.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "flare/base/string.h"
#include "flare/rpc/http/http_text.h"
#include "flare/rpc/http_client_options.h"
#include "flare/rpc/websocket/websocket_handshake.h"

namespace flare::rpc {

Expected<std::string, flare::Status> HttpUrlOfWebSocket(
    const std::string& url) {
  const std::size_t end = url.find("://");
  const std::string_view scheme = std::string_view(url).substr(0, end);
  if (end != url.npos) {
    if (IEquals(scheme, "ws")) return "http" + url.substr(end);
    if (IEquals(scheme, "wss")) return "https" + url.substr(end);
  }
  return flare::Status(ERROR_PROTOCOL_NOT_SUPPORTED,
                       "the URL of a WebSocket begins with ws:// or wss://");
}

Expected<std::unique_ptr<WebSocketOpening>, flare::Status>
WebSocketOpening::Create(const WebSocketClientOptions& options) {
  if (!std::all_of(options.subprotocols.begin(), options.subprotocols.end(),
                   IsHttpToken)) {
    return flare::Status(ERROR_INVALID_REQUEST,
                         "a subprotocol is empty or has other characters than "
                         "letters, digits and !#$%&'*+-.^_`|~");
  }
  return std::unique_ptr<WebSocketOpening>(new WebSocketOpening(options));
}

WebSocketOpening::WebSocketOpening(const WebSocketClientOptions& options)
    : options_(options),
      key_(NewWebSocketKey()),
      offer_{options.subprotocols, options.compress_from != 0},
      lines_(WebSocketRequestLines(key_, offer_)) {}

flare::Status WebSocketOpening::Switch(const HttpResponse& answer,
                                       HttpConnections::Lease* lease,
                                       std::shared_ptr<const void> kept) {
  WebSocketChoice choice;
  flare::Status checked = CheckWebSocketAnswer(answer, key_, offer_, &choice);
  if (!checked.ok()) {
    return flare::Status(ERROR_PARSE_RESPONSE, checked.message());
  }
  HttpClientConnection& connection = lease->connection();
  Drop();  // An interceptor has asked twice.
  session_ = WebSocketSession::Create(
      {.is_client = true,
       .limits = options_.limits,
       .subprotocol = std::move(choice.subprotocol),
       .compress_from = choice.deflate ? options_.compress_from : 0,
       .remote_peer = connection.stream()->remote_endpoint(),
       .connection = connection.stream(),
       .output = connection.output(),
       .kept = std::move(kept)});
  if (!connection.Switch(session_)) {
    session_ = nullptr;
    return flare::Status(ERROR_CONNECTION,
                         "the connection broke behind the answer");
  }
  session_->Begin();
  lease->Leave();
  return {};
}

std::shared_ptr<WebSocketSession> WebSocketOpening::Take() {
  if (session_ == nullptr) return nullptr;
  // Abandons it, too, if it throws.
  return WebSocketSession::Share(std::exchange(session_, nullptr));
}

void WebSocketOpening::Drop() {
  if (session_ != nullptr) std::exchange(session_, nullptr)->Abandon();
}

}  // namespace flare::rpc
