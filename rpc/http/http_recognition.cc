#include "flare/rpc/http/http_recognition.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "flare/rpc/http/http_text.h"
#include "flare/rpc/http_message.h"

namespace flare::rpc {

namespace {

// As many are passed over. RFC 9112 asks for one.
constexpr std::size_t kMaxEmptyLines = 2;

constexpr std::size_t kMaxMethod = 24;

// Whether the first line is an HTTP request with a method we don't know. Other
// protocols may begin with capitals too, so this wants to see the version, and
// unless HTTP was spoken before, a line that is neither long nor odd.
CutResult RecogniseByVersion(const Buffer& in, std::size_t line_start,
                             bool spoken) {
  constexpr std::size_t kMaxLine = 2048;
  constexpr std::string_view kVersion = " HTTP/";
  const std::string bytes = FlattenSlow(in, line_start + kMaxLine);
  const std::string_view start = std::string_view(bytes).substr(line_start);
  const std::size_t end = start.find('\r');
  const std::string_view line = start.substr(0, end);
  const bool printable = std::all_of(line.begin(), line.end(), [&](char c) {
    return (c >= ' ' && c <= '~') || (spoken && (c & 0x80) != 0);
  });
  if (!printable) return CutResult::kNotMine;
  if (end == std::string_view::npos) {
    if (start.size() < kMaxLine) return CutResult::kUnsure;
    return spoken ? CutResult::kMessage : CutResult::kNotMine;
  }
  const std::size_t version = line.rfind(kVersion);
  return version != std::string_view::npos &&
                 line.size() == version + kVersion.size() + 3
             ? CutResult::kMessage
             : CutResult::kNotMine;
}

// As FindHttpRequest(). *empty_lines is the size of the empty lines in front,
// of which few are passed over at a time; also if there is nothing else yet.
CutResult RecogniseRequest(const Buffer& in, bool spoken,
                           std::size_t* empty_lines) {
  char scratch[2 * kMaxEmptyLines + kMaxMethod + 1];
  std::string_view start =
      in.Peek(std::min(in.size(), sizeof(scratch)), scratch);
  *empty_lines = 0;
  while (start.starts_with("\r\n") && *empty_lines != 2 * kMaxEmptyLines) {
    start.remove_prefix(2);
    *empty_lines += 2;
  }
  if (start.empty() || (start == "\r" && *empty_lines != 2 * kMaxEmptyLines)) {
    return CutResult::kUnsure;
  }
  // Methods may begin with other bytes, too, but all that are registered begin
  // with a capital, and other input should be found out soon.
  if (start[0] < 'A' || start[0] > 'Z') return CutResult::kNotMine;
  const auto end =
      std::find_if_not(start.begin(), start.end(), IsHttpTokenChar);
  const std::string_view method = start.substr(0, end - start.begin());
  if (method.size() == start.size() && method.size() <= kMaxMethod) {
    return CutResult::kUnsure;
  }
  if (method.size() > kMaxMethod || *end != ' ') {
    return CutResult::kNotMine;
  }
  if (HttpMethodFromString(method) != HttpMethod::Unspecified) {
    return CutResult::kMessage;
  }
  return RecogniseByVersion(in, *empty_lines, spoken);
}

}  // namespace

CutResult FindHttpRequest(Buffer& in, bool spoken) {
  std::size_t empty_lines = 0;
  CutResult result = RecogniseRequest(in, spoken, &empty_lines);
  if (!spoken) {
    // Input for other protocols must stay as it is.
    if (result == CutResult::kMessage) in.Skip(empty_lines);
    return result;
  }
  while (empty_lines != 0) {
    in.Skip(empty_lines);
    result = RecogniseRequest(in, spoken, &empty_lines);
  }
  return in.empty() ? CutResult::kNeedMore : result;
}

bool MayBeHttpResponse(const Buffer& in) {
  constexpr std::string_view kStart = "HTTP/1.";
  char scratch[kStart.size()];
  return kStart.starts_with(
      in.Peek(std::min(in.size(), kStart.size()), scratch));
}

bool BeginsWithHttp2(const Buffer& in) {
  constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\n";
  char scratch[kPreface.size()];
  return in.Peek(std::min(in.size(), kPreface.size()), scratch) == kPreface;
}

bool BeginsWithHead(const Buffer& in) {
  constexpr std::string_view kHead = "HEAD ";
  char scratch[kHead.size()];
  return in.Peek(std::min(in.size(), kHead.size()), scratch) == kHead;
}

}  // namespace flare::rpc
