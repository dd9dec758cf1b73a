// The fields of a unary call over gRPC, in steady state, beside libnghttp2's
// HPACK.
#include <array>
#include <cstddef>
#include <string>

#include "benchmark/benchmark.h"
#include "flare/rpc/http2/hpack.h"
#include "flare/rpc/http2/hpack_fuzzing.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

const testing::HpackFields kRequest = {
    {":method", "POST"},
    {":scheme", "http"},
    {":path", "/flare.example.EchoService/Echo"},
    {":authority", "127.0.0.1:5555"},
    {"te", "trailers"},
    {"content-type", "application/grpc"},
    {"user-agent", "grpc-c++/1.51.1 grpc-c/29.0.0 (linux; chttp2)"},
    {"grpc-accept-encoding", "identity, deflate, gzip"}};
const testing::HpackFields kReply = {{":status", "200"},
                                     {"content-type", "application/grpc"},
                                     {"grpc-status", "0"}};

std::string Encode(const testing::HpackFields& fields, HpackEncoder* encoder) {
  std::string block;
  for (const auto& [name, value] : fields) {
    encoder->Encode(name, value, HpackIndexing::kAdd, &block);
  }
  return block;
}

void BM_HpackEncodeReply(benchmark::State& state) {
  HpackEncoder encoder;
  std::string block;
  for (auto _ : state) {
    block.clear();
    for (const auto& [name, value] : kReply) {
      encoder.Encode(name, value, HpackIndexing::kAdd, &block);
    }
    benchmark::DoNotOptimize(block.data());
  }
}
BENCHMARK(BM_HpackEncodeReply);

void BM_HpackDecodeRequest(benchmark::State& state) {
  HpackEncoder encoder;
  HpackDecoder decoder(HpackDecoder::Options{});
  std::string block = Encode(kRequest, &encoder);
  std::size_t bytes = 0;
  const auto count = [&](const HpackField& field) {
    bytes += field.name.size() + field.value.size();
  };
  CHECK(decoder.Decode(block, count).error.empty());
  block = Encode(kRequest, &encoder);
  for (auto _ : state) {
    CHECK(decoder.Decode(block, count).error.empty());
  }
  benchmark::DoNotOptimize(bytes);
}
BENCHMARK(BM_HpackDecodeRequest);

void BM_HpackDecodeRequestReference(benchmark::State& state) {
  HpackEncoder encoder;
  testing::ReferenceDecoder decoder;
  std::string block = Encode(kRequest, &encoder);
  CHECK(decoder.Decode(block).ok);
  block = Encode(kRequest, &encoder);
  for (auto _ : state) {
    benchmark::DoNotOptimize(decoder.Decode(block).ok);
  }
}
BENCHMARK(BM_HpackDecodeRequestReference);

}  // namespace
}  // namespace flare::rpc
