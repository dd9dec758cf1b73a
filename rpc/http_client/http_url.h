// URLs of http and https (RFC 3986, RFC 9110 4.2). Pure functions, which don't
// block.
#ifndef FLARE_RPC_HTTP_CLIENT_HTTP_URL_H_
#define FLARE_RPC_HTTP_CLIENT_HTTP_URL_H_

#include <string>
#include <string_view>

#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace flare::rpc {

struct HttpUrl {
  bool tls = false;
  // In lower case, with the port unless it is the scheme's: the field Host. At
  // most 255 bytes without it.
  std::string host;
  // With the port in any case: "example.com:80".
  std::string address;
  std::string target;  // "/path?query"

  // "http://example.com"
  std::string origin() const { return (tls ? "https://" : "http://") + host; }
  std::string ToString() const { return origin() + target; }
};

// Fails with ERROR_INVALID_URI_ADDRESS or ERROR_PROTOCOL_NOT_SUPPORTED. Names
// and passwords before the host are refused: they belong to the field
// Authorization.
Expected<HttpUrl, flare::Status> ParseHttpUrl(std::string_view text);

// Fails as ParseHttpUrl(). `reference` is a URL, or is relative to `base`
// (RFC 3986, 5.2): "//host/path", "/path", "../path", "?query".
Expected<HttpUrl, flare::Status> ResolveHttpUrl(const HttpUrl& base,
                                                std::string_view reference);

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_CLIENT_HTTP_URL_H_
