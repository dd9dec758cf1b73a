// Checks by a call: grpc.health.v1, or any method that takes an empty request.
#include <google/protobuf/wrappers.pb.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/compression.h"
#include "flare/rpc/checks/check_dialogue.h"
#include "flare/rpc/client_protocol.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {
namespace {

constexpr std::uint64_t kOnlyCall = 1;
constexpr std::string_view kGrpcMethod = "grpc.health.v1.Health.Check";
constexpr std::size_t kMaxReply = 1 << 20;

// The messages of grpc.health.v1 have one field each, with the number of the
// field of protobuf's wrappers, which replace them here: a program may already
// be linked with their descriptors, and can't have them twice.
std::string GrpcRequest(const std::string& service) {
  google::protobuf::StringValue request;
  request.set_value(service);
  return request.SerializeAsString();
}

std::string_view ServingStatusName(int status) {
  switch (status) {
    case 0:
      return "UNKNOWN";
    case 2:
      return "NOT_SERVING";
    case 3:
      return "SERVICE_UNKNOWN";
    default:
      return "of a status that has no name";
  }
}

flare::Status BadAnswer(std::string why) {
  return flare::Status(EPROTO, std::move(why));
}

class CallDialogue final : public CheckDialogue {
 public:
  CallDialogue(const ServerCheck& check,
               std::unique_ptr<ClientProtocol> protocol)
      : options_(check.options),
        first_bytes_(check.first_bytes),
        protocol_(std::move(protocol)) {}

  flare::Status Ask(StreamOutput* output, BufferBuilder* out) override {
    output_ = output;
    if (!first_bytes_.empty())
      output->WriteSoon(CreateBufferSlow(first_bytes_));
    protocol_->SetOutput(output);
    OutboundRequest request;
    request.correlation_id = kOnlyCall;
    request.method = is_grpc() ? kGrpcMethod : options_.target;
    const auto ms =
        std::chrono::ceil<std::chrono::milliseconds>(options_.timeout).count();
    request.timeout_ms = static_cast<std::uint32_t>(
        std::min<std::int64_t>(ms, std::int64_t{1} << 30));
    request.body = CreateBufferSlow(Body());
    return protocol_->Write(std::move(request), out);
  }

  std::optional<flare::Status> OnData(Buffer& in, std::size_t* need) override {
    std::string error;
    for (;;) {
      switch (protocol_->Cut(in, &response_, need, &error)) {
        case CutResult::kMessage:
          break;
        case CutResult::kHandled:
          continue;
        case CutResult::kNeedMore:
        case CutResult::kUnsure:
          return std::nullopt;
        case CutResult::kNotMine:
        case CutResult::kError:
          return BadAnswer("a malformed answer: " + error);
      }
      if (protocol_->Parse(&response_) == ParseResult::kClose) {
        return BadAnswer("a malformed answer: " +
                         std::string(response_.description));
      }
      if (!response_.is_notice && response_.correlation_id == kOnlyCall) {
        return Judge();
      }
      if (response_.is_notice && !response_.body.empty()) {
        output_->WriteSoon(std::move(response_.body));
      }
      response_.Clear();
    }
  }

  void OnClosed(const flare::Status& why) override { protocol_->OnClosed(why); }

 private:
  bool is_grpc() const { return options_.kind == HealthCheckKind::kGrpc; }

  std::string Body() const {
    if (is_grpc()) return GrpcRequest(options_.target);
    switch (protocol_->format()) {
      case PayloadFormat::kProto3Json:
      case PayloadFormat::kLenientJson:
      case PayloadFormat::kVerboseJson:
        return "{}";
      default:
        return "";
    }
  }

  flare::Status Judge() {
    if (response_.status != STATUS_SUCCESS) {
      return BadAnswer("the check's call failed with status " +
                       std::to_string(response_.status) + ": " +
                       std::string(response_.description));
    }
    if (!is_grpc()) return {};
    if (IsCompressed(response_.compression)) {
      auto body = Decompress(response_.compression, response_.body, kMaxReply);
      if (!body)
        return BadAnswer("a malformed answer: " + body.error().message());
      response_.body = *std::move(body);
    }
    google::protobuf::Int32Value reply;
    if (!reply.ParseFromString(FlattenSlow(response_.body))) {
      return BadAnswer("a malformed answer: no HealthCheckResponse");
    }
    constexpr int kServing = 1;
    if (reply.value() == kServing) return {};
    const std::string who =
        options_.target.empty() ? "the server" : options_.target;
    return BadAnswer(who + " is " +
                     std::string(ServingStatusName(reply.value())));
  }

  const HealthCheckOptions options_;
  const std::string first_bytes_;
  const std::unique_ptr<ClientProtocol> protocol_;
  StreamOutput* output_ = nullptr;
  InboundResponse response_;
};

}  // namespace

Expected<std::unique_ptr<CheckDialogue>, flare::Status> NewCallDialogue(
    const ServerCheck& check) {
  Limits limits;
  limits.max_packet_size = kMaxReply;
  auto protocol = NewClientProtocol(
      check.options.kind == HealthCheckKind::kGrpc ? "grpc" : check.protocol,
      limits, check.host);
  if (!protocol) return protocol.error();
  return std::unique_ptr<CheckDialogue>(
      std::make_unique<CallDialogue>(check, *std::move(protocol)));
}

}  // namespace flare::rpc
