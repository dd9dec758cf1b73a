// Comparing names and values of fields with literals, of which a head asks for
// dozens, and the meanings of names. Thread-safe; doesn't block or allocate.
#ifndef FLARE_RPC_HTTP2_FIELD_TEXT_H_
#define FLARE_RPC_HTTP2_FIELD_TEXT_H_

#include <cstddef>
#include <cstring>
#include <string_view>

namespace flare::rpc {

// text == literal, inlined as comparisons of words.
template <std::size_t kSize>
inline bool FieldTextIs(std::string_view text, const char (&literal)[kSize]) {
  return text.size() == kSize - 1 &&
         std::memcmp(text.data(), literal, kSize - 1) == 0;
}

// A field that lets its owner in: no table should have it (RFC 7541, 7.1.3).
inline bool IsSecretField(std::string_view name) {
  return FieldTextIs(name, "authorization") ||
         FieldTextIs(name, "proxy-authorization") ||
         FieldTextIs(name, "cookie") || FieldTextIs(name, "set-cookie");
}

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP2_FIELD_TEXT_H_
