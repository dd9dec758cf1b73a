#include "flare/base/compression.h"

#include <malloc.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "flare/base/sanitizer.h"
#include "flare/base/testing/buffers.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

using buffer_testing::Sliced;

using enum CompressionAlgorithm;

constexpr CompressionAlgorithm kAll[] = {kGzip, kLz4Frame, kSnappy, kZstd,
                                         kZlib};
constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

enum class Kind { kZeros, kText, kNoise };

std::string Sample(Kind kind, std::size_t size) {
  std::mt19937 random(static_cast<unsigned>(size));
  std::string text(size, '\0');
  for (char& c : text) {
    if (kind == Kind::kText) c = "etaoin shrdlu"[random() % 13];
    if (kind == Kind::kNoise) c = static_cast<char>(random());
  }
  return text;
}

std::string MustCompress(CompressionAlgorithm algorithm,
                         std::string_view text) {
  auto packed = Compress(algorithm, CreateBufferSlow(text));
  EXPECT_TRUE(packed) << packed.error().ToString();
  return FlattenSlow(*packed);
}

int ErrorOf(CompressionAlgorithm algorithm, std::string_view data,
            std::size_t max = kNoLimit) {
  auto result = Decompress(algorithm, CreateBufferSlow(data), max);
  if (result) return 0;
  EXPECT_FALSE(result.error().message().empty());
  return result.error().code();
}

class EachAlgorithm : public testing::TestWithParam<CompressionAlgorithm> {};

