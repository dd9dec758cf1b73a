#include "flare/rpc/http_client.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/compression.h"
#include "flare/fiber/async.h"
#include "flare/fiber/event.h"
#include "flare/rpc/client/wait_limit.h"
#include "flare/rpc/http/http_coding.h"
#include "flare/rpc/http_client/http_client_counters.h"
#include "flare/rpc/http_client/http_connections.h"
#include "flare/rpc/http_client/http_request_writer.h"
#include "flare/rpc/http_client/http_url.h"
#include "flare/rpc/http_client/websocket_opening.h"

namespace flare {
namespace rpc {
namespace {

// How often a request is sent again to servers that don't process it: over
// HTTP/2 that is no failure of theirs.
constexpr int kMaxRefusals = 4;
constexpr std::chrono::milliseconds kRefusalPause{10};  // Doubled each time.

bool IsRepeatable(HttpMethod method) {
  return method != HttpMethod::Post && method != HttpMethod::Patch;
}

bool IsRedirection(HttpStatus status) {
  switch (status) {
    case HttpStatus::MovedPermanently:
    case HttpStatus::Found:
    case HttpStatus::SeeOther:
    case HttpStatus::TemporaryRedirect:
    case HttpStatus::PermanentRedirect:
      return true;
    default:
      return false;
  }
}

// Null: it is none.
const char* NameOf(int error) {
#define FLARE_HTTP_ERROR(name) \
  case name:                   \
    return #name
  switch (error) {
    FLARE_HTTP_ERROR(ERROR_INVALID_URI_ADDRESS);
    FLARE_HTTP_ERROR(ERROR_FAIL_TO_RESOLVE_ADDRESS);
    FLARE_HTTP_ERROR(ERROR_CONNECTION);
    FLARE_HTTP_ERROR(ERROR_TIMEOUT);
    FLARE_HTTP_ERROR(ERROR_PARSE_RESPONSE);
    FLARE_HTTP_ERROR(ERROR_FAIL_TO_CONNECT_SERVER);
    FLARE_HTTP_ERROR(ERROR_PROTOCOL_NOT_SUPPORTED);
    FLARE_HTTP_ERROR(ERROR_TOO_MANY_REDIRECTS);
    FLARE_HTTP_ERROR(ERROR_REDIRECT_LOCATION_NOT_FOUND);
    FLARE_HTTP_ERROR(ERROR_DECOMPRESS_RESPONSE);
    FLARE_HTTP_ERROR(ERROR_SSL);
    FLARE_HTTP_ERROR(ERROR_INVALID_REQUEST);
    FLARE_HTTP_ERROR(ERROR_RESPONSE_TOO_LARGE);
    FLARE_HTTP_ERROR(ERROR_CANCELLED);
    FLARE_HTTP_ERROR(ERROR_SHUTDOWN);
    FLARE_HTTP_ERROR(ERROR_NO_WEBSOCKET);
  }
#undef FLARE_HTTP_ERROR
  return nullptr;
}

// The number that a request counts as. Interceptors make results, too: those
// mustn't be taken for other statuses or errors.
int CountedAs(const Expected<HttpResponse>& result) {
  if (result) {
    const int status = static_cast<int>(result->status());
    return status >= 100 && status < 1000 ? status
                                          : HttpClientCounters::kUnknown;
  }
  const int error = result.error().code();
  return NameOf(error) != nullptr ? error : HttpClientCounters::kUnknown;
}

// One request, with its repetition and its redirections.
class HttpFetch {
 public:
  using Result = Expected<HttpResponse, flare::Status>;

  // `opening`: the request is for a WebSocket; else null.
  HttpFetch(std::shared_ptr<HttpConnections> connections, HttpRequest request,
            const HttpRequestOptions& options,
            WebSocketOpening* opening = nullptr)
      : connections_(std::move(connections)),
        request_(std::move(request)),
        options_(options),
        opening_(opening),
        limit_{WaitLimit::In(options.timeout)} {}

