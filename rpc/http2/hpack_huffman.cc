// The code is canonical: codes of one length are consecutive numbers in the
// order of their symbols, and go on from twice the last number at the next
// length. So the lengths say all, and a code is decoded by its length and its
// distance from the first one of that length (Schwartz and Kallick, 1964).
#include "flare/rpc/http2/hpack_huffman.h"

#include <array>
#include <cstdint>
#include <cstring>

namespace flare::rpc {
namespace {

constexpr std::size_t kSymbols = 257;
constexpr std::uint16_t kEndOfText = 256;
constexpr int kMaxLength = 30;
// Codes of digits, letters and most signs aren't longer.
constexpr int kShort = 8;

constexpr std::array<std::uint8_t, kSymbols> kLengths = {
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,  //
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,  //
    6,  10, 10, 12, 13, 6,  8,  11, 10, 10, 8,  11, 8,  6,  6,  6,   // ' '
    5,  5,  5,  6,  6,  6,  6,  6,  6,  6,  7,  8,  15, 6,  12, 10,  // '0'
    13, 6,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,   // '@'
    7,  7,  7,  7,  7,  7,  7,  7,  8,  7,  8,  13, 19, 13, 14, 6,   // 'P'
    15, 5,  6,  5,  6,  5,  6,  6,  6,  5,  7,  7,  6,  6,  6,  5,   // '`'
    6,  7,  6,  5,  5,  6,  7,  7,  7,  7,  7,  15, 11, 14, 13, 28,  // 'p'
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,  //
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,  //
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,  //
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,  //
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,  //
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,  //
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,  //
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,  //
    30};

struct Code {
  std::uint32_t bits = 0;
  std::uint8_t length = 0;
};

struct Short {
  std::uint8_t symbol = 0;
  std::uint8_t length = 0;  // 0: the code is a longer one.
};

struct Tables {
  std::array<Code, kSymbols> codes = {};
  // By the first bits of a code.
  std::array<Short, 1 << kShort> short_codes = {};
  // By length: the end of its codes, at the top of 32 bits; the first code; its
  // place in `symbols`.
  std::array<std::uint64_t, kMaxLength + 1> end = {};
  std::array<std::uint32_t, kMaxLength + 1> first = {};
  std::array<std::uint16_t, kMaxLength + 1> place = {};
  std::array<std::uint16_t, kSymbols> symbols = {};
};

constexpr void AddShortCode(std::size_t symbol, Code code, Tables* tables) {
  const int free_bits = kShort - code.length;
  for (std::uint32_t i = 0; i != 1U << free_bits; ++i) {
    tables->short_codes[(code.bits << free_bits) + i] = {
        .symbol = static_cast<std::uint8_t>(symbol), .length = code.length};
  }
}

constexpr Tables MakeTables() {
  Tables tables;
  std::uint32_t next = 0;
  std::uint16_t place = 0;
  for (int length = 1; length <= kMaxLength; ++length) {
    const auto at = static_cast<std::size_t>(length);
    next <<= 1;
    tables.first[at] = next;
    tables.place[at] = place;
    for (std::size_t symbol = 0; symbol != kSymbols; ++symbol) {
      if (kLengths[symbol] != length) continue;
      const Code code = {next++, kLengths[symbol]};
      tables.codes[symbol] = code;
      tables.symbols[place++] = static_cast<std::uint16_t>(symbol);
      if (length <= kShort) AddShortCode(symbol, code, &tables);
    }
    tables.end[at] = std::uint64_t{next} << (32 - length);
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

const Code& CodeOf(char c) {
  return kTables.codes[static_cast<unsigned char>(c)];
}

// Bits of a code, from its first one on, and ones behind them.
class BitReader {
 public:
  explicit BitReader(std::string_view code)
      : at_(code.data()), end_(at_ + code.size()) {
    Refill();
  }

  // Those that are left, of which more than kMaxLength are loaded.
  std::size_t bits() const {
    return static_cast<std::size_t>(loaded_) +
           8 * static_cast<std::size_t>(end_ - at_);
  }
  std::uint32_t Top32() const {
    return static_cast<std::uint32_t>(window_ >> 32);
  }
  std::size_t Top(int count) const {
    return static_cast<std::size_t>(window_ >> (64 - count));
  }
  // At most as many as there are.
  void Skip(int count) {
    window_ = ~(~window_ << count);
    loaded_ -= count;
    if (loaded_ < 32) Refill();
  }

 private:
  void Refill() {
    while (loaded_ <= 56 && at_ != end_) {
      const auto byte = static_cast<unsigned char>(*at_++);
      window_ ^= std::uint64_t{0xffU ^ byte} << (56 - loaded_);
      loaded_ += 8;
    }
  }

  std::uint64_t window_ = ~std::uint64_t{0};
  int loaded_ = 0;
  const char* at_;
  const char* end_;
};

struct Symbol {
  std::uint16_t symbol;
  int length;
};

Symbol DecodeLong(std::uint32_t top) {
  int length = kShort + 1;
  while (top >= kTables.end[static_cast<std::size_t>(length)]) ++length;
  const auto at = static_cast<std::size_t>(length);
  const std::uint32_t distance = (top >> (32 - length)) - kTables.first[at];
  return {kTables.symbols[kTables.place[at] + distance], length};
}

Symbol Next(const BitReader& bits) {
  const Short code = kTables.short_codes[bits.Top(kShort)];
  if (code.length != 0) return {code.symbol, code.length};
  return DecodeLong(bits.Top32());
}

// The bits behind the last symbol: the begin of kEndOfText's code.
bool IsPadding(const BitReader& bits) {
  return bits.bits() < 8 && bits.Top(kShort) == (1U << kShort) - 1;
}

}  // namespace

std::size_t HuffmanSize(std::string_view text) {
  std::size_t bits = 0;
  for (const char c : text) bits += CodeOf(c).length;
  return (bits + 7) / 8;
}

char* HuffmanEncode(std::string_view text, char* out) {
  std::uint64_t window = 0;
  int bits = 0;
  for (const char c : text) {
    const Code& code = CodeOf(c);
    window = window << code.length | code.bits;
    bits += code.length;
    while (bits >= 8) {
      bits -= 8;
      *out++ = static_cast<char>(window >> bits);
    }
  }
  if (bits != 0) {
    *out++ = static_cast<char>(window << (8 - bits) | 0xffU >> bits);
  }
  return out;
}

char* HuffmanDecode(std::string_view code, char* out) {
  BitReader bits(code);
  while (bits.bits() != 0) {
    const auto [symbol, length] = Next(bits);
    if (static_cast<std::size_t>(length) > bits.bits()) {
      return IsPadding(bits) ? out : nullptr;
    }
    if (symbol == kEndOfText) return nullptr;
    *out++ = static_cast<char>(symbol);
    bits.Skip(length);
  }
  return out;
}

}  // namespace flare::rpc
