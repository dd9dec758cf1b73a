// WebSocket (RFC 6455) over HTTP/1.1: messages both ways over one connection,
// for browsers and others. A server:
//
//   server.AddWebSocketHandler(
//       "/echo", [](flare::WebSocket& socket, const flare::HttpRequest&) {
//         while (auto message = socket.Read()) {
//           if (!socket.Write(*std::move(message)).ok()) return;
//         }
//       });
//
// A client:
//
//   flare::HttpClient client;
//   auto socket = client.OpenWebSocket("wss://example.com/echo");
//   if (!socket) return socket.error();
//   flare::Status sent = socket->WriteText("hello");
//   std::optional<flare::WebSocketMessage> reply = socket->Read();
//   socket->Close();
//
// Pings are answered, and text is checked for being UTF-8, by the library.
// docs/websocket.md tells more. For calls of services use streams
// (docs/streaming.md); for a server that only pushes text to browsers,
// HttpBodyWriter suffices.
#ifndef FLARE_RPC_WEBSOCKET_H_
#define FLARE_RPC_WEBSOCKET_H_

#include <chrono>
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/endpoint.h"
#include "flare/base/status.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/websocket_options.h"

namespace flare {

namespace rpc {
class WebSocketSession;
}  // namespace rpc

// One WebSocket. Copies share it, and may go to other fibers: one at a time may
// read; any number may write, close and ask. On a server it ends when the
// handler returns: copies then read and write no more. A client's ends with the
// last copy, by code 1001 if Close() wasn't called.
class WebSocket {
 public:
  // Blocks the fiber (or thread) until the next message has come. nullopt: none
  // will come, see close_code(). On a client it ends, too, when the call in
  // whose context it runs is told to stop; then closed() is false.
  std::optional<WebSocketMessage> Read();
  // ... or until that time, or until a stop is requested; then closed() is
  // false.
  std::optional<WebSocketMessage> ReadUntil(
      std::chrono::steady_clock::time_point at,
      const std::stop_token& stop = {});

  // Sends a message in one frame. Blocks the fiber (or thread) while many bytes
  // wait for the peer (WebSocketLimits::max_unsent, write_timeout). Success is
  // no promise of delivery. Fails with rpc::STATUS_IO_ERROR if the socket is
  // closed or closing, rpc::STATUS_TIMEOUT, or EINVAL for text that isn't
  // UTF-8.
  Status Write(WebSocketMessage message);
  Status WriteText(std::string_view text);
  Status WriteBinary(Buffer data);

  // Begins the end: the peer is told, and nothing is written any more. Messages
  // that it sends before it answers can still be read. Fails with EINVAL, and
  // does nothing, for codes other than 1000 to 1003, 1007 to 1014 and 3000 to
  // 4999, and for reasons that aren't UTF-8 or have more than 123 bytes.
  // Doesn't block. No effect a second time, or if the peer was first.
  Status Close(int code = 1000, std::string_view reason = {});

  // No message comes any more; some may wait for Read().
  bool closed() const;
  // The code and the reason of the peer's close frame: 1005 if it has given
  // none, 1006 if the connection was lost without one. If this side has ended
  // it because of the peer's fault, its own. 0: not closed().
  int close_code() const;
  std::string close_reason() const;

  // The subprotocol that both sides have agreed on; empty: none.
  const std::string& subprotocol() const;
  // Both sides have agreed on permessage-deflate.
  bool compresses() const;
  const Endpoint& remote_peer() const;

  // For the library.
  explicit WebSocket(std::shared_ptr<rpc::WebSocketSession> session)
      : session_(std::move(session)) {}

 private:
  std::shared_ptr<rpc::WebSocketSession> session_;
};

// Serves one WebSocket, on a fiber of its own, and may block. When it returns
// the socket is closed, by code 1000 if it hasn't done so; if an exception
// leaves it, by 1011. `request`, `context` and the socket's reference are there
// until then. Made of a function with or without the context.
class WebSocketHandler {
 public:
  template <class F>
  requires std::invocable<F&, WebSocket&, const HttpRequest&> WebSocketHandler(
      F f)  // NOLINT: implicit, for lambdas
      : serve_([f = std::move(f)](WebSocket& socket, const HttpRequest& request,
                                  const HttpServerContext&) mutable {
          f(socket, request);
        }) {}
  template <class F>
  requires std::invocable<F&, WebSocket&, const HttpRequest&,
                          const HttpServerContext&>
  WebSocketHandler(F f)  // NOLINT: implicit, for lambdas
      : serve_(std::move(f)) {}

  void operator()(WebSocket& socket, const HttpRequest& request,
                  const HttpServerContext& context) const {
    serve_(socket, request, context);
  }

 private:
  std::function<void(WebSocket&, const HttpRequest&, const HttpServerContext&)>
      serve_;
};

// An HTTP handler that makes WebSockets of requests; Server::
// AddWebSocketHandler() adds such a one for one path. Requests that ask for
// none are answered 426, and wrong ones 400. WebSockets count as streaming
// calls under the limits of a server: a request for one too many is answered
// 503.
std::unique_ptr<HttpHandler> NewWebSocketHandler(
    WebSocketHandler handler, WebSocketServerOptions options = {});

}  // namespace flare

#endif  // FLARE_RPC_WEBSOCKET_H_
