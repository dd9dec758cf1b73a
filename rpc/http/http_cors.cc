#include "flare/rpc/http/http_cors.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "flare/base/string.h"
#include "flare/rpc/http/http_text.h"

namespace flare::rpc {

namespace {

// Seconds for which a browser need not ask again.
constexpr std::string_view kMaxAge = "600";

// "https://example.com:8080". As browsers write them: without a path.
bool IsOrigin(std::string_view text) {
  constexpr std::string_view kMark = "://";
  const std::size_t mark = text.find(kMark);
  if (mark == std::string_view::npos || !IsHttpToken(text.substr(0, mark))) {
    return false;
  }
  const std::string_view host = text.substr(mark + kMark.size());
  return !host.empty() && host[0] != ':' && MayBeHttpHost(host);
}

std::string FieldsOf(std::string_view origin) {
  std::string lines = "Access-Control-Allow-Origin: ";
  lines.append(origin).append(
      "\r\nAccess-Control-Expose-Headers: Rpc-SeqNo, Rpc-Error-Code, "
      "Rpc-Error-Reason, Grpc-Status, Grpc-Message, Grpc-Status-Details-Bin, "
      "Content-Encoding, Connect-Content-Encoding, *\r\n");
  // Caches keep a reply for each origin.
  if (origin != "*") lines.append("Vary: Origin\r\n");
  return lines;
}

}  // namespace

Expected<HttpCors, flare::Status> HttpCors::FromText(std::string_view text) {
  HttpCors cors;
  for (std::string_view piece : Split(text, ',')) {
    piece = Trim(piece);
    if (piece.empty()) continue;
    if (piece == "*") {
      cors.any_ = true;
    } else if (!IsOrigin(piece)) {
      return flare::Status(EINVAL, "\"" + OneLine(piece) +
                                       "\" is no origin of web pages, which "
                                       "are https://host or https://host:port");
    }
    cors.origins_.emplace_back(piece);
  }
  if (cors.any_) cors.origins_ = {"*"};
  if (cors.origins_.size() > kMaxOrigins) {
    return flare::Status(EINVAL, "more than " + std::to_string(kMaxOrigins) +
                                     " origins of web pages");
  }
  for (const std::string& origin : cors.origins_) {
    cors.fields_.push_back(FieldsOf(origin));
  }
  return cors;
}

std::uint8_t HttpCors::Find(std::string_view origin) const {
  if (any_) return 1;
  const auto found = std::find(origins_.begin(), origins_.end(), origin);
  return found == origins_.end()
             ? 0
             : static_cast<std::uint8_t>(found - origins_.begin() + 1);
}

void HttpCors::AnswerPreflight(const HttpRequest& request,
                               HttpResponse* response) const {
  const auto origin = request.headers()->TryGet("Origin");
  const std::uint8_t place = origin ? Find(*origin) : 0;
  if (origin && place == 0) {
    return FillHttpError(HttpStatus::Forbidden,
                         "Pages of this origin may not make calls.", response);
  }
  response->set_status(HttpStatus::NoContent);
  HttpHeaders& fields = *response->headers();
  fields.Set("Allow", "GET, OPTIONS, POST");
  if (!origin) return;
  fields.Set("Access-Control-Allow-Origin", origins_[place - 1u]);
  fields.Set("Access-Control-Allow-Methods", "GET, POST");
  // Fields that nobody knows are passed over.
  if (const auto asked =
          request.headers()->TryGet("Access-Control-Request-Headers")) {
    fields.Set("Access-Control-Allow-Headers", *asked);
  }
  fields.Set("Access-Control-Max-Age", kMaxAge);
  fields.Set("Vary", "Origin, Access-Control-Request-Headers");
}

}  // namespace flare::rpc
