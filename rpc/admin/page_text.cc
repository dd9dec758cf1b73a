#include "flare/rpc/admin/page_text.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>

#include "flare/base/percent.h"
#include "flare/base/string.h"

namespace flare::rpc {

bool WantsHtml(const HttpRequest& request) {
  return request.headers()->TryGet("Accept").value_or("").find("text/html") !=
         std::string_view::npos;
}

bool IsNamedAsThisHost(const HttpRequest& request, const Endpoint& peer) {
  const auto field = request.headers()->TryGet("Host");
  if (!field || field->empty() || peer.family() == AF_UNIX) return true;
  std::string host = ToLower(*field);
  const std::size_t colon = host.rfind(':');
  if (host.front() == '[') {
    const std::size_t end = host.find(']');
    if (end == host.npos) return false;
    host = host.substr(1, end - 1);
  } else if (colon != host.npos) {
    host.resize(colon);
  }
  in6_addr address;
  return host == "localhost" ||
         inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

std::string UnescapeQuery(std::string_view text) {
  std::string plain(text);
  std::replace(plain.begin(), plain.end(), '+', ' ');
  return UnescapePercentLeniently(plain);
}

QueryFields ParseQuery(std::string_view query) {
  QueryFields fields;
  for (const std::string_view field : Split(query, '&')) {
    const std::size_t equals = std::min(field.find('='), field.size());
    fields.emplace_back(
        UnescapeQuery(field.substr(0, equals)),
        UnescapeQuery(field.substr(std::min(equals + 1, field.size()))));
  }
  return fields;
}

std::string EscapeHtml(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped.push_back(c);
    }
  }
  return escaped;
}

}  // namespace flare::rpc
