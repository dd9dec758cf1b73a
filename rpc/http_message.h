// HTTP requests and responses as handlers see them.
//
//   auto handler = flare::NewHttpGetHandler(
//       [](const flare::HttpRequest& req, flare::HttpResponse* resp,
//          flare::HttpServerContext*) {
//         resp->headers()->Set("Content-Type", "text/plain");
//         resp->set_body("hello\n");
//       });
//
// Plain values: not thread-safe, nothing blocks. clear() keeps capacity, so a
// recycled object fills without allocating.
#ifndef FLARE_RPC_HTTP_MESSAGE_H_
#define FLARE_RPC_HTTP_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/string.h"

namespace flare {

// kHttp2: of responses to an HttpClient. Handlers see requests over HTTP/2 as
// ones of HTTP/1.1.
enum class HttpVersion { kUnspecified, kHttp10, kHttp11, kHttp2 };

enum class HttpMethod : std::uint8_t {
  Unspecified,
  Get,
  Head,
  Post,
  Put,
  Delete,
  Connect,
  Options,
  Trace,
  Patch,
};

// "GET" for HttpMethod::Get; "UNSPECIFIED" for none.
std::string_view ToStringView(HttpMethod method);
// HttpMethod::Unspecified if not one of the above (names are case-sensitive).
HttpMethod HttpMethodFromString(std::string_view name);

// Some of these methods.
class HttpMethodSet {
 public:
  HttpMethodSet() = default;
  HttpMethodSet(std::initializer_list<HttpMethod> methods) {
    for (HttpMethod method : methods) Add(method);
  }
  // All that a server has handlers for: CONNECT isn't served.
  static HttpMethodSet All();

  void Add(HttpMethod method) { bits_ |= Bit(method); }
  bool contains(HttpMethod method) const { return (bits_ & Bit(method)) != 0; }
  bool empty() const { return bits_ == 0; }
  // "GET, HEAD", as the field Allow has it.
  std::string ToString() const;

 private:
  static unsigned Bit(HttpMethod method) {
    return 1u << static_cast<unsigned>(method);
  }

  unsigned bits_ = 0;
};

// Those of IANA's registry; any number from 100 to 999 may be cast to this.
enum class HttpStatus : int {
  Continue = 100,
  SwitchingProtocols = 101,
  Processing = 102,
  EarlyHints = 103,
  OK = 200,
  Created = 201,
  Accepted = 202,
  NonAuthoritativeInformation = 203,
  NoContent = 204,
  ResetContent = 205,
  PartialContent = 206,
  MultiStatus = 207,
  AlreadyReported = 208,
  ImUsed = 226,
  MultipleChoices = 300,
  MovedPermanently = 301,
  Found = 302,
  SeeOther = 303,
  NotModified = 304,
  UseProxy = 305,
  TemporaryRedirect = 307,
  PermanentRedirect = 308,
  BadRequest = 400,
  Unauthorized = 401,
  PaymentRequired = 402,
  Forbidden = 403,
  NotFound = 404,
  MethodNotAllowed = 405,
  NotAcceptable = 406,
  ProxyAuthenticationRequired = 407,
  RequestTimeout = 408,
  Conflict = 409,
  Gone = 410,
  LengthRequired = 411,
  PreconditionFailed = 412,
  PayloadTooLarge = 413,
  UriTooLong = 414,
  UnsupportedMediaType = 415,
  RangeNotSatisfiable = 416,
  ExpectationFailed = 417,
  MisdirectedRequest = 421,
  UnprocessableContent = 422,
  Locked = 423,
  FailedDependency = 424,
  TooEarly = 425,
  UpgradeRequired = 426,
  PreconditionRequired = 428,
  TooManyRequests = 429,
  RequestHeaderFieldsTooLarge = 431,
  UnavailableForLegalReasons = 451,
  InternalServerError = 500,
  NotImplemented = 501,
  BadGateway = 502,
  ServiceUnavailable = 503,
  GatewayTimeout = 504,
  HttpVersionNotSupported = 505,
  VariantAlsoNegotiates = 506,
  InsufficientStorage = 507,
  LoopDetected = 508,
  NotExtended = 510,
  NetworkAuthenticationRequired = 511,
};

// "Not Found" for 404; "Unknown" for numbers without a registered text.
std::string_view HttpReasonPhrase(int status);

// Header fields in the order they were added. Names compare without regard to
// case and may occur several times. All of them are one text, in the form that
// messages have, so views returned here are valid until the next change of this
// object, which must not be given its own views; finding a field takes linear
// time.
class HttpHeaders {
 public:
  using Field = std::pair<std::string_view, std::string_view>;  // name, value
  class const_iterator;

