// The compression libraries behind one face: a codec turns a stream of input
// pieces into a stream of output pieces, and is pooled with the context of its
// library. For compression.cc only; everybody else uses compression.h.

#ifndef FLARE_BASE_COMPRESSION_CODEC_H_
#define FLARE_BASE_COMPRESSION_CODEC_H_

#include <lz4frame.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/object_pool.h"

namespace flare {

// The result of a codec for one piece of input.
struct CodecStep {
  enum Outcome { kMore, kEnd, kCorrupt, kNoMemory };
  std::size_t consumed = 0;
  std::size_t produced = 0;
  Outcome outcome = kMore;
};

// Tells a compressor how its stream goes on behind the input of a step. The
// outcome is kEnd when a flush is complete, too.
enum class CodecInput { kGoesOn, kFlush, kEnds };

// zlib counts in unsigned ints.
inline unsigned ZlibSize(std::size_t size) {
  return static_cast<unsigned>(std::min<std::size_t>(size, 1u << 30));
}

inline CodecStep ZlibStep(int (*run)(z_stream*, int), z_stream* stream,
                          std::string_view in, char* out, std::size_t room,
                          int flush) {
  const unsigned in_size = ZlibSize(in.size());
  const unsigned out_size = ZlibSize(room);
  // zlib never writes to its input.
  stream->next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
  stream->avail_in = in_size;
  stream->next_out = reinterpret_cast<Bytef*>(out);
  stream->avail_out = out_size;
  const int rc = run(stream, flush);

  CodecStep step{in_size - stream->avail_in, out_size - stream->avail_out};
  if (rc == Z_STREAM_END) {
    step.outcome = CodecStep::kEnd;
  } else if (rc == Z_MEM_ERROR) {
    step.outcome = CodecStep::kNoMemory;
  } else if (rc != Z_OK && rc != Z_BUF_ERROR) {
    step.outcome = CodecStep::kCorrupt;
  }
  return step;
}

// The wrappers that a deflate stream comes in; a window of 2^15 bytes, except
// where there is no wrapper.
struct GzipWrapper {
  static constexpr std::string_view kName = "gzip";
  static constexpr int kWindowBits = 15 + 16;
};
struct ZlibWrapper {
  static constexpr std::string_view kName = "zlib";
  static constexpr int kWindowBits = 15;
};
template <int kBits>
struct NoWrapper {
  static constexpr std::string_view kName = "deflate";
  static constexpr int kWindowBits = -kBits;
};

// Each codec below is pooled together with its library context. Reset() makes
// it ready for a new stream; false if memory is lacking. Drop() frees the
// context of those whose memory depends on their input.

template <class Wrapper>
class DeflateCompressor {
 public:
  static constexpr std::string_view kName = Wrapper::kName;

  ~DeflateCompressor() {
    if (ready_) deflateEnd(&stream_);
  }
  bool ResetOpen() { return Reset(0); }
  bool Reset(std::size_t /*size*/) {
    if (ready_) return deflateReset(&stream_) == Z_OK;
    ready_ = deflateInit2(&stream_, Z_DEFAULT_COMPRESSION, Z_DEFLATED,
                          Wrapper::kWindowBits, /*memLevel=*/8,
                          Z_DEFAULT_STRATEGY) == Z_OK;
    return ready_;
  }
  CodecStep Run(std::string_view in, char* out, std::size_t room,
                CodecInput input) {
    constexpr int kFlushes[] = {Z_NO_FLUSH, Z_SYNC_FLUSH, Z_FINISH};
    CodecStep step = ZlibStep(deflate, &stream_, in, out, room,
                              kFlushes[static_cast<int>(input)]);
    if (input == CodecInput::kFlush && step.outcome == CodecStep::kMore &&
        step.produced != room) {
      step.outcome = CodecStep::kEnd;
    }
    return step;
  }

