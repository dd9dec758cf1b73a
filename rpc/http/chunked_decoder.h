// Takes HTTP/1.1's chunked bodies off an input. As strict as http_parser.h:
// bytes that two readers could take differently are an error. Nothing blocks or
// locks.
#ifndef FLARE_RPC_HTTP_CHUNKED_DECODER_H_
#define FLARE_RPC_HTTP_CHUNKED_DECODER_H_

#include <cstddef>
#include <cstdint>

#include "flare/base/buffer.h"

namespace flare::rpc {

// Takes a chunked body off the input, as it comes.
class ChunkedDecoder {
 public:
  enum class Result { kDone, kNeedMore, kError, kTooLarge };

  // Starts a new body of at most `max_body` bytes, whose trailer section and
  // chunk-size lines (each) take at most `max_line_bytes`; so do all of these
  // lines beyond 16 bytes and twice its payload for each chunk.
  void Start(std::size_t max_body, std::size_t max_line_bytes);

  // Consumes the body's bytes from `in` and appends the payload to *body. After
  // kDone `in` begins behind the body; after kError and kTooLarge the object
  // must be started anew. Trailer fields are read and dropped.
  Result Feed(Buffer& in, Buffer* body);

 private:
  enum class State : std::uint8_t {
    kSize,       // hex digits
    kSizeBlank,  // blanks behind them
    kExtension,  // ignored, up to CR
    kSizeLf,
    kData,
    kDataCr,
    kDataLf,
    kTrailerStart,  // at the start of a line
    kTrailerName,   // within the name of a field
    kTrailerValue,
    kTrailerLf,
    kEndLf,
  };

  // Handles one byte of framing; false if it can't be there.
  bool Step(char c);
  bool StepSize(char c);
  bool StepBehindSize(char c);
  bool CountSizeLine();
  void TakeData(Buffer& in, Buffer* body);

  State state_ = State::kSize;
  bool has_digit_ = false;
  bool done_ = false;
  std::uint64_t chunk_left_ = 0;
  std::size_t body_left_ = 0;
  std::size_t line_left_ = 0;
  std::size_t max_line_bytes_ = 0;
  std::size_t overhead_ = 0;
  PacedCompaction compaction_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_CHUNKED_DECODER_H_
