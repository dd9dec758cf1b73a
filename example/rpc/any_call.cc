#include "example/rpc/any_call.h"

#include <google/protobuf/message.h>

#include <cstddef>
#include <string>

#include "example/rpc/method_call.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/fiber/fiber.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_status.h"

namespace example {
namespace {

class AnyCall : public Call {
 public:
  AnyCall(const LoadOptions& options, flare::RpcChannel* channel)
      : method_(*options.any_method),
        channel_(channel),
        reply_(method_.source->NewMessage(method_.method->output_type())) {
    // The controller keeps these from call to call.
    controller_.SetTimeout(options.timeout);
    controller_.SetCompressionAlgorithm(options.compression);
    controller_.SetRequestAttachment(options.attachment);
    if (!method_.metadata.empty()) {
      *controller_.MutableMetadata() = method_.metadata;
    }
  }

  bool FailedByService() const override {
    return flare::rpc::IsFromService(status());
  }
  // Nobody knows which replies are right.
  bool ReplyIsEcho() const override { return true; }

 protected:
  const AnyMethod& method_;
  flare::RpcChannel* const channel_;
  flare::RpcClientController controller_;
  const std::unique_ptr<google::protobuf::Message> reply_;
};

class AnyUnaryCall final : public AnyCall {
 public:
  // With a request of its own: serialising notes sizes in the message.
  AnyUnaryCall(const LoadOptions& options, flare::RpcChannel* channel)
      : AnyCall(options, channel),
        request_(method_.source->NewMessage(method_.method->input_type())) {
    request_->CopyFrom(*method_.requests.front());
  }

  void Start(const CallPlan&, google::protobuf::Closure* done) override {
    channel_->CallMethod(method_.method, &controller_, request_.get(),
                         reply_.get(), done);
  }
  int status() const override { return controller_.ErrorCode(); }
  std::string error() const override { return controller_.ErrorText(); }

 private:
  const std::unique_ptr<google::protobuf::Message> request_;
};

class AnyStreamCall final : public AnyCall {
 public:
  AnyStreamCall(const LoadOptions& options, flare::RpcChannel* channel)
      : AnyCall(options, channel),
        ends_{.next_request = [this] { return NextRequest(); },
              .stop_requests = nullptr,
              .take_reply =
                  [this] {
                    ++messages_.received;
                    return flare::Status();
                  }} {
    for (const auto& request : method_.requests) {
      requests_.push_back(
          method_.source->NewMessage(method_.method->input_type()));
      requests_.back()->CopyFrom(*request);
    }
  }

  void Start(const CallPlan&, google::protobuf::Closure* done) override {
    if (done == nullptr) return Run();
    flare::Fiber([this, done] {
      Run();
      done->Run();  // May destroy this.
    }).detach();
  }
  int status() const override { return status_.code(); }
  std::string error() const override { return status_.message(); }
  MessageCounts messages() const override { return messages_; }

 private:
  void Run() {
    next_ = 0;
    messages_ = {};
    status_ =
        CallMethod(channel_, method_.method, &controller_, reply_.get(), ends_)
            .call;
    messages_.sent = next_;
  }

  flare::Expected<const google::protobuf::Message*, flare::Status>
  NextRequest() {
    return next_ == requests_.size() ? nullptr : requests_[next_++].get();
  }

  const CallEnds ends_;
  Messages requests_;
  std::size_t next_ = 0;
  MessageCounts messages_;
  flare::Status status_;
};

}  // namespace

std::unique_ptr<Call> NewAnyCall(const LoadOptions& options,
                                 flare::RpcChannel* channel) {
  if (options.any_method->streams()) {
    return std::make_unique<AnyStreamCall>(options, channel);
  }
  return std::make_unique<AnyUnaryCall>(options, channel);
}

}  // namespace example
