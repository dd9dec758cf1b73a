// libFuzzer: connections of HTTP/2 to a server with gRPC and HTTP. Build with
//   bazel build --config=fuzzer //rpc:http2_connection_fuzzer
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "flare/rpc/grpc/http2_fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  flare::rpc::testing::CheckHttp2Connection(
      std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