 private:
  z_stream stream_{};
  bool ready_ = false;
};

template <class Wrapper>
class DeflateDecompressor {
 public:
  static constexpr std::string_view kName = Wrapper::kName;

  ~DeflateDecompressor() {
    if (ready_) inflateEnd(&stream_);
  }
  bool Reset(std::size_t /*max_output*/) {
    if (ready_) return inflateReset(&stream_) == Z_OK;
    ready_ = inflateInit2(&stream_, Wrapper::kWindowBits) == Z_OK;
    return ready_;
  }
  CodecStep Run(std::string_view in, char* out, std::size_t room) {
    return ZlibStep(inflate, &stream_, in, out, room, Z_NO_FLUSH);
  }

 private:
  z_stream stream_{};
  bool ready_ = false;
};

// Several streams may follow each other, in one piece of input.
class MessageDecompressor : public DeflateDecompressor<NoWrapper<15>> {
 public:
  CodecStep Run(std::string_view in, char* out, std::size_t room) {
    CodecStep step = DeflateDecompressor::Run(in, out, room);
    if (step.outcome == CodecStep::kEnd && step.consumed != in.size()) {
      step.outcome = Reset(0) ? CodecStep::kMore : CodecStep::kNoMemory;
    }
    return step;
  }
};

inline CodecStep::Outcome ZstdOutcome(std::size_t rc) {
  if (!ZSTD_isError(rc)) return rc == 0 ? CodecStep::kEnd : CodecStep::kMore;
  return ZSTD_getErrorCode(rc) == ZSTD_error_memory_allocation
             ? CodecStep::kNoMemory
             : CodecStep::kCorrupt;
}

class ZstdCompressor {
 public:
  static constexpr std::string_view kName = "zstd";

  ~ZstdCompressor() { ZSTD_freeCCtx(context_); }
  bool Reset(std::size_t size) {
    if (!context_) context_ = ZSTD_createCCtx();
    if (!context_) return false;
    // So that small messages get small tables and windows.
    return Begin(/*window_log=*/0, size);
  }
  // For a stream of unknown length, with tables for little memory.
  bool ResetOpen() {
    if (!context_) context_ = ZSTD_createCCtx();
    if (!context_) return false;
    return Begin(/*window_log=*/17, ZSTD_CONTENTSIZE_UNKNOWN);
  }
  CodecStep Run(std::string_view in, char* out, std::size_t room,
                CodecInput input) {
    constexpr ZSTD_EndDirective kDirectives[] = {ZSTD_e_continue, ZSTD_e_flush,
                                                 ZSTD_e_end};
    ZSTD_inBuffer from{in.data(), in.size(), 0};
    ZSTD_outBuffer output{out, room, 0};
    const std::size_t rc = ZSTD_compressStream2(
        context_, &output, &from, kDirectives[static_cast<int>(input)]);
    CodecStep step{from.pos, output.pos, ZstdOutcome(rc)};
    // Zero only means that nothing is buffered.
    if (input == CodecInput::kGoesOn && step.outcome == CodecStep::kEnd)
      step.outcome = CodecStep::kMore;
    return step;
  }

 private:
  // 0: the window of the level, for `size`.
  bool Begin(int window_log, unsigned long long size) {
    ZSTD_CCtx_reset(context_, ZSTD_reset_session_only);
    return !ZSTD_isError(ZSTD_CCtx_setParameter(context_, ZSTD_c_windowLog,
                                                window_log)) &&
           !ZSTD_isError(ZSTD_CCtx_setPledgedSrcSize(context_, size));
  }

  ZSTD_CCtx* context_ = nullptr;
};

class ZstdDecompressor {
 public:
  static constexpr std::string_view kName = "zstd";