  Result Run(const std::string& url) {
    auto parsed = ParseHttpUrl(url);
    if (!parsed) return parsed.error();
    url_ = first_url_ = *std::move(parsed);
    if (flare::Status added = AddFields(); !added.ok()) return added;
    std::optional<Result> result;
    std::exception_ptr thrown;
    try {
      result.emplace(RunIntercepted(0));
    } catch (...) {  // By on_body, or by an interceptor.
      thrown = std::current_exception();
      if (thrown == nullptr) throw;  // The end of a thread.
    }
    HttpClientCounters::Of(CountedServer(), connected_)
        ->End(result ? CountedAs(*result) : ERROR_CANCELLED,
              NowNs() - began_ns_);
    if (thrown != nullptr) std::rethrow_exception(thrown);
    return *std::move(result);
  }

  void Describe(HttpResponseInfo* info) const {
    info->effective_url = url_.ToString();
    info->total_time_transfer = std::chrono::nanoseconds(NowNs() - began_ns_);
    info->connection_reused = reused_;
  }

 private:
  // From the n-th interceptor on.
  Result RunIntercepted(std::size_t n) {
    const auto& interceptors = connections_->interceptors();
    if (n == interceptors.size()) return FollowRedirections();
    return interceptors[n]->Intercept(
        first_url_.origin(), &request_,
        [this, n] { return RunIntercepted(n + 1); });
  }

  Result FollowRedirections() {
    for (int followed = 0;; ++followed) {
      Result result = Exchange();
      if (!result) return Named(result.error());
      if (!WillFollow(result->status())) return result;
      if (followed >= options_.max_redirection_count) {
        return Named(
            flare::Status(ERROR_TOO_MANY_REDIRECTS,
                          "more than max_redirection_count redirections, " +
                              std::to_string(options_.max_redirection_count)));
      }
      if (flare::Status ok = Follow(*result); !ok.ok()) return Named(ok);
    }
  }

  // The one that is connected to: that of connect_to, or a proxy, may be asked
  // for any host.
  std::string CountedServer() const {
    HttpUrl server = first_url_;
    if (!options_.connect_to.empty()) server.host = options_.connect_to;
    if (!counted_proxy_.empty()) server.host = counted_proxy_;
    return server.origin();
  }

  // With the server; targets may have secrets.
  flare::Status Named(const flare::Status& why) const {
    return flare::Status(why.code(), url_.origin() + ": " + why.message());
  }

  flare::Status AddFields() {
    HttpHeaders* const headers = request_.headers();
    if (!options_.content_type.empty()) {
      headers->Remove("Content-Type");
      flare::Status added =
          AddHttpField("Content-Type: " + options_.content_type, headers);
      if (!added.ok()) return added;
    }
    for (const std::string& line : options_.headers) {
      if (flare::Status added = AddHttpField(line, headers); !added.ok()) {
        return added;
      }
    }
    // Only gzip: what "deflate" is senders don't agree on.
    unpacks_ = connections_->options().use_builtin_compression &&
               options_.on_body == nullptr &&
               !headers->contains("Accept-Encoding");
    if (unpacks_) headers->Append("Accept-Encoding", "gzip");
    return {};
  }

  // Gets the response of url_.
  Result Exchange() {
    auto way = FindWay();
    if (!way) return way.error();
    const auto& [origin, proxy] = *way;
    auto bytes = WriteHttpRequest(request_, url_,
                                  {.lines = OwnLines(proxy),
                                   .to_proxy = proxy != nullptr,
                                   .source = Source()});
    if (!bytes) return bytes.error();
    int refusals = 0;
    bool http1 = false;
    for (bool fresh = false;;) {
      auto lease =
          connections_->Acquire(origin, WantedOf(fresh, http1), limit_);
      if (!lease) {
        const bool proxied = proxy != nullptr || origin.tunnel != nullptr;
        if (!proxied) return lease.error();
        return flare::Status(lease.error().code(),
                             "by the proxy " + origin.connects_to() + ": " +
                                 lease.error().message());
      }
      connected_ = true;
      reused_ = lease->reused();
      HttpRequestFate fate;
      Result result = Send(*lease, *bytes, &fate);
      if (result && result->status() == HttpStatus::SwitchingProtocols) {
        flare::Status switched =
            opening_->Switch(*result, &*lease, connections_);
        if (!switched.ok()) return switched;
        return result;
      }
      if (result) {
        // The body of a redirection that is followed doesn't matter.
        if (WillFollow(result->status())) return result;
        return Unpack(*std::move(result));
      }
      if (fate.needs_http1 && !fate.source_begun) {
        http1 = true;
        continue;
      }
      if (fate.unprocessed) {
        if (fate.source_begun || ++refusals > kMaxRefusals) return result;
        PauseBeforeRefusal(refusals);
        continue;
      }
      // A kept connection may have been closed before the request came.
      const bool stale = reused_ && fate.lost && !fate.replied;
      if (!stale || (fate.sent && !MayRepeat())) return result;
      // Those that others share may have been lost at the same time.
      if (fresh && (lease->http2() == nullptr || ++refusals > kMaxRefusals)) {
        return result;
      }
      fresh = true;
    }
  }

