#include "flare/rpc/http_handler.h"

#include <string>
#include <utility>

#include "glog/logging.h"

namespace flare {
namespace {

using Operation = void (HttpHandler::*)(const HttpRequest&, HttpResponse*,
                                        HttpServerContext*);

// Null for Unspecified.
Operation OperationOf(HttpMethod method) {
  switch (method) {
    case HttpMethod::Get:
      return &HttpHandler::OnGet;
    case HttpMethod::Head:
      return &HttpHandler::OnHead;
    case HttpMethod::Post:
      return &HttpHandler::OnPost;
    case HttpMethod::Put:
      return &HttpHandler::OnPut;
    case HttpMethod::Delete:
      return &HttpHandler::OnDelete;
    case HttpMethod::Connect:
      return &HttpHandler::OnConnect;
    case HttpMethod::Options:
      return &HttpHandler::OnOptions;
    case HttpMethod::Trace:
      return &HttpHandler::OnTrace;
    case HttpMethod::Patch:
      return &HttpHandler::OnPatch;
    case HttpMethod::Unspecified:
      break;
  }
  return nullptr;
}

class FunctionHandler : public HttpHandler {
 public:
  FunctionHandler(HttpMethodSet methods, HttpHandlerFunction f)
      : f_(std::move(f)) {
    CHECK(f_) << "An HTTP handler can't be made of an empty function.";
    if (methods.contains(HttpMethod::Get)) methods.Add(HttpMethod::Head);
    set_allowed_methods(methods);
  }

  void HandleRequest(const HttpRequest& request, HttpResponse* response,
                     HttpServerContext* context) override {
    if (allowed_methods().contains(request.method())) {
      f_(request, response, context);
    } else {
      RefuseMethod(request, response);
    }
  }

 private:
  const HttpHandlerFunction f_;
};

}  // namespace

void HttpHandler::HandleRequest(const HttpRequest& request,
                                HttpResponse* response,
                                HttpServerContext* context) {
  if (const Operation operation = OperationOf(request.method())) {
    (this->*operation)(request, response, context);
  } else {
    RefuseMethod(request, response);
  }
}

void HttpHandler::RefuseMethod(const HttpRequest& request,
                               HttpResponse* response) const {
  FillHttpError(HttpStatus::MethodNotAllowed,
                std::string(request.path()) + " doesn't take " +
                    std::string(ToStringView(request.method())) + ".",
                response);
  response->headers()->Set("Allow", allowed_methods_.ToString());
}

void HttpHandler::OnGet(const HttpRequest& request, HttpResponse* response,
                        HttpServerContext*) {
  RefuseMethod(request, response);
}
void HttpHandler::OnHead(const HttpRequest& request, HttpResponse* response,
                         HttpServerContext* context) {
  OnGet(request, response, context);
}
void HttpHandler::OnPost(const HttpRequest& request, HttpResponse* response,
                         HttpServerContext*) {
  RefuseMethod(request, response);
}
void HttpHandler::OnPut(const HttpRequest& request, HttpResponse* response,
                        HttpServerContext*) {
  RefuseMethod(request, response);
}
void HttpHandler::OnDelete(const HttpRequest& request, HttpResponse* response,
                           HttpServerContext*) {
  RefuseMethod(request, response);
}
void HttpHandler::OnConnect(const HttpRequest& request, HttpResponse* response,
                            HttpServerContext*) {
  RefuseMethod(request, response);
}
void HttpHandler::OnOptions(const HttpRequest& request, HttpResponse* response,
                            HttpServerContext*) {
  RefuseMethod(request, response);
}
void HttpHandler::OnTrace(const HttpRequest& request, HttpResponse* response,
                          HttpServerContext*) {
  RefuseMethod(request, response);
}
void HttpHandler::OnPatch(const HttpRequest& request, HttpResponse* response,
                          HttpServerContext*) {
  RefuseMethod(request, response);
}

std::unique_ptr<HttpHandler> NewHttpHandler(
    std::initializer_list<HttpMethod> methods, HttpHandlerFunction f) {
  return std::make_unique<FunctionHandler>(methods, std::move(f));
}
std::unique_ptr<HttpHandler> NewHttpGetHandler(HttpHandlerFunction f) {
  return NewHttpHandler({HttpMethod::Get}, std::move(f));
}
std::unique_ptr<HttpHandler> NewHttpHeadHandler(HttpHandlerFunction f) {
  return NewHttpHandler({HttpMethod::Head}, std::move(f));
}
std::unique_ptr<HttpHandler> NewHttpPostHandler(HttpHandlerFunction f) {
  return NewHttpHandler({HttpMethod::Post}, std::move(f));
}
std::unique_ptr<HttpHandler> NewHttpPutHandler(HttpHandlerFunction f) {
  return NewHttpHandler({HttpMethod::Put}, std::move(f));
}
std::unique_ptr<HttpHandler> NewHttpDeleteHandler(HttpHandlerFunction f) {
  return NewHttpHandler({HttpMethod::Delete}, std::move(f));
}
std::unique_ptr<HttpHandler> NewHttpConnectHandler(HttpHandlerFunction f) {
  return NewHttpHandler({HttpMethod::Connect}, std::move(f));
}
std::unique_ptr<HttpHandler> NewHttpOptionsHandler(HttpHandlerFunction f) {
  return NewHttpHandler({HttpMethod::Options}, std::move(f));
}
std::unique_ptr<HttpHandler> NewHttpTraceHandler(HttpHandlerFunction f) {
  return NewHttpHandler({HttpMethod::Trace}, std::move(f));
}
std::unique_ptr<HttpHandler> NewHttpPatchHandler(HttpHandlerFunction f) {
  return NewHttpHandler({HttpMethod::Patch}, std::move(f));
}

}  // namespace flare
