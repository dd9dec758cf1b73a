#include "flare/rpc/http/http_response_reader.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "flare/rpc/http/http_recognition.h"

namespace flare::rpc {

namespace {

// Behind the first line only an empty line ends a response, in contrast to
// FindHeadEnd. Nor does this begin a long line anew each time that more of it
// has come. `scanned` is as in FindHeadEnd; it must be the start of a line that
// isn't empty.
HeadEnd FindEmptyLine(const Buffer& in, std::size_t limit, std::size_t* scanned,
                      std::size_t* size) {
  constexpr std::string_view kEnd = "\r\n\r\n";
  std::size_t matched = 0;
  std::size_t at = 0;
  for (std::string_view slice : in) {
    const std::size_t slice_end = at + slice.size();
    if (slice_end > *scanned) {
      slice.remove_prefix(*scanned > at ? *scanned - at : 0);
      at = slice_end - slice.size();
      for (const char c : slice) {
        ++at;
        matched = c == kEnd[matched] ? matched + 1 : (c == '\r' ? 1 : 0);
        if (matched < kEnd.size()) continue;
        *size = at;
        return at > limit ? HeadEnd::kTooLarge : HeadEnd::kFound;
      }
    }
    at = slice_end;
  }
  *scanned = at - std::min(at, kEnd.size() - 1);
  return at > limit ? HeadEnd::kTooLarge : HeadEnd::kIncomplete;
}

// These have no body, whatever their fields say.
bool IsBodiless(int status) { return status == 204 || status == 304; }

// Whether the line that `rest` begins with belongs to the field before: it is
// folded, or can't be a field.
bool GoesOn(std::string_view rest) {
  const std::string_view line = rest.substr(0, rest.find("\r\n"));
  return !line.empty() &&
         (line[0] == ' ' || line[0] == '\t' || line.find(':') == line.npos);
}

// Like ParseResponseHead, but control bytes within fields, and ends of lines
// behind which a field goes on, are taken for blanks. *out may point into
// *scratch.
HttpFault ParseUntidyResponseHead(std::string_view head, std::size_t max_fields,
                                  std::string* scratch, HttpHead* out) {
  if (!ParseResponseHead(head, max_fields, out)) [[likely]]
    return {};
  if (head.data() != scratch->data()) scratch->assign(head);
  std::string& bytes = *scratch;
  for (std::size_t i = bytes.find('\n') + 1; i < bytes.size(); ++i) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    if (byte >= ' ' && byte != 0x7f) continue;
    if (bytes.compare(i, 2, "\r\n") == 0 &&
        !GoesOn(std::string_view(bytes).substr(i + 2))) {
      ++i;
    } else {
      bytes[i] = ' ';
    }
  }
  *out = HttpHead();
  return ParseResponseHead(bytes, max_fields, out);
}

}  // namespace

// --- heads -----------------------------------------------------------------

CutResult HttpResponseReader::ReadHead(const Buffer& in, std::string* scratch,
                                       HttpHead* head, std::string* error) {
  // As a rule it has come in one piece, and is in order.
  if (scanned_ == 0 && !by_empty_line_) {
    std::optional<HttpHead> parsed;
    const auto found = memo_.Peek(in.FirstContiguous(), limits_.max_head_size,
                                  limits_.max_head_fields, &parsed);
    if (found) {
      *head = *found.head;
      head_size_ = found.size;
      return CutResult::kMessage;
    }
  }
  return ReadUnusualHead(in, scratch, head, error);
}

CutResult HttpResponseReader::ReadUnusualHead(const Buffer& in,
                                              std::string* scratch,
                                              HttpHead* head,
                                              std::string* error) {
  if (head_size_ == 0) {
    if (CutResult result = FindHead(in, error); result != CutResult::kMessage) {
      return result;
    }
  }
  *head = HttpHead();
  const HttpFault fault =
      ParseUntidyResponseHead(ContiguousPrefix(in, head_size_, scratch),
                              limits_.max_head_fields, scratch, head);
  return fault ? Fail(fault.text, error) : CutResult::kMessage;
}

CutResult HttpResponseReader::FindHead(const Buffer& in, std::string* error) {
  const HeadEnd end = FindHeadEndOrEmptyLine(in);
  if (end != HeadEnd::kFound && !MayBeHttpResponse(in)) {
    return Fail("the peer's bytes are no HTTP/1.x response", error);
  }
  switch (end) {
    case HeadEnd::kFound:
      return CutResult::kMessage;
    case HeadEnd::kIncomplete:
      return CutResult::kNeedMore;
    case HeadEnd::kTooLarge:
      return Fail("the head of a response is too large", error);
    case HeadEnd::kBareLf:
      break;
  }
  return Fail("the first line of a response ends without CR", error);
}

HeadEnd HttpResponseReader::FindHeadEndOrEmptyLine(const Buffer& in) {
  constexpr std::size_t kLongLine = 4096;
  if (!by_empty_line_) [[likely]] {
    const HeadEnd end =
        FindHeadEnd(in, limits_.max_head_size, &scanned_, &head_size_);
    // A server that ends even the first line without CR ends the last one the
    // same way.
    by_empty_line_ =
        (end == HeadEnd::kBareLf && scanned_ != 0) ||
        (end == HeadEnd::kIncomplete && in.size() > scanned_ + kLongLine);
    if (!by_empty_line_) return end;
  }
  return FindEmptyLine(in, limits_.max_head_size, &scanned_, &head_size_);
}

