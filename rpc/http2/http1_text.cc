#include "flare/rpc/http2/http1_text.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "flare/base/string.h"
#include "flare/rpc/http/http_parser.h"
#include "flare/rpc/http2/field_text.h"
#include "flare/rpc/http2/http2_head.h"
#include "flare/rpc/http_message.h"

namespace flare::rpc {
namespace {

constexpr std::size_t kStatusAt = 9;  // Behind "HTTP/1.1 ".
constexpr std::size_t kStatusDigits = 3;

std::string CutHead(Buffer* http1) {
  std::size_t scanned = 0;
  std::size_t size = 0;
  static_cast<void>(FindHeadEnd(*http1, http1->size(), &scanned, &size));
  return FlattenSlow(http1->Cut(size));
}

// The lines between the first one and the empty one.
std::string_view FieldLinesOf(std::string_view head) {
  const std::size_t line = head.find("\r\n");
  if (line == std::string_view::npos) return {};
  return head.substr(line + 2, head.size() - line - 4);
}

}  // namespace

void Http1RequestText::Clear() {
  method_.clear();
  target_.clear();
  authority_.clear();
  cookie_.clear();
  lines_.clear();
}

void Http1RequestText::Add(std::string_view name, std::string_view value) {
  if (name.starts_with(':')) {
    if (FieldTextIs(name, ":method")) {
      method_.assign(value);
    } else if (FieldTextIs(name, ":path")) {
      target_.assign(value);
    } else if (FieldTextIs(name, ":authority")) {
      authority_.assign(value);
    }
  } else if (FieldTextIs(name, "cookie")) {
    if (!cookie_.empty()) cookie_.append("; ");
    cookie_.append(value);
  } else if (FieldTextIs(name, "te") || FieldTextIs(name, "expect") ||
             (FieldTextIs(name, "host") && !authority_.empty())) {
    return;
  } else {
    AddLine(name, value);
  }
}

void Http1RequestText::AddLine(std::string_view name, std::string_view value) {
  lines_.append(name).append(": ").append(value).append("\r\n");
}

std::string Http1RequestText::Take() {
  if (!cookie_.empty()) AddLine("cookie", cookie_);
  // CONNECT has no path.
  const std::string& target = target_.empty() ? authority_ : target_;
  std::string text;
  text.reserve(method_.size() + target.size() + authority_.size() +
               lines_.size() + 32);
  text.append(method_).append(" ").append(target).append(" HTTP/1.1\r\n");
  if (!authority_.empty()) {
    text.append("host: ").append(authority_).append("\r\n");
  }
  text.append(lines_).append("\r\n");
  Clear();
  return text;
}

Http2Fields::Http2Fields(std::string_view lines, bool with_host) {
  HttpHeaders::const_iterator field(lines);
  for (; field != HttpHeaders::const_iterator({}); ++field) {
    std::string name(field->first);
    for (char& c : name) c = ToLower(c);
    if (IsConnectionField(name) || (!with_host && name == "host")) continue;
    lines_.append(name).append(": ").append(field->second).append("\r\n");
  }
}

void Http2Fields::AppendTo(std::vector<Http2Field>* fields) const {
  HttpHeaders::const_iterator field(lines_);
  for (; field != HttpHeaders::const_iterator({}); ++field) {
    fields->push_back({field->first, field->second,
                       IsSecretField(field->first) ? HpackIndexing::kNever
                                                   : HpackIndexing::kAdd});
  }
}

std::vector<Http2Field> Http2Fields::fields() const {
  std::vector<Http2Field> fields;
  AppendTo(&fields);
  return fields;
}

Http2Request::Http2Request(Buffer&& http1, std::string_view scheme)
    : scheme_(scheme) {
  const std::string head = CutHead(&http1);
  body = std::move(http1);
  const std::string_view line =
      std::string_view(head).substr(0, head.find("\r\n"));
  const std::size_t target = std::min(line.find(' '), line.size() - 1) + 1;
  method_ = line.substr(0, target - 1);
  target_ = line.substr(target, line.rfind(' ') - target);
  const std::string_view lines = FieldLinesOf(head);
  HttpHeaders::const_iterator field(lines);
  for (; field != HttpHeaders::const_iterator({}); ++field) {
    if (IEquals(field->first, "host")) authority_ = field->second;
  }
  fields_ = Http2Fields(lines, /*with_host=*/false);
}

std::vector<Http2Field> Http2Request::fields() const {
  std::vector<Http2Field> fields{{":method", method_},
                                 {":scheme", scheme_},
                                 {":authority", authority_},
                                 {":path", target_, HpackIndexing::kOmit}};
  fields_.AppendTo(&fields);
  return fields;
}

Http2Reply::Http2Reply(Buffer&& http1) {
  const std::string head = CutHead(&http1);
  body = std::move(http1);
  status_ = head.substr(std::min(kStatusAt, head.size()), kStatusDigits);
  fields_ = Http2Fields(FieldLinesOf(head));
}

std::vector<Http2Field> Http2Reply::fields() const {
  std::vector<Http2Field> fields{{":status", status_}};
  fields_.AppendTo(&fields);
  return fields;
}

}  // namespace flare::rpc
