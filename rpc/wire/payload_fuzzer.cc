// libFuzzer: bytes read and written as messages in all formats. Build with
//   clang++ -std=c++20 -fsanitize=fuzzer,address ... payload_fuzzer.cc
// and run with -rss_limit_mb=1024 -malloc_limit_mb=512 -timeout=10: memory and
// time are in proportion to the input.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "flare/rpc/wire/payload_fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  flare::rpc::testing::CheckPayload(
      std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
