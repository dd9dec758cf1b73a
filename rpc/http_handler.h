// Answers plain HTTP requests on a Server with the protocol "http".
//
//   server.AddProtocol("http");
//   server.AddHttpHandler("/hello", flare::NewHttpGetHandler(
//       [](const flare::HttpRequest& request, flare::HttpResponse* response,
//          flare::HttpServerContext* context) {
//         response->set_body("hello\n");
//       }));
//
// Each request runs on a fiber of its own, also those pipelined on one
// connection (their replies leave in order), so handlers must be thread-safe
// and may block their fiber. The reply leaves when the handler returns.
#ifndef FLARE_RPC_HTTP_HANDLER_H_
#define FLARE_RPC_HTTP_HANDLER_H_

#include <chrono>
#include <functional>
#include <initializer_list>
#include <memory>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/rpc/http_message.h"

namespace flare {

// What else is known of a request. Lives as long as the handler runs.
struct HttpServerContext {
  Endpoint remote_peer;
  std::chrono::steady_clock::time_point received;    // off the socket
  std::chrono::steady_clock::time_point dispatched;  // the handler's fiber ran
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // Fills in *response (200, no fields and no body before the call; the
  // framing fields and Connection are taken care of). The default calls the
  // function of the request's method below.
  virtual void HandleRequest(const HttpRequest& request, HttpResponse* response,
                             HttpServerContext* context);

  // The defaults answer 405, except OnHead, which calls OnGet: whatever body
  // it makes isn't sent. An OnHead that makes no body may say by its own
  // Content-Length how long that of a GET would be.
  virtual void OnGet(const HttpRequest& request, HttpResponse* response,
                     HttpServerContext* context);
  virtual void OnHead(const HttpRequest& request, HttpResponse* response,
                      HttpServerContext* context);
  virtual void OnPost(const HttpRequest& request, HttpResponse* response,
                      HttpServerContext* context);
  virtual void OnPut(const HttpRequest& request, HttpResponse* response,
                     HttpServerContext* context);
  virtual void OnDelete(const HttpRequest& request, HttpResponse* response,
                        HttpServerContext* context);
  virtual void OnConnect(const HttpRequest& request, HttpResponse* response,
                         HttpServerContext* context);
  virtual void OnOptions(const HttpRequest& request, HttpResponse* response,
                         HttpServerContext* context);
  virtual void OnTrace(const HttpRequest& request, HttpResponse* response,
                       HttpServerContext* context);
  virtual void OnPatch(const HttpRequest& request, HttpResponse* response,
                       HttpServerContext* context);
};

using HttpHandlerFunction =
    std::function<void(const HttpRequest&, HttpResponse*, HttpServerContext*)>;

// A handler that calls `f` for these methods and answers 405 with an Allow
// field to others. Who takes GET takes HEAD.
std::unique_ptr<HttpHandler> NewHttpHandler(
    std::initializer_list<HttpMethod> methods, HttpHandlerFunction f);

// ... for one method.
std::unique_ptr<HttpHandler> NewHttpGetHandler(HttpHandlerFunction f);
std::unique_ptr<HttpHandler> NewHttpHeadHandler(HttpHandlerFunction f);
std::unique_ptr<HttpHandler> NewHttpPostHandler(HttpHandlerFunction f);
std::unique_ptr<HttpHandler> NewHttpPutHandler(HttpHandlerFunction f);
std::unique_ptr<HttpHandler> NewHttpDeleteHandler(HttpHandlerFunction f);
std::unique_ptr<HttpHandler> NewHttpConnectHandler(HttpHandlerFunction f);
std::unique_ptr<HttpHandler> NewHttpOptionsHandler(HttpHandlerFunction f);
std::unique_ptr<HttpHandler> NewHttpTraceHandler(HttpHandlerFunction f);
std::unique_ptr<HttpHandler> NewHttpPatchHandler(HttpHandlerFunction f);

}  // namespace flare

#endif  // FLARE_RPC_HTTP_HANDLER_H_
