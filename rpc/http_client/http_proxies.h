// The proxies that an HttpClient sends its requests through: which one, and
// what that needs to know.
//
//   auto proxies = HttpProxies::Create(options.proxy);
//   if (const HttpProxy* proxy = proxies->For(url)) ...
//
// Nothing blocks. Immutable once it is made.
#ifndef FLARE_RPC_HTTP_CLIENT_HTTP_PROXIES_H_
#define FLARE_RPC_HTTP_CLIENT_HTTP_PROXIES_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/http_client/http_url.h"
#include "flare/rpc/http_client_options.h"

namespace flare::rpc {

struct HttpProxy {
  std::string address;  // "proxy.example.com:3128"
  // The field Proxy-Authorization with its CRLF, if the proxy asks for one.
  std::string lines;
};

class HttpProxies {
 public:
  // Fails with ERROR_INVALID_URI_ADDRESS.
  static Expected<HttpProxies, flare::Status> Create(
      const HttpProxyOptions& options);

  bool any() const { return http_ || https_; }
  // Null: requests to that URL go to its host itself.
  const HttpProxy* For(const HttpUrl& url) const;

 private:
  // "10.0.0.0/8": addresses whose first bits are those of `first`.
  struct Network {
    Endpoint first;
    unsigned ipv4_bits = 32;
    unsigned ipv6_bits = 128;

    bool Has(const Endpoint& address) const;
  };

  // nullopt: `text` is none.
  static std::optional<Network> ParseNetwork(std::string_view text);
  bool IsExcepted(std::string_view address) const;
  bool IsInNetwork(std::string_view address) const;

  std::optional<HttpProxy> http_;
  std::optional<HttpProxy> https_;
  // Hosts in lower case, some with a port; "*".
  std::vector<std::string> except_;
  std::vector<Network> except_networks_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_CLIENT_HTTP_PROXIES_H_