INSTANTIATE_TEST_SUITE_P(Compression, EachAlgorithm, testing::ValuesIn(kAll),
                         [](const auto& info) {
                           std::string name(ToString(info.param));
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(EachAlgorithm, RoundTrip) {
  for (Kind kind : {Kind::kZeros, Kind::kText, Kind::kNoise}) {
    for (std::size_t size :
         {1u, 2u, 100u, 4096u, 65535u, 65536u, 65537u, 300000u, 1u << 20}) {
      const std::string text = Sample(kind, size);
      for (std::size_t slice : {std::size_t{777}, size}) {
        auto packed = Compress(GetParam(), Sliced(text, slice));
        ASSERT_TRUE(packed) << packed.error().ToString();
        if (kind == Kind::kZeros && size > 4096) {
          EXPECT_LT(packed->size(), size / 10);
        }
        auto flat = FlattenSlow(*packed);
        auto unpacked = Decompress(GetParam(), Sliced(flat, slice), size);
        ASSERT_TRUE(unpacked) << unpacked.error().ToString();
        ASSERT_EQ(FlattenSlow(*unpacked), text);
      }
    }
  }
}

class EachStream : public testing::TestWithParam<CompressionAlgorithm> {};

INSTANTIATE_TEST_SUITE_P(Compression, EachStream,
                         testing::Values(kGzip, kZlib, kZstd),
                         [](const auto& info) {
                           return std::string(ToString(info.param));
                         });

// Unpacks the begin of a stream.
std::string UnpackedBegin(CompressionAlgorithm algorithm, std::string packed) {
  std::string text(8 << 20, '\0');
  if (algorithm == kZstd) {
    ZSTD_DCtx* const context = ZSTD_createDCtx();
    ZSTD_inBuffer in{packed.data(), packed.size(), 0};
    ZSTD_outBuffer out{text.data(), text.size(), 0};
    while (in.pos != in.size) {
      if (ZSTD_isError(ZSTD_decompressStream(context, &out, &in))) break;
    }
    ZSTD_freeDCtx(context);
    return text.substr(0, out.pos);
  }
  z_stream stream{};
  EXPECT_EQ(inflateInit2(&stream, 15 + 32), Z_OK);  // Either wrapper.
  stream.next_in = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_in = static_cast<unsigned>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<unsigned>(text.size());
  static_cast<void>(inflate(&stream, Z_SYNC_FLUSH));
  text.resize(text.size() - stream.avail_out);
  inflateEnd(&stream);
  return text;
}

TEST_P(EachStream, EachPieceCanBeUnpackedAtOnce) {
  for (int round = 0; round != 2; ++round) {  // The second from the pool.
    auto stream = StreamCompressor::New(GetParam());
    ASSERT_TRUE(stream) << stream.error().ToString();
    std::string text, packed;
    for (Kind kind : {Kind::kText, Kind::kNoise, Kind::kZeros}) {
      for (std::size_t size : {1u, 30u, 0u, 4090u, 16384u, 300000u}) {
        const std::string piece = Sample(kind, size);
        auto bytes = (*stream)->Write(Sliced(piece, 5000));
        ASSERT_TRUE(bytes) << bytes.error().ToString();
        EXPECT_EQ(bytes->empty(), size == 0);
        text += piece;
        packed += FlattenSlow(*bytes);
        ASSERT_EQ(UnpackedBegin(GetParam(), packed), text);
      }
    }
    auto last = (*stream)->Finish();
    ASSERT_TRUE(last);
    packed += FlattenSlow(*last);
    auto unpacked =
        Decompress(GetParam(), CreateBufferSlow(packed), text.size());
    ASSERT_TRUE(unpacked) << unpacked.error().ToString();
    EXPECT_EQ(FlattenSlow(*unpacked), text);
    EXPECT_LT(packed.size(), text.size() * 3 / 4);
  }
}

// One that was given up leaves nothing behind for the next.
TEST_P(EachStream, MayEndEarly) {
  const std::string text = Sample(Kind::kText, 3000);
  {
    auto dropped = StreamCompressor::New(GetParam());
    ASSERT_TRUE((*dropped)->Write(CreateBufferSlow("given up")));
  }
  EXPECT_EQ(ErrorOf(GetParam(), MustCompress(GetParam(), text), 3000), 0);
  auto empty = StreamCompressor::New(GetParam());
  auto nothing = (*empty)->Finish();
  ASSERT_TRUE(nothing);
  auto unpacked = Decompress(GetParam(), *nothing, 0);
  ASSERT_TRUE(unpacked) << unpacked.error().ToString();
  EXPECT_TRUE(unpacked->empty());
}

TEST(StreamCompressor, KnowsThreeAlgorithms) {
  for (CompressionAlgorithm other : {kSnappy, kLz4Frame, kNone, kUnknown}) {
    auto stream = StreamCompressor::New(other);
    ASSERT_FALSE(stream);
    EXPECT_EQ(stream.error().code(), ENOTSUP);
  }
}

TEST_P(EachAlgorithm, InputMayBeSlicedToBytes) {
  const std::string text = Sample(Kind::kText, 5000);
  auto packed = Compress(GetParam(), Sliced(text, 1));
  ASSERT_TRUE(packed);
  const std::string flat = FlattenSlow(*packed);
  auto unpacked = Decompress(GetParam(), Sliced(flat, 1), text.size());
  ASSERT_TRUE(unpacked) << unpacked.error().ToString();
  EXPECT_EQ(FlattenSlow(*unpacked), text);
}

TEST_P(EachAlgorithm, EmptyStaysEmpty) {
  auto packed = Compress(GetParam(), Buffer());
  ASSERT_TRUE(packed);
  EXPECT_TRUE(packed->empty());
  auto unpacked = Decompress(GetParam(), Buffer(), 0);
  ASSERT_TRUE(unpacked);
  EXPECT_TRUE(unpacked->empty());
}

TEST_P(EachAlgorithm, LimitIsExact) {
  for (std::size_t size : {1u, 1000u, 16320u, 100000u}) {
    const std::string packed =
        MustCompress(GetParam(), Sample(Kind::kText, size));
    EXPECT_EQ(ErrorOf(GetParam(), packed, size), 0);
    EXPECT_EQ(ErrorOf(GetParam(), packed, size + 1), 0);
    EXPECT_EQ(ErrorOf(GetParam(), packed, size - 1), EMSGSIZE);
    EXPECT_EQ(ErrorOf(GetParam(), packed, 0), EMSGSIZE);
  }
}

TEST_P(EachAlgorithm, BombIsDefused) {
  // 64 MiB of zeros.
  Buffer zeros;
  const std::string megabyte(1 << 20, '\0');
  for (int i = 0; i < 64; ++i) {
    zeros.Append(MakeReferencingBuffer(megabyte.data(), megabyte.size()));
  }
  auto bomb = Compress(GetParam(), zeros);
  ASSERT_TRUE(bomb);
  EXPECT_LT(bomb->size(), zeros.size() / 15);
  auto result = Decompress(GetParam(), *bomb, 1 << 20);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), EMSGSIZE);
  EXPECT_NE(result.error().message().find("1048576"), std::string::npos);
}

