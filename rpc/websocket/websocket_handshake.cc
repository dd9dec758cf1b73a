#include "flare/rpc/websocket/websocket_handshake.h"

#include <algorithm>
#include <cerrno>

#include "flare/base/string.h"
#include "flare/io/secrets.h"
#include "flare/rpc/http/http_text.h"

namespace flare::rpc {
namespace {

constexpr std::size_t kKeyBytes = 16;
constexpr std::size_t kKeySize = 24;  // In Base64.

bool HasMember(const HttpMessage& message, std::string_view name,
               std::string_view member) {
  bool found = false;
  for (const std::string_view list : message.headers()->TryGetMultiple(name)) {
    found = found || HasListMember(list, member);
  }
  return found;
}

// 16 bytes in Base64: the last digit has four of its bits, and two "=" follow.
bool IsKey(std::string_view key) {
  return key.size() == kKeySize && key.ends_with("==") &&
         std::all_of(key.begin(), key.end() - 2, [](char c) {
           return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                  (c >= '0' && c <= '9') || c == '+' || c == '/';
         });
}

// The only value of that field; nullopt: there is none, or several.
std::optional<std::string_view> TheOnly(const HttpMessage& message,
                                        std::string_view name) {
  const auto values = message.headers()->TryGetMultiple(name);
  if (values.size() != 1) return std::nullopt;
  return values[0];
}

void AskForUpgrade(std::string_view text, HttpResponse* response) {
  FillHttpError(HttpStatus::UpgradeRequired, text, response);
  response->headers()->Set("Upgrade", "websocket");
  response->headers()->Set("Connection", "Upgrade");
  response->headers()->Set("Sec-WebSocket-Version", "13");
}

flare::Status Wrong(std::string_view why) {
  return flare::Status(
      EPROTO, "the answer to the request for a WebSocket " + std::string(why));
}

}  // namespace

std::string NewWebSocketKey() {
  std::string bytes(kKeyBytes, '\0');
  io::FillRandom(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size());
  return io::EncodeBase64(bytes);
}

std::string WebSocketAcceptOf(std::string_view key) {
  std::string text(key);
  text += "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
  return io::EncodeBase64(io::Sha1Of(text));
}

bool CheckWebSocketRequest(const HttpRequest& request, HttpResponse* response) {
  if (request.version() == HttpVersion::kHttp10 ||
      !HasMember(request, "Upgrade", "websocket") ||
      !HasMember(request, "Connection", "upgrade")) {
    AskForUpgrade("This is a WebSocket, over HTTP/1.1.", response);
    return false;
  }
  if (TheOnly(request, "Sec-WebSocket-Version") != "13") {
    AskForUpgrade("The only version of WebSocket spoken here is 13.", response);
    return false;
  }
  const auto key = TheOnly(request, "Sec-WebSocket-Key");
  if (!key || !IsKey(*key)) {
    FillHttpError(HttpStatus::BadRequest,
                  "Sec-WebSocket-Key must be 16 bytes in Base64.", response);
    return false;
  }
  if (request.body_size() != 0) {
    FillHttpError(HttpStatus::BadRequest,
                  "A request for a WebSocket has no body.", response);
    return false;
  }
  return true;
}

bool IsWebSocketOriginAllowed(const HttpRequest& request,
                              const std::vector<std::string>& allowed) {
  if (!request.headers()->contains("Origin")) return true;
  const auto origin = TheOnly(request, "Origin");
  if (!origin) return false;
  if (!allowed.empty()) {
    return std::any_of(allowed.begin(), allowed.end(),
                       [&](const std::string& each) {
                         return each == "*" || IEquals(each, *origin);
                       });
  }
  const std::size_t host = origin->find("://");
  return host != origin->npos &&
         IEquals(origin->substr(host + 3),
                 request.headers()->TryGet("Host").value_or(""));
}

std::string ChooseWebSocketSubprotocol(const HttpRequest& request,
                                       const std::vector<std::string>& known) {
  std::string chosen;
  for (const std::string_view list :
       request.headers()->TryGetMultiple("Sec-WebSocket-Protocol")) {
    ForEachListMember(list, [&](std::string_view each) {
      if (chosen.empty() &&
          std::find(known.begin(), known.end(), each) != known.end()) {
        chosen = each;
      }
    });
  }
  return chosen;
}

void AddWebSocketAnswer(const HttpRequest& request,
                        std::string_view subprotocol,
                        const std::optional<WebSocketDeflate>& deflate,
                        HttpHeaders* fields) {
  fields->Set("Upgrade", "websocket");
  fields->Set("Connection", "Upgrade");
  fields->Set("Sec-WebSocket-Accept",
              WebSocketAcceptOf(
                  request.headers()->TryGet("Sec-WebSocket-Key").value_or("")));
  if (!subprotocol.empty()) {
    fields->Set("Sec-WebSocket-Protocol", subprotocol);
  }
  if (deflate) {
    fields->Set("Sec-WebSocket-Extensions", WebSocketDeflateAnswer(*deflate));
  }
}

std::string WebSocketRequestLines(std::string_view key,
                                  const WebSocketOffer& offer) {
  std::string lines =
      "Connection: Upgrade\r\n"
      "Upgrade: websocket\r\n"
      "Sec-WebSocket-Version: 13\r\n"
      "Sec-WebSocket-Key: ";
  lines += key;
  lines += "\r\n";
  for (const std::string& each : offer.subprotocols) {
    lines += "Sec-WebSocket-Protocol: " + each + "\r\n";
  }
  if (offer.deflate) {
    lines += "Sec-WebSocket-Extensions: ";
    lines += kWebSocketDeflateOffer;
    lines += "\r\n";
  }
  return lines;
}

flare::Status CheckWebSocketAnswer(const HttpResponse& answer,
                                   std::string_view key,
                                   const WebSocketOffer& offer,
                                   WebSocketChoice* choice) {
  if (!HasMember(answer, "Upgrade", "websocket") ||
      !HasMember(answer, "Connection", "upgrade")) {
    return Wrong("switches to another protocol");
  }
  if (TheOnly(answer, "Sec-WebSocket-Accept") != WebSocketAcceptOf(key)) {
    return Wrong("has another Sec-WebSocket-Accept than the key asks for");
  }
  *choice = WebSocketChoice();
  if (answer.headers()->contains("Sec-WebSocket-Extensions")) {
    if (!offer.deflate) {
      return Wrong("has extensions, of which none was offered");
    }
    const auto extension = TheOnly(answer, "Sec-WebSocket-Extensions");
    if (!extension || !IsWebSocketDeflateAnswer(*extension)) {
      return Wrong("has other extensions than the one that was offered");
    }
    choice->deflate = true;
  }
  if (!answer.headers()->contains("Sec-WebSocket-Protocol")) return {};
  const auto chosen = TheOnly(answer, "Sec-WebSocket-Protocol");
  if (!chosen || std::find(offer.subprotocols.begin(), offer.subprotocols.end(),
                           *chosen) == offer.subprotocols.end()) {
    return Wrong("chooses a subprotocol that wasn't offered");
  }
  choice->subprotocol = *chosen;
  return {};
}

}  // namespace flare::rpc
