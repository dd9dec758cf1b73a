// Each part is a call with `done`, so the parts run at the same time without a
// fiber each. The last to end, a part or the fiber that has started them,
// finishes the call; until then the call, its parts and their controllers are
// there. So a part that isn't needed any more is cancelled and waited for,
// which is soon: a cancelled call ends at once.
#include "flare/rpc/fan_out/fan_out_call.h"

#include <algorithm>
#include <utility>

#include "flare/fiber/task.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {
namespace {

flare::Status MergeReply(const FanOutMerger& merge, const FanOutReply& reply,
                         google::protobuf::Message* response) {
  if (merge == nullptr) {
    response->MergeFrom(reply.message);
    return flare::Status();
  }
  try {
    return merge(reply, response);
  } catch (...) {
    return StatusOfException("the merger of replies");
  }
}

}  // namespace

void FanOutCall::Run(std::shared_ptr<const Settings> settings,
                     const Divide& divide, const Arguments& arguments) {
  auto* const call = new FanOutCall(std::move(settings), arguments);
  call->Prepare(divide);
  call->call_.Begin(call);
  if (call->refusal_.ok()) call->Start(*arguments.request);
  const bool blocks = arguments.done == nullptr;
  if (call->LetGo()) {
    if (blocks) {
      call->ended_.Set();
    } else {
      // `done` is never run from here: it may make the next call, and so on.
      fiber::Spawn(
          [call, context = fiber::ExecutionContext::Capture()]() mutable {
            const fiber::ExecutionContextScope scope(std::move(context));
            call->Finish();
          });
    }
  }
  if (!blocks) return;
  call->ended_.Wait();
  call->Finish();
}

FanOutCall::FanOutCall(std::shared_ptr<const Settings> settings,
                       const Arguments& arguments)
    : settings_(std::move(settings)),
      arguments_(arguments),
      call_(arguments.controller) {}

// After this refusal_ says whether there is anything to call.
void FanOutCall::Prepare(const Divide& divide) {
  refusal_ = call_.CheckHasMessages();
  if (!refusal_.ok()) return;
  std::vector<Part> parts;
  try {
    refusal_ = divide(*arguments_.request, &parts);
  } catch (...) {
    refusal_ = StatusOfException("the code that divides a request");
  }
  if (!refusal_.ok()) return;
  for (Part& part : parts) {
    auto call = std::make_unique<PartCall>();
    call->owner = this;
    call->part = std::move(part);
    call_.Prepare(&call->controller);
    call->response.reset(arguments_.response->New());
    parts_.push_back(std::move(call));
  }
  if (parts_.empty()) {
    refusal_ = flare::Status(STATUS_NO_PEER,
                             settings_->channels.empty()
                                 ? "there are no channels to call"
                                 : "the request is for none of the channels");
    return;
  }
  SetLimits();
}

void FanOutCall::SetLimits() {
  const FanOutOptions& options = settings_->options;
  const std::size_t all = parts_.size();
  const auto limit = [](std::size_t wanted, std::size_t most) {
    return wanted == 0 ? most : std::min(wanted, most);
  };
  enough_ = limit(options.enough, all);
  needed_ = limit(options.needed, enough_);
  too_many_ = limit(options.too_many_failures, all - needed_ + 1);
  ScopedLock guard(lock_);
  left_ += all;
}

void FanOutCall::Start(const google::protobuf::Message& request) {
  for (const std::unique_ptr<PartCall>& part : parts_) {
    try {
      settings_->channels[part->part.channel]->CallMethod(
          arguments_.method, &part->controller,
          part->part.own != nullptr ? part->part.own.get() : &request,
          part->response.get(), part.get());
    } catch (...) {
      // There was no memory for it, say. Others are under way.
      CompositeCall::FailPart(&part->controller,
                              StatusOfException("the start of a call"));
      part->Run();
    }
  }
}

void FanOutCall::OnPartEnd(PartCall* part) {
  bool over = false;
  {
    ScopedLock guard(lock_);
    if (verdict_ == Verdict::kOpen) {
      Judge(part);
      over = verdict_ != Verdict::kOpen;
    }
  }
  if (over) CancelParts();
  if (!LetGo()) return;
  arguments_.done == nullptr ? ended_.Set() : Finish();
}

void FanOutCall::Judge(PartCall* part) {
  if (part->controller.Failed()) {
    if (first_failure_ == nullptr) first_failure_ = part;
    if (++failures_ == too_many_) verdict_ = Verdict::kTooManyFailed;
  } else {
    part->counted = true;
    if (++successes_ == enough_) verdict_ = Verdict::kEnough;
  }
}

// Those that have ended don't mind.
void FanOutCall::CancelParts() {
  for (const std::unique_ptr<PartCall>& part : parts_) {
    part->controller.StartCancel();
  }
}

void FanOutCall::Cancel() {
  {
    ScopedLock guard(lock_);
    cancelled_ = true;
  }
  CancelParts();
}

// True: nobody else uses the call any more.
bool FanOutCall::LetGo() {
  ScopedLock guard(lock_);
  return --left_ == 0;
}

void FanOutCall::Finish() {
  call_.End();
  bool success;
  {
    ScopedLock guard(lock_);  // Alone by now.
    success = refusal_.ok() && verdict_ != Verdict::kTooManyFailed &&
              successes_ >= needed_;
  }
  success ? Merge() : Fail();
  HandOver();
}

void FanOutCall::Merge() {
  for (const std::unique_ptr<PartCall>& part : parts_) {
    {
      ScopedLock guard(lock_);
      if (!part->counted) continue;
    }
    const flare::Status merged =
        MergeReply(settings_->options.merge,
                   {part->part.channel, *part->response, part->controller},
                   arguments_.response);
    if (merged.ok()) continue;
    return call_.Fail(merged.code(), merged.message());
  }
}

// With the code of the first part that failed.
void FanOutCall::Fail() {
  if (!refusal_.ok()) return call_.Fail(refusal_.code(), refusal_.message());
  std::string text;
  int code;
  {
    ScopedLock guard(lock_);
    if (cancelled_) {
      code = STATUS_FAILED;
    } else {
      code = first_failure_->controller.ErrorCode();
      text = std::to_string(failures_) + " of " +
             std::to_string(parts_.size()) + " calls failed; the first, to " +
             "channel " + std::to_string(first_failure_->part.channel) +
             ", with [" + std::to_string(code) + "] " +
             first_failure_->controller.ErrorText();
    }
  }
  text.empty() ? call_.FailAsCancelled() : call_.Fail(code, std::move(text));
}

// From here on the caller may free its objects, and make the next call.
void FanOutCall::HandOver() {
  google::protobuf::Closure* const done = arguments_.done;
  call_.Tell();
  delete this;
  if (done != nullptr) done->Run();
}

}  // namespace flare::rpc