TEST_P(EachAlgorithm, EveryTruncationIsAnError) {
  const std::string packed = MustCompress(GetParam(), Sample(Kind::kText, 600));
  for (std::size_t n = 1; n < packed.size(); ++n) {
    EXPECT_EQ(ErrorOf(GetParam(), packed.substr(0, n)), EBADMSG) << n;
  }
}

TEST_P(EachAlgorithm, TrailingBytesAreAnError) {
  const std::string packed = MustCompress(GetParam(), Sample(Kind::kText, 600));
  EXPECT_EQ(ErrorOf(GetParam(), packed + "x"), EBADMSG);
  EXPECT_EQ(ErrorOf(GetParam(), packed + packed), EBADMSG);
  Buffer sliced = CreateBufferSlow(packed);
  sliced.Append(MakeReferencingBuffer("y", 1));
  auto result = Decompress(GetParam(), sliced, kNoLimit);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), EBADMSG);
}

TEST_P(EachAlgorithm, GarbageIsAnError) {
  std::mt19937 random(3);
  for (int i = 0; i < 500; ++i) {
    std::string garbage(1 + random() % 300, '\0');
    for (char& c : garbage) c = static_cast<char>(random());
    const int code = ErrorOf(GetParam(), garbage, 1 << 16);
    // Raw snappy has no checksum: some garbage may mean something.
    if (GetParam() != kSnappy) {
      EXPECT_NE(code, 0);
    }
  }
}

// Flipped bits never crash, never exceed the limit, and formats with a checksum
// or a magic number notice them.
TEST_P(EachAlgorithm, FlippedBits) {
  const std::string text = Sample(Kind::kText, 3000);
  const std::string packed = MustCompress(GetParam(), text);
  std::mt19937 random(5);
  for (int i = 0; i < 2000; ++i) {
    std::string bad = packed;
    bad[random() % bad.size()] ^= static_cast<char>(1 << random() % 8);
    auto result = Decompress(GetParam(), CreateBufferSlow(bad), 4000);
    if (result) {
      EXPECT_LE(result->size(), 4000u);
    } else {
      const int code = result.error().code();
      EXPECT_TRUE(code == EBADMSG || code == EMSGSIZE || code == ENOMEM)
          << result.error().ToString();
    }
  }
  std::string bad_start = packed;
  bad_start[0] ^= 0x55;
  EXPECT_NE(ErrorOf(GetParam(), bad_start, 3000), 0);
}

TEST_P(EachAlgorithm, OthersAreNotMistakenForIt) {
  for (CompressionAlgorithm other : kAll) {
    if (other == GetParam()) continue;
    const std::string packed = MustCompress(other, Sample(Kind::kText, 1000));
    EXPECT_NE(ErrorOf(GetParam(), packed, 1 << 20), 0);
  }
}

