// Text of pages: what their requests say, and what HTML may have. Thread-safe;
// nothing blocks.
#ifndef FLARE_RPC_ADMIN_PAGE_TEXT_H_
#define FLARE_RPC_ADMIN_PAGE_TEXT_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/rpc/http_message.h"

namespace flare::rpc {

// Whether the request is a browser's, which shows HTML.
bool WantsHtml(const HttpRequest& request);

// Whether the field Host is an IP address or localhost, or missing. A browser
// may be led to us under a name of a stranger's, whose page could read ours
// then (DNS rebinding). Always true of peers on Unix sockets, which browsers
// don't reach.
bool IsNamedAsThisHost(const HttpRequest& request, const Endpoint& peer);

// A name or a value of a query, without its escapes: "a+b%3D1" is "a b=1".
std::string UnescapeQuery(std::string_view text);

// Names and values of a query, without their escapes.
using QueryFields = std::vector<std::pair<std::string, std::string>>;
QueryFields ParseQuery(std::string_view query);

// For HTML's text, and for values of attributes in double quotes.
std::string EscapeHtml(std::string_view text);

}  // namespace flare::rpc

#endif  // FLARE_RPC_ADMIN_PAGE_TEXT_H_
