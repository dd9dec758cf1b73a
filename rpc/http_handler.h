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
// and may block their fiber. The reply leaves when the handler returns, unless
// it sends the body in pieces (HttpBodyWriter). An exception that leaves a
// handler is logged and answered 500; if pieces were sent, as by Abort().
#ifndef FLARE_RPC_HTTP_HANDLER_H_
#define FLARE_RPC_HTTP_HANDLER_H_

#include <chrono>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/endpoint.h"
#include "flare/base/function.h"
#include "flare/base/status.h"
#include "flare/io/tls_options.h"
#include "flare/rpc/http_message.h"

namespace flare {

namespace rpc {
class HttpUpgrade;
}  // namespace rpc

// Sends the body of a reply piece by piece, where the whole of it would be too
// large or too late:
//
//   response->headers()->Set("Content-Type", "text/csv");
//   while (std::optional<flare::Buffer> rows = NextRows()) {
//     if (!context->body->Write(*std::move(rows)).ok()) return;
//   }
//
// To HTTP/1.1 it goes in chunks, to HTTP/1.0 up to the end of the connection,
// and to HTTP/2 as far as its stream's window goes.
// It ends when the handler returns, or is given up by Abort().
class HttpBodyWriter {
 public:
  // Sends `piece` behind those before; the first time behind status and fields
  // as *response has them then. From then on *response isn't looked at, and its
  // own body never. Blocks the fiber until it is this reply's turn on the
  // connection, and while much output waits for the peer (over HTTP/2 64 KiB of
  // this reply, too). Fails, with STATUS_IO_ERROR, if the connection is closed:
  // by the peer, because it takes nothing, or because the server has stopped;
  // with STATUS_TIMEOUT if over HTTP/2 the client took nothing of this reply
  // for Server::Options::output_timeout. The handler should return then. So it
  // does for replies without a body (to HEAD, and with some statuses) when
  // their head was sent. By one thread at a time.
  virtual Status Write(Buffer piece) = 0;

  // For a body that can't be completed: over HTTP/2 resets the stream. Over
  // HTTP/1 closes the connection at once, by a reset if the end of the
  // connection would be that of the body (HTTP/1.0): nothing of this reply is
  // sent any more, nor of earlier ones that still wait for the peer. Before the
  // first Write(), an error reply is better.
  virtual void Abort() = 0;

  // For the library: the way to another protocol (websocket.h). Null: none.
  virtual rpc::HttpUpgrade* upgrade() { return nullptr; }

 protected:
  ~HttpBodyWriter() = default;
};

// Other facts of a request. Lives as long as the handler runs.
struct HttpServerContext {
  Endpoint remote_peer;
  // As RpcServerController::peer_identity().
  const PeerIdentity* peer_identity = nullptr;
  // As RpcServerController::caller().
  std::string caller;
  // When the request was read off the socket, and when its fiber began to run;
  // it was parsed in between.
  std::chrono::steady_clock::time_point received_at;
  std::chrono::steady_clock::time_point dispatched_at;
  // Bytes from which on the body is compressed, if the client takes that and
  // the Content-Type is that of a text. Set by the server
  // (Server::Options::compress_http_handlers_from); the handler may change it,
  // before it writes a piece: pieces are compressed whatever their size. 0: the
  // body stays as it is.
  std::size_t compress_from = 0;
  HttpBodyWriter* body = nullptr;  // a server sets it
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // Fills in *response (200, no fields and no body before the call; the framing
  // fields are taken care of, and so are "close", which is heeded, and
  // "keep-alive" in a Connection field, which may have others). The default
  // calls the function of the request's method below. `request`, `*response`
  // and `*context` are there until this returns: later work needs copies. A
  // server never asks for CONNECT: it answers 501 by itself, as a handler can't
  // make a tunnel.
  virtual void HandleRequest(const HttpRequest& request, HttpResponse* response,
                             HttpServerContext* context);

  // The defaults answer 405 with allowed_methods(), except OnHead, which calls
  // OnGet: whatever body it makes isn't sent. An OnHead that makes no body may
  // say by its own Content-Length how long that of a GET would be.
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