// A context is usable again after a failure halfway.
TEST_P(EachAlgorithm, FailureLeavesNoTrace) {
  const std::string text = Sample(Kind::kText, 100000);
  const std::string packed = MustCompress(GetParam(), text);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(ErrorOf(GetParam(), packed.substr(0, packed.size() / 2)),
              EBADMSG);
    EXPECT_EQ(ErrorOf(GetParam(), packed, 1000), EMSGSIZE);
    auto result = Decompress(GetParam(), CreateBufferSlow(packed), kNoLimit);
    ASSERT_TRUE(result);
    EXPECT_EQ(FlattenSlow(*result), text);
    EXPECT_EQ(MustCompress(GetParam(), text), packed);
  }
}

TEST_P(EachAlgorithm, Concurrently) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 30; ++i) {
        const std::string text = Sample(Kind::kText, 1000 * (t + i) + 1);
        const std::string packed = MustCompress(GetParam(), text);
        auto result =
            Decompress(GetParam(), CreateBufferSlow(packed), text.size());
        ASSERT_TRUE(result);
        ASSERT_EQ(FlattenSlow(*result), text);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// --- messages of WebSockets --------------------------------------------------

std::string Inflated(std::string_view bytes, std::size_t max = kNoLimit) {
  auto text = InflateMessage(CreateBufferSlow(bytes), max);
  return text ? FlattenSlow(*text)
              : "error " + std::to_string(text.error().code());
}

// RFC 7692, 7.2.3.
TEST(InflateMessage, TakesTheExamplesOfTheStandard) {
  EXPECT_EQ(Inflated({"\xf2\x48\xcd\xc9\xc9\x07\x00", 7}), "Hello");
  // A block without compression, one that ends the stream, and two.
  EXPECT_EQ(Inflated({"\x00\x05\x00\xfa\xff\x48\x65\x6c\x6c\x6f\x00", 11}),
            "Hello");
  EXPECT_EQ(Inflated({"\xf3\x48\xcd\xc9\xc9\x07\x00\x00", 8}), "Hello");
  EXPECT_EQ(
      Inflated({"\xf2\x48\x05\x00\x00\x00\xff\xff\xca\xc9\xc9\x07\x00", 13}),
      "Hello");
  EXPECT_EQ(Inflated({"\x00", 1}), "");
  EXPECT_EQ(FlattenSlow(*DeflateMessage(CreateBufferSlow("Hello"), 15)),
            std::string("\xf2\x48\xcd\xc9\xc9\x07\x00", 7));
}

TEST(InflateMessage, TakesWhatDeflateMessageMakes) {
  for (const int window_bits : {9, 10, 12, 14, 15}) {
    for (Kind kind : {Kind::kZeros, Kind::kText, Kind::kNoise}) {
      for (const std::size_t size : {0u, 1u, 511u, 65536u, 300'000u}) {
        const std::string text = Sample(kind, size);
        auto packed = DeflateMessage(Sliced(text, 777), window_bits);
        ASSERT_TRUE(packed) << packed.error().ToString();
        const std::string flat = FlattenSlow(*packed);
        EXPECT_EQ(Inflated(flat, size), text) << window_bits << ' ' << size;
        if (size == 0) continue;
        EXPECT_EQ(Inflated(flat, size - 1),
                  "error " + std::to_string(EMSGSIZE));
        EXPECT_EQ(Inflated(flat.substr(0, flat.size() - 1)),
                  "error " + std::to_string(EBADMSG));
      }
    }
  }
}

// A peer's window may be smaller than zlib's largest.
TEST(DeflateMessage, KeepsToTheWindow) {
  const std::string noise = Sample(Kind::kNoise, 3500);
  const std::string text = noise + noise;
  for (const int window_bits : {9, 11, 12, 14, 15}) {
    const std::string packed =
        FlattenSlow(*DeflateMessage(CreateBufferSlow(text), window_bits)) +
        std::string("\0\0\xff\xff", 4);
    z_stream stream{};
    ASSERT_EQ(inflateInit2(&stream, -window_bits), Z_OK);
    std::string out(text.size(), '\0');
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream.avail_in = static_cast<unsigned>(packed.size());
    // In steps: bytes farther back have left zlib's own window by then.
    int rc = Z_OK;
    std::size_t at = 0;
    while (rc == Z_OK && at != out.size()) {
      const std::size_t step = std::min<std::size_t>(100, out.size() - at);
      stream.next_out = reinterpret_cast<Bytef*>(out.data() + at);
      stream.avail_out = static_cast<unsigned>(step);
      rc = inflate(&stream, Z_SYNC_FLUSH);
      at += step - stream.avail_out;
    }
    inflateEnd(&stream);
    EXPECT_EQ(out, text) << window_bits;
    // The second half is found in the first only by a large window.
    EXPECT_EQ(packed.size() < 5000, window_bits >= 12) << window_bits;
  }
}

TEST(Compression, NoneShares) {
  Buffer text = CreateBufferSlow("as it is");
  auto packed = Compress(kNone, text);
  ASSERT_TRUE(packed);
  EXPECT_EQ(packed->FirstContiguous().data(), text.FirstContiguous().data());
  auto unpacked = Decompress(kNone, *packed, 8);
  ASSERT_TRUE(unpacked);
  EXPECT_EQ(FlattenSlow(*unpacked), "as it is");
  EXPECT_EQ(ErrorOf(kNone, "as it is", 7), EMSGSIZE);
}

TEST(Compression, UnknownAlgorithms) {
  for (int value : {0, 7, 77, -1}) {
    const auto algorithm = static_cast<CompressionAlgorithm>(value);
    for (const Buffer& data : {Buffer(), CreateBufferSlow("x")}) {
      auto packed = Compress(algorithm, data);
      ASSERT_FALSE(packed);
      EXPECT_EQ(packed.error().code(), ENOTSUP);
      EXPECT_NE(packed.error().message().find(std::to_string(value)),
                std::string::npos);
      auto unpacked = Decompress(algorithm, data, kNoLimit);
      ASSERT_FALSE(unpacked);
      EXPECT_EQ(unpacked.error().code(), ENOTSUP);
    }
    EXPECT_EQ(ToString(algorithm), "unknown");
  }
}

TEST(Compression, Names) {
  for (CompressionAlgorithm algorithm :
       {kNone, kGzip, kLz4Frame, kSnappy, kZstd, kZlib}) {
    EXPECT_EQ(ParseCompressionAlgorithm(ToString(algorithm)), algorithm);
  }
  EXPECT_EQ(ParseCompressionAlgorithm(""), kNone);
  for (const char* wrong : {"GZIP", "lz4", "zstd ", "unknown", "br"}) {
    EXPECT_EQ(ParseCompressionAlgorithm(wrong), std::nullopt);
  }
}

TEST(Compression, FormatsStartAsTheyShould) {
  const std::string text = Sample(Kind::kText, 1000);
  EXPECT_EQ(MustCompress(kGzip, text).substr(0, 3), "\x1f\x8b\x08");
  EXPECT_EQ(MustCompress(kLz4Frame, text).substr(0, 4), "\x04\x22\x4d\x18");
  EXPECT_EQ(MustCompress(kZstd, text).substr(0, 4), "\x28\xb5\x2f\xfd");
  EXPECT_EQ(MustCompress(kZlib, text).substr(0, 2), "\x78\x9c");
  // Raw snappy starts with the size as a varint: 1000 = 0xe8 0x07.
  EXPECT_EQ(MustCompress(kSnappy, text).substr(0, 2), "\xe8\x07");
}

// Other people's gzip: a file name in the header.
TEST(Compression, GzipWithHeaderFields) {
  z_stream stream{};
  ASSERT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY),
            Z_OK);
  gz_header header{};
  char name[] = "name";
  header.name = reinterpret_cast<Bytef*>(name);
  ASSERT_EQ(deflateSetHeader(&stream, &header), Z_OK);
  char in[] = "hello hello hello";
  char out[200];
  stream.next_in = reinterpret_cast<Bytef*>(in);
  stream.avail_in = sizeof(in) - 1;
  stream.next_out = reinterpret_cast<Bytef*>(out);
  stream.avail_out = sizeof(out);
  ASSERT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  const std::string packed(out, stream.total_out);
  deflateEnd(&stream);
  auto result = Decompress(kGzip, CreateBufferSlow(packed), 100);
  ASSERT_TRUE(result) << result.error().ToString();
  EXPECT_EQ(FlattenSlow(*result), "hello hello hello");
}

