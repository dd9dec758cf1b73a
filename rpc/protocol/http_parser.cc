#include "flare/rpc/protocol/http_parser.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "flare/base/string.h"

namespace flare::rpc {

namespace {

enum CharClass : std::uint8_t {
  kTokenChar = 1,   // may stand in a field name or a method
  kTargetChar = 2,  // may stand in a request target
  kValueChar = 4,   // may stand in a field value
};

constexpr std::array<std::uint8_t, 256> MakeCharClasses() {
  std::array<std::uint8_t, 256> classes{};
  for (int c = 0; c != 256; ++c) {
    bool alpha = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    bool token =
        alpha || (c >= '0' && c <= '9') ||
        std::string_view("!#$%&'*+-.^_`|~").find(static_cast<char>(c)) !=
            std::string_view::npos;
    if (token) classes[c] |= kTokenChar;
    if (c > ' ' && c != 0x7f) classes[c] |= kTargetChar;
    if ((c >= ' ' && c != 0x7f) || c == '\t') classes[c] |= kValueChar;
  }
  return classes;
}

constexpr auto kCharClasses = MakeCharClasses();

bool Is(char c, CharClass char_class) {
  return (kCharClasses[static_cast<std::uint8_t>(c)] & char_class) != 0;
}

bool All(std::string_view text, CharClass char_class) {
  // Without an early exit, so that the loop has no branch per byte.
  std::uint8_t both = char_class;
  for (char c : text) both &= kCharClasses[static_cast<std::uint8_t>(c)];
  return (both & char_class) != 0;
}

constexpr HttpFault BadRequest(std::string_view text) { return {400, text}; }

// Cuts the first line off *rest, without its CRLF. False if there is none or
// it ends with a bare LF.
bool NextLine(std::string_view* rest, std::string_view* line) {
  std::size_t lf = rest->find('\n');
  if (lf == std::string_view::npos || lf == 0 || (*rest)[lf - 1] != '\r') {
    return false;
  }
  *line = rest->substr(0, lf - 1);
  rest->remove_prefix(lf + 1);
  return true;
}

std::string_view TrimBlanks(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) {
    text.remove_prefix(1);
  }
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) {
    text.remove_suffix(1);
  }
  return text;
}

HttpFault ParseVersion(std::string_view version, int* minor) {
  if (version.size() != 8 || version.substr(0, 5) != "HTTP/" ||
      version[6] != '.' || version[5] < '0' || version[5] > '9' ||
      version[7] < '0' || version[7] > '9') {
    return BadRequest("malformed HTTP version");
  }
  if (version[5] != '1') return {505, "only HTTP/1.0 and HTTP/1.1 are spoken"};
  *minor = version[7] == '0' ? 0 : 1;
  return {};
}

HttpFault ParseRequestLine(std::string_view line, HttpHead* out) {
  std::size_t first = line.find(' ');
  std::size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) {
    return BadRequest("malformed request line");
  }
  out->method_name = line.substr(0, first);
  out->target = line.substr(first + 1, last - first - 1);
  if (out->method_name.empty() || !All(out->method_name, kTokenChar)) {
    return BadRequest("malformed method");
  }
  if (out->target.empty() || !All(out->target, kTargetChar)) {
    return BadRequest("malformed request target");
  }
  out->method = HttpMethodFromString(out->method_name);
  return ParseVersion(line.substr(last + 1), &out->minor_version);
}

HttpFault ParseStatusLine(std::string_view line, HttpHead* out) {
  if (HttpFault fault = ParseVersion(line.substr(0, 8), &out->minor_version)) {
    return fault;
  }
  if (line.size() < 12 || line[8] != ' ' ||
      (line.size() > 12 && line[12] != ' ')) {
    return BadRequest("malformed status line");
  }
  auto status = TryParse<std::uint16_t>(line.substr(9, 3));
  if (!status || *status < 100) return BadRequest("malformed status code");
  out->status = *status;
  out->reason = line.size() > 13 ? line.substr(13) : std::string_view();
  return All(out->reason, kValueChar) ? HttpFault()
                                      : BadRequest("malformed reason phrase");
}

