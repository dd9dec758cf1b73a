// The options, the errors and the facts of requests of an HttpClient
// (http_client.h), which knows them as HttpClient::Options, RequestOptions,
// ErrorCode and ResponseInfo.
#ifndef FLARE_RPC_HTTP_CLIENT_OPTIONS_H_
#define FLARE_RPC_HTTP_CLIENT_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
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

  // It can't be sent, by a field's fault; or `body_source` is of another size.
  ERROR_INVALID_REQUEST = 1001,
  ERROR_RESPONSE_TOO_LARGE = 1002,
  // By `on_body` or `body_source`, or as the call in whose context it was made
  // has ended.
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
  // "10.0.0.1", "localhost:8080" with that port only, "*" for all; networks of
  // hosts that are given by their addresses: "10.0.0.0/8", "fd00::/8".
  std::vector<std::string> except = {};

  // From http_proxy, https_proxy (or HTTPS_PROXY), all_proxy (ALL_PROXY) for
  // those that aren't set, and no_proxy (NO_PROXY, hosts with commas between).
  static HttpProxyOptions FromEnvironment();
};

// When an HttpClient speaks HTTP/2. WebSockets are opened by HTTP/1.1 always.
enum class HttpClientHttp2 {
  kOff,
  // Over TLS, if the server chooses it in the handshake (ALPN); else HTTP/1.1.
  kAlpn,
  // Always, over TLS or not, without asking: a server that doesn't speak it is
  // an error. Plain requests through a proxy take a tunnel, too.
  kPriorKnowledge,
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
  HttpClientHttp2 http2 = HttpClientHttp2::kOff;
  // To one host. Further requests wait for one of these connections, or for
  // other requests that share it: over HTTP/2 a connection carries as many as
  // the server allows, and the next one is opened beyond that.
  std::size_t max_connections_per_host = 64;
  // Connections without a request that are kept, to all hosts together.
  std::size_t max_idle_connections = 64;
  // How long they are kept. Many servers close them after 5 s or more.
  std::chrono::nanoseconds max_idle = std::chrono::seconds(30);
  // Malformed ones fail requests with ERROR_INVALID_URI_ADDRESS.
  HttpProxyOptions proxy = {};
};

// A body that is made while it is sent.
struct HttpBodySource {
  // Returns the next piece; an empty one: the body has ended. Called in the
  // requesting fiber or thread, and may suspend it; a response, the timeout and
  // the end of the call are seen when it returns. Isn't called while more than
  // 256 KiB wait to be sent; over HTTP/2, 64 KiB of the request, or 1 MiB of
  // all that share the connection. An error ends the request with
  // ERROR_CANCELLED and its text; the server sees a body that is cut short.
  std::function<Expected<Buffer, Status>()> next = {};
  // The size of all, if it is known: the pieces must come to that, and `next`
  // isn't called behind it. Else the body is sent in chunks, which servers of
  // HTTP/1.0 don't take.
  std::optional<std::uint64_t> size = {};
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
  // Unless its `next` is empty: the request's body, in place of one of its own.
  // Such a request is sent once: neither over another connection, nor to where
  // a redirection with the same method leads, which is a response then. To send
  // it again takes a new source: this one has lost its first pieces. It ends
  // early if the response comes before the end of the body. `on_body` is called
  // behind its end, so no more than 256 KiB of a response may come before; over
  // HTTP/2 it is called between the pieces.
  HttpBodySource body_source = {};
};

struct HttpResponseInfo {
  // The URL of the response, after redirections.
  std::string effective_url = {};
  std::chrono::nanoseconds total_time_transfer{0};
  // It came over a connection that had been made for another request.
  bool connection_reused = false;
};

}  // namespace flare

#endif  // FLARE_RPC_HTTP_CLIENT_OPTIONS_H_
