// The Huffman code of HPACK (RFC 7541, 5.2 and appendix B).
//
// Pure functions: thread-safe, don't block, and don't allocate.
#ifndef FLARE_RPC_HTTP2_HPACK_HUFFMAN_H_
#define FLARE_RPC_HTTP2_HPACK_HUFFMAN_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace flare::rpc {

// Bytes that `text` takes in code.
std::size_t HuffmanSize(std::string_view text);

// Writes them to `out`, which has as much room. Returns its end.
char* HuffmanEncode(std::string_view text, char* out);

// Room that decoding as many bytes of code may need: no character has a code
// of less than five bits.
constexpr std::size_t MaxHuffmanText(std::size_t code_size) {
  return code_size * 8 / 5;
}

// Writes the text to `out`, which has room for MaxHuffmanText(code.size()).
// Returns its end, or null if the code is broken: it has the code of the end
// of the text, or more than 7 bits behind the text, or others than ones.
[[nodiscard]] char* HuffmanDecode(std::string_view code, char* out);

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP2_HPACK_HUFFMAN_H_
