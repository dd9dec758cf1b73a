#include "flare/base/compression.h"

#include <snappy-sinksource.h>
#include <snappy.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "flare/base/compression_codec.h"
#include "flare/base/object_pool.h"

namespace flare {
namespace {

using Result = Expected<Buffer, Status>;

Status OutOfMemory(std::string_view name) {
  return Status(ENOMEM, std::string(name) + ": the library is out of memory");
}

Status Corrupt(std::string_view name, std::string_view what) {
  return Status(EBADMSG, "not valid " + std::string(name) +
                             " data: " + std::string(what));
}

Status TooLarge(std::string_view name, std::size_t max) {
  return Status(EMSGSIZE, std::string(name) +
                              " data decompresses to more than "
                              "the permitted " +
                              std::to_string(max) +
                              " bytes; raise the limit if that is legitimate");
}

// `then`: behind the data.
template <class Codec>
Result Pack(Codec* codec, const Buffer& data, CodecInput then) {
  BufferBuilder out;
  auto slice = data.begin();
  std::string_view in;
  while (true) {
    if (in.empty() && slice != data.end()) in = *slice++;
    const CodecStep step = codec->Run(in, out.data(), out.SizeAvailable(),
                                      in.empty() ? then : CodecInput::kGoesOn);
    in.remove_prefix(step.consumed);
    out.MarkWritten(step.produced);
    if (step.outcome == CodecStep::kEnd) return out.DestructiveGet();
    // With valid arguments a compressor fails for lack of memory only.
    if (step.outcome != CodecStep::kMore) return OutOfMemory(Codec::kName);
  }
}

template <class Codec>
Result CompressStream(const Buffer& data) {
  PooledPtr<Codec> codec = MakePooled<Codec>();
  if (!codec->Reset(data.size())) return OutOfMemory(Codec::kName);
  return Pack(codec.get(), data, CodecInput::kEnds);
}

template <class Codec>
class CodecStream final : public StreamCompressor {
 public:
  bool Reset() { return codec_->ResetOpen(); }

  Result Write(const Buffer& piece) override {
    if (piece.empty()) return Buffer();
    return Pack(codec_.get(), piece, CodecInput::kFlush);
  }
  Result Finish() override {
    return Pack(codec_.get(), Buffer(), CodecInput::kEnds);
  }

 private:
  const PooledPtr<Codec> codec_ = MakePooled<Codec>();
};

template <class Codec>
Expected<std::unique_ptr<StreamCompressor>, Status> NewStream() {
  auto stream = std::make_unique<CodecStream<Codec>>();
  if (!stream->Reset()) return OutOfMemory(Codec::kName);
  return std::unique_ptr<StreamCompressor>(std::move(stream));
}

// The context of a stream that is larger, packed and unpacked together, isn't
// kept: it holds a window of the size that the stream asked for.
constexpr std::size_t kMostOfKeptContext = 1 << 20;

template <class Codec>
Result Unpack(Codec* codec, const Buffer& data, std::size_t max_output) {
  if (!codec->Reset(max_output)) return OutOfMemory(Codec::kName);
  BufferBuilder out;
  auto slice = data.begin();
  std::string_view in;
  while (true) {
    if (in.empty() && slice != data.end()) in = *slice++;
    // One byte more than permitted shows that there is more.
    const std::size_t left = max_output - out.ByteSize();
    const std::size_t room =
        left < out.SizeAvailable() ? left + 1 : out.SizeAvailable();
    const CodecStep step = codec->Run(in, out.data(), room);
    in.remove_prefix(step.consumed);
    out.MarkWritten(step.produced);
    if (step.outcome == CodecStep::kNoMemory) return OutOfMemory(Codec::kName);
    if (step.outcome == CodecStep::kCorrupt) {
      return Corrupt(Codec::kName, "it is corrupt");
    }
    if (step.produced > left) return TooLarge(Codec::kName, max_output);
    if (step.outcome == CodecStep::kEnd) break;
    if (step.consumed == 0 && step.produced == 0) {
      // It wants more than there is.
      return Corrupt(Codec::kName, in.empty() && slice == data.end()
                                       ? "it is truncated"
                                       : "it is corrupt");
    }
  }
  if (!in.empty() || slice != data.end()) {
    return Corrupt(Codec::kName, "other bytes follow it");
  }
  return out.DestructiveGet();
}

template <class Codec>
Result DecompressStream(const Buffer& data, std::size_t max_output) {
  PooledPtr<Codec> codec = MakePooled<Codec>();
  Result result = Unpack(codec.get(), data, max_output);
  if constexpr (requires { codec->Drop(); }) {
    if (!result || data.size() + result->size() > kMostOfKeptContext) {
      codec->Drop();
    }
  }
  return result;
}

Result CompressLz4(const Buffer& data) {
  auto codec = MakePooled<Lz4Compressor>();
  BufferBuilder out;
  bool ok = codec->Reset() && codec->Begin(&out);
  for (std::string_view slice : data) {
    for (; ok && !slice.empty();) {
      const std::string_view piece = slice.substr(0, Lz4Compressor::kPiece);
      ok = codec->Update(piece, &out);
      slice.remove_prefix(piece.size());
    }
  }
  if (!ok || !codec->End(&out)) return OutOfMemory(Lz4Compressor::kName);
  return out.DestructiveGet();
}

// Lets snappy read a Buffer.
class SnappySource : public snappy::Source {
 public:
  explicit SnappySource(const Buffer& data)
      : slice_(data.begin()), left_(data.size()) {}

