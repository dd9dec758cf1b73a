#include "flare/rpc/rpc_server_controller.h"

#include <utility>

#include "flare/base/clock.h"
#include "flare/base/string.h"
#include "flare/rpc/log_throttle.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/served_call.h"
#include "flare/rpc/stream/call_stream.h"
#include "glog/logging.h"

namespace flare {
void RpcServerController::SetFailed(const std::string& reason) {
  SetFailed(rpc::STATUS_FAILED, reason);
}

void RpcServerController::SetFailed(int code, std::string reason) {
  LOG_IF(DFATAL, code == rpc::STATUS_SUCCESS)
      << "SetFailed() was given 0, which means success.";
  error_code_ = code == rpc::STATUS_SUCCESS ? rpc::STATUS_FAILED : code;
  error_text_ = std::move(reason);
}

RefPtr<rpc::CallStream> RpcServerController::stream() const {
  return RefPtr<rpc::CallStream>(ref_ptr,
                                 call_ == nullptr ? nullptr : call_->stream());
}

void RpcServerController::WriteResponseImmediately() {
  if (call_ != nullptr) call_->WriteResponse();
}

std::optional<std::chrono::steady_clock::time_point>
RpcServerController::GetTimeout() const {
  if (deadline_ns_ == 0) return std::nullopt;
  return ToTimePoint(deadline_ns_);
}

CompressionAlgorithmSet
RpcServerController::GetAcceptableCompressionAlgorithms() const {
  CompressionAlgorithmSet set(acceptable_compressions_);
  set.Add(CompressionAlgorithm::kNone);
  return set;
}

CompressionAlgorithm RpcServerController::GetPreferredCompressionAlgorithm()
    const {
  const CompressionAlgorithmSet acceptable =
      GetAcceptableCompressionAlgorithms();
  for (CompressionAlgorithm algorithm :
       {CompressionAlgorithm::kZstd, CompressionAlgorithm::kLz4Frame,
        CompressionAlgorithm::kGzip, CompressionAlgorithm::kSnappy}) {
    if (acceptable[algorithm]) return algorithm;
  }
  return CompressionAlgorithm::kNone;
}

const Metadata& RpcServerController::GetRequestMetadata() const {
  static const Metadata kNone;
  return metadata_ != nullptr ? metadata_->request : kNone;
}

const Buffer& RpcServerController::GetRequestRawBytes() const {
  static const Buffer kNone;
  return metadata_ != nullptr ? metadata_->generic_request : kNone;
}

const std::string& RpcServerController::caller() const {
  static const std::string kNobody;
  return metadata_ != nullptr ? metadata_->caller : kNobody;
}

namespace {

// False: it is refused, with a line in the log.
bool AddOrNote(Metadata* metadata, std::string_view name,
               std::string_view value) {
  const flare::Status added = metadata->Add(name, value);
  if (added.ok()) return true;
  static rpc::LogThrottle throttle;
  if (const auto left_out = throttle.Admit()) {
    LOG(WARNING) << "a response is sent without an entry: " << added.message()
                 << rpc::LogThrottle::Note(*left_out);
  }
  return false;
}

}  // namespace

bool RpcServerController::AddResponseMetadata(std::string_view name,
                                              std::string_view value) {
  return AddOrNote(&ForMetadata().response, name, value);
}

bool RpcServerController::AddResponseTrailer(std::string_view name,
                                             std::string_view value) {
  return AddOrNote(&ForMetadata().trailing, name, value);
}

Metadata* RpcServerController::MutableResponseMetadata() {
  return &ForMetadata().response;
}

RpcServerController::CallMetadata& RpcServerController::ForMetadata() {
  has_bytes_ = true;
  if (metadata_ == nullptr) metadata_ = std::make_unique<CallMetadata>();
  return *metadata_;
}

void RpcServerController::ObserveMessages(MessageObserver observer) {
  const RefPtr<rpc::CallStream> ours = stream();
  if (ours != nullptr) ours->AddObserver(std::move(observer));
}

const Endpoint& RpcServerController::GetRemotePeer() const {
  static const Endpoint kNobody;
  return remote_peer_ != nullptr ? *remote_peer_ : kNobody;
}

const PeerIdentity* RpcServerController::peer_identity() const {
  return call_ != nullptr ? call_->peer_identity() : http_peer_;
}

std::chrono::nanoseconds RpcServerController::GetElapsedTime() const {
  return std::chrono::nanoseconds(received_ns_ == 0 ? 0
                                                    : NowNs() - received_ns_);
}
std::chrono::steady_clock::time_point
RpcServerController::GetTimestampReceived() const {
  return ToTimePoint(received_ns_);
}
std::chrono::steady_clock::time_point
RpcServerController::GetTimestampDispatched() const {
  return ToTimePoint(dispatched_ns_);
}
std::chrono::steady_clock::time_point RpcServerController::GetTimestampParsed()
    const {
  return ToTimePoint(parsed_ns_);
}

void RpcServerController::Reset() {
  call_ = nullptr;
  if (error_code_ != 0) ClearKeeping(&error_text_);
  error_code_ = 0;
  request_compressed_ = false;
  attachment_precompressed_ = false;
  compression_ = CompressionAlgorithm::kNone;
  acceptable_compressions_ = 0;
  deadline_ns_ = received_ns_ = dispatched_ns_ = parsed_ns_ = 0;
  remote_peer_ = nullptr;
  http_peer_ = nullptr;
  if (!std::exchange(has_bytes_, false)) return;
  request_attachment_.Clear();
  response_attachment_.Clear();
  ClearResponseRawBytes();
  metadata_.reset();
}

bool RpcServerController::IsCanceled() const {
  return call_ != nullptr && call_->IsCanceled();
}

std::stop_token RpcServerController::GetStopToken() const {
  return call_ != nullptr ? call_->stop_token() : std::stop_token();
}

void RpcServerController::NotifyOnCancel(google::protobuf::Closure* callback) {
  if (call_ == nullptr) return callback->Run();
  call_->NotifyOnCancel(callback);
}

}  // namespace flare
