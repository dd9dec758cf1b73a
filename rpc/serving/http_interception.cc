#include "flare/rpc/serving/http_interception.h"

#include <exception>
#include <memory>
#include <utility>

#include "flare/base/clock.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/rpc_server_controller.h"

namespace flare::rpc {

class InterceptedHttpHandler final : public HttpHandler {
 public:
  InterceptedHttpHandler(HttpHandlerPtr handler,
                         const Interceptors* interceptors)
      : handler_(std::move(handler)), interceptors_(*interceptors) {}

  void HandleRequest(const HttpRequest& request, HttpResponse* response,
                     HttpServerContext* context) override {
    RpcServerController controller;
    controller.remote_peer_ = &context->remote_peer;
    controller.http_peer_ = context->peer_identity;
    controller.received_ns_ = ToSteadyNs(context->received_at);
    controller.dispatched_ns_ = ToSteadyNs(context->dispatched_at);
    InterceptedCall call(&controller, &request, response);
    std::exception_ptr exception;
    const auto last = [&] {
      context->caller = controller.caller();
      try {
        handler_->HandleRequest(request, response, context);
      } catch (...) {
        exception = std::current_exception();
        if (exception == nullptr) throw;  // The end of a thread.
      }
      // For interceptors to see.
      if (exception != nullptr) {
        FillHttpError(HttpStatus::InternalServerError,
                      "The handler has failed.", response);
      }
    };
    InterceptorChain(interceptors_, &call, last).RunAll();
    // To the server, which knows whether something was sent.
    if (exception != nullptr) std::rethrow_exception(exception);
  }

 private:
  const HttpHandlerPtr handler_;
  const Interceptors& interceptors_;
};

HttpHandlerPtr InterceptHttp(HttpHandlerPtr handler,
                             const Interceptors* interceptors) {
  return std::make_unique<InterceptedHttpHandler>(std::move(handler),
                                                  interceptors);
}

}  // namespace flare::rpc
