// StartCancel() may come at any moment, from any thread, while the call ends
// by itself and the controller is used for the next one.
//
//  [CC1] `cancelable_` names the call only during an attempt, from BeginAttempt
//        to EndAttempt. Both are called by the one that has the call alone;
//        EndAttempt comes before anything of the call is reused.
//  [CC2] A canceller changes the name into kBusy, uses the call, and stores
//        null. While it is kBusy EndAttempt waits: that is a Take from the call
//        table and perhaps a Submit.
//  [CC3] StartCancel stores cancel_requested_, then reads cancelable_;
//        BeginAttempt stores cancelable_, then reads cancel_requested_; all in
//        one total order. So one of them sees the other: no wish is lost.
#include "flare/rpc/rpc_client_controller.h"

#include <sched.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "flare/base/cpu.h"
#include "flare/base/object_pool.h"
#include "flare/base/string.h"
#include "flare/rpc/cancel_target.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/start/flags.h"
#include "flare/rpc/stream/call_stream.h"
#include "glog/logging.h"

namespace flare {

// Mostly on the stack of a fiber that waits
// (docs/decisions/0037-small-calls.md).
static_assert(sizeof(RpcClientController) <= 144);

namespace {

// Only its address counts.
rpc::CancelTarget* Busy() {
  class Nobody final : public rpc::CancelTarget {
    void Cancel() override {}
  };
  static Nobody nobody;
  return &nobody;
}

}  // namespace

RpcClientController::~RpcClientController() {
  if (bytes_ != nullptr) UnbindStream();
  // relaxed: a check of how it is used.
  DCHECK(cancelable_.load(std::memory_order_relaxed) == nullptr)
      << "a controller was destroyed while its call was under way";
  DropBytes();
}

const RpcClientController::Bytes& RpcClientController::bytes() const {
  static const Bytes kNone;
  return bytes_ != nullptr ? *bytes_ : kNone;
}

RpcClientController::Bytes& RpcClientController::ForBytes() {
  if (bytes_ == nullptr) bytes_ = ObjectPool<Bytes>::Get();
  return *bytes_;
}

void RpcClientController::SetBalancingKey(std::string_view key) {
  ForBytes().balancing_key = std::hash<std::string_view>()(key);
  ForBytes().has_balancing_key = true;
}

void RpcClientController::DropBytes() {
  if (bytes_ == nullptr) return;
  bytes_->Clear();
  ObjectPool<Bytes>::Put(std::exchange(bytes_, nullptr));
}

RefPtr<rpc::CallStream> RpcClientController::stream() const {
  return bytes().stream;
}

void RpcClientController::SetStream(RefPtr<rpc::CallStream> stream,
                                    bool only_one) {
  Bytes& bytes = ForBytes();
  bytes.stream = std::move(stream);
  bytes.stream_has_one_message = only_one;
  bytes.stream_has_reader = false;
}

RefPtr<rpc::CallStream> RpcClientController::TakeStreamForReader() {
  if (stream() == nullptr) return nullptr;
  ForBytes().stream_has_reader = true;
  return stream();
}

RpcClientController::Bytes::Bytes() = default;
RpcClientController::Bytes::~Bytes() = default;

void RpcClientController::Bytes::Clear() {
  ClearOutcome();
  request_attachment.Clear();
  request_raw_bytes.Clear();
  request_metadata.Clear();
  sent_metadata.Clear();
  ClearKeeping(&metadata_error);
  ClearKeeping(&generic_method);
  has_balancing_key = false;
  one_way = false;
  if (stream != nullptr && !stream_has_reader) stream->Cancel();
  stream = nullptr;
}

void RpcClientController::Bytes::ClearOutcome() {
  ClearKeeping(&error_text);
  response_attachment.Clear();
  response_raw_bytes.Clear();
  response_metadata.reset();
}

void RpcClientController::Reset() {
  if (bytes_ != nullptr) UnbindStream();
  // relaxed: nobody else uses it now; a check of that.
  DCHECK(cancelable_.load(std::memory_order_relaxed) == nullptr)
      << "a controller was reset while its call was under way";
  ClearOutcome();
  timeout_kind_ = TimeoutKind::kDefault;
  timeout_ns_ = 0;
  compression_ = CompressionAlgorithm::kNone;
  has_request_raw_bytes_ = false;
  accept_raw_response_ = false;
  wait_for_ready_ = false;
  wait_for_ready_set_ = false;
  inherits_context_ = true;
  // relaxed: a StartCancel at the same time isn't allowed.
  cancel_requested_.store(false, std::memory_order_relaxed);
  max_attempts_ = 1;
  started_ns_ = 0;
  DropBytes();
}

void RpcClientController::ClearOutcome() {
  error_code_ = rpc::STATUS_SUCCESS;
  canceled_ = false;
  sent_ns_ = received_ns_ = parsed_ns_ = ended_ns_ = 0;
  if (bytes_ != nullptr) {
    UnbindStream();
    bytes_->ClearOutcome();
  }
  if (!remote_peer_.empty()) remote_peer_ = Endpoint();
}

void RpcClientController::AddMetadata(std::string_view name,
                                      std::string_view value) {
  const flare::Status added = MutableMetadata()->Add(name, value);
  if (!added.ok()) ForBytes().metadata_error = added.message();
}

const Metadata& RpcClientController::GetResponseMetadata() const {
  static const Metadata kNone;
  const Metadata* const metadata = bytes().response_metadata.get();
  return metadata != nullptr ? *metadata : kNone;
}

void RpcClientController::BindStream(RefPtr<rpc::CallStream> stream) {
  UnbindStream();
  rpc::CallStream* const bound = stream.Get();
  ForBytes().cancelable_stream = std::move(stream);
  if (!BeginAttempt(bound)) bound->Cancel();
}

void RpcClientController::UnbindStream() {
  if (bytes().cancelable_stream == nullptr) return;
  EndAttempt(bytes_->cancelable_stream.Get());
  bytes_->cancelable_stream = nullptr;
}

void RpcClientController::AddStreamMetadata(
    std::unique_ptr<Metadata> metadata) {
  std::unique_ptr<Metadata>& all = ForBytes().response_metadata;
  if (all == nullptr) {
    all = std::move(metadata);
    return;
  }
  for (const auto [name, value] : *metadata) all->AddReceived(name, value);
}

void RpcClientController::TakeStreamNews(std::unique_ptr<Metadata> metadata,
                                         const flare::Status& failure) {
  if (metadata != nullptr) AddStreamMetadata(std::move(metadata));
  if (failure.ok()) return;
  SetFailed(failure.code(), failure.message());
  // relaxed: a wish that comes now has had no effect.
  canceled_ = failure.code() == rpc::STATUS_FAILED &&
              cancel_requested_.load(std::memory_order_relaxed);
}

void RpcClientController::TakeWishesOf(const RpcClientController& other) {
  timeout_kind_ = other.timeout_kind_;
  timeout_ns_ = other.timeout_ns_;
  wait_for_ready_ = other.wait_for_ready_;
  wait_for_ready_set_ = other.wait_for_ready_set_;
  inherits_context_ = other.inherits_context_;
  compression_ = other.compression_;
  if (other.bytes_ == nullptr) return;
  ForBytes().balancing_key = other.bytes_->balancing_key;
  bytes_->has_balancing_key = other.bytes_->has_balancing_key;
  bytes_->one_way = other.bytes_->one_way;
  bytes_->generic_method = other.bytes_->generic_method;
  bytes_->request_metadata = other.bytes_->request_metadata;
  bytes_->metadata_error = other.bytes_->metadata_error;
}

void RpcClientController::BeginGeneric(std::string_view method,
                                       Buffer request) {
  SetRequestRawBytes(std::move(request));
  SetAcceptResponseRawBytes(true);
  bytes_->generic_method = method;
}

Buffer RpcClientController::EndGeneric() {
  ClearRequestRawBytes();
  SetAcceptResponseRawBytes(false);
  ForBytes().generic_method.clear();
  return std::exchange(ForBytes().response_raw_bytes, Buffer());
}

std::string_view RpcClientController::NameOf(
    const google::protobuf::MethodDescriptor& method) const {
  const std::string_view generic = bytes().generic_method;
  return generic.empty() ? std::string_view(method.full_name()) : generic;
}

void RpcClientController::SetDeadline(std::int64_t steady_ns) {
  timeout_kind_ = TimeoutKind::kDeadline;
  timeout_ns_ = steady_ns;
}

void RpcClientController::SetTimeoutSpan(std::int64_t ns) {
  timeout_kind_ = TimeoutKind::kSpan;
  timeout_ns_ = ns;
}

std::optional<std::int64_t> RpcClientController::DeadlineFrom(
    std::int64_t now_ns) const {
  switch (timeout_kind_) {
    case TimeoutKind::kDeadline:
      return timeout_ns_;
    case TimeoutKind::kSpan:
      return SaturatingAdd(now_ns, timeout_ns_);
    case TimeoutKind::kDefault:
      break;
  }
  return std::nullopt;
}

std::chrono::steady_clock::time_point RpcClientController::GetTimeout() const {
  const std::int64_t now = NowNs();
  return ToTimePoint(DeadlineFrom(now).value_or(
      SaturatingAdd(now, ToNs(rpc::ClientDefaultsFromFlags().rpc_timeout))));
}

std::chrono::nanoseconds RpcClientController::GetElapsedTime() const {
  if (started_ns_ == 0) return std::chrono::nanoseconds(0);
  const std::int64_t end = ended_ns_ != 0 ? ended_ns_ : NowNs();
  // The clock may differ by a microsecond between workers.
  return std::chrono::nanoseconds(end > started_ns_ ? end - started_ns_ : 0);
}

std::chrono::steady_clock::time_point RpcClientController::GetTimestampSent()
    const {
  return ToTimePoint(sent_ns_);
}

std::chrono::steady_clock::time_point
RpcClientController::GetTimestampReceived() const {
  return ToTimePoint(received_ns_);
}

std::chrono::steady_clock::time_point RpcClientController::GetTimestampParsed()
    const {
  return ToTimePoint(parsed_ns_);
}

void RpcClientController::SetFailed(const std::string& reason) {
  SetFailed(rpc::STATUS_FAILED, reason);
}

void RpcClientController::SetFailed(int code, std::string reason) {
  CHECK_NE(code, rpc::STATUS_SUCCESS) << "a failure with the code of success";
  error_code_ = code;
  ForBytes().error_text = std::move(reason);
}

void RpcClientController::NotifyOnCancel(google::protobuf::Closure*) {
  LOG(FATAL) << "NotifyOnCancel() is for the server's side of a call; the "
                "client gets to know that a call was cancelled by its end, "
                "from IsCanceled()";
}

void RpcClientController::StartCancel() {
  // seq_cst: this store before the load of cancelable_ [CC3].
  cancel_requested_.store(true, std::memory_order_seq_cst);
  rpc::CancelTarget* target = cancelable_.load(std::memory_order_seq_cst);
  if (target == nullptr || target == Busy()) return;
  // acquire: pairs with the release half of the store in BeginAttempt.
  // relaxed on failure: the attempt has ended, the next one sees the wish.
  if (!cancelable_.compare_exchange_strong(target, Busy(),
                                           std::memory_order_acquire,
                                           std::memory_order_relaxed)) {
    return;
  }
  target->Cancel();
  // release: pairs with the acquire in EndAttempt [CC2].
  cancelable_.store(nullptr, std::memory_order_release);
}

bool RpcClientController::BeginAttempt(rpc::CancelTarget* target) {
  // seq_cst: this store before the load of cancel_requested_ [CC3].
  cancelable_.store(target, std::memory_order_seq_cst);
  return !cancel_requested_.load(std::memory_order_seq_cst);
}

void RpcClientController::EndAttempt(rpc::CancelTarget* target) {
  // acquire: pairs with the release in StartCancel [CC2].
  if (cancelable_.compare_exchange_strong(target, nullptr,
                                          std::memory_order_acquire)) {
    return;
  }
  for (int spins = 0; target != nullptr; ++spins) {
    if (spins < 100) {
      CpuRelax();
    } else {
      sched_yield();  // The canceller's thread may have been preempted.
    }
    // acquire: pairs with the release in StartCancel [CC2].
    target = cancelable_.load(std::memory_order_acquire);
  }
}

}  // namespace flare
