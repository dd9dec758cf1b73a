#include "flare/rpc/mock/mock_calls.h"

#include <google/protobuf/descriptor.h>

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/function.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/mutex.h"
#include "flare/rpc/mock/local_call.h"
#include "flare/rpc/name_resolver.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_status.h"
#include "glog/logging.h"

namespace flare::testing {
namespace {

using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using google::protobuf::Service;
using rpc::LocalCall;

// Nothing connects to it.
constexpr char kNoServer[] = "127.0.0.1:1";

const MethodDescriptor* Find(std::string_view name) {
  const MethodDescriptor* const method =
      google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
          std::string(name));
  CHECK(method != nullptr)
      << "no method \"" << name
      << "\" in this program's generated code: methods are named "
         "\"package.Service.Method\"";
  return method;
}

// The single request, as a message of generated code. Null: it can't be read.
std::shared_ptr<const Message> CopyRequest(const ClientInterceptedCall& call,
                                           const MethodDescriptor& method) {
  std::shared_ptr<Message> copy(
      google::protobuf::MessageFactory::generated_factory()
          ->GetPrototype(method.input_type())
          ->New());
  const Message* const request = call.request();
  if (request == nullptr) {
    const Buffer& bytes = call.controller().GetRequestRawBytes();
    if (!copy->ParsePartialFromString(FlattenSlow(bytes))) return nullptr;
  } else if (!rpc::CopyMessage(*request, copy.get())) {
    return nullptr;
  }
  return copy;
}

LocalCall::Handler HandlerOf(const MethodDescriptor* method,
                             MockAnswer answer) {
  return [method, answer = std::move(answer)](
             const Message* request, Message* response,
             RpcServerController* controller, google::protobuf::Closure* done) {
    answer.Run(*method, request, response, controller);
    done->Run();
  };
}

LocalCall::Handler HandlerOf(const MethodDescriptor* method, Service* service) {
  return [method, service](const Message* request, Message* response,
                           RpcServerController* controller,
                           google::protobuf::Closure* done) {
    service->CallMethod(method, controller, request, response, done);
  };
}

}  // namespace

// --------------------------------------------------------------------------
// Answers, and calls that came
// --------------------------------------------------------------------------

// Kept by interceptors, which channels may keep for longer than the mock lives.
class MockCalls::State {
 public:
  void Set(const MethodDescriptor* method, MockAnswer answer, bool once) {
    const std::string why = answer.WhyNotFor(*method);
    CHECK(why.empty()) << "no answer for " << method->full_name() << ": "
                       << why;
    ScopedLock guard(mutex_);
    Method& its = methods_[method];
    if (once) {
      its.next.push_back(std::move(answer));
    } else {
      its.always = std::move(answer);
    }
  }

  void Serve(Service* service) {
    ScopedLock guard(mutex_);
    services_[service->GetDescriptor()] = service;
  }

  // Counts a call. Empty: it isn't answered. Else it is until End().
  LocalCall::Handler Begin(const MethodDescriptor* method,
                           std::shared_ptr<const Message> request) {
    ScopedLock guard(mutex_);
    Method& its = methods_[method];
    ++its.calls;
    if (request != nullptr) its.requests.push_back(std::move(request));
    LocalCall::Handler handler = closed_ ? nullptr : Choose(method, &its);
    if (handler) ++running_;
    return handler;
  }

  void End() {
    ScopedLock guard(mutex_);
    if (--running_ == 0) idle_.notify_all();
  }

  // The analysis doesn't know std::unique_lock.
  void Close() FLARE_NO_THREAD_SAFETY_ANALYSIS {
    decltype(methods_) dropped;  // Without the lock.
    std::unique_lock lock(mutex_);
    closed_ = true;
    idle_.wait(lock, [this]() FLARE_NO_THREAD_SAFETY_ANALYSIS {
      return running_ == 0;
    });
    dropped.swap(methods_);
  }

  std::size_t CountCalls(const MethodDescriptor* method) {
    ScopedLock guard(mutex_);
    return methods_[method].calls;
  }

  std::vector<std::shared_ptr<const Message>> Requests(
      const MethodDescriptor* method) {
    ScopedLock guard(mutex_);
    return methods_[method].requests;
  }

 private:
  struct Method {
    std::deque<MockAnswer> next;
    std::optional<MockAnswer> always;
    std::size_t calls = 0;
    std::vector<std::shared_ptr<const Message>> requests;
  };

