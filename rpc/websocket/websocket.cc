#include "flare/rpc/websocket.h"

#include <exception>
#include <stop_token>

#include "flare/fiber/execution_context.h"
#include "flare/io/stream_connection.h"
#include "flare/rpc/http/http_upgrade.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/websocket/websocket_frame.h"
#include "flare/rpc/websocket/websocket_handshake.h"
#include "flare/rpc/websocket/websocket_session.h"

namespace flare {
namespace {

HttpStatus StatusOf(const Status& why) {
  switch (why.code()) {
    case rpc::STATUS_OVERLOADED:
    case rpc::STATUS_OUT_OF_SERVICE:
      return HttpStatus::ServiceUnavailable;
    case rpc::STATUS_NOT_SUPPORTED:
      return HttpStatus::NotImplemented;
    default:
      return HttpStatus::BadRequest;
  }
}

class UpgradingHandler final : public HttpHandler {
 public:
  UpgradingHandler(WebSocketHandler serve, WebSocketServerOptions options)
      : serve_(std::move(serve)), options_(std::move(options)) {
    set_allowed_methods({HttpMethod::Get});
  }

  void OnHead(const HttpRequest& request, HttpResponse* response,
              HttpServerContext*) override {
    RefuseMethod(request, response);
  }

  void OnGet(const HttpRequest& request, HttpResponse* response,
             HttpServerContext* context) override {
    if (!rpc::CheckWebSocketRequest(request, response)) return;
    if (!IsWelcome(request, response)) return;
    rpc::HttpUpgrade* const upgrade =
        context->body == nullptr ? nullptr : context->body->upgrade();
    if (upgrade == nullptr) {
      return FillHttpError(HttpStatus::NotImplemented,
                           "This server can't switch protocols.", response);
    }
    auto link = upgrade->Prepare();
    if (!link) {
      return FillHttpError(StatusOf(link.error()), link.error().message(),
                           response);
    }
    const std::string subprotocol =
        rpc::ChooseWebSocketSubprotocol(request, options_.subprotocols);
    std::optional<rpc::WebSocketDeflate> deflate;
    if (options_.compress_from != 0) {
      deflate = rpc::ChooseWebSocketDeflate(request);
    }
    const auto session = rpc::WebSocketSession::Create(
        {.limits = options_.limits,
         .subprotocol = subprotocol,
         .compress_from = deflate ? options_.compress_from : 0,
         .window_bits =
             deflate ? deflate->server_max_window_bits.value_or(15) : 15,
         .remote_peer = context->remote_peer,
         .connection = RefPtr<io::StreamConnection>(ref_ptr, link->connection),
         .output = link->output});
    rpc::AddWebSocketAnswer(request, subprotocol, deflate, response->headers());
    response->set_status(HttpStatus::SwitchingProtocols);
    if (!upgrade->Switch(*response->headers(), session).ok()) return;
    Serve(session, request, *context);
  }

 private:
  bool IsWelcome(const HttpRequest& request, HttpResponse* response) const {
    if (!rpc::IsWebSocketOriginAllowed(request, options_.origins)) {
      FillHttpError(HttpStatus::Forbidden,
                    "Pages of this origin may not connect.", response);
      return false;
    }
    if (options_.accept == nullptr) return true;
    FillHttpError(HttpStatus::Forbidden, "It isn't accepted.", response);
    if (!options_.accept(request, response)) return false;
    // Fields that were added go with the answer; those of a body don't.
    response->set_body(Buffer());
    response->headers()->Remove("Content-Type");
    return true;
  }

  void Serve(const RefPtr<rpc::WebSocketSession>& session,
             const HttpRequest& request, const HttpServerContext& context) {
    try {
      session->Begin();
      WebSocket socket(rpc::WebSocketSession::Share(session));
      serve_(socket, request, context);
    } catch (...) {
      // Else it is the end of a thread.
      if (std::current_exception() != nullptr) {
        session->Finish(rpc::kWebSocketFailed);
      }
      throw;
    }
    session->Finish(rpc::kWebSocketNormal);
  }

  const WebSocketHandler serve_;
  const WebSocketServerOptions options_;
};

}  // namespace

std::unique_ptr<HttpHandler> NewWebSocketHandler(
    WebSocketHandler handler, WebSocketServerOptions options) {
  return std::make_unique<UpgradingHandler>(std::move(handler),
                                            std::move(options));
}

std::optional<WebSocketMessage> WebSocket::Read() {
  std::stop_token stop;
  if (session_->is_client()) {
    auto* const context = fiber::ExecutionContext::Current();
    if (context != nullptr) stop = context->stop_token();
  }
  return session_->Read(std::chrono::steady_clock::time_point::max(), stop);
}

std::optional<WebSocketMessage> WebSocket::ReadUntil(
    std::chrono::steady_clock::time_point at, const std::stop_token& stop) {
  return session_->Read(at, stop);
}

Status WebSocket::Write(WebSocketMessage message) {
  return session_->Write(std::move(message));
}

Status WebSocket::WriteText(std::string_view text) {
  return session_->Write({CreateBufferSlow(text), /*is_text=*/true});
}

Status WebSocket::WriteBinary(Buffer data) {
  return session_->Write({std::move(data), /*is_text=*/false});
}

Status WebSocket::Close(int code, std::string_view reason) {
  return session_->Close(code, reason);
}

bool WebSocket::closed() const { return session_->closed(); }

int WebSocket::close_code() const { return session_->close_code(); }

std::string WebSocket::close_reason() const { return session_->close_reason(); }

const std::string& WebSocket::subprotocol() const {
  return session_->subprotocol();
}

bool WebSocket::compresses() const { return session_->deflates(); }

const Endpoint& WebSocket::remote_peer() const {
  return session_->remote_peer();
}

}  // namespace flare