// A small frame that asks for a window of 128 MiB, when a megabyte at most is
// wanted.
TEST(Compression, ZstdWindowIsLimited) {
  const std::string frame("\x28\xb5\x2f\xfd\x00\x88\x01\x00\x00", 9);
  EXPECT_EQ(ErrorOf(kZstd, frame, 1 << 20), EBADMSG);
  // With a window of 8 MiB the same frame is an empty one.
  const std::string modest("\x28\xb5\x2f\xfd\x00\x68\x01\x00\x00", 9);
  EXPECT_EQ(ErrorOf(kZstd, modest, 1 << 20), 0);
}

// A stream made without knowing the size, as by the streaming API.
TEST(Compression, ZstdOfUnknownSize) {
  const std::string text = Sample(Kind::kText, 500000);
  ZSTD_CStream* stream = ZSTD_createCStream();
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  ZSTD_outBuffer out{packed.data(), packed.size(), 0};
  ZSTD_inBuffer in{text.data(), text.size(), 0};
  while (in.pos < in.size) {
    ASSERT_FALSE(ZSTD_isError(ZSTD_compressStream(stream, &out, &in)));
  }
  ASSERT_EQ(ZSTD_endStream(stream, &out), 0u);
  packed.resize(out.pos);
  ZSTD_freeCStream(stream);
  auto result = Decompress(kZstd, CreateBufferSlow(packed), text.size());
  ASSERT_TRUE(result) << result.error().ToString();
  EXPECT_EQ(FlattenSlow(*result), text);
}

