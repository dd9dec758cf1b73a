// The options, the errors and the facts of requests of an HttpClient
// (http_client.h), which knows them as HttpClient::Options, RequestOptions,
// ErrorCode and ResponseInfo.
#ifndef FLARE_RPC_HTTP_CLIENT_OPTIONS_H_
#define FLARE_RPC_HTTP_CLIENT_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/io/tls_options.h"

namespace flare {

class HttpResponse;  // http_message.h

namespace rpc {

// Why there is no response: Status::code() of a request's error. A response
// with any status of HTTP is no error. Numbers below 1000 are those of the
// published framework.
enum HttpErrorCode : int {
  ERROR_INVALID_URI_ADDRESS = 1,
  ERROR_FAIL_TO_RESOLVE_ADDRESS = 2,  // The host's name has no address.
  ERROR_CONNECTION = 5,  // It broke before the whole response had come.
  ERROR_TIMEOUT = 6,
  ERROR_PARSE_RESPONSE = 7,  // It is malformed.
  ERROR_FAIL_TO_CONNECT_SERVER = 8,
  ERROR_PROTOCOL_NOT_SUPPORTED = 9,  // Neither http nor https.
  ERROR_TOO_MANY_REDIRECTS = 10,
  ERROR_REDIRECT_LOCATION_NOT_FOUND = 11,
  ERROR_DECOMPRESS_RESPONSE = 12,
  ERROR_SSL = 15,  // The handshake failed; the certificate isn't good, say.

  ERROR_INVALID_REQUEST = 1001,  // It can't be sent, a field's fault.
  ERROR_RESPONSE_TOO_LARGE = 1002,
  // By `on_body`, or as the call in whose context it was made has ended.
  ERROR_CANCELLED = 1003,
  ERROR_SHUTDOWN = 1004,  // The client side of the process has ended.
  // A request for a WebSocket was answered otherwise.
  ERROR_NO_WEBSOCKET = 1005,
};

}  // namespace rpc

// Requests go through a proxy: those for https by a tunnel (CONNECT), so that
// the proxy sees no more than the host, and WebSockets likewise; others as
// requests to the proxy itself, which sees all. A request with
// HttpRequestOptions::connect_to uses none.
struct HttpProxyOptions {
  // "http://user:password@proxy.example.com:3128" for URLs of http, and of
  // https. Empty: none. Proxies are spoken to in plain HTTP.
  std::string http = {};
  std::string https = {};
  // Hosts that are asked directly, subdomains included: "example.com",
  // "10.0.0.1", "localhost:8080" with that port only, "*" for all.
  std::vector<std::string> except = {};

  // From http_proxy, https_proxy (or HTTPS_PROXY), all_proxy (ALL_PROXY) for
  // those that aren't set, and no_proxy (NO_PROXY, hosts with commas between).
  static HttpProxyOptions FromEnvironment();
};

struct HttpClientOptions {
  // For https. The first request reads its files, for which it may take longer
  // than its timeout.
  TlsClientOptions tls = {};
  // Asks for responses in gzip, unless a request has an Accept-Encoding of its
  // own, and unpacks them. Such a response has neither Content-Encoding nor
  // Content-Length any more. Doesn't concern requests with `on_body`.
  bool use_builtin_compression = true;
  // Extensions wrap its requests (extension.h). False: for clients that an
  // extension uses itself.
  bool extensions = true;
  // Establishing a connection to one address may take so long, TLS included.
  std::chrono::nanoseconds connect_timeout = std::chrono::seconds(3);
  // To one host. Further requests wait for one of these connections.
  std::size_t max_connections_per_host = 64;
  // Connections without a request that are kept, to all hosts together.
  std::size_t max_idle_connections = 64;
  // How long they are kept. Many servers close them after 5 s or more.
  std::chrono::nanoseconds max_idle = std::chrono::seconds(30);
  // Malformed ones fail requests with ERROR_INVALID_URI_ADDRESS.
  HttpProxyOptions proxy = {};
};

struct HttpRequestOptions {
  // For all of it: the look-up of the host, connecting, redirections, the
  // body. Requests that are made while a call is served take no longer than the
  // rest of its time.
  std::chrono::nanoseconds timeout = std::chrono::seconds(10);
  // Redirections that are followed; one more is an error. 0: none is, and a
  // response that redirects is a response.
  int max_redirection_count = 0;
  // The field Content-Type, if it isn't empty.
  std::string content_type = {};
  // "Name: value" each.
  std::vector<std::string> headers = {};
  // Bytes of the response's body, also after unpacking, and of the bodies of
  // redirections. Doesn't concern `on_body`.
  std::size_t max_body_size = std::size_t{16} << 20;
  // Where to connect, in place of the URL's host: "10.0.0.1:8080",
  // "unix:/run/x". Redirections to other hosts ignore it.
  std::string connect_to = {};
  // Gets the body in pieces, as it comes, and the response without its body;
  // the response that the request returns has none, either. Called in the
  // requesting fiber or thread, and may block: the server is slowed down
  // meanwhile. False: the request ends with ERROR_CANCELLED. The body isn't
  // unpacked. Responses whose redirection is followed aren't shown.
  std::function<bool(const HttpResponse& response, Buffer piece)> on_body = {};
};

struct HttpResponseInfo {
  // The URL of the response, after redirections.
  std::string effective_url = {};
  std::chrono::nanoseconds total_time_transfer{0};
  // It came over a connection that had carried another request.
  bool connection_reused = false;
};

}  // namespace flare

#endif  // FLARE_RPC_HTTP_CLIENT_OPTIONS_H_