  // Adds a field behind those that exist, also one of the same name. Control
  // bytes in `value` but tabs are replaced by spaces, and blanks around it
  // don't count; a name that isn't an HTTP token is refused (false). So no text
  // can forge another field, or make a message that isn't taken.
  bool Append(std::string_view name, std::string_view value);
  // ... several: false if one of them was refused, the others are added.
  bool Append(
      std::initializer_list<std::pair<std::string_view, std::string_view>>
          fields);
  // Replaces all fields of that name by this one.
  bool Set(std::string_view name, std::string_view value);
  // First field of that name.
  std::optional<std::string_view> TryGet(std::string_view name) const;
  // ... as flare::TryParse() reads it: a number, say.
  template <class T>
  std::optional<T> TryGet(std::string_view name) const {
    const std::optional<std::string_view> value = TryGet(name);
    return value ? TryParse<T>(*value) : std::nullopt;
  }
  // All fields of that name, in order.
  std::vector<std::string_view> TryGetMultiple(std::string_view name) const;
  bool contains(std::string_view name) const {
    return TryGet(name).has_value();
  }
  // Removes all fields of that name; true if there was one.
  bool Remove(std::string_view name);

  // Iteration over the fields.
  const_iterator begin() const;
  const_iterator end() const;
  std::size_t size() const;  // Linear time.
  bool empty() const { return lines_.empty(); }
  // Name and value of field `index` < size(). Linear time.
  Field operator[](std::size_t index) const;
  void clear();

  // The fields in the form that messages have: "Name: value\r\n", one after the
  // other.
  std::string_view lines() const { return lines_; }
  std::string ToString() const { return lines_; }
  // For parsers: replaces all fields by such lines, which must be well.
  void AssignLines(std::string_view lines) { lines_.assign(lines); }

 private:
  std::string lines_;
};

class HttpHeaders::const_iterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Field;
  using difference_type = std::ptrdiff_t;
  using pointer = const Field*;
  using reference = const Field&;

  // At the first of `lines`.
  explicit const_iterator(std::string_view lines) : rest_(lines) { Read(); }

  reference operator*() const { return field_; }
  pointer operator->() const { return &field_; }
  // The line of the field, with its CRLF.
  std::string_view line() const { return line_; }
  const_iterator& operator++() {
    Read();
    return *this;
  }
  friend bool operator==(const const_iterator& a, const const_iterator& b) {
    return a.field_.first.data() == b.field_.first.data();
  }

 private:
  // Takes the next field off rest_, or else becomes the end.
  void Read();

  std::string_view rest_;  // behind line_
  std::string_view line_;
  Field field_;
};

inline HttpHeaders::const_iterator HttpHeaders::begin() const {
  return const_iterator(lines_);
}
inline HttpHeaders::const_iterator HttpHeaders::end() const {
  return const_iterator({});
}

// The common part of requests and responses.
class HttpMessage {
 public:
  HttpVersion version() const { return version_; }
  void set_version(HttpVersion version) { version_ = version; }

  HttpHeaders* headers() { return &headers_; }
  const HttpHeaders* headers() const { return &headers_; }

  void set_body(std::string body);
  void set_body(std::string_view body);
  void set_body(const char* body) { set_body(std::string_view(body)); }
  void set_body(Buffer body);
  std::size_t body_size() const {
    return IsText() ? flat_->size() : body_.size();
  }
  // The body as a chain of blocks, without a copy unless it was made one string
  // to be changed.
  const Buffer* noncontiguous_body() const {
    if (IsText()) [[unlikely]]
      TextToChain();
    return &body_;
  }
  // ... to be changed, until body() is called.
  Buffer* noncontiguous_body();
  // The body as one string, copied together at the first call. Valid until the
  // body is changed, or asked for to be changed.
  const std::string* body() const;
  // ... to be changed, until noncontiguous_body() is called, whose blocks it
  // takes the place of. To read a long one, ask through a pointer to const: of
  // the blocks nothing has to be made anew then.
  std::string* body();

  void clear();

 private:
  bool IsText() const { return body_.empty() && flat_; }
  void TextToChain() const;

  HttpVersion version_ = HttpVersion::kUnspecified;
  HttpHeaders headers_;
  mutable Buffer body_;
  // A copy of body_, or the body itself while that is empty.
  mutable std::optional<std::string> flat_;
};

class HttpRequest : public HttpMessage {
 public:
  HttpMethod method() const { return method_; }
  void set_method(HttpMethod method) { method_ = method; }
  // The request target as it stood in the request line, query included.
  const std::string& uri() const { return uri_; }
  void set_uri(std::string_view uri) { uri_.assign(uri); }
  // The part of uri() before '?' (or before '#'); the part between them. The
  // path of "http://host/path" (or https) is "/path". That of "http://host" is
  // "/", or "*" for OPTIONS, which then means the server itself.
  std::string_view path() const;
  std::string_view query() const;

  void clear();

 private:
  HttpMethod method_ = HttpMethod::Unspecified;
  std::string uri_;
};

class HttpResponse : public HttpMessage {
 public:
  HttpStatus status() const { return status_; }
  void set_status(HttpStatus status) { status_ = status; }

  void clear();

 private:
  HttpStatus status_ = HttpStatus::OK;
};

// Makes *response a short text/plain error: status, reason phrase and `text`.
void FillHttpError(HttpStatus status, std::string_view text,
                   HttpResponse* response);

}  // namespace flare

#endif  // FLARE_RPC_HTTP_MESSAGE_H_
