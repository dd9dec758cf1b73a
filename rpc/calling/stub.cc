#include "flare/rpc/stub.h"

#include <string>
#include <utility>

#include "flare/fiber/future.h"
#include "flare/rpc/open_stream.h"
#include "flare/rpc/server/handler_exception.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

void FailByBrokenFuture(const google::protobuf::MethodDescriptor* method,
                        google::protobuf::RpcController* controller) {
  controller->SetFailed("Method " + std::string(method->full_name()) +
                        " has dropped the promise of its future.");
}

// Ends a call when its future is ready, or broken, which destroys this.
class CallEnd {
 public:
  CallEnd(const google::protobuf::MethodDescriptor* method,
          google::protobuf::RpcController* controller,
          google::protobuf::Closure* done)
      : method_(method), controller_(controller), done_(done) {}
  CallEnd(CallEnd&& other) noexcept
      : method_(other.method_),
        controller_(other.controller_),
        done_(std::exchange(other.done_, nullptr)) {}
  ~CallEnd() {
    if (done_ == nullptr) return;
    FailByBrokenFuture(method_, controller_);
    done_->Run();
  }

  void operator()() { std::exchange(done_, nullptr)->Run(); }

 private:
  const google::protobuf::MethodDescriptor* method_;
  google::protobuf::RpcController* controller_;
  google::protobuf::Closure* done_;
};

}  // namespace

const google::protobuf::ServiceDescriptor* FindGeneratedService(
    const std::string& full_name) {
  const auto* service =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
          full_name);
  CHECK(service != nullptr)
      << "The code that protoc generated for service " << full_name
      << " (its .pb.cc file) is not linked into this program. If it is in a "
         "static library, link that one as a whole.";
  return service;
}

StubBase::StubBase(google::protobuf::RpcChannel* channel) : channel_(channel) {
  CHECK(channel != nullptr) << "a stub needs a channel, not nullptr";
}

void FailByException(const google::protobuf::MethodDescriptor* method,
                     google::protobuf::RpcController* controller) {
  const std::string name(method->full_name());
  const std::string what = TakeHandlerException("method " + name);
  if (controller == nullptr) return;
  controller->SetFailed("Method " + name + " has thrown " + what);
}

void RunWhenReady(Future<> ended,
                  const google::protobuf::MethodDescriptor* method,
                  google::protobuf::RpcController* controller,
                  google::protobuf::Closure* done) {
  if (!ended.valid()) {
    if (done != nullptr) done->Run();
  } else if (done != nullptr) {
    static_cast<void>(ended.Then(CallEnd(method, controller, done)));
  } else {
    fiber::FutureWaiter(&ended).Wait();
    if (ended.IsBroken()) FailByBrokenFuture(method, controller);
  }
}

void OpenStreamInController(google::protobuf::RpcChannel* channel,
                            const google::protobuf::MethodDescriptor* method,
                            google::protobuf::RpcController* controller,
                            const google::protobuf::Message* request,
                            google::protobuf::Closure* done) {
  if (auto* client = dynamic_cast<RpcClientController*>(controller)) {
    client->SetStream(
        OpenStream(channel, method, client,
                   method->client_streaming() ? nullptr : request),
        !method->server_streaming());
  } else if (controller != nullptr) {
    controller->SetFailed("Method " + std::string(method->full_name()) +
                          " is a streaming method: it can't be called without "
                          "a flare::RpcClientController.");
  }
  if (done != nullptr) done->Run();
}

void DieOfForeignMethod(const google::protobuf::MethodDescriptor* method,
                        const google::protobuf::ServiceDescriptor* service) {
  LOG(FATAL) << "Method " << method->full_name()
             << " was called on an object of service " << service->full_name()
             << '.';
  __builtin_unreachable();
}

void UnreachableMethod(const google::protobuf::MethodDescriptor* method) {
  LOG(FATAL) << "The code generated for method " << method->full_name()
             << " is older than its .proto file: build everything again.";
  __builtin_unreachable();
}

}  // namespace flare::rpc
