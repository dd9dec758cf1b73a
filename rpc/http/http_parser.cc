#include "flare/rpc/http/http_parser.h"

#include <cstring>
#include <type_traits>

#include "flare/base/string.h"
#include "flare/rpc/http/http_text.h"

namespace flare::rpc {

namespace {

// A fault that a function of this file has found; null: none. (An HttpFault
// takes as long to hand over as the rest of a field takes.)
using Fault = const HttpFault*;

constexpr HttpFault kBadLine{
    400, "a control byte, or a line that doesn't end with CRLF"};
constexpr HttpFault kBadVersion{400, "malformed HTTP version"};
constexpr HttpFault kBadRequestLine{400, "malformed request line"};
constexpr HttpFault kBadMethod{400, "malformed method"};
constexpr HttpFault kBadTarget{400, "malformed request target"};
constexpr HttpFault kBadStatusLine{400, "malformed status line"};
constexpr HttpFault kBadStatus{400, "malformed status code"};
constexpr HttpFault kBadLength{400, "malformed Content-Length"};
constexpr HttpFault kTwoLengths{400, "conflicting Content-Length fields"};
constexpr HttpFault kTwoCodings{400, "repeated Transfer-Encoding"};
constexpr HttpFault kRepeated{400, "repeated header field"};
constexpr HttpFault kTwoHosts{400, "repeated Host"};
constexpr HttpFault kBadHost{400, "malformed Host"};
constexpr HttpFault kNoColon{400, "a header field without a colon"};
constexpr HttpFault kLengthAndCoding{
    400, "both Content-Length and Transfer-Encoding"};
constexpr HttpFault kOldCoding{400, "Transfer-Encoding in HTTP/1.0"};
constexpr HttpFault kBadFieldName{400, "malformed header field name"};
constexpr HttpFault kBytesBehind{400, "bytes behind the header"};
constexpr HttpFault kOtherVersion{505, "only HTTP/1.0 and HTTP/1.1 are spoken"};
constexpr HttpFault kTunnel{501, "CONNECT: there are no tunnels here"};
constexpr HttpFault kOtherCoding{
    501, "the only transfer coding understood is chunked"};
constexpr HttpFault kOtherExpectation{
    417, "the only expectation understood is 100-continue"};
constexpr HttpFault kTooManyFields{431, "too many header fields"};

// Reads lines one after the other.
class LineReader {
 public:
  explicit LineReader(std::string_view bytes)
      : at_(bytes.data()),
        end_(bytes.data() + bytes.size()),
        marks_(at_, end_) {}

  // The next line, without the CRLF that ends it, and the place of the first
  // colon in it, if there is one. False if the line isn't all there or has a
  // control byte, which may be a tab if `tabs`; then read no more.
  bool Next(bool tabs, std::string_view* line, std::size_t* colon) {
    *colon = std::string_view::npos;
    const char* stop;
    while ((stop = marks_.Next()) != end_ &&
           (*stop == ':' || (tabs && *stop == '\t'))) {
      if (*stop == ':' && *colon == std::string_view::npos) {
        *colon = static_cast<std::size_t>(stop - at_);
      }
    }
    if (end_ - stop < 2 || stop[0] != '\r' || stop[1] != '\n') return false;
    marks_.Next();  // The LF.
    *line = {at_, static_cast<std::size_t>(stop - at_)};
    at_ = stop + 2;
    return true;
  }

  const char* at() const { return at_; }
  bool done() const { return at_ == end_; }

