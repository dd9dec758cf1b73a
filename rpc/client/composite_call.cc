#include "flare/rpc/client/composite_call.h"

#include <exception>
#include <new>
#include <string>
#include <typeinfo>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/describe_exception.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {

flare::Status StatusOfException(const char* where) {
  const std::exception_ptr exception = std::current_exception();
  if (exception == nullptr) throw;  // No exception of C++.
  try {
    return flare::Status(STATUS_FAILED, std::string("an exception left ") +
                                            where + ": " +
                                            DescribeException(exception));
  } catch (const std::bad_alloc&) {
    return flare::Status(STATUS_FAILED);
  }
}

CompositeCall::CompositeCall(google::protobuf::RpcController* controller) {
  if (controller != nullptr) {
    if (typeid(*controller) == typeid(RpcClientController)) {
      ours_ = static_cast<RpcClientController*>(controller);
    } else {
      foreign_ = controller;
    }
  }
  ours_->ClearOutcome();
  const std::int64_t now = NowNs();
  ours_->started_ns_ = now;
  deadline_ns_ = ours_->DeadlineFrom(now);
}

flare::Status CompositeCall::CheckHasMessages() const {
  if (!ours_->has_request_raw_bytes_ && !ours_->accept_raw_response_) {
    return flare::Status();
  }
  return flare::Status(STATUS_NOT_SUPPORTED,
                       "calls to several channels have messages: neither "
                       "SetRequestRawBytes() nor SetAcceptResponseRawBytes() "
                       "is for them");
}

flare::Status CompositeCall::CheckMetadata() const {
  const std::string& error = ours_->bytes().metadata_error;
  if (error.empty()) return flare::Status();
  return flare::Status(STATUS_NOT_SUPPORTED, error);
}

void CompositeCall::Prepare(RpcClientController* part) const {
  part->TakeWishesOf(*ours_);
  if (deadline_ns_) part->SetDeadline(*deadline_ns_);
  part->max_attempts_ = ours_->max_attempts_;
  part->accept_raw_response_ = ours_->accept_raw_response_;
  if (ours_->has_request_raw_bytes_) {
    part->SetRequestRawBytes(ours_->GetRequestRawBytes());
  }
  if (ours_->bytes_ == nullptr) return;
  part->SetRequestAttachment(ours_->GetRequestAttachment());
}

void CompositeCall::FailPart(RpcClientController* part,
                             const flare::Status& why) {
  try {
    part->SetFailed(why.code(), why.message());
  } catch (const std::bad_alloc&) {  // It has the code, without a text.
  }
}

void CompositeCall::Begin(CancelTarget* target) {
  target_ = target;
  if (!ours_->BeginAttempt(target)) target->Cancel();
}

void CompositeCall::End() {
  if (target_ != nullptr) ours_->EndAttempt(std::exchange(target_, nullptr));
}

void CompositeCall::TakeOutcome(RpcClientController* part) {
  ours_->error_code_ = part->error_code_;
  ours_->canceled_ = part->canceled_;
  ours_->remote_peer_ = part->remote_peer_;
  ours_->sent_ns_ = part->sent_ns_;
  ours_->received_ns_ = part->received_ns_;
  ours_->parsed_ns_ = part->parsed_ns_;
  if (part->bytes_ == nullptr) return;
  RpcClientController::Bytes& from = *part->bytes_;
  RpcClientController::Bytes& to = ours_->ForBytes();
  to.error_text = std::move(from.error_text);
  to.response_attachment = std::move(from.response_attachment);
  to.response_raw_bytes = std::move(from.response_raw_bytes);
  to.response_metadata = std::move(from.response_metadata);
}

void CompositeCall::TakeReply(Reply reply) {
  ours_->sent_ns_ = ours_->started_ns_;
  ours_->received_ns_ = ours_->parsed_ns_ = NowNs();
  if (reply.attachment.empty() && reply.raw_bytes.empty() &&
      reply.metadata == nullptr) {
    return;
  }
  RpcClientController::Bytes& bytes = ours_->ForBytes();
  bytes.response_attachment = std::move(reply.attachment);
  bytes.response_raw_bytes = std::move(reply.raw_bytes);
  bytes.response_metadata = std::move(reply.metadata);
}

void CompositeCall::Fail(int code, std::string text) {
  ours_->SetFailed(code, std::move(text));
}

void CompositeCall::FailAsCancelled() {
  Fail(STATUS_FAILED, "the caller cancelled the call");
  ours_->canceled_ = true;
}

void CompositeCall::Tell() {
  ours_->ended_ns_ = NowNs();
  if (foreign_ != nullptr && ours_->Failed()) {
    foreign_->SetFailed(ours_->ErrorText());
  }
}

}  // namespace flare::rpc
