// libFuzzer: a server's input. Build with
//   clang++ -std=c++20 -fsanitize=fuzzer,address ... server_protocol_fuzzer.cc
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "flare/rpc/wire/protocol_fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  flare::rpc::testing::CheckServerBytes(
      std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