  // The first refusal has no pause: servers also refuse requests that cross
  // their GOAWAY, and another connection takes these at once.
  void PauseBeforeRefusal(int refusals) {
    if (refusals == 1) return;
    fiber::Event never;
    never.WaitUntil(
        limit_.stop,
        std::min(limit_.at,
                 ReadSteadyClock() + kRefusalPause * (1 << (refusals - 2))));
  }

  // A WebSocket's connection isn't kept behind it; and one that has been used
  // may let less wait to be sent than the WebSocket does.
  HttpConnections::Wanted WantedOf(bool fresh, bool http1) const {
    using Wanted = HttpConnections::Wanted;
    if (opening_ != nullptr || http1) return Wanted::kOwn;
    return fresh ? Wanted::kFresh : Wanted::kAny;
  }

  Result Send(const HttpConnections::Lease& lease, const Buffer& bytes,
              HttpRequestFate* fate) {
    if (Http2ClientConnection* const http2 = lease.http2()) {
      return http2->Exchange(RequestOf(bytes), limit_, fate);
    }
    return lease.connection().Exchange(RequestOf(bytes), limit_, fate);
  }

  struct Way {
    HttpOrigin origin;                 // To connect to.
    const HttpProxy* proxy = nullptr;  // The request is for it to pass on.
  };
  Expected<Way, flare::Status> FindWay() {
    if (!options_.connect_to.empty() && url_.origin() == first_url_.origin()) {
      return Way{{url_.tls, url_.host, options_.connect_to}};
    }
    if (url_.address.starts_with("unix:")) {
      return flare::Status(ERROR_INVALID_URI_ADDRESS,
                           "a Unix socket is named by connect_to only");
    }
    const auto& proxies = connections_->proxies();
    if (!proxies) return proxies.error();
    // It would go to servers, too.
    if (proxies->any() && request_.headers()->contains("Proxy-Authorization")) {
      return flare::Status(ERROR_INVALID_REQUEST,
                           "the field Proxy-Authorization: the password for a "
                           "proxy belongs to its URL");
    }
    const HttpProxy* const proxy = proxies->For(url_);
    if (proxy == nullptr || url_.tls || opening_ != nullptr ||
        connections_->options().http2 == HttpClientHttp2::kPriorKnowledge) {
      return Way{{url_.tls, url_.host, url_.address, proxy}};
    }
    if (url_.origin() == first_url_.origin()) counted_proxy_ = proxy->address;
    // Its connections serve all hosts.
    return Way{{false, "", proxy->address}, proxy};
  }

  // The fields of a request that only the client itself may write.
  std::string_view OwnLines(const HttpProxy* proxy) const {
    if (opening_ != nullptr) return opening_->lines();
    return proxy != nullptr ? std::string_view(proxy->lines) : "";
  }

  // Null: the body, if there is one, is the request's.
  const HttpBodySource* Source() const {
    return options_.body_source.next != nullptr && !followed_
               ? &options_.body_source
               : nullptr;
  }

  bool MayRepeat() const {
    return IsRepeatable(request_.method()) && Source() == nullptr;
  }