 private:
  const char* at_;
  const char* end_;
  HttpScanner marks_;
};

template <class Word>
Word LowerCaseWord(const char* text) {
  constexpr auto kBit = static_cast<Word>(0x2020202020202020);
  Word word;
  std::memcpy(&word, text, sizeof(word));
  return word | kBit;
}

// Whether `name`, which has that size and no control bytes, is `known`, of
// lower-case letters and hyphens, ignoring the case of its letters.
template <std::size_t kSize>
bool IsName(const char* name, const char (&known)[kSize]) {
  constexpr std::size_t n = kSize - 1;
  // A letter has that bit in lower case only, a hyphen always; and a byte that
  // becomes a letter by it is one, and one that becomes a hyphen is a control
  // byte. So whole words compare, of which the last overlaps the one before.
  using Word = std::conditional_t<(n < 8), std::uint32_t, std::uint64_t>;
  static_assert(n >= sizeof(Word));
  for (std::size_t i = 0; i + sizeof(Word) < n; i += sizeof(Word)) {
    if (LowerCaseWord<Word>(name + i) != LowerCaseWord<Word>(known + i)) {
      return false;
    }
  }
  constexpr std::size_t kLast = n - sizeof(Word);
  return LowerCaseWord<Word>(name + kLast) ==
         LowerCaseWord<Word>(known + kLast);
}

Fault ParseVersion(std::string_view version, int* minor) {
  if (version == "HTTP/1.1") [[likely]] {
    *minor = 1;
    return nullptr;
  }
  if (version.size() != 8 || version.substr(0, 5) != "HTTP/" ||
      version[6] != '.' || version[5] < '0' || version[5] > '9' ||
      version[7] < '0' || version[7] > '9') {
    return &kBadVersion;
  }
  if (version[5] != '1') return &kOtherVersion;
  *minor = version[7] == '0' ? 0 : 1;
  return nullptr;
}

// The fault of a method that isn't served, or of a target other than a path.
Fault CheckUnusual(const HttpHead& head) {
  if (head.target.empty()) return &kBadTarget;
  switch (head.method) {
    case HttpMethod::Unspecified:
      return IsHttpToken(head.method_name) ? nullptr : &kBadMethod;
    case HttpMethod::Connect:
      return &kTunnel;
    case HttpMethod::Options:
      if (head.target == "*") return nullptr;
      break;
    default:
      break;
  }
  return IsAbsoluteTarget(head.target) ? nullptr : &kBadTarget;
}

// `line` has no control bytes.
Fault ParseRequestLine(std::string_view line, HttpHead* out) {
  const std::size_t first = line.find(' ');
  if (first == std::string_view::npos) {
    return &kBadRequestLine;
  }
  const std::size_t last = line.find(' ', first + 1);
  if (last == std::string_view::npos) {
    return &kBadRequestLine;
  }
  out->method_name = line.substr(0, first);
  out->target = line.substr(first + 1, last - first - 1);
  out->method = HttpMethodFromString(out->method_name);
  if (out->method == HttpMethod::Unspecified ||
      out->method == HttpMethod::Connect || !out->target.starts_with('/'))
      [[unlikely]] {
    if (const Fault fault = CheckUnusual(*out)) return fault;
  }
  out->path = PathOfTarget(out->target);
  return ParseVersion(line.substr(last + 1), &out->minor_version);
}

Fault ParseStatusLine(std::string_view line, HttpHead* out) {
  if (const Fault fault =
          ParseVersion(line.substr(0, 8), &out->minor_version)) {
    return fault;
  }
  if (line.size() < 12 || line[8] != ' ' ||
      (line.size() > 12 && line[12] != ' ')) {
    return &kBadStatusLine;
  }
  auto status = TryParse<std::uint16_t>(line.substr(9, 3));
  if (!status || *status < 100) return &kBadStatus;
  out->status = *status;
  out->reason = line.size() > 13 ? line.substr(13) : std::string_view();
  return nullptr;
}

Fault ReadContentLength(std::string_view value, HttpHead* out) {
  const auto length = TryParse<std::uint64_t>(value);
  if (!length) return &kBadLength;
  if (out->content_length) {
    if (*length != *out->content_length.value) return &kTwoLengths;
    out->repeats_length = true;
  }
  out->content_length = {value, length};
  return nullptr;
}

Fault ReadTransferEncoding(std::string_view value, HttpHead* out) {
  if (out->chunked) return &kTwoCodings;
  if (!IEquals(value, "chunked")) {
    return &kOtherCoding;
  }
  out->chunked = true;
  return nullptr;
}

void ReadConnection(std::string_view value, HttpHead* out) {
  ForEachListMember(value, [out](std::string_view option) {
    if (IEquals(option, "close")) out->close = true;
    if (IEquals(option, "keep-alive")) out->keep_alive = true;
  });
}

void ReadContentEncoding(std::string_view value, HttpHead* out) {
  ForEachListMember(value, [out](std::string_view coding) {
    if (coding.empty() || IEquals(coding, "identity")) return;
    out->encoding =
        out->encoded ? CompressionAlgorithm::kUnknown : HttpCodingOf(coding);
    out->encoded = true;
  });
}

// For fields that must not be repeated.
Fault ReadOnce(std::string_view value, std::string_view* out) {
  if (out->data() != nullptr) return &kRepeated;
  *out = value;
  return nullptr;
}

Fault ReadOnce(std::string_view value, HttpNumber* out) {
  if (const Fault fault = ReadOnce(value, &out->text)) return fault;
  out->value = TryParse<std::uint64_t>(value);
  return nullptr;
}

Fault ReadExpect(std::string_view value, HttpHead* out) {
  if (!IEquals(value, "100-continue")) {
    return &kOtherExpectation;
  }
  out->expect_continue = true;
  return nullptr;
}

Fault ReadField(std::string_view name, std::string_view value, HttpHead* out) {
  const char* const text = name.data();
  // Fields with a meaning in a request only.
  const bool response = out->status != 0;
  switch (name.size()) {
    case 4:
      if (response || !IsName(text, "host")) break;
      if (out->has_host) return &kTwoHosts;
      out->has_host = true;
      return MayBeHttpHost(value) ? nullptr : &kBadHost;
    case 6:
      if (response) break;
      if (IsName(text, "expect")) return ReadExpect(value, out);
      if (IsName(text, "origin")) out->origin = value;
      break;
    case 7:
      // Nothing in HTTP follows such a request, whatever the answer.
      if (!response && IsName(text, "upgrade") &&
          HasListMember(value, "websocket")) {
        out->close = true;
      }
      break;
    case 9:
      if (!IsName(text, "rpc-seqno")) break;
      return ReadOnce(value, &out->rpc_seq_no);
    case 10:
      if (!IsName(text, "connection")) break;
      ReadConnection(value, out);
      return nullptr;
    case 11:
      if (!IsName(text, "rpc-timeout")) break;
      return ReadOnce(value, &out->rpc_timeout);
    case 12:
      if (!IsName(text, "content-type")) break;
      return ReadOnce(value, &out->content_type);
    case 14:
      if (IsName(text, "content-length")) return ReadContentLength(value, out);
      if (!IsName(text, "rpc-error-code")) break;
      return ReadOnce(value, &out->rpc_error_code);
    case 15:
      if (response || !IsName(text, "accept-encoding")) break;
      out->accept_encoding.Add(value);
      return nullptr;
    case 16:
      if (IsName(text, "content-encoding")) {
        ReadContentEncoding(value, out);
        return nullptr;
      }
      if (!IsName(text, "rpc-error-reason")) break;
      return ReadOnce(value, &out->rpc_error_reason);
    case 17:
      if (!IsName(text, "transfer-encoding")) break;
      return ReadTransferEncoding(value, out);
  }
  out->has_others = true;
  // Also refuses a folded field (leading blank) and a blank before the colon.
  return IsHttpToken(name) ? nullptr : &kBadFieldName;
}

// `line` isn't empty and has no control bytes but tabs.
Fault ParseField(std::string_view line, std::size_t colon, HttpHead* out) {
  if (colon == std::string_view::npos) {
    return &kNoColon;
  }
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = TrimBlanks(line.substr(colon + 1));
  return ReadField(name, value, out);
}

Fault CheckFraming(const HttpHead& head) {
  if (!head.chunked) return nullptr;
  if (head.content_length) {
    return &kLengthAndCoding;
  }
  if (head.minor_version == 0) {
    return &kOldCoding;
  }
  return nullptr;
}

Fault ParseFields(LineReader* source, std::size_t max_fields, HttpHead* out) {
  LineReader lines = *source;  // A local one can live in registers.
  const char* const begin = lines.at();
  for (std::size_t count = 0;; ++count) {
    std::string_view line;
    std::size_t colon;
    const char* const end = lines.at();
    if (!lines.Next(/*tabs=*/true, &line, &colon)) return &kBadLine;
    if (line.empty()) {
      out->fields = {begin, static_cast<std::size_t>(end - begin)};
      break;
    }
    if (count == max_fields) return &kTooManyFields;
    if (const Fault fault = ParseField(line, colon, out)) return fault;
  }
  *source = lines;
  return CheckFraming(*out);
}

Fault ParseRequest(LineReader* lines, std::size_t max_fields, HttpHead* out) {
  std::string_view line;
  std::size_t colon;
  if (!lines->Next(/*tabs=*/false, &line, &colon)) return &kBadLine;
  if (const Fault fault = ParseRequestLine(line, out)) return fault;
  return ParseFields(lines, max_fields, out);
}

Fault ParseResponse(LineReader* lines, std::size_t max_fields, HttpHead* out) {
  std::string_view line;
  std::size_t colon;
  if (!lines->Next(/*tabs=*/true, &line, &colon)) return &kBadLine;
  if (const Fault fault = ParseStatusLine(line, out)) return fault;
  return ParseFields(lines, max_fields, out);
}

template <Fault (*kParse)(LineReader*, std::size_t, HttpHead*)>
std::optional<std::size_t> PeekHead(std::string_view bytes,
                                    std::size_t max_fields, HttpHead* out) {
  LineReader lines(bytes);
  if (kParse(&lines, max_fields, out)) return std::nullopt;
  return static_cast<std::size_t>(lines.at() - bytes.data());
}

Fault CheckEnd(const LineReader& lines) {
  return lines.done() ? nullptr : &kBytesBehind;
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
        *scanned = line_start;
        return HeadEnd::kBareLf;
      }
      std::size_t line_size = slice_start + lf - 1 - line_start;
      at = lf + 1;
      if (slice_start + at > limit) {
        *scanned = line_start;
        return HeadEnd::kTooLarge;
      }
      line_start = slice_start + at;
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
  LineReader lines(head);
  Fault fault = ParseRequest(&lines, max_fields, out);
  if (fault == nullptr) fault = CheckEnd(lines);
  return fault != nullptr ? *fault : HttpFault();
}

HttpFault ParseResponseHead(std::string_view head, std::size_t max_fields,
                            HttpHead* out) {
  LineReader lines(head);
  Fault fault = ParseResponse(&lines, max_fields, out);
  if (fault == nullptr) fault = CheckEnd(lines);
  return fault != nullptr ? HttpFault{502, fault->text} : HttpFault();
}

std::optional<std::size_t> PeekRequestHead(std::string_view bytes,
                                           std::size_t limit,
                                           std::size_t max_fields,
                                           HttpHead* out) {
  return PeekHead<ParseRequest>(bytes.substr(0, limit), max_fields, out);
}

std::optional<std::size_t> PeekResponseHead(std::string_view bytes,
                                            std::size_t limit,
                                            std::size_t max_fields,
                                            HttpHead* out) {
  return PeekHead<ParseResponse>(bytes.substr(0, limit), max_fields, out);
}

}  // namespace flare::rpc
