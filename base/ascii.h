// ASCII within text. Thread-safe; nothing allocates or blocks.
#ifndef FLARE_BASE_ASCII_H_
#define FLARE_BASE_ASCII_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace flare {

// How many bytes at the start of `text` are ASCII. Looks at 64 at a time.
inline std::size_t AsciiPrefix(std::string_view text) {
  using Word = std::uint64_t;
  using Words = Word __attribute__((vector_size(16)));
  static_assert(std::endian::native == std::endian::little);
  constexpr std::size_t kBlock = 4 * sizeof(Words);
  constexpr Word kHighBits = 0x8080808080808080;
  const auto load = []<class T>(const char* from, T to) {
    std::memcpy(&to, from, sizeof(to));
    return to;
  };
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const char* at = begin;
  const auto left = [&] { return static_cast<std::size_t>(end - at); };
  for (; left() >= kBlock; at += kBlock) {
    const Words any = load(at, Words()) | load(at + 16, Words()) |
                      load(at + 32, Words()) | load(at + 48, Words());
    if (((any[0] | any[1]) & kHighBits) != 0) break;
  }
  Word others = 0;  // The high bits of the word at `at`.
  for (; left() >= sizeof(Word); at += sizeof(Word)) {
    others = load(at, Word()) & kHighBits;
    if (others != 0) break;
  }
  if (others == 0 && at != end && text.size() >= sizeof(Word)) {
    // The rest, by a word that begins before it.
    others = (load(end - sizeof(Word), Word()) & kHighBits) >>
             (8 * (sizeof(Word) - left()));
    if (others == 0) at = end;
  }
  if (others != 0) at += std::countr_zero(others) / 8;
  if (text.size() < sizeof(Word)) {
    while (at != end && (static_cast<unsigned char>(*at) & 0x80) == 0) ++at;
  }
  return static_cast<std::size_t>(at - begin);
}

}  // namespace flare

#endif  // FLARE_BASE_ASCII_H_