  HttpClientConnection::Request RequestOf(const Buffer& bytes) {
    HttpClientConnection::Request request;
    request.bytes = bytes;
    request.scheme = url_.tls ? "https" : "http";
    request.is_head = request_.method() == HttpMethod::Head;
    request.may_switch = opening_ != nullptr;
    request.max_body = options_.max_body_size;
    request.source = Source();
    if (options_.on_body != nullptr) {
      request.max_body = SIZE_MAX;
      request.on_body = &on_body_;
    }
    return request;
  }

  bool WillFollow(HttpStatus status) const {
    return options_.max_redirection_count != 0 && IsRedirection(status) &&
           (Source() == nullptr || DropsBody(status, request_.method()));
  }

  Result Unpack(HttpResponse response) const {
    HttpHeaders* const headers = response.headers();
    const auto codings = headers->TryGetMultiple("Content-Encoding");
    if (!unpacks_ || response.body_size() == 0 || codings.size() != 1 ||
        HttpCodingOf(codings[0]) != CompressionAlgorithm::kGzip) {
      return response;
    }
    auto body =
        Decompress(CompressionAlgorithm::kGzip, *response.noncontiguous_body(),
                   options_.max_body_size);
    if (!body) {
      return flare::Status(body.error().code() == EMSGSIZE
                               ? ERROR_RESPONSE_TOO_LARGE
                               : ERROR_DECOMPRESS_RESPONSE,
                           "the body can't be unpacked within max_body_size, " +
                               std::to_string(options_.max_body_size) +
                               " bytes: " + body.error().message());
    }
    response.set_body(*std::move(body));
    headers->Remove("Content-Encoding");
    headers->Remove("Content-Length");
    return response;
  }

  flare::Status Follow(const HttpResponse& response) {
    const auto location = response.headers()->TryGet("Location");
    if (!location) {
      return flare::Status(ERROR_REDIRECT_LOCATION_NOT_FOUND,
                           "a redirection without the field Location");
    }
    auto to = ResolveHttpUrl(url_, *location);
    if (!to) {
      return flare::Status(to.error().code(),
                           "a redirection: " + to.error().message());
    }
    if (url_.tls && !to->tls) {
      return flare::Status(ERROR_PROTOCOL_NOT_SUPPORTED,
                           "a redirection from https to http isn't followed");
    }
    RedirectHttpRequest(response.status(), url_, *to, &request_);
    followed_ = true;
    url_ = *std::move(to);
    return {};
  }

