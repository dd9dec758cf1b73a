#include "flare/rpc/fan_out/selective_channel.h"

#include <google/protobuf/message.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/task.h"
#include "flare/rpc/cancel_target.h"
#include "flare/rpc/client/composite_call.h"
#include "flare/rpc/repeatable.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_status.h"

namespace flare {

namespace rpc {

// Shared by all calls of a channel, and kept by those under way.
struct SelectiveChannels {
  struct Channel {
    std::shared_ptr<google::protobuf::RpcChannel> channel;
    // When it counts as connectable again. A hint: relaxed.
    std::atomic<std::int64_t> down_until_ns{0};
  };

  std::deque<Channel> channels;
  SelectiveChannel::Options options;
  std::atomic<std::size_t> next{0};  // Where calls begin. A hint: relaxed.
};

}  // namespace rpc

namespace {

using rpc::SelectiveChannels;

constexpr std::int64_t kLeftAloneNs = 1'000'000'000;

// One attempt after the other, each a call with `done`; so the end of one
// begins the next.
class SelectiveCall final : private google::protobuf::Closure,
                            private rpc::CancelTarget {
 public:
  SelectiveCall(std::shared_ptr<SelectiveChannels> channels,
                const google::protobuf::MethodDescriptor* method,
                google::protobuf::RpcController* controller,
                const google::protobuf::Message* request,
                google::protobuf::Message* response,
                google::protobuf::Closure* done)
      : channels_(std::move(channels)),
        method_(method),
        call_(controller),
        request_(request),
        response_(response),
        done_(done) {
    refusal_ = call_.CheckHasMessages();
    if (refusal_.ok()) Order();
    if (refusal_.ok() && order_.empty()) {
      refusal_ = Status(rpc::STATUS_NO_PEER, "there are no channels to call");
    }
    if (done_ != nullptr && order_.size() > 1) {
      // The caller may free its own when CallMethod has returned.
      own_request_.reset(request->New());
      own_request_->CopyFrom(*request);
      request_ = own_request_.get();
    }
    call_.Begin(this);
  }

  // Frees the call, at its end.
  void Start() {
    const bool blocks = done_ == nullptr;
    if (refusal_.ok() && BeginAttempt()) {
      if (!blocks) return;
      ended_.Wait();
    } else if (!blocks) {  // `done` is never run from CallMethod.
      return fiber::Spawn(
          [this, context = fiber::ExecutionContext::Capture()]() mutable {
            const fiber::ExecutionContextScope scope(std::move(context));
            Finish();
          });
    }
    Finish();
  }

 private:
  // The order in which the channels are tried.
  void Order() {
    const std::size_t count = channels_->channels.size();
    if (count == 0) return;
    // relaxed: it is a hint.
    const std::size_t first =
        channels_->options.in_order
            ? 0
            : channels_->next.fetch_add(1, std::memory_order_relaxed);
    const std::int64_t now = NowNs();
    std::vector<std::size_t> down;
    for (std::size_t i = 0; i != count; ++i) {
      const std::size_t index = (first + i) % count;
      // relaxed: it is a hint.
      const bool is_down = channels_->channels[index].down_until_ns.load(
                               std::memory_order_relaxed) > now;
      (is_down ? down : order_).push_back(index);
    }
    order_.insert(order_.end(), down.begin(), down.end());
    const std::size_t most = channels_->options.max_attempts;
    if (most != 0 && order_.size() > most) order_.resize(most);
  }

  SelectiveChannels::Channel& current() {
    return channels_->channels[order_[attempt_]];
  }

  // True: the call may have ended, and be gone. False: there is a refusal_.
  bool BeginAttempt() {
    try {
      StartAttempt();
      return true;
    } catch (...) {
      refusal_ = rpc::StatusOfException("the start of a call");
      return false;
    }
  }

  void StartAttempt() {
    RpcClientController* controller;
    bool cancelled;
    {
      ScopedLock guard(lock_);
      controller = &controllers_.emplace_back();
      cancelled = cancelled_;
    }
    call_.Prepare(controller);
    if (cancelled) controller->StartCancel();
    current().channel->CallMethod(method_, controller, request_, response_,
                                  this);
  }

  // An attempt has ended.
  void Run() override {
    RpcClientController* controller;
    {
      ScopedLock guard(lock_);
      controller = &controllers_.back();
    }
    const int code = controller->ErrorCode();
    // relaxed: it is a hint.
    current().down_until_ns.store(
        rpc::WasNotRun(code) ? NowNs() + kLeftAloneNs : 0,
        std::memory_order_relaxed);
    if (AsksForAnother(code)) {
      ++attempt_;
      response_->Clear();
      if (BeginAttempt()) return;
    }
    done_ == nullptr ? ended_.Set() : Finish();
  }

  // False also if the user's code throws: the call fails with that.
  bool AsksForAnother(int code) {
    try {
      return TriesAnother(code);
    } catch (...) {
      refusal_ = rpc::StatusOfException("try_another");
      return false;
    }
  }

  bool TriesAnother(int code) {
    if (code == rpc::STATUS_SUCCESS || attempt_ + 1 == order_.size()) {
      return false;
    }
    if (call_.deadline_ns() && NowNs() >= *call_.deadline_ns()) return false;
    {
      ScopedLock guard(lock_);
      if (cancelled_) return false;
    }
    if (channels_->options.try_another != nullptr) {
      return channels_->options.try_another(*method_, code);
    }
    return rpc::WasNotRun(code) ||
           (rpc::MayHaveRun(code) && rpc::IsIdempotent(*method_));
  }

  void Cancel() override {
    RpcClientController* controller = nullptr;
    {
      ScopedLock guard(lock_);
      cancelled_ = true;
      if (!controllers_.empty()) controller = &controllers_.back();
    }
    // Outside of the lock: it stays where it is until the end of the call.
    if (controller != nullptr) controller->StartCancel();
  }

  void Finish() {
    call_.End();
    if (!refusal_.ok()) {
      call_.Fail(refusal_.code(), refusal_.message());
    } else {
      ScopedLock guard(lock_);  // Alone by now.
      call_.TakeOutcome(&controllers_.back());
    }
    google::protobuf::Closure* const done = done_;
    call_.Tell();
    delete this;
    if (done != nullptr) done->Run();
  }

  const std::shared_ptr<SelectiveChannels> channels_;
  const google::protobuf::MethodDescriptor* const method_;
  rpc::CompositeCall call_;
  Status refusal_;  // Nothing was called, or something has thrown.
  std::unique_ptr<google::protobuf::Message> own_request_;
  const google::protobuf::Message* request_;
  google::protobuf::Message* const response_;
  google::protobuf::Closure* const done_;
  std::vector<std::size_t> order_;
  std::size_t attempt_ = 0;
  fiber::Event ended_;  // For callers that block.

  Spinlock lock_;
  // One for each attempt: a canceller may hold on to the one before.
  std::deque<RpcClientController> controllers_ FLARE_GUARDED_BY(lock_);
  bool cancelled_ FLARE_GUARDED_BY(lock_) = false;
};

}  // namespace

SelectiveChannel::SelectiveChannel(
    std::vector<std::shared_ptr<google::protobuf::RpcChannel>> channels)
    : SelectiveChannel(std::move(channels), Options()) {}

SelectiveChannel::SelectiveChannel(
    std::vector<std::shared_ptr<google::protobuf::RpcChannel>> channels,
    Options options)
    : channels_(std::make_shared<SelectiveChannels>()) {
  for (auto& channel : channels) {
    channels_->channels.emplace_back().channel = std::move(channel);
  }
  channels_->options = std::move(options);
}

SelectiveChannel::~SelectiveChannel() = default;

void SelectiveChannel::CallMethod(
    const google::protobuf::MethodDescriptor* method,
    google::protobuf::RpcController* controller,
    const google::protobuf::Message* request,
    google::protobuf::Message* response, google::protobuf::Closure* done) {
  (new SelectiveCall(channels_, method, controller, request, response, done))
      ->Start();
}

}  // namespace flare