  ~ZstdDecompressor() { Drop(); }
  void Drop() { ZSTD_freeDCtx(std::exchange(context_, nullptr)); }
  bool Reset(std::size_t max_output) {
    if (!context_) context_ = ZSTD_createDCtx();
    if (!context_) return false;
    ZSTD_DCtx_reset(context_, ZSTD_reset_session_only);
    // A frame's header makes us allocate its window. Every decoder should
    // accept 8 MiB; beyond, no window is of use that is larger than the output.
    const int log =
        std::clamp(static_cast<int>(std::bit_width(max_output)), 23, 27);
    return !ZSTD_isError(
        ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, log));
  }
  CodecStep Run(std::string_view in, char* out, std::size_t room) {
    ZSTD_inBuffer input{in.data(), in.size(), 0};
    ZSTD_outBuffer output{out, room, 0};
    const std::size_t rc = ZSTD_decompressStream(context_, &output, &input);
    return {input.pos, output.pos, ZstdOutcome(rc)};
  }

 private:
  ZSTD_DCtx* context_ = nullptr;
};

class Lz4Decompressor {
 public:
  static constexpr std::string_view kName = "lz4-frame";

  ~Lz4Decompressor() { Drop(); }
  void Drop() {
    LZ4F_freeDecompressionContext(std::exchange(context_, nullptr));
  }
  bool Reset(std::size_t /*max_output*/) {
    if (context_) {
      LZ4F_resetDecompressionContext(context_);
      return true;
    }
    return !LZ4F_isError(
        LZ4F_createDecompressionContext(&context_, LZ4F_VERSION));
  }
  CodecStep Run(std::string_view in, char* out, std::size_t room) {
    std::size_t consumed = in.size();
    std::size_t produced = room;
    const std::size_t rc = LZ4F_decompress(context_, out, &produced, in.data(),
                                           &consumed, nullptr);
    if (LZ4F_isError(rc)) return {0, 0, CodecStep::kCorrupt};
    return {consumed, produced, rc == 0 ? CodecStep::kEnd : CodecStep::kMore};
  }

 private:
  LZ4F_dctx* context_ = nullptr;
};

// LZ4F wants room for the worst case of each call, more than one of our blocks.
class Lz4Compressor {
 public:
  static constexpr std::string_view kName = "lz4-frame";
  static constexpr std::size_t kPiece = 64 * 1024;

  ~Lz4Compressor() { LZ4F_freeCompressionContext(context_); }
  bool Reset() {
    if (context_) return true;
    scratch_size_ = LZ4F_compressBound(kPiece, nullptr);
    scratch_ = std::make_unique_for_overwrite<char[]>(scratch_size_);
    return !LZ4F_isError(
        LZ4F_createCompressionContext(&context_, LZ4F_VERSION));
  }
  // Each appends its output to `out`; false if memory is lacking.
  bool Begin(BufferBuilder* out) {
    return Put(
        LZ4F_compressBegin(context_, scratch_.get(), scratch_size_, nullptr),
        out);
  }
  bool Update(std::string_view piece, BufferBuilder* out) {
    return Put(LZ4F_compressUpdate(context_, scratch_.get(), scratch_size_,
                                   piece.data(), piece.size(), nullptr),
               out);
  }
  bool End(BufferBuilder* out) {
    return Put(
        LZ4F_compressEnd(context_, scratch_.get(), scratch_size_, nullptr),
        out);
  }

 private:
  bool Put(std::size_t rc, BufferBuilder* out) {
    if (LZ4F_isError(rc)) return false;
    out->Append({scratch_.get(), rc});
    return true;
  }

  LZ4F_cctx* context_ = nullptr;
  std::unique_ptr<char[]> scratch_;
  std::size_t scratch_size_ = 0;
};

// Contexts are large (up to megabytes): keep few.
template <class T>
requires requires { T::kName; }
struct ObjectPoolTraits<T> {
  static constexpr std::size_t kThreadCache = 2;
  static constexpr std::size_t kShared = 16;
};

}  // namespace flare

#endif  // FLARE_BASE_COMPRESSION_CODEC_H_