  // The client may go meanwhile.
  const std::shared_ptr<HttpConnections> connections_;
  HttpRequest request_;
  const HttpRequestOptions& options_;
  WebSocketOpening* const opening_;
  const HttpWaitLimit limit_;
  const std::int64_t began_ns_ = NowNs();
  // options_.on_body for the last response, none of the others.
  const std::function<bool(const HttpResponse&, Buffer)> on_body_ =
      [this](const HttpResponse& response, Buffer piece) {
        return WillFollow(response.status()) ||
               options_.on_body(response, std::move(piece));
      };
  HttpUrl first_url_;
  HttpUrl url_;
  std::string counted_proxy_;  // The first request's, which it passes on.
  bool unpacks_ = false;
  bool followed_ = false;  // A redirection.
  bool connected_ = false;
  bool reused_ = false;
};

}  // namespace
}  // namespace rpc

namespace {

HttpRequest RequestWith(HttpMethod method, std::string body = {}) {
  HttpRequest request;
  request.set_method(method);
  if (!body.empty()) request.set_body(std::move(body));
  return request;
}

// A host that ends earlier, or goes on in the path, would be another one.
Expected<std::string> UrlOfRequest(const std::string& protocol,
                                   const std::string& host,
                                   const HttpRequest& request) {
  const std::string& target = request.uri();
  if (host.find_first_of("/?#") != host.npos ||
      (!target.empty() && target[0] != '/' && target[0] != '?')) {
    return Status(rpc::ERROR_INVALID_URI_ADDRESS,
                  "the target of a request must begin with '/' or '?', and its "
                  "host have none of \"/?#\"");
  }
  return protocol + "://" + host + target;
}

}  // namespace

HttpClient::HttpClient(const Options& options)
    : connections_(rpc::HttpConnections::Create(options)) {}

HttpClient::Result HttpClient::Fetch(const std::string& url,
                                     HttpRequest request,
                                     const RequestOptions& options,
                                     ResponseInfo* info) const {
  rpc::HttpFetch fetch(connections_, std::move(request), options);
  Result result = fetch.Run(url);
  if (result && info != nullptr) fetch.Describe(info);
  return result;
}

HttpClient::Result HttpClient::Get(const std::string& url,
                                   const RequestOptions& options,
                                   ResponseInfo* info) const {
  return Fetch(url, RequestWith(HttpMethod::Get), options, info);
}

HttpClient::Result HttpClient::Head(const std::string& url,
                                    const RequestOptions& options,
                                    ResponseInfo* info) const {
  return Fetch(url, RequestWith(HttpMethod::Head), options, info);
}

HttpClient::Result HttpClient::Delete(const std::string& url,
                                      const RequestOptions& options,
                                      ResponseInfo* info) const {
  return Fetch(url, RequestWith(HttpMethod::Delete), options, info);
}

HttpClient::Result HttpClient::Post(const std::string& url, std::string body,
                                    const RequestOptions& options,
                                    ResponseInfo* info) const {
  return Fetch(url, RequestWith(HttpMethod::Post, std::move(body)), options,
               info);
}

HttpClient::Result HttpClient::Put(const std::string& url, std::string body,
                                   const RequestOptions& options,
                                   ResponseInfo* info) const {
  return Fetch(url, RequestWith(HttpMethod::Put, std::move(body)), options,
               info);
}

HttpClient::Result HttpClient::Request(const std::string& protocol,
                                       const std::string& host,
                                       const HttpRequest& request,
                                       const RequestOptions& options,
                                       ResponseInfo* info) const {
  const auto url = UrlOfRequest(protocol, host, request);
  if (!url) return url.error();
  return Fetch(*url, request, options, info);
}

Expected<WebSocket> HttpClient::OpenWebSocket(
    const std::string& url, const WebSocketClientOptions& options,
    ResponseInfo* info) const {
  auto http_url = rpc::HttpUrlOfWebSocket(url);
  if (!http_url) return http_url.error();
  auto opening = rpc::WebSocketOpening::Create(options);
  if (!opening) return opening.error();
  RequestOptions request = options.request;
  request.on_body = nullptr;
  request.body_source = {};
  rpc::HttpFetch fetch(connections_, RequestWith(HttpMethod::Get), request,
                       opening->get());
  Result result = fetch.Run(*http_url);
  if (!result) return result.error();
  if (info != nullptr) fetch.Describe(info);
  // An interceptor may have made the response.
  const bool good = result->status() == HttpStatus::SwitchingProtocols;
  auto session = good ? (*opening)->Take() : nullptr;
  if (session == nullptr) {
    const int status = static_cast<int>(result->status());
    return Status(ERROR_NO_WEBSOCKET,
                  *http_url + " answered the request for a WebSocket with " +
                      std::to_string(status) + ' ' +
                      std::string(HttpReasonPhrase(status)));
  }
  return WebSocket(std::move(session));
}

// --- futures -----------------------------------------------------------------

Future<HttpClient::Result> HttpClient::AsyncGet(const std::string& url,
                                                const RequestOptions& options,
                                                ResponseInfo* info) const {
  return fiber::Async([client = *this, url, options, info] {
    return client.Get(url, options, info);
  });
}

Future<HttpClient::Result> HttpClient::AsyncPost(const std::string& url,
                                                 std::string body,
                                                 const RequestOptions& options,
                                                 ResponseInfo* info) const {
  return fiber::Async(
      [client = *this, url, body = std::move(body), options, info]() mutable {
        return client.Post(url, std::move(body), options, info);
      });
}

Future<HttpClient::Result> HttpClient::AsyncRequest(
    const std::string& protocol, const std::string& host,
    const HttpRequest& request, const RequestOptions& options,
    ResponseInfo* info) const {
  return fiber::Async([client = *this, protocol, host, request, options, info] {
    return client.Request(protocol, host, request, options, info);
  });
}

const char* HttpClient::ErrorCodeToString(int code) {
  const char* const name = rpc::NameOf(code);
  return name != nullptr ? name : "ERROR_UNKNOWN";
}

}  // namespace flare
