// The messages, the limits and the options of WebSockets (websocket.h). Plain
// values.
#ifndef FLARE_RPC_WEBSOCKET_OPTIONS_H_
#define FLARE_RPC_WEBSOCKET_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/rpc/http_client_options.h"

namespace flare {

class HttpRequest;   // http_message.h
class HttpResponse;  // likewise

struct WebSocketMessage {
  Buffer data;
  bool is_text = false;  // UTF-8; else any bytes.
};

// The limits of one WebSocket. A peer that exceeds one of the first three is
// told by a close frame, and the connection ends.
struct WebSocketLimits {
  // Bytes of a message that comes, in all its fragments: code 1009.
  std::size_t max_message_size = std::size_t{1} << 20;
  // Fragments of such a message: code 1008.
  std::size_t max_fragments = 1024;
  // Pings and pongs that come within a second: code 1008.
  int max_control_frames = 1000;
  // Bytes of messages that wait for Read(). While there are more the connection
  // isn't read, so that the peer has to wait.
  std::size_t max_unread = std::size_t{256} << 10;
  // Bytes that wait to be sent. While there are more Write() blocks.
  std::size_t max_unsent = std::size_t{1} << 20;
  // A write that waits for a peer which takes nothing for so long fails, and
  // the connection is closed.
  std::chrono::nanoseconds write_timeout = std::chrono::seconds(30);
  // When nothing has come for so long a ping is sent. 0: none is.
  std::chrono::nanoseconds ping_interval = std::chrono::seconds(20);
  // When nothing has come for so long, pongs included, the connection is
  // closed. Should be longer than `ping_interval`. 0: it never is.
  std::chrono::nanoseconds idle_timeout = std::chrono::seconds(60);
  // How long the peer has to answer a close frame. And how long its own waits
  // for Read() to come to it before it is answered.
  std::chrono::nanoseconds close_timeout = std::chrono::seconds(5);
};

struct WebSocketServerOptions {
  // The subprotocols that the handler speaks. The client's first one among them
  // is chosen; none, if it has offered none of them.
  std::vector<std::string> subprotocols = {};
  // Origins of pages ("https://example.com") that browsers may connect from;
  // "*": all. Empty: those of the host that the request is for. Others are
  // answered 403. Clients other than browsers send no origin, and may connect.
  std::vector<std::string> origins = {};
  // Is asked at the end, if it isn't null. False: the request is answered with
  // *response, which begins as 403.
  std::function<bool(const HttpRequest& request, HttpResponse* response)>
      accept = nullptr;
  // Messages from that size on are compressed, if the client offers
  // permessage-deflate (RFC 7692), and so may be the client's. 0: none are.
  std::size_t compress_from = 0;
  WebSocketLimits limits = {};
};

// For HttpClient::OpenWebSocket().
struct WebSocketClientOptions {
  // Those that are offered, the favourite first. A server that chooses another
  // one is refused.
  std::vector<std::string> subprotocols = {};
  // The options of the request: the time-out, which ends with the handshake,
  // fields, redirections, and where to connect to. `on_body` isn't used.
  HttpRequestOptions request = {};
  // Messages from that size on are compressed, if the server accepts
  // permessage-deflate (RFC 7692), which is offered then, and so may be the
  // server's. 0: it isn't.
  std::size_t compress_from = 0;
  WebSocketLimits limits = {};
};

}  // namespace flare

#endif  // FLARE_RPC_WEBSOCKET_OPTIONS_H_
