// CRC32C (Castagnoli): the checksum of iSCSI, and of wire formats that protect
// a payload.
//
//   std::uint32_t crc = ExtendCrc32c(0, "123456789");  // 0xe3069283
//   for (std::string_view slice : buffer) crc = ExtendCrc32c(crc, slice);
//
// Uses the processor's instruction where it has one (x86-64 with SSE 4.2,
// AArch64 with CRC32), else a table. Thread-safe; doesn't block.

#ifndef FLARE_BASE_CRC32C_H_
#define FLARE_BASE_CRC32C_H_

#include <cstdint>
#include <string_view>

namespace flare {

// Extends `crc`, the checksum of the bytes so far (0: no bytes), by `data`.
std::uint32_t ExtendCrc32c(std::uint32_t crc, std::string_view data);

// The fallback of ExtendCrc32c.
std::uint32_t ExtendCrc32cByTable(std::uint32_t crc, std::string_view data);

}  // namespace flare

#endif  // FLARE_BASE_CRC32C_H_