  LocalCall::Handler Choose(const MethodDescriptor* method, Method* its)
      FLARE_REQUIRES(mutex_) {
    if (!its->next.empty()) {
      MockAnswer answer = std::move(its->next.front());
      its->next.pop_front();
      return HandlerOf(method, std::move(answer));
    }
    if (its->always) return HandlerOf(method, *its->always);
    const auto service = services_.find(method->service());
    if (service == services_.end()) return nullptr;
    return HandlerOf(method, service->second);
  }

  fiber::Mutex mutex_;
  fiber::ConditionVariable idle_;
  std::map<const MethodDescriptor*, Method> methods_ FLARE_GUARDED_BY(mutex_);
  std::map<const google::protobuf::ServiceDescriptor*, Service*> services_
      FLARE_GUARDED_BY(mutex_);
  std::size_t running_ FLARE_GUARDED_BY(mutex_) = 0;
  bool closed_ FLARE_GUARDED_BY(mutex_) = false;
};

class MockCalls::Interceptor final : public ClientInterceptor {
 public:
  explicit Interceptor(std::shared_ptr<State> state)
      : state_(std::move(state)) {}

  void Intercept(ClientInterceptedCall& call, ClientNext& next) override {
    const std::string name(call.method().full_name());
    const MethodDescriptor* const method =
        google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
            name);
    if (method == nullptr) return FailUnanswered(call, name);
    std::shared_ptr<const Message> request;
    if (!method->client_streaming()) {
      request = CopyRequest(call, *method);
      if (request == nullptr) {
        return call.controller().SetFailed(
            rpc::STATUS_PARSE_REQUEST,
            "the request of " + name + " can't be read as such a message");
      }
    }
    LocalCall::Handler handler = state_->Begin(method, request);
    if (!handler) return FailUnanswered(call, name);
    LocalCall::Make({.call = &call,
                     .next = &next,
                     .method = method,
                     .request = std::move(request),
                     .handler = std::move(handler),
                     .on_handled = [state = state_] { state->End(); }});
  }

 private:
  static void FailUnanswered(const ClientInterceptedCall& call,
                             const std::string& name) {
    std::string why = "no answer was set for " + name;
    LOG(ERROR) << "a mock was called: " << why;
    call.controller().SetFailed(rpc::STATUS_METHOD_NOT_FOUND, std::move(why));
  }

  const std::shared_ptr<State> state_;
};

MockCalls::MockCalls() : state_(std::make_shared<State>()) {}

MockCalls::~MockCalls() { state_->Close(); }

std::shared_ptr<ClientInterceptor> MockCalls::interceptor() const {
  return std::make_shared<Interceptor>(state_);
}

void MockCalls::Answer(std::string_view method, MockAnswer answer) {
  state_->Set(Find(method), std::move(answer), /*once=*/false);
}

void MockCalls::AnswerOnce(std::string_view method, MockAnswer answer) {
  state_->Set(Find(method), std::move(answer), /*once=*/true);
}

void MockCalls::Serve(Service* service) { state_->Serve(service); }

std::size_t MockCalls::CountCalls(std::string_view method) const {
  return state_->CountCalls(Find(method));
}

std::vector<std::shared_ptr<const Message>> MockCalls::RequestsOf(
    std::string_view method, const google::protobuf::Descriptor* type) const {
  const MethodDescriptor* const found = Find(method);
  CHECK(found->input_type() == type)
      << "requests of " << method << " are of type "
      << found->input_type()->full_name() << ", not " << type->full_name();
  return state_->Requests(found);
}

// --------------------------------------------------------------------------
// Channels
// --------------------------------------------------------------------------

MockRpcChannel::MockRpcChannel() : MockRpcChannel(Options()) {}

MockRpcChannel::MockRpcChannel(const Options& options) {
  Options used{.timeout = options.timeout,
               .stream_timeout = options.stream_timeout,
               .inherits_context = options.inherits_context,
               .interceptors = options.interceptors,
               .extensions = false};  // Another mock may be one.
  used.interceptors.push_back(interceptor());
  CHECK(Open(std::string("flare://") + kNoServer, used)) << status().message();
}

MockAllChannels::MockAllChannels()
    : extension_({.client_interceptor = interceptor()}) {
  rpc::SetHostLookupForTesting([](std::string_view) {
    return Expected<std::vector<Endpoint>, Status>(
        std::vector<Endpoint>{MustParseEndpoint(kNoServer)});
  });
}

MockAllChannels::~MockAllChannels() { rpc::SetHostLookupForTesting(nullptr); }

}  // namespace flare::testing
