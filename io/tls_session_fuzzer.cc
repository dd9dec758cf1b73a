// libFuzzer: peers of TLS sessions, servers' and clients'. Build with
//   bazel build --config=fuzzer //io:tls_session_fuzzer
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "flare/io/testing/tls_fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  flare::io::testing::CheckTlsSession(
      std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