HttpFault ReadContentLength(std::string_view value, HttpHead* out) {
  auto length = TryParse<std::uint64_t>(value);
  if (!length) return BadRequest("malformed Content-Length");
  if (out->has_content_length && *length != out->content_length) {
    return BadRequest("conflicting Content-Length fields");
  }
  out->has_content_length = true;
  out->content_length = *length;
  return {};
}

HttpFault ReadTransferEncoding(std::string_view value, HttpHead* out) {
  if (out->chunked) return BadRequest("repeated Transfer-Encoding");
  if (!IEquals(value, "chunked")) {
    return {501, "the only transfer coding understood is chunked"};
  }
  out->chunked = true;
  return {};
}

void ReadConnection(std::string_view value, HttpHead* out) {
  while (true) {
    std::size_t comma = value.find(',');
    std::string_view option = TrimBlanks(value.substr(0, comma));
    if (IEquals(option, "close")) out->close = true;
    if (IEquals(option, "keep-alive")) out->keep_alive = true;
    if (comma == std::string_view::npos) return;
    value.remove_prefix(comma + 1);
  }
}

// For fields that must not be repeated.
HttpFault ReadOnce(std::string_view value, std::string_view* out) {
  if (out->data() != nullptr) return BadRequest("repeated header field");
  *out = value;
  return {};
}

HttpFault ReadField(std::string_view name, std::string_view value,
                    HttpHead* out) {
  // Few fields have these lengths, so most are dismissed by one comparison.
  switch (name.size()) {
    case 4:
      if (IEquals(name, "host")) {
        if (out->has_host) return BadRequest("repeated Host");
        out->has_host = true;
      }
      return {};
    case 6:
      if (IEquals(name, "expect")) {
        if (!IEquals(value, "100-continue")) {
          return {417, "the only expectation understood is 100-continue"};
        }
        out->expect_continue = true;
      }
      return {};
    case 9:
      if (IEquals(name, "rpc-seqno")) {
        return ReadOnce(value, &out->rpc_seq_no);
      }
      return {};
    case 10:
      if (IEquals(name, "connection")) ReadConnection(value, out);
      return {};
    case 11:
      if (IEquals(name, "rpc-timeout")) {
        return ReadOnce(value, &out->rpc_timeout);
      }
      return {};
    case 12:
      if (IEquals(name, "content-type")) {
        return ReadOnce(value, &out->content_type);
      }
      return {};
    case 14:
      if (IEquals(name, "content-length")) {
        return ReadContentLength(value, out);
      }
      if (IEquals(name, "rpc-error-code")) {
        return ReadOnce(value, &out->rpc_error_code);
      }
      return {};
    case 16:
      if (IEquals(name, "rpc-error-reason")) {
        return ReadOnce(value, &out->rpc_error_reason);
      }
      return {};
    case 17:
      if (IEquals(name, "transfer-encoding")) {
        return ReadTransferEncoding(value, out);
      }
      return {};
    default:
      return {};
  }
}

HttpFault ParseFields(std::string_view rest, std::size_t max_fields,
                      HttpHead* out) {
  out->fields = rest;
  for (std::size_t count = 0;; ++count) {
    std::string_view line;
    if (!NextLine(&rest, &line)) return BadRequest("malformed line end");
    if (line.empty()) break;
    if (count == max_fields) return {431, "too many header fields"};
    std::size_t colon = 0;
    while (colon != line.size() && Is(line[colon], kTokenChar)) ++colon;
    if (colon == 0 || colon == line.size() || line[colon] != ':') {
      // Also a folded field (leading blank) and a blank before the colon.
      return BadRequest("malformed header field name");
    }
    std::string_view value = line.substr(colon + 1);
    if (!All(value, kValueChar)) {
      return BadRequest("malformed header field value");
    }
    if (HttpFault fault =
            ReadField(line.substr(0, colon), TrimBlanks(value), out)) {
      return fault;
    }
  }
  if (!rest.empty()) return BadRequest("bytes behind the header");
  if (out->chunked && out->has_content_length) {
    return BadRequest("both Content-Length and Transfer-Encoding");
  }
  if (out->chunked && out->minor_version == 0) {
    return BadRequest("Transfer-Encoding in HTTP/1.0");
  }
  return {};
}

}  // namespace

