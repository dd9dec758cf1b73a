#include "flare/base/crc32c.h"

#include <array>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace flare {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Bits reversed.

constexpr std::array<std::uint32_t, 256> MakeTable() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i != table.size(); ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit != 8; ++bit) {
      crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    }
    table[i] = crc;
  }
  return table;
}

constexpr std::array<std::uint32_t, 256> kTable = MakeTable();

#if defined(__x86_64__)

#define FLARE_WITH_CRC32C __attribute__((target("sse4.2")))

// By the instruction: an optimising linker doesn't find the variable of
// __builtin_cpu_supports().
bool HasInstruction() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_SSE4_2) != 0;
}

FLARE_WITH_CRC32C inline std::uint32_t Step8(std::uint32_t crc,
                                             std::uint64_t bytes) {
  return static_cast<std::uint32_t>(__builtin_ia32_crc32di(crc, bytes));
}

FLARE_WITH_CRC32C inline std::uint32_t Step1(std::uint32_t crc,
                                             std::uint8_t byte) {
  return __builtin_ia32_crc32qi(crc, byte);
}

#elif defined(__aarch64__)

#define FLARE_WITH_CRC32C

bool HasInstruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }

// The compilers have no common name for it.
inline std::uint32_t Step8(std::uint32_t crc, std::uint64_t bytes) {
  asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(bytes));
  return crc;
}

inline std::uint32_t Step1(std::uint32_t crc, std::uint8_t byte) {
  asm(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(byte));
  return crc;
}

#else
#error "CRC32C has no instruction here: use the table."
#endif

FLARE_WITH_CRC32C std::uint32_t ExtendByInstruction(std::uint32_t crc,
                                                    std::string_view data) {
  crc = ~crc;
  while (data.size() >= sizeof(std::uint64_t)) {
    std::uint64_t bytes;
    std::memcpy(&bytes, data.data(), sizeof(bytes));
    crc = Step8(crc, bytes);
    data.remove_prefix(sizeof(bytes));
  }
  for (char c : data) crc = Step1(crc, static_cast<std::uint8_t>(c));
  return ~crc;
}

#undef FLARE_WITH_CRC32C

}  // namespace

std::uint32_t ExtendCrc32cByTable(std::uint32_t crc, std::string_view data) {
  crc = ~crc;
  for (char c : data) {
    crc = crc >> 8 ^ kTable[(crc ^ static_cast<std::uint8_t>(c)) & 0xff];
  }
  return ~crc;
}

std::uint32_t ExtendCrc32c(std::uint32_t crc, std::string_view data) {
  static const bool has_instruction = HasInstruction();
  return has_instruction ? ExtendByInstruction(crc, data)
                         : ExtendCrc32cByTable(crc, data);
}

}  // namespace flare
