#include "flare/rpc/websocket/websocket_deflate.h"

#include <utility>

#include "flare/base/string.h"
#include "flare/rpc/http/http_text.h"

namespace flare::rpc {
namespace {

constexpr std::string_view kName = "permessage-deflate";
constexpr int kLeastBits = 8;
constexpr int kLeastBitsOfZlib = 9;
constexpr int kMostBits = 15;

// 8 to 15, in digits without zeros in front; also as a quoted string.
std::optional<int> WindowBitsOf(std::string_view text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
    text = text.substr(1, text.size() - 2);
  }
  for (int bits = kLeastBits; bits <= kMostBits; ++bits) {
    if (text == std::to_string(bits)) return bits;
  }
  return std::nullopt;
}

// False: it has a value, or was given before.
bool TakeFlag(const std::optional<std::string_view>& value, bool* flag) {
  return !value && !std::exchange(*flag, true);
}

bool TakeBits(const std::optional<std::string_view>& value, bool may_lack,
              std::optional<int>* bits) {
  if (*bits) return false;
  *bits = value ? WindowBitsOf(*value)
                : (may_lack ? std::optional<int>(0) : std::nullopt);
  return bits->has_value();
}

bool TakeParameter(std::string_view text, WebSocketDeflate* deflate) {
  const std::size_t equals = text.find('=');
  const std::string_view name = TrimBlanks(text.substr(0, equals));
  std::optional<std::string_view> value;
  if (equals != text.npos) value = TrimBlanks(text.substr(equals + 1));
  if (IEquals(name, "server_no_context_takeover")) {
    return TakeFlag(value, &deflate->server_no_context_takeover);
  }
  if (IEquals(name, "client_no_context_takeover")) {
    return TakeFlag(value, &deflate->client_no_context_takeover);
  }
  if (IEquals(name, "server_max_window_bits")) {
    return TakeBits(value, false, &deflate->server_max_window_bits);
  }
  if (IEquals(name, "client_max_window_bits")) {
    return TakeBits(value, true, &deflate->client_max_window_bits);
  }
  return false;
}

}  // namespace

std::optional<WebSocketDeflate> ParseWebSocketDeflate(std::string_view text) {
  std::size_t end = text.find(';');
  if (!IEquals(TrimBlanks(text.substr(0, end)), kName)) return std::nullopt;
  WebSocketDeflate deflate;
  while (end != text.npos) {
    text.remove_prefix(end + 1);
    end = text.find(';');
    if (!TakeParameter(text.substr(0, end), &deflate)) return std::nullopt;
  }
  return deflate;
}

std::optional<WebSocketDeflate> ChooseWebSocketDeflate(
    const HttpRequest& request) {
  std::optional<WebSocketDeflate> chosen;
  for (const std::string_view list :
       request.headers()->TryGetMultiple("Sec-WebSocket-Extensions")) {
    ForEachListMember(list, [&](std::string_view each) {
      if (chosen) return;
      chosen = ParseWebSocketDeflate(each);
      if (chosen && chosen->server_max_window_bits.value_or(kMostBits) <
                        kLeastBitsOfZlib) {
        chosen.reset();
      }
    });
  }
  return chosen;
}

std::string WebSocketDeflateAnswer(const WebSocketDeflate& offer) {
  std::string answer(kWebSocketDeflateOffer);
  if (offer.server_max_window_bits) {
    answer += "; server_max_window_bits=" +
              std::to_string(*offer.server_max_window_bits);
  }
  return answer;
}

// The server must not keep a context; a window for the client wasn't offered.
bool IsWebSocketDeflateAnswer(std::string_view text) {
  const auto answer = ParseWebSocketDeflate(text);
  return answer && answer->server_no_context_takeover &&
         !answer->client_max_window_bits;
}

}  // namespace flare::rpc
