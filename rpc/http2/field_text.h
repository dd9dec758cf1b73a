// Comparing names and values of fields with literals, of which a head asks for
// dozens.
// Thread-safe; doesn't block or allocate.
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

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP2_FIELD_TEXT_H_
