#include "flare/rpc/http_message.h"

#include <algorithm>
#include <array>
#include <utility>

#include "flare/base/string.h"
#include "flare/rpc/http/http_text.h"

namespace flare {

namespace {

constexpr std::array<std::string_view, 10> kMethodNames = {
    "UNSPECIFIED", "GET",     "HEAD",    "POST",  "PUT",
    "DELETE",      "CONNECT", "OPTIONS", "TRACE", "PATCH"};

}  // namespace

std::string_view ToStringView(HttpMethod method) {
  auto index = static_cast<std::size_t>(method);
  return kMethodNames[index < kMethodNames.size() ? index : 0];
}

HttpMethod HttpMethodFromString(std::string_view name) {
  // The usual ones by one comparison each.
  if (name == "GET") return HttpMethod::Get;
  if (name == "POST") return HttpMethod::Post;
  for (std::size_t i = 1; i != kMethodNames.size(); ++i) {
    if (kMethodNames[i] == name) return static_cast<HttpMethod>(i);
  }
  return HttpMethod::Unspecified;
}

HttpMethodSet HttpMethodSet::All() {
  HttpMethodSet all;
  for (std::size_t i = 1; i != kMethodNames.size(); ++i) {
    const auto method = static_cast<HttpMethod>(i);
    if (method != HttpMethod::Connect) all.Add(method);
  }
  return all;
}

std::string HttpMethodSet::ToString() const {
  std::string names;
  for (std::size_t i = 1; i != kMethodNames.size(); ++i) {
    if (!contains(static_cast<HttpMethod>(i))) continue;
    if (!names.empty()) names += ", ";
    names += kMethodNames[i];
  }
  return names;
}

std::string_view HttpReasonPhrase(int status) {
  switch (static_cast<HttpStatus>(status)) {
    case HttpStatus::Continue:
      return "Continue";
    case HttpStatus::SwitchingProtocols:
      return "Switching Protocols";
    case HttpStatus::Processing:
      return "Processing";
    case HttpStatus::EarlyHints:
      return "Early Hints";
    case HttpStatus::OK:
      return "OK";
    case HttpStatus::Created:
      return "Created";
    case HttpStatus::Accepted:
      return "Accepted";
    case HttpStatus::NonAuthoritativeInformation:
      return "Non-Authoritative Information";
    case HttpStatus::NoContent:
      return "No Content";
    case HttpStatus::ResetContent:
      return "Reset Content";
    case HttpStatus::PartialContent:
      return "Partial Content";
    case HttpStatus::MultiStatus:
      return "Multi-Status";
    case HttpStatus::AlreadyReported:
      return "Already Reported";
    case HttpStatus::ImUsed:
      return "IM Used";
    case HttpStatus::MultipleChoices:
      return "Multiple Choices";
    case HttpStatus::MovedPermanently:
      return "Moved Permanently";
    case HttpStatus::Found:
      return "Found";
    case HttpStatus::SeeOther:
      return "See Other";
    case HttpStatus::NotModified:
      return "Not Modified";
    case HttpStatus::UseProxy:
      return "Use Proxy";
    case HttpStatus::TemporaryRedirect:
      return "Temporary Redirect";
    case HttpStatus::PermanentRedirect:
      return "Permanent Redirect";
    case HttpStatus::BadRequest:
      return "Bad Request";
    case HttpStatus::Unauthorized:
      return "Unauthorized";
    case HttpStatus::PaymentRequired:
      return "Payment Required";
    case HttpStatus::Forbidden:
      return "Forbidden";
    case HttpStatus::NotFound:
      return "Not Found";
    case HttpStatus::MethodNotAllowed:
      return "Method Not Allowed";
    case HttpStatus::NotAcceptable:
      return "Not Acceptable";
    case HttpStatus::ProxyAuthenticationRequired:
      return "Proxy Authentication Required";
    case HttpStatus::RequestTimeout:
      return "Request Timeout";
    case HttpStatus::Conflict:
      return "Conflict";
    case HttpStatus::Gone:
      return "Gone";
    case HttpStatus::LengthRequired:
      return "Length Required";
    case HttpStatus::PreconditionFailed:
      return "Precondition Failed";
    case HttpStatus::PayloadTooLarge:
      return "Content Too Large";
    case HttpStatus::UriTooLong:
      return "URI Too Long";
    case HttpStatus::UnsupportedMediaType:
      return "Unsupported Media Type";
    case HttpStatus::RangeNotSatisfiable:
      return "Range Not Satisfiable";
    case HttpStatus::ExpectationFailed:
      return "Expectation Failed";
    case HttpStatus::MisdirectedRequest:
      return "Misdirected Request";
    case HttpStatus::UnprocessableContent:
      return "Unprocessable Content";
    case HttpStatus::Locked:
      return "Locked";
    case HttpStatus::FailedDependency:
      return "Failed Dependency";
    case HttpStatus::TooEarly:
      return "Too Early";
    case HttpStatus::UpgradeRequired:
      return "Upgrade Required";
    case HttpStatus::PreconditionRequired:
      return "Precondition Required";
    case HttpStatus::TooManyRequests:
      return "Too Many Requests";
    case HttpStatus::RequestHeaderFieldsTooLarge:
      return "Request Header Fields Too Large";
    case HttpStatus::UnavailableForLegalReasons:
      return "Unavailable For Legal Reasons";
    case HttpStatus::InternalServerError:
      return "Internal Server Error";
    case HttpStatus::NotImplemented:
      return "Not Implemented";
    case HttpStatus::BadGateway:
      return "Bad Gateway";
    case HttpStatus::ServiceUnavailable:
      return "Service Unavailable";
    case HttpStatus::GatewayTimeout:
      return "Gateway Timeout";
    case HttpStatus::HttpVersionNotSupported:
      return "HTTP Version Not Supported";
    case HttpStatus::VariantAlsoNegotiates:
      return "Variant Also Negotiates";
    case HttpStatus::InsufficientStorage:
      return "Insufficient Storage";
    case HttpStatus::LoopDetected:
      return "Loop Detected";
    case HttpStatus::NotExtended:
      return "Not Extended";
    case HttpStatus::NetworkAuthenticationRequired:
      return "Network Authentication Required";
  }
  return "Unknown";
}

// ---------------------------------------------------------------------------

bool HttpHeaders::Append(std::string_view name, std::string_view value) {
  if (!rpc::IsHttpToken(name)) return false;
  // Grown once, then written.
  const std::size_t begin = lines_.size();
  lines_.resize(begin + name.size() + 2 + value.size() + 2);
  char* out = lines_.data() + begin;
  out = std::copy(name.begin(), name.end(), out);
  *out++ = ':';
  *out++ = ' ';
  char* const end = std::copy(value.begin(), value.end(), out);
  // It stops at colons, too.
  rpc::HttpScanner scanner(out, end);
  for (const char* c; (c = scanner.Next()) != end;) {
    if (!rpc::IsHttpValueChar(*c)) out[c - out] = ' ';
  }
  end[0] = '\r';
  end[1] = '\n';
  return true;
}

bool HttpHeaders::Append(
    std::initializer_list<std::pair<std::string_view, std::string_view>>
        fields) {
  bool all = true;
  for (const auto& [name, value] : fields) all &= Append(name, value);
  return all;
}

bool HttpHeaders::Set(std::string_view name, std::string_view value) {
  if (!rpc::IsHttpToken(name)) return false;
  Remove(name);
  return Append(name, value);
}

std::optional<std::string_view> HttpHeaders::TryGet(
    std::string_view name) const {
  for (const auto& [field, value] : *this) {
    if (IEquals(field, name)) return value;
  }
  return std::nullopt;
}

std::vector<std::string_view> HttpHeaders::TryGetMultiple(
    std::string_view name) const {
  std::vector<std::string_view> values;
  for (const auto& [field, value] : *this) {
    if (IEquals(field, name)) values.push_back(value);
  }
  return values;
}

bool HttpHeaders::Remove(std::string_view name) {
  if (!contains(name)) return false;
  std::string left;
  for (const auto& [field, value] : *this) {
    if (IEquals(field, name)) continue;
    left.append(field).append(": ").append(value).append("\r\n");
  }
  lines_ = std::move(left);
  return true;
}

std::size_t HttpHeaders::size() const {
  return static_cast<std::size_t>(
      std::count(lines_.begin(), lines_.end(), '\n'));
}

HttpHeaders::Field HttpHeaders::operator[](std::size_t index) const {
  return *std::next(begin(), static_cast<std::ptrdiff_t>(index));
}

void HttpHeaders::clear() { ClearKeeping(&lines_); }

void HttpHeaders::const_iterator::Read() {
  const std::size_t lf = rest_.find('\n');
  if (lf == std::string_view::npos) {
    field_ = {};
    return;
  }
  line_ = rest_.substr(0, lf + 1);
  const std::size_t colon = line_.find(':');
  field_ = {line_.substr(0, colon),
            rpc::TrimBlanks(line_.substr(colon + 1, lf - colon - 2))};
  rest_.remove_prefix(lf + 1);
}

// ---------------------------------------------------------------------------

void HttpMessage::set_body(std::string body) {
  flat_.reset();
  body_ = MakeForeignBuffer(std::move(body));
}

void HttpMessage::set_body(std::string_view body) {
  flat_.reset();
  body_ = CreateBufferSlow(body);
}

void HttpMessage::set_body(Buffer body) {
  flat_.reset();
  body_ = std::move(body);
}

const std::string* HttpMessage::body() const {
  if (!flat_) flat_ = FlattenSlow(body_);
  return &*flat_;
}

std::string* HttpMessage::body() {
  std::as_const(*this).body();
  body_.Clear();
  return &*flat_;
}

Buffer* HttpMessage::noncontiguous_body() {
  if (IsText()) TextToChain();
  flat_.reset();
  return &body_;
}

void HttpMessage::TextToChain() const { body_ = CreateBufferSlow(*flat_); }

void HttpMessage::clear() {
  version_ = HttpVersion::kUnspecified;
  headers_.clear();
  body_.Clear();
  flat_.reset();
}

std::string_view HttpRequest::path() const {
  return rpc::PathOfTarget(uri_, method_ == HttpMethod::Options ? "*" : "/");
}

std::string_view HttpRequest::query() const { return rpc::QueryOfTarget(uri_); }

void HttpRequest::clear() {
  HttpMessage::clear();
  method_ = HttpMethod::Unspecified;
  ClearKeeping(&uri_);
}

void HttpResponse::clear() {
  HttpMessage::clear();
  status_ = HttpStatus::OK;
}

void FillHttpError(HttpStatus status, std::string_view text,
                   HttpResponse* response) {
  int number = static_cast<int>(status);
  std::string body = std::to_string(number);
  body.append(" ").append(HttpReasonPhrase(number));
  if (!text.empty()) body.append(": ").append(text);
  body.push_back('\n');
  response->clear();
  response->set_status(status);
  response->headers()->Set("Content-Type", "text/plain");
  response->set_body(std::move(body));
}

}  // namespace flare
