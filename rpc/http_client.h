// A client of plain HTTP and HTTPS, by HTTP/1.1 or HTTP/2, for fibers and plain
// threads.
//
//   flare::HttpClient client;
//   auto response = client.Get("https://example.com/prices?of=tea");
//   if (!response) return response.error();       // Why there is none.
//   if (response->status() != flare::HttpStatus::OK) ...
//   Use(*response->body());
//
//   auto stored = client.Put("http://10.0.0.1/prices/tea", R"({"cents": 300})",
//                            {.timeout = 500ms,
//                             .content_type = "application/json",
//                             .headers = {"Authorization: Bearer " + token}});
//
// A client keeps connections for further requests; make one and use it for all.
// Certificates of https are verified, by the roots of the system or by
// Options::tls. HTTP/2 is an option; cookies are missing: docs/http_client.md.
//
// A request over a kept connection that the server closes meanwhile is sent
// once more, over a new one, if its method may be repeated: GET, HEAD, PUT,
// DELETE, OPTIONS, TRACE.
#ifndef FLARE_RPC_HTTP_CLIENT_H_
#define FLARE_RPC_HTTP_CLIENT_H_

#include <memory>
#include <string>

#include "flare/base/expected.h"
#include "flare/base/future.h"
#include "flare/rpc/http_client_options.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/websocket.h"

namespace flare {

namespace rpc {
class HttpConnections;
}  // namespace rpc

// Needs a running runtime. Thread-safe. Copies share connections and options.
// Requests block the fiber (or the thread), for RequestOptions::timeout at
// most, unless a function of the options takes longer. The last copy may go
// while requests are under way: kept connections are closed.
class HttpClient {
 public:
  using Options = HttpClientOptions;
  using RequestOptions = HttpRequestOptions;
  using ResponseInfo = HttpResponseInfo;
  using ErrorCode = rpc::HttpErrorCode;
  using enum rpc::HttpErrorCode;

  // A response of any status; or an error, whose code is an ErrorCode and whose
  // text says what failed, with which server, and why.
  using Result = Expected<HttpResponse>;

  explicit HttpClient(const Options& options = {});

  // `url`: "http://host:port/path?query" or https. Characters that aren't
  // visible ASCII must be escaped ("%20"); "#..." isn't sent. `info`, if it
  // isn't null, is filled in with a response.
  Result Get(const std::string& url, const RequestOptions& options = {},
             ResponseInfo* info = nullptr) const;
  Result Head(const std::string& url, const RequestOptions& options = {},
              ResponseInfo* info = nullptr) const;
  Result Delete(const std::string& url, const RequestOptions& options = {},
                ResponseInfo* info = nullptr) const;
  Result Post(const std::string& url, std::string body,
              const RequestOptions& options = {},
              ResponseInfo* info = nullptr) const;
  Result Put(const std::string& url, std::string body,
             const RequestOptions& options = {},
             ResponseInfo* info = nullptr) const;

  // Any request, to <protocol>://<host><request.uri()>; of `request` the
  // method, the fields and the body are sent. The client itself writes the
  // fields that concern the connection or the length: ones of `request` are an
  // error.
  Result Request(const std::string& protocol, const std::string& host,
                 const HttpRequest& request, const RequestOptions& options = {},
                 ResponseInfo* info = nullptr) const;

  // Opens a WebSocket (websocket.h). `url`: "ws://host:port/path?query" or wss.
  // Blocks for options.request.timeout at most. Other answers than 101 are
  // ERROR_NO_WEBSOCKET, whose text has the status. `info`, if it isn't null, is
  // filled in with the answer. It doesn't count as a connection of its host,
  // and outlives the client, unless the client side of the process ends.
  Expected<WebSocket> OpenWebSocket(const std::string& url,
                                    const WebSocketClientOptions& options = {},
                                    ResponseInfo* info = nullptr) const;

  // Requests on fibers of their own. `info` must live until the future has
  // its value.
  Future<Result> AsyncGet(const std::string& url,
                          const RequestOptions& options = {},
                          ResponseInfo* info = nullptr) const;
  Future<Result> AsyncPost(const std::string& url, std::string body,
                           const RequestOptions& options = {},
                           ResponseInfo* info = nullptr) const;
  Future<Result> AsyncRequest(const std::string& protocol,
                              const std::string& host,
                              const HttpRequest& request,
                              const RequestOptions& options = {},
                              ResponseInfo* info = nullptr) const;

  // "ERROR_TIMEOUT" for 6; "ERROR_UNKNOWN" for other numbers.
  static const char* ErrorCodeToString(int code);

 private:
  Result Fetch(const std::string& url, HttpRequest request,
               const RequestOptions& options, ResponseInfo* info) const;

  std::shared_ptr<rpc::HttpConnections> connections_;
};

}  // namespace flare

#endif  // FLARE_RPC_HTTP_CLIENT_H_
