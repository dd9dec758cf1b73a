#include "flare/rpc/http/chunked_decoder.h"

#include <algorithm>
#include <string_view>

#include "flare/rpc/http/http_text.h"

namespace flare::rpc {

void ChunkedDecoder::Start(std::size_t max_body, std::size_t max_line_bytes) {
  state_ = State::kSize;
  has_digit_ = false;
  done_ = false;
  chunk_left_ = 0;
  body_left_ = max_body;
  line_left_ = max_line_bytes_ = max_line_bytes;
  overhead_ = 0;
}

ChunkedDecoder::Result ChunkedDecoder::Feed(Buffer& in, Buffer* body) {
  while (!in.empty()) {
    if (state_ == State::kData) {
      TakeData(in, body);
      continue;
    }
    std::string_view slice = in.FirstContiguous();
    std::size_t used = 0;
    while (used != slice.size() && state_ != State::kData && !done_) {
      if (!Step(slice[used++])) return Result::kError;
      if (chunk_left_ > body_left_) return Result::kTooLarge;
    }
    in.Skip(used);
    if (done_) return Result::kDone;
  }
  // Each piece that came by itself may be all that is used of a block.
  compaction_.AfterAppend(body);
  return Result::kNeedMore;
}

void ChunkedDecoder::TakeData(Buffer& in, Buffer* body) {
  // Short pieces are copied: linking them would make a body of one-byte chunks
  // cost a hundred times its size.
  constexpr std::size_t kLinkFrom = 1024;
  std::size_t n = in.size();
  if (n > chunk_left_) n = static_cast<std::size_t>(chunk_left_);
  if (n >= kLinkFrom) {
    body->Append(in.Cut(n));
  } else {
    BufferBuilder builder;
    for (std::size_t left = n; left != 0;) {
      std::string_view piece = in.FirstContiguous().substr(0, left);
      builder.Append(piece);
      left -= piece.size();
      in.Skip(piece.size());
    }
    body->Append(builder.DestructiveGet());
  }
  chunk_left_ -= n;
  body_left_ -= n;
  if (chunk_left_ == 0) state_ = State::kDataCr;
}

bool ChunkedDecoder::StepSize(char c) {
  int digit = -1;
  if (c >= '0' && c <= '9') digit = c - '0';
  if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
  if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
  if (digit >= 0) {
    if (chunk_left_ >> 59 != 0) return false;
    chunk_left_ = chunk_left_ << 4 | static_cast<unsigned>(digit);
    has_digit_ = true;
    return true;
  }
  return has_digit_ && StepBehindSize(c);
}

// RFC 9112 has recipients pass over blanks here (BWS), and some senders fill up
// a size to a fixed width by them. No digit may follow.
bool ChunkedDecoder::StepBehindSize(char c) {
  switch (c) {
    case ' ':
    case '\t':
      state_ = State::kSizeBlank;
      return true;
    case ';':
      state_ = State::kExtension;
      return true;
    case '\r':
      state_ = State::kSizeLf;
      return true;
    default:
      return false;
  }
}

// Extensions, which nobody reads, mustn't make a body that is within its limit
// many times as long. The signatures that some senders add to each chunk are
// within this.
bool ChunkedDecoder::CountSizeLine() {
  overhead_ += max_line_bytes_ - line_left_;
  overhead_ -= std::min<std::uint64_t>(overhead_, 16 + 2 * chunk_left_);
  return overhead_ <= max_line_bytes_;
}

bool ChunkedDecoder::Step(char c) {
  if (line_left_-- == 0) return false;
  switch (state_) {
    case State::kSize:
      return StepSize(c);
    case State::kSizeBlank:
      return StepBehindSize(c);
    case State::kExtension:
      if (c == '\r') {
        state_ = State::kSizeLf;
        return true;
      }
      return IsHttpValueChar(c);
    case State::kSizeLf:
      if (!CountSizeLine()) return false;
      // The trailer section as a whole has the limit of one line.
      line_left_ = max_line_bytes_;
      state_ = chunk_left_ == 0 ? State::kTrailerStart : State::kData;
      return c == '\n';
    case State::kDataCr:
      state_ = State::kDataLf;
      return c == '\r';
    case State::kDataLf:
      state_ = State::kSize;
      has_digit_ = false;
      line_left_ = max_line_bytes_;
      return c == '\n';
    case State::kTrailerStart:
      state_ = c == '\r' ? State::kEndLf : State::kTrailerName;
      return c == '\r' || IsHttpTokenChar(c);
    case State::kTrailerName:
      if (c == ':') {
        state_ = State::kTrailerValue;
        return true;
      }
      return IsHttpTokenChar(c);
    case State::kTrailerValue:
      if (c == '\r') {
        state_ = State::kTrailerLf;
        return true;
      }
      return IsHttpValueChar(c);
    case State::kTrailerLf:
      state_ = State::kTrailerStart;
      return c == '\n';
    case State::kEndLf:
      done_ = true;
      return c == '\n';
    case State::kData:
      break;  // not framing
  }
  return false;
}

}  // namespace flare::rpc