  std::size_t Available() const override { return left_; }
  const char* Peek(std::size_t* size) override {
    if (left_ == 0) {
      *size = 0;
      return nullptr;
    }
    const std::string_view rest = (*slice_).substr(offset_);
    *size = rest.size();
    return rest.data();
  }
  void Skip(std::size_t n) override {
    left_ -= n;
    offset_ += n;
    while (left_ && offset_ >= (*slice_).size()) {
      offset_ -= (*slice_).size();
      ++slice_;
    }
  }

 private:
  Buffer::const_iterator slice_;
  std::size_t offset_ = 0;
  std::size_t left_;
};

// Lets snappy write to a builder, in place where a piece fits.
class SnappySink : public snappy::Sink {
 public:
  explicit SnappySink(BufferBuilder* out) : out_(out) {}

  void Append(const char* bytes, std::size_t n) override {
    if (bytes == out_->data()) {
      out_->MarkWritten(n);
    } else {
      out_->Append({bytes, n});
    }
  }
  char* GetAppendBuffer(std::size_t n, char* scratch) override {
    return n <= out_->SizeAvailable() ? out_->data() : scratch;
  }
  char* GetAppendBufferVariable(std::size_t min_size, std::size_t /*desired*/,
                                char* scratch, std::size_t scratch_size,
                                std::size_t* allocated) override {
    if (min_size <= out_->SizeAvailable()) {
      *allocated = out_->SizeAvailable();
      return out_->data();
    }
    *allocated = scratch_size;
    return scratch;
  }

