// The service for tests of generated code, and its channel: a service, and a
// channel that stays in memory. Not thread-safe; nothing blocks.
#ifndef TOOLS_PROTOC_PLUGIN_TESTDATA_LOOPBACK_CHANNEL_H_
#define TOOLS_PROTOC_PLUGIN_TESTDATA_LOOPBACK_CHANNEL_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/service.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tools/protoc_plugin/testdata/own_services.flare.pb.h"

namespace flare_test {

namespace pb = google::protobuf;

// A function as a closure that deletes itself.
template <class F>
class FunctionClosure : public pb::Closure {
 public:
  explicit FunctionClosure(F f) : f_(std::move(f)) {}
  void Run() override {
    f_();
    delete this;
  }

 private:
  F f_;
};

template <class F>
pb::Closure* MakeClosure(F f) {
  return new FunctionClosure<F>(std::move(f));
}

// Hands calls to a service in the same process, by way of bytes. Calls that
// don't block end when Complete() is called.
class LoopbackChannel : public pb::RpcChannel {
 public:
  explicit LoopbackChannel(pb::Service* service, bool* destroyed = nullptr)
      : service_(service), destroyed_(destroyed) {}
  ~LoopbackChannel() override {
    if (destroyed_ != nullptr) *destroyed_ = true;
  }

  void CallMethod(const pb::MethodDescriptor* method,
                  pb::RpcController* controller, const pb::Message* request,
                  pb::Message* response, pb::Closure* done) override {
    ++calls;
    last_controller = controller;
    auto end = [this, method, controller, response, done,
                bytes = request->SerializeAsString()] {
      Serve(method, bytes, static_cast<flare::RpcClientController*>(controller),
            response);
      if (done != nullptr) done->Run();
    };
    if (done == nullptr) {
      end();
    } else {
      pending_.push_back(MakeClosure(std::move(end)));
    }
  }

  // Ends all calls that have not ended.
  void Complete() {
    for (auto* end : std::exchange(pending_, {})) end->Run();
  }

  int calls = 0;
  pb::RpcController* last_controller = nullptr;

 private:
  void Serve(const pb::MethodDescriptor* method, const std::string& bytes,
             flare::RpcClientController* client, pb::Message* response) {
    std::unique_ptr<pb::Message> request(
        service_->GetRequestPrototype(method).New());
    std::unique_ptr<pb::Message> reply(
        service_->GetResponsePrototype(method).New());
    ASSERT_TRUE(request->ParseFromString(bytes));
    flare::RpcServerController server;
    bool done = false;
    service_->CallMethod(method, &server, request.get(), reply.get(),
                         MakeClosure([&] { done = true; }));
    ASSERT_TRUE(done) << "the service did not run its closure";
    if (server.Failed()) {
      client->SetFailed(server.ErrorCode(), server.ErrorText());
    }
    ASSERT_TRUE(response->ParseFromString(reply->SerializeAsString()));
  }

  pb::Service* service_;
  bool* destroyed_;
  std::vector<pb::Closure*> pending_;
};

inline services::Pair MakePair(std::int64_t left, std::int64_t right) {
  services::Pair pair;
  pair.set_left(left);
  pair.set_right(right);
  return pair;
}

inline constexpr int kDivisionByZero = 1001;

// Leaves nothing out.
class FullCalculator : public services::SyncCalculator {
 public:
  void Add(const services::Pair& request, services::Result* response,
           flare::RpcServerController*) override {
    response->set_value(request.left() + request.right());
  }

  void Divide(const services::Pair& request, services::Result* response,
              flare::RpcServerController* controller) override {
    if (request.right() == 0) {
      controller->SetFailed(kDivisionByZero, "division by zero");
    } else {
      response->set_value(request.left() / request.right());
    }
  }
};

}  // namespace flare_test

#endif  // TOOLS_PROTOC_PLUGIN_TESTDATA_LOOPBACK_CHANNEL_H_
