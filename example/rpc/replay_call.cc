#include "example/rpc/replay_call.h"

#include <google/protobuf/message.h>

#include <optional>
#include <string>

#include "example/rpc/replay.h"
#include "flare/base/buffer.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_status.h"

namespace example {
namespace {

class ReplayCall final : public Call {
 public:
  ReplayCall(const LoadOptions& options, flare::RpcChannel* channel)
      : replay_(*options.replay), channel_(channel) {}

  void Start(const CallPlan& plan, google::protobuf::Closure* done) override {
    item_ = &replay_.At(plan.number);
    controller_.SetTimeout(item_->timeout);
    controller_.SetRequestAttachment(item_->attachment);
    *controller_.MutableMetadata() = item_->metadata;
    if (item_->source != nullptr) return StartWithMessages(done);
    controller_.SetRequestRawBytes(item_->request);
    controller_.SetAcceptResponseRawBytes(true);
    channel_->CallMethod(item_->method, &controller_, nullptr, nullptr, done);
  }

  int status() const override { return controller_.ErrorCode(); }
  std::string error() const override { return controller_.ErrorText(); }
  bool FailedByService() const override {
    return flare::rpc::IsFromService(status());
  }
  // Nobody knows which replies are right.
  bool ReplyIsEcho() const override { return true; }

  std::optional<RecordedOutcome> recorded() const override {
    return RecordedOutcome{.status = item_->status,
                           .same_reply = SameReply(),
                           .method = item_->method->full_name(),
                           .received_unix_ns = item_->received_unix_ns};
  }

 private:
  // Where the protocol's messages aren't binary ones.
  void StartWithMessages(google::protobuf::Closure* done) {
    request_ = item_->source->NewMessage(item_->method->input_type());
    reply_ = item_->source->NewMessage(item_->method->output_type());
    // Replay::Make() has tried it.
    static_cast<void>(
        request_->ParsePartialFromString(flare::FlattenSlow(item_->request)));
    channel_->CallMethod(item_->method, &controller_, request_.get(),
                         reply_.get(), done);
  }

  bool SameReply() const {
    if (!item_->reply || status() != 0) return true;
    const std::string message =
        item_->source != nullptr
            ? reply_->SerializePartialAsString()
            : flare::FlattenSlow(controller_.GetResponseRawBytes());
    return message == item_->reply->message &&
           flare::FlattenSlow(controller_.GetResponseAttachment()) ==
               item_->reply->attachment;
  }

  const Replay& replay_;
  flare::RpcChannel* const channel_;
  flare::RpcClientController controller_;
  const Replay::Item* item_ = nullptr;
  std::unique_ptr<google::protobuf::Message> request_;
  std::unique_ptr<google::protobuf::Message> reply_;
};

}  // namespace

std::unique_ptr<Call> NewReplayCall(const LoadOptions& options,
                                    flare::RpcChannel* channel) {
  return std::make_unique<ReplayCall>(options, channel);
}

}  // namespace example
