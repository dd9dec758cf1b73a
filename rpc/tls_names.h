// How TLS is spelled in this library: the prefix of URIs, and the names of
// protocols in TLS handshakes (ALPN).
#ifndef FLARE_RPC_TLS_NAMES_H_
#define FLARE_RPC_TLS_NAMES_H_

#include <string>
#include <string_view>

namespace flare::rpc {

// "tls+flare://..." is "flare://..." over TLS, and so for every protocol
// (docs/decisions/0042-tls-in-uris.md).
inline constexpr std::string_view kTlsPrefix = "tls+";

// The registered names of HTTP's versions; other protocols have their own.
inline std::string AlpnNameOf(std::string_view protocol) {
  if (protocol.starts_with("http")) return "http/1.1";
  if (protocol.starts_with("grpc")) return "h2";
  return std::string(protocol);
}

}  // namespace flare::rpc

#endif  // FLARE_RPC_TLS_NAMES_H_