void HttpResponseReader::ForgetHead() {
  scanned_ = head_size_ = 0;
  body_size_ = 0;
  by_empty_line_ = false;
}

// --- bodies ----------------------------------------------------------------

CutResult HttpResponseReader::Read(Buffer& in, std::string* scratch,
                                   HttpHead* head, std::size_t* need,
                                   std::string* error) {
  *need = 0;
  if (is_last_) {
    in.Clear();
    return Fail("a response that is too large came before", error);
  }
  if (in_chunks_) return ReadChunks(in, scratch, head, error);
  if (!SkipRest(in)) return CutResult::kNeedMore;
  if (head_size_ != 0 && in.size() < size()) {
    *need = static_cast<std::size_t>(size());
    return CutResult::kNeedMore;
  }
  while (true) {
    if (CutResult result = ReadHead(in, scratch, head, error);
        result != CutResult::kMessage) {
      return result;
    }
    if (head->status >= 200) break;
    // An interim response announces the one that follows.
    if (head->status == 101) {
      return Fail("a response that switches protocols", error);
    }
    if (++interim_ > kMaxInterim) {
      return Fail("interim responses without end", error);
    }
    in.Skip(head_size_);
    ForgetHead();
    *head = HttpHead();
  }
  if (head_size_ > limits_.max_packet_size) {
    return Fail(SizeLimitText("response with a head", head_size_,
                              limits_.max_packet_size, kClientSizeLimit),
                error);
  }
  if (head->chunked && !IsBodiless(head->status)) {
    chunked_head_ = in.Cut(head_size_);
    chunks_.Start(limits_.max_packet_size - head_size_, limits_.max_head_size);
    in_chunks_ = true;
    return ReadChunks(in, scratch, head, error);
  }
  return ReadLength(in, *head, need, error);
}

CutResult HttpResponseReader::ReadLength(const Buffer& in, const HttpHead& head,
                                         std::size_t* need,
                                         std::string* error) {
  const bool bodiless = IsBodiless(head.status);
  if (!bodiless && !head.content_length) {
    return Fail("a response without Content-Length", error);
  }
  const std::uint64_t length = bodiless ? 0 : *head.content_length.value;
  is_last_ = length > limits_.max_skipped && length > limits_.max_packet_size;
  body_size_ =
      std::min(length, std::numeric_limits<std::uint64_t>::max() - head_size_);
  if (!too_large() && in.size() < size()) {
    *need = static_cast<std::size_t>(size());
    return CutResult::kNeedMore;
  }
  return CutResult::kMessage;
}

CutResult HttpResponseReader::ReadChunks(Buffer& in, std::string* scratch,
                                         HttpHead* head, std::string* error) {
  switch (chunks_.Feed(in, &chunked_body_)) {
    case ChunkedDecoder::Result::kNeedMore:
      return CutResult::kNeedMore;
    case ChunkedDecoder::Result::kError:
      return Fail("a malformed chunked response", error);
    case ChunkedDecoder::Result::kTooLarge:
      is_last_ = true;
      break;
    case ChunkedDecoder::Result::kDone:
      break;
  }
  // No more is known of one that is too large.
  body_size_ = is_last_ ? limits_.max_packet_size : chunked_body_.size();
  *head = HttpHead();
  // It was accepted before, so it is now.
  static_cast<void>(ParseUntidyResponseHead(
      ContiguousPrefix(chunked_head_, head_size_, scratch),
      limits_.max_head_fields, scratch, head));
  return CutResult::kMessage;
}

void HttpResponseReader::Take(Buffer& in, Buffer* body) {
  interim_ = 0;
  const bool in_chunks = std::exchange(in_chunks_, false);
  if (is_last_) {
    in.Clear();
    chunked_head_.Clear();
    chunked_body_.Clear();
  } else if (in_chunks) {
    chunked_head_.Clear();
    *body = std::exchange(chunked_body_, Buffer());
  } else {
    in.Skip(head_size_);
    if (too_large()) {
      skip_ = body_size_;
      SkipRest(in);
    } else {
      *body = in.Cut(static_cast<std::size_t>(body_size_));
    }
  }
  ForgetHead();
}

// False if all of the input belonged to an oversized response and more will.
bool HttpResponseReader::SkipRest(Buffer& in) {
  if (skip_ == 0) [[likely]]
    return true;
  const std::uint64_t n = std::min<std::uint64_t>(skip_, in.size());
  in.Skip(static_cast<std::size_t>(n));
  skip_ -= n;
  return skip_ == 0;
}

std::string HttpResponseReader::TooLarge() const {
  if (in_chunks_) {
    return "a chunked response exceeds the limit of " +
           std::to_string(limits_.max_packet_size) + " bytes (" +
           std::string(kClientSizeLimit) + ")";
  }
  return SizeLimitText("response", size(), limits_.max_packet_size,
                       kClientSizeLimit);
}

CutResult HttpResponseReader::Fail(std::string_view text, std::string* error) {
  error->assign("http: ").append(text);
  return CutResult::kError;
}

}  // namespace flare::rpc