#if !defined(FLARE_ASAN) && !defined(FLARE_TSAN)  // Which have a malloc each.
// The memory of a context depends on a peer's data.
TEST(Compression, ContextsOfLargeStreamsAreNotKept) {
  const auto in_use = [] {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const std::string text = Sample(Kind::kNoise, 8'000'000);
  const Buffer gzip = CreateBufferSlow(MustCompress(kGzip, text));
  const Buffer zstd = CreateBufferSlow(MustCompress(kZstd, text));
  // Blocks of the output stay in their pool.
  ASSERT_TRUE(Decompress(kGzip, gzip, kNoLimit));
  const std::size_t before = in_use();
  ASSERT_TRUE(Decompress(kZstd, zstd, kNoLimit));
  EXPECT_LT(in_use(), before + 1'000'000);
}
#endif

TEST(Compression, SnappyLiesAboutItsSize) {
  // Says 4 GiB - 1; refused before anything is allocated.
  const std::string huge("\xff\xff\xff\xff\x0f\x00x", 7);
  EXPECT_EQ(ErrorOf(kSnappy, huge, 1 << 20), EMSGSIZE);
  // Says less, or more, than it holds.
  std::string packed = MustCompress(kSnappy, Sample(Kind::kNoise, 50));
  ASSERT_EQ(packed[0], 50);
  packed[0] = 49;
  EXPECT_EQ(ErrorOf(kSnappy, packed, 1000), EBADMSG);
  packed[0] = 51;
  EXPECT_EQ(ErrorOf(kSnappy, packed, 1000), EBADMSG);
}

}  // namespace
}  // namespace flare