HeadEnd FindHeadEnd(const Buffer& in, std::size_t limit, std::size_t* scanned,
                    std::size_t* size) {
  // `line_start` counts from the beginning of the input; *scanned is always the
  // start of a line, so that only an incomplete line is looked at again.
  std::size_t line_start = *scanned;
  std::size_t slice_start = 0;
  char previous = 0;
  for (std::string_view slice : in) {
    std::size_t at = 0;
    if (slice_start + slice.size() <= line_start) {
      slice_start += slice.size();
      previous = slice.back();
      continue;
    }
    if (line_start > slice_start) at = line_start - slice_start;
    while (at < slice.size()) {
      const void* found =
          std::memchr(slice.data() + at, '\n', slice.size() - at);
      if (found == nullptr) break;
      std::size_t lf = static_cast<const char*>(found) - slice.data();
      char before = lf != 0 ? slice[lf - 1] : previous;
      if (before != '\r' || slice_start + lf == line_start) {
        return HeadEnd::kBareLf;
      }
      std::size_t line_size = slice_start + lf - 1 - line_start;
      at = lf + 1;
      line_start = slice_start + at;
      if (line_start > limit) return HeadEnd::kTooLarge;
      if (line_size == 0) {
        *size = line_start;
        return HeadEnd::kFound;
      }
    }
    slice_start += slice.size();
    previous = slice.back();
  }
  *scanned = line_start;
  return in.size() > limit ? HeadEnd::kTooLarge : HeadEnd::kIncomplete;
}

HttpFault ParseRequestHead(std::string_view head, std::size_t max_fields,
                           HttpHead* out) {
  std::string_view line;
  if (!NextLine(&head, &line)) return BadRequest("malformed line end");
  if (HttpFault fault = ParseRequestLine(line, out)) return fault;
  return ParseFields(head, max_fields, out);
}

HttpFault ParseResponseHead(std::string_view head, std::size_t max_fields,
                            HttpHead* out) {
  HttpFault fault;
  std::string_view line;
  if (!NextLine(&head, &line)) {
    fault = BadRequest("malformed line end");
  } else if (fault = ParseStatusLine(line, out); !fault) {
    fault = ParseFields(head, max_fields, out);
  }
  if (fault) fault.status = 502;
  return fault;
}

bool HeaderFieldReader::Next(std::string_view* name, std::string_view* value) {
  std::string_view line;
  if (!NextLine(&rest_, &line) || line.empty()) return false;
  std::size_t colon = line.find(':');
  *name = line.substr(0, colon);
  *value = TrimBlanks(line.substr(colon + 1));
  return true;
}

std::string_view PathOfTarget(std::string_view target) {
  constexpr std::string_view kScheme = "http://";
  if (!target.starts_with('/') && target.size() >= kScheme.size() &&
      IEquals(target.substr(0, kScheme.size()), kScheme)) {
    std::size_t slash = target.find_first_of("/?#", kScheme.size());
    if (slash == std::string_view::npos || target[slash] != '/') return "/";
    target.remove_prefix(slash);
  }
  auto end = std::find_if(target.begin(), target.end(),
                          [](char c) { return c == '?' || c == '#'; });
  return target.substr(0, end - target.begin());
}

// ---------------------------------------------------------------------------

void ChunkedDecoder::Start(std::size_t max_body, std::size_t max_line_bytes) {
  state_ = State::kSize;
  has_digit_ = false;
  done_ = false;
  chunk_left_ = 0;
  body_left_ = max_body;
  line_left_ = max_line_bytes_ = max_line_bytes;
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
  if (!has_digit_) return false;
  if (c == ';') {
    state_ = State::kExtension;
    return true;
  }
  state_ = State::kSizeLf;
  return c == '\r';
}

bool ChunkedDecoder::Step(char c) {
  if (line_left_-- == 0) return false;
  switch (state_) {
    case State::kSize:
      return StepSize(c);
    case State::kExtension:
      if (c == '\r') {
        state_ = State::kSizeLf;
        return true;
      }
      return Is(c, kValueChar);
    case State::kSizeLf:
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
      state_ = c == '\r' ? State::kEndLf : State::kTrailer;
      return c == '\r' || Is(c, kTokenChar);
    case State::kTrailer:
      if (c == '\r') {
        state_ = State::kTrailerLf;
        return true;
      }
      return Is(c, kValueChar);
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