  // Returns the methods that the Allow field of a 405 names.
  // HttpHandlerArgument finds them out if nobody has set them. Don't set them
  // once the handler serves.
  HttpMethodSet allowed_methods() const { return allowed_methods_; }
  void set_allowed_methods(HttpMethodSet methods) {
    allowed_methods_ = methods;
  }

 protected:
  // Answers 405.
  void RefuseMethod(const HttpRequest& request, HttpResponse* response) const;

 private:
  HttpMethodSet allowed_methods_;
};

// The methods whose functions the handler class T overrides; with GET comes
// HEAD, and CONNECT isn't served. An object can't tell which of its virtual
// functions are overridden, but its class can.
template <class T>
HttpMethodSet OverriddenHttpMethods() {
  using Inherited = void (HttpHandler::*)(const HttpRequest&, HttpResponse*,
                                          HttpServerContext*);
  HttpMethodSet methods;
  const auto add_unless = [&methods](bool inherited, HttpMethod method) {
    if (!inherited) methods.Add(method);
  };
  // A member that can't be named here isn't inherited either: T has made it
  // private.
  add_unless(
      requires { Inherited{&T::OnGet}; }, HttpMethod::Get);
  add_unless(
      requires { Inherited{&T::OnHead}; }, HttpMethod::Head);
  add_unless(
      requires { Inherited{&T::OnPost}; }, HttpMethod::Post);
  add_unless(
      requires { Inherited{&T::OnPut}; }, HttpMethod::Put);
  add_unless(
      requires { Inherited{&T::OnDelete}; }, HttpMethod::Delete);
  add_unless(
      requires { Inherited{&T::OnOptions}; }, HttpMethod::Options);
  add_unless(
      requires { Inherited{&T::OnTrace}; }, HttpMethod::Trace);
  add_unless(
      requires { Inherited{&T::OnPatch}; }, HttpMethod::Patch);
  if (methods.contains(HttpMethod::Get)) methods.Add(HttpMethod::Head);
  return methods;
}

// Destroys a handler that was given away; one that was lent stays.
class HttpHandlerDeleter {
 public:
  HttpHandlerDeleter() = default;
  explicit HttpHandlerDeleter(bool owned) : owned_(owned) {}
  template <class T>
  HttpHandlerDeleter(std::default_delete<T>) {}  // NOLINT: implicit

  void operator()(HttpHandler* handler) const {
    if (owned_) delete handler;
  }

 private:
  bool owned_ = true;
};
using HttpHandlerPtr = std::unique_ptr<HttpHandler, HttpHandlerDeleter>;

// A handler on its way into a Server: a std::unique_ptr to any class of
// handlers converts to this, and so does a pointer to one that stays the
// caller's. Code that passes a pointer to HttpHandler itself, not made by
// NewHttpHandler(), must call set_allowed_methods(), or its 405s allow nothing.
class HttpHandlerArgument {
 public:
  template <std::derived_from<HttpHandler> T>
  HttpHandlerArgument(std::unique_ptr<T> handler)  // NOLINT: implicit
      : handler_(std::move(handler)) {
    FindAllowedMethods<T>();
  }
  template <std::derived_from<HttpHandler> T>
  HttpHandlerArgument(T* handler)  // NOLINT: implicit
      : handler_(handler, HttpHandlerDeleter(/*owned=*/false)) {
    FindAllowedMethods<T>();
  }

  HttpHandlerPtr Release() { return std::move(handler_); }

 private:
  template <class T>
  void FindAllowedMethods() {
    if (handler_ == nullptr || !handler_->allowed_methods().empty()) return;
    // Only read if there are none: a lent one may serve elsewhere.
    const HttpMethodSet methods = OverriddenHttpMethods<T>();
    if (!methods.empty()) handler_->set_allowed_methods(methods);
  }

  HttpHandlerPtr handler_;
};

using HttpHandlerFunction =
    Function<void(const HttpRequest&, HttpResponse*, HttpServerContext*)>;

// A handler that calls `f` for these methods and answers 405 with an Allow
// field to others. One that takes GET takes HEAD.
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
