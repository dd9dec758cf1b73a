#include "flare/rpc/client/intercepted_call.h"

#include <google/protobuf/message.h>

#include <cstddef>
#include <exception>
#include <string>
#include <typeinfo>
#include <utility>

#include "flare/base/describe_exception.h"
#include "flare/base/string.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/task.h"
#include "flare/rpc/client/policy_call.h"
#include "flare/rpc/log_throttle.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_status.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

// In a `catch (...)`: logs the exception, and fails the call with it. The end
// of a thread (pthread_exit, pthread_cancel) is caught, too, and goes on.
void FailByException(const ClientInterceptedCall& call) {
  const std::exception_ptr exception = std::current_exception();
  if (exception == nullptr) throw;  // No exception of C++.
  std::string what = "an exception left an interceptor of " +
                     std::string(call.method_name()) + ": " +
                     DescribeException(exception);
  static LogThrottle throttle;
  if (const auto left_out = throttle.Admit()) {
    LOG(ERROR) << OneLine(what) << LogThrottle::NoteOthers(*left_out);
  }
  call.controller().SetFailed(STATUS_FAILED, std::move(what));
}

// Null: there is none, or one of another class.
RpcClientController* OwnKind(google::protobuf::RpcController* controller) {
  if (controller == nullptr ||
      typeid(*controller) != typeid(RpcClientController)) {
    return nullptr;
  }
  return static_cast<RpcClientController*>(controller);
}

// The state of a call with `done`, from CallMethod to its end.
struct Background {
  InterceptedClientCall::Wraps wraps;
  RefPtr<Route> route;
  std::unique_ptr<const google::protobuf::Message> request;
  RefPtr<fiber::ExecutionContext> context;
};

}  // namespace

void ClientInterceptorChain::Run() {
  if (at_ == interceptors_.size()) return call_(argument_);
  ClientInterceptor* const interceptor = interceptors_[at_++].get();
  // Exceptions end here, so that those before this one see a failed call.
  try {
    interceptor->Intercept(*intercepted_, *this);
  } catch (...) {
    FailByException(*intercepted_);
  }
  --at_;
}

// `arguments` has an RpcClientController, and no `done`.
void InterceptedClientCall::RunWith(const Wraps& wraps,
                                    const ClientCall::Arguments& arguments,
                                    RpcClientController* controller) {
  const auto run = [&wraps, &arguments] {
    if (wraps.policies == nullptr) return ClientCall::Run(arguments);
    PolicyCall::Run(*wraps.policies, arguments);
  };
  if (wraps.interceptors == nullptr) return run();
  const ClientSettings& settings = arguments.route->settings();
  ClientInterceptedCall call(
      arguments.method, controller->NameOf(*arguments.method), controller,
      controller->has_request_raw_bytes_ ? nullptr : arguments.request,
      arguments.response, arguments.route->traits().metadata, settings.timeout,
      settings.inherits_context);
  ClientInterceptorChain(*wraps.interceptors, &call, run).Run();
}

std::string_view InterceptedClientCall::NameOf(
    const ClientCall::Arguments& arguments) {
  const RpcClientController* const controller = OwnKind(arguments.controller);
  return controller != nullptr ? controller->NameOf(*arguments.method)
                               : arguments.method->full_name();
}

// Blocks until the call has ended.
void InterceptedClientCall::RunChain(const Wraps& wraps,
                                     const ClientCall::Arguments& arguments) {
  google::protobuf::RpcController* const callers = arguments.controller;
  if (RpcClientController* const controller = OwnKind(callers)) {
    controller->ClearOutcome();  // One that answers by itself finds it so.
    return RunWith(wraps, arguments, controller);
  }
  RpcClientController controller;
  ClientCall::Arguments own = arguments;
  own.controller = &controller;
  RunWith(wraps, own, &controller);
  if (callers != nullptr && controller.Failed()) {
    callers->SetFailed(controller.ErrorText());
  }
}

void InterceptedClientCall::Run(const Wraps& wraps,
                                const ClientCall::Arguments& arguments) {
  if (wraps.interceptors == nullptr &&
      wraps.policies->Find(NameOf(arguments)).policy == nullptr) {
    return ClientCall::Run(arguments);
  }
  if (arguments.done == nullptr) return RunChain(wraps, arguments);
  Background background{.wraps = wraps,
                        .route = RefPtr<Route>(ref_ptr, arguments.route),
                        .request = nullptr,
                        .context = fiber::ExecutionContext::Capture()};
  if (arguments.request != nullptr) {
    std::unique_ptr<google::protobuf::Message> copy(arguments.request->New());
    copy->CopyFrom(*arguments.request);
    background.request = std::move(copy);
  }
  fiber::Spawn([background = std::move(background),
                call = ClientCall::Arguments(arguments)]() mutable {
    const fiber::ExecutionContextScope scope(std::move(background.context));
    google::protobuf::Closure* const done = call.done;
    call.done = nullptr;
    call.request = background.request.get();
    RunChain(background.wraps, call);
    // The channel's parts aren't used any more when `done` runs.
    background.route.Reset();
    background.wraps = {};
    background.request.reset();
    done->Run();
  });
}

}  // namespace flare::rpc
