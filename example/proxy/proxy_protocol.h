// The PROXY protocol, versions 1 (text) and 2 (binary): a header in front of a
// connection's bytes that names the client behind a proxy.
// https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt
//
//   const ParsedProxyHeader header = ParseProxyHeader(received);
//   switch (header.outcome) { ... }
//
// Pure functions; thread-safe, don't block.

#ifndef EXAMPLE_PROXY_PROXY_PROTOCOL_H_
#define EXAMPLE_PROXY_PROXY_PROTOCOL_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "flare/base/endpoint.h"

namespace example::proxy {

// The longest header that is accepted: version 1 has at most 107 bytes; of
// version 2 this leaves room for extensions (TLVs), which are skipped.
inline constexpr std::size_t kMaxProxyHeader = 2048;

struct ParsedProxyHeader {
  enum class Outcome {
    kComplete,    // `size` bytes are the header.
    kIncomplete,  // A beginning of one: more bytes are needed.
    kMalformed,   // No header, or one that breaks the rules.
  };
  Outcome outcome = Outcome::kMalformed;
  std::size_t size = 0;
  // Empty if the header doesn't name them (UNKNOWN, LOCAL, or a kind of address
  // that we don't know): then the connection's own addresses hold.
  flare::Endpoint source = {};
  flare::Endpoint destination = {};
};

// Looks at the beginning of a connection's bytes.
ParsedProxyHeader ParseProxyHeader(std::string_view bytes);

// The headers for a connection from `source` to `destination`. Addresses of
// different families, and empty ones, are sent as unknown; so are Unix sockets
// by version 1, which can't name them.
std::string FormatProxyHeaderV1(const flare::Endpoint& source,
                                const flare::Endpoint& destination);
std::string FormatProxyHeaderV2(const flare::Endpoint& source,
                                const flare::Endpoint& destination);

// Version 2's for a connection that stands for no client (LOCAL), such as a
// check of health. Version 1 has but unknown addresses for that.
std::string FormatLocalHeaderV2();

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_PROXY_PROTOCOL_H_