 private:
  BufferBuilder* const out_;
};

Result CompressSnappy(const Buffer& data) {
  if (data.size() > std::numeric_limits<std::uint32_t>::max()) {
    return Status(EFBIG, "snappy can't hold " + std::to_string(data.size()) +
                             " bytes; use another algorithm");
  }
  BufferBuilder out;
  SnappySource source(data);
  SnappySink sink(&out);
  snappy::Compress(&source, &sink);
  return out.DestructiveGet();
}

Result DecompressSnappy(const Buffer& data, std::size_t max_output) {
  // The size comes first, and the library holds the data to it.
  SnappySource header(data);
  std::uint32_t size = 0;
  if (!snappy::GetUncompressedLength(&header, &size)) {
    return Corrupt("snappy", "its length is unreadable");
  }
  if (size > max_output) return TooLarge("snappy", max_output);
  BufferBuilder out;
  SnappySource source(data);
  SnappySink sink(&out);
  if (!snappy::Uncompress(&source, &sink) || out.ByteSize() != size) {
    return Corrupt("snappy", "it is corrupt or truncated");
  }
  return out.DestructiveGet();
}

Status Unsupported(CompressionAlgorithm algorithm) {
  return Status(ENOTSUP,
                "unknown compression algorithm " +
                    std::to_string(static_cast<int>(algorithm)) +
                    "; known are none (1), gzip (2), lz4-frame (3), snappy "
                    "(4), zstd (5) and zlib (6)");
}

constexpr std::array<std::pair<std::string_view, CompressionAlgorithm>, 6>
    kNames = {{{"none", CompressionAlgorithm::kNone},
               {"gzip", CompressionAlgorithm::kGzip},
               {"lz4-frame", CompressionAlgorithm::kLz4Frame},
               {"snappy", CompressionAlgorithm::kSnappy},
               {"zstd", CompressionAlgorithm::kZstd},
               {"zlib", CompressionAlgorithm::kZlib}}};

}  // namespace

Result Compress(CompressionAlgorithm algorithm, const Buffer& data) {
  // An empty message stays empty, whatever the algorithm.
  const bool empty = data.empty();
  switch (algorithm) {
    case CompressionAlgorithm::kNone:
      return data;
    case CompressionAlgorithm::kGzip:
      return empty ? Buffer()
                   : CompressStream<DeflateCompressor<GzipWrapper>>(data);
    case CompressionAlgorithm::kLz4Frame:
      return empty ? Buffer() : CompressLz4(data);
    case CompressionAlgorithm::kSnappy:
      return empty ? Buffer() : CompressSnappy(data);
    case CompressionAlgorithm::kZstd:
      return empty ? Buffer() : CompressStream<ZstdCompressor>(data);
    case CompressionAlgorithm::kZlib:
      return empty ? Buffer()
                   : CompressStream<DeflateCompressor<ZlibWrapper>>(data);
    case CompressionAlgorithm::kUnknown:
      break;
  }
  return Unsupported(algorithm);
}

Result Decompress(CompressionAlgorithm algorithm, const Buffer& data,
                  std::size_t max_output) {
  const bool empty = data.empty();
  switch (algorithm) {
    case CompressionAlgorithm::kNone:
      if (data.size() > max_output) return TooLarge("plain", max_output);
      return data;
    case CompressionAlgorithm::kGzip:
      return empty ? Buffer()
                   : DecompressStream<DeflateDecompressor<GzipWrapper>>(
                         data, max_output);
    case CompressionAlgorithm::kLz4Frame:
      return empty ? Buffer()
                   : DecompressStream<Lz4Decompressor>(data, max_output);
    case CompressionAlgorithm::kSnappy:
      return empty ? Buffer() : DecompressSnappy(data, max_output);
    case CompressionAlgorithm::kZstd:
      return empty ? Buffer()
                   : DecompressStream<ZstdDecompressor>(data, max_output);
    case CompressionAlgorithm::kZlib:
      return empty ? Buffer()
                   : DecompressStream<DeflateDecompressor<ZlibWrapper>>(
                         data, max_output);
    case CompressionAlgorithm::kUnknown:
      break;
  }
  return Unsupported(algorithm);
}

namespace {

// The end of a flush.
constexpr std::string_view kFlushed("\0\0\xff\xff", 4);
// A last block, which is empty.
constexpr std::string_view kLastBlock("\x03\0", 2);

template <int kBits>
Result DeflateWithin(const Buffer& data) {
  auto codec = MakePooled<DeflateCompressor<NoWrapper<kBits>>>();
  if (!codec->ResetOpen()) return OutOfMemory("deflate");
  Result packed = Pack(codec.get(), data, CodecInput::kFlush);
  if (!packed) return packed;
  return packed->Cut(packed->size() - kFlushed.size());
}

}  // namespace

Result DeflateMessage(const Buffer& data, int window_bits) {
  if (window_bits >= 15) return DeflateWithin<15>(data);
  return window_bits >= 12 ? DeflateWithin<12>(data) : DeflateWithin<9>(data);
}

Result InflateMessage(Buffer data, std::size_t max_output) {
  std::string all;
  all.reserve(data.size() + kFlushed.size() + kLastBlock.size());
  for (const std::string_view slice : data) all += slice;
  data.Clear();
  all += kFlushed;
  all += kLastBlock;
  auto codec = MakePooled<MessageDecompressor>();
  return Unpack(codec.get(), MakeForeignBuffer(std::move(all)), max_output);
}

Expected<std::unique_ptr<StreamCompressor>, Status> StreamCompressor::New(
    CompressionAlgorithm algorithm) {
  switch (algorithm) {
    case CompressionAlgorithm::kGzip:
      return NewStream<DeflateCompressor<GzipWrapper>>();
    case CompressionAlgorithm::kZlib:
      return NewStream<DeflateCompressor<ZlibWrapper>>();
    case CompressionAlgorithm::kZstd:
      return NewStream<ZstdCompressor>();
    default:
      return Status(ENOTSUP, "no streams are compressed by \"" +
                                 std::string(ToString(algorithm)) +
                                 "\", but by gzip, zlib and zstd");
  }
}

std::optional<CompressionAlgorithm> ParseCompressionAlgorithm(
    std::string_view name) {
  if (name.empty()) return CompressionAlgorithm::kNone;
  for (const auto& [known, algorithm] : kNames) {
    if (known == name) return algorithm;
  }
  return std::nullopt;
}

std::string_view ToString(CompressionAlgorithm algorithm) {
  for (const auto& [name, known] : kNames) {
    if (known == algorithm) return name;
  }
  return "unknown";
}

}  // namespace flare
