// libFuzzer: HPACK beside libnghttp2's. Build with
//   bazel build --config=fuzzer //rpc:hpack_fuzzer
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "flare/rpc/http2/hpack_fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  flare::rpc::testing::CheckHpackBytes(bytes);
  flare::rpc::testing::CheckHpackFields(bytes);
  return 0;
}
