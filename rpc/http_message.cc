#include "flare/rpc/http_message.h"

#include <algorithm>
#include <array>

#include "flare/base/string.h"

namespace flare {

namespace {

// What the texts of a pooled message may keep of their memory.
constexpr std::size_t kKept = 4096;

constexpr std::array<std::string_view, 10> kMethodNames = {
    "UNSPECIFIED", "GET",     "HEAD",    "POST",  "PUT",
    "DELETE",      "CONNECT", "OPTIONS", "TRACE", "PATCH"};

bool IsToken(std::string_view name) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !name.empty() && std::all_of(name.begin(), name.end(), [=](char c) {
    return (c >= '0' && c <= '9') || (ToLower(c) >= 'a' && ToLower(c) <= 'z') ||
           kMarks.find(c) != std::string_view::npos;
  });
}

}  // namespace

std::string_view ToStringView(HttpMethod method) {
  auto index = static_cast<std::size_t>(method);
  return kMethodNames[index < kMethodNames.size() ? index : 0];
}

HttpMethod HttpMethodFromString(std::string_view name) {
  for (std::size_t i = 1; i != kMethodNames.size(); ++i) {
    if (kMethodNames[i] == name) return static_cast<HttpMethod>(i);
  }
  return HttpMethod::Unspecified;
}

std::string_view HttpReasonPhrase(int status) {
  switch (static_cast<HttpStatus>(status)) {
    case HttpStatus::Continue:
      return "Continue";
    case HttpStatus::OK:
      return "OK";
    case HttpStatus::Created:
      return "Created";
    case HttpStatus::Accepted:
      return "Accepted";
    case HttpStatus::NoContent:
      return "No Content";
    case HttpStatus::PartialContent:
      return "Partial Content";
    case HttpStatus::MovedPermanently:
      return "Moved Permanently";
    case HttpStatus::Found:
      return "Found";
    case HttpStatus::SeeOther:
      return "See Other";
    case HttpStatus::NotModified:
      return "Not Modified";
    case HttpStatus::TemporaryRedirect:
      return "Temporary Redirect";
    case HttpStatus::PermanentRedirect:
      return "Permanent Redirect";
    case HttpStatus::BadRequest:
      return "Bad Request";
    case HttpStatus::Unauthorized:
      return "Unauthorized";
    case HttpStatus::Forbidden:
      return "Forbidden";
    case HttpStatus::NotFound:
      return "Not Found";
    case HttpStatus::MethodNotAllowed:
      return "Method Not Allowed";
    case HttpStatus::NotAcceptable:
      return "Not Acceptable";
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
    case HttpStatus::UpgradeRequired:
      return "Upgrade Required";
    case HttpStatus::TooManyRequests:
      return "Too Many Requests";
    case HttpStatus::RequestHeaderFieldsTooLarge:
      return "Request Header Fields Too Large";
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
  }
  return "Unknown";
}

// ---------------------------------------------------------------------------

bool HttpHeaders::Append(std::string_view name, std::string_view value) {
  if (!IsToken(name)) return false;
  Field field{static_cast<std::uint32_t>(text_.size()),
              static_cast<std::uint32_t>(name.size()),
              static_cast<std::uint32_t>(value.size())};
  text_.append(name);
  text_.append(value);
  std::replace_if(
      text_.end() - value.size(), text_.end(),
      [](char c) { return c == '\r' || c == '\n' || c == '\0'; }, ' ');
  fields_.push_back(field);
  return true;
}

bool HttpHeaders::Set(std::string_view name, std::string_view value) {
  if (!IsToken(name)) return false;
  Remove(name);
  return Append(name, value);
}

std::optional<std::string_view> HttpHeaders::TryGet(
    std::string_view name) const {
  for (std::size_t i = 0; i != fields_.size(); ++i) {
    auto [field, value] = (*this)[i];
    if (IEquals(field, name)) return value;
  }
  return std::nullopt;
}

std::vector<std::string_view> HttpHeaders::TryGetMultiple(
    std::string_view name) const {
  std::vector<std::string_view> values;
  for (std::size_t i = 0; i != fields_.size(); ++i) {
    auto [field, value] = (*this)[i];
    if (IEquals(field, name)) values.push_back(value);
  }
  return values;
}

bool HttpHeaders::Remove(std::string_view name) {
  // The text of removed fields stays behind unseen; messages are short-lived.
  return std::erase_if(fields_, [&](const Field& field) {
           return IEquals(
               std::string_view(text_).substr(field.offset, field.name_size),
               name);
         }) != 0;
}

void HttpHeaders::clear() {
  ClearKeeping(&text_, kKept);
  fields_.clear();
}

std::pair<std::string_view, std::string_view> HttpHeaders::operator[](
    std::size_t index) const {
  const Field& field = fields_[index];
  std::string_view text(text_);
  return {text.substr(field.offset, field.name_size),
          text.substr(field.offset + field.name_size, field.value_size)};
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

void HttpMessage::clear() {
  version_ = HttpVersion::kUnspecified;
  headers_.clear();
  body_.Clear();
  flat_.reset();
}

std::string_view HttpRequest::path() const {
  std::string_view uri(uri_);
  if (uri.substr(0, 7) == "http://") {
    std::size_t slash = uri.find('/', 7);
    uri = slash == std::string_view::npos ? "/" : uri.substr(slash);
  }
  return uri.substr(0, uri.find_first_of("?#"));
}

std::string_view HttpRequest::query() const {
  std::string_view uri(uri_);
  uri = uri.substr(0, uri.find('#'));
  std::size_t mark = uri.find('?');
  return mark == std::string_view::npos ? std::string_view()
                                        : uri.substr(mark + 1);
}

void HttpRequest::clear() {
  HttpMessage::clear();
  method_ = HttpMethod::Unspecified;
  ClearKeeping(&uri_, kKept);
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
