// The host that a client of TLS names (SNI, RFC 6066) in the first message of
// its connection, the ClientHello, which isn't encrypted.
//
//   const ParsedClientHello hello = ParseClientHello(received);
//   switch (hello.outcome) { ... }
//
// Pure functions; thread-safe, don't block. Nothing is decrypted or verified: a
// router by the name must not trust it.

#ifndef EXAMPLE_PROXY_CLIENT_HELLO_H_
#define EXAMPLE_PROXY_CLIENT_HELLO_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace example::proxy {

// The longest beginning of a connection that is looked at. A ClientHello has
// mostly less than 2 KiB.
inline constexpr std::size_t kMaxClientHello = 16 << 10;

struct ParsedClientHello {
  enum class Outcome {
    kComplete,
    kIncomplete,  // A beginning of one: more bytes are needed.
    kMalformed,   // None, or one that breaks the rules, or is too long.
  };
  Outcome outcome = Outcome::kMalformed;
  // In lower case; empty: the client names none.
  std::string server_name = {};
};

// Looks at the beginning of a connection's bytes.
ParsedClientHello ParseClientHello(std::string_view bytes);

// Whether `pattern`, in lower case, is that host, or "*.example.org" and the
// host is one label below it: "www.example.org", not "a.b.example.org".
bool MatchesHost(std::string_view pattern, std::string_view host);

// Whether a route may have that pattern: a host's name in lower case, maybe
// with "*." in front.
bool IsHostPattern(std::string_view pattern);

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_CLIENT_HELLO_H_
