#include "flare/rpc/tracing/otlp_exporter.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "flare/base/clock.h"
#include "flare/base/string.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/http_client.h"
#include "flare/rpc/http_client/http_request_writer.h"
#include "flare/rpc/http_client/http_url.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_status.h"
#include "rpc/tracing/otlp.pb.h"

namespace flare {
namespace {

// The collector's method, which is called by its full name. In a pool of its
// own: in the common one a name may be only once, and a program may have
// OpenTelemetry's generated code as well.
const google::protobuf::MethodDescriptor* ExportMethod() {
  static const auto* const method = [] {
    google::protobuf::FileDescriptorProto file;
    file.set_name("trace_service.proto");
    file.set_package("opentelemetry.proto.collector.trace.v1");
    file.add_message_type()->set_name("Message");  // Never looked at.
    google::protobuf::ServiceDescriptorProto* const service =
        file.add_service();
    service->set_name("TraceService");
    google::protobuf::MethodDescriptorProto* const added =
        service->add_method();
    added->set_name("Export");
    added->set_input_type("Message");
    added->set_output_type("Message");
    auto* const pool = new google::protobuf::DescriptorPool;  // For ever.
    return pool->BuildFile(file)->service(0)->method(0);
  }();
  return method;
}

// Big-endian.
void AppendBytes(std::uint64_t id, std::string* bytes) {
  for (int shift = 56; shift >= 0; shift -= 8) {
    bytes->push_back(static_cast<char>(id >> shift));
  }
}

using Attributes = google::protobuf::RepeatedPtrField<otlp::KeyValue>;

otlp::AnyValue* Add(const std::string& key, Attributes* to) {
  otlp::KeyValue* const attribute = to->Add();
  attribute->set_key(key);
  return attribute->mutable_value();
}

void AddText(const std::string& key, std::string value, Attributes* to) {
  Add(key, to)->set_string_value(std::move(value));
}

void AddAttribute(const SpanAttribute& attribute, Attributes* to) {
  otlp::AnyValue* const value = Add(attribute.name, to);
  std::visit(
      [value](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, bool>) {
          value->set_bool_value(v);
        } else if constexpr (std::is_same_v<T, std::int64_t>) {
          value->set_int_value(v);
        } else if constexpr (std::is_same_v<T, double>) {
          value->set_double_value(v);
        } else {
          value->set_string_value(v);
        }
      },
      attribute.value);
}

void AddTraffic(const std::string& way, const SpanData::Traffic& traffic,
                Attributes* to) {
  if (traffic.messages == 0) return;
  const std::string prefix = "rpc." + way + ".";
  Add(prefix + "messages", to)
      ->set_int_value(static_cast<std::int64_t>(traffic.messages));
  Add(prefix + "bytes", to)
      ->set_int_value(static_cast<std::int64_t>(traffic.bytes));
}

// The facts of a call of a method.
void AddCall(const SpanData& span, Attributes* to) {
  const std::size_t slash = span.name.rfind('/');
  if (slash == std::string::npos) return;  // An HTTP request.
  AddText("rpc.system", "flare", to);
  AddText("rpc.service", span.name.substr(0, slash), to);
  AddText("rpc.method", span.name.substr(slash + 1), to);
  Add("rpc.flare.status_code", to)->set_int_value(span.status);
}

std::uint32_t FlagsOf(const SpanData& span) {
  std::uint32_t flags = 1u | (span.context.random ? 2u : 0u) | 0x100u;
  if (span.parent_is_remote) flags |= 0x200u;
  return flags;
}

otlp::Span::SpanKind KindOf(SpanKind kind) {
  switch (kind) {
    case SpanKind::kServer:
      return otlp::Span::SPAN_KIND_SERVER;
    case SpanKind::kClient:
      return otlp::Span::SPAN_KIND_CLIENT;
    case SpanKind::kInternal:
      return otlp::Span::SPAN_KIND_INTERNAL;
  }
  return otlp::Span::SPAN_KIND_UNSPECIFIED;
}

void Convert(const SpanData& from, otlp::Span* to) {
  AppendBytes(from.context.trace_id.high, to->mutable_trace_id());
  AppendBytes(from.context.trace_id.low, to->mutable_trace_id());
  AppendBytes(from.context.span_id, to->mutable_span_id());
  if (from.parent_id != 0) {
    AppendBytes(from.parent_id, to->mutable_parent_span_id());
  }
  to->set_trace_state(from.context.state);
  to->set_flags(FlagsOf(from));
  to->set_name(from.name);
  to->set_kind(KindOf(from.kind));
  to->set_start_time_unix_nano(static_cast<std::uint64_t>(from.start_unix_ns));
  to->set_end_time_unix_nano(
      static_cast<std::uint64_t>(from.start_unix_ns + from.duration_ns));
  if (from.kind != SpanKind::kInternal) AddCall(from, to->mutable_attributes());
  if (!from.peer.empty()) {
    const bool is_origin = from.peer.find("://") != std::string::npos;
    AddText(is_origin ? "url.full" : "network.peer.address", from.peer,
            to->mutable_attributes());
  }
  AddTraffic("received", from.received, to->mutable_attributes());
  AddTraffic("sent", from.sent, to->mutable_attributes());
  for (const SpanAttribute& attribute : from.attributes) {
    AddAttribute(attribute, to->mutable_attributes());
  }
  to->set_dropped_attributes_count(from.dropped_attributes);
  for (const SpanEvent& event : from.events) {
    otlp::Span::Event* const added = to->add_events();
    added->set_time_unix_nano(static_cast<std::uint64_t>(event.unix_ns));
    added->set_name(event.name);
  }
  to->set_dropped_events_count(from.dropped_events);
  if (!from.failed) return;
  to->mutable_status()->set_code(otlp::Status::STATUS_CODE_ERROR);
  to->mutable_status()->set_message(from.error);
}

otlp::ExportTraceServiceRequest Pack(const SpanBatch& spans,
                                     const std::string& service_name) {
  otlp::ExportTraceServiceRequest request;
  otlp::ResourceSpans* const all = request.add_resource_spans();
  Attributes* const resource = all->mutable_resource()->mutable_attributes();
  AddText("service.name", service_name, resource);
  AddText("telemetry.sdk.name", "flare", resource);
  AddText("telemetry.sdk.language", "cpp", resource);
  otlp::ScopeSpans* const scope = all->add_scope_spans();
  scope->mutable_scope()->set_name("flare");
  for (const auto& span : spans) Convert(*span, scope->add_spans());
  return request;
}

// A collector that has taken a batch may have rejected some of it.
Status StatusOf(const otlp::ExportTraceServiceResponse& reply) {
  const auto& partial = reply.partial_success();
  if (partial.rejected_spans() == 0) return {};
  return Status(rpc::STATUS_FAILED,
                "the collector rejects " +
                    std::to_string(partial.rejected_spans()) +
                    " of them: " + partial.error_message());
}

// The outcome of one request.
struct Attempt {
  Status status;
  bool later = false;                 // Try again ...
  std::chrono::nanoseconds pause{0};  // ... not before so long.
};

// Repeats requests that the collector can't take now, as the protocol says.
template <class Send>
Status SendUntil(std::chrono::steady_clock::time_point deadline, Send send) {
  constexpr std::chrono::nanoseconds kFirstPause(100'000'000);
  constexpr std::chrono::nanoseconds kLongestPause(2'000'000'000);
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    const Attempt attempt = send();
    const auto wait = std::max(pause, attempt.pause);
    if (!attempt.later || ReadSteadyClock() + wait >= deadline) {
      return attempt.status;
    }
    this_fiber::SleepFor(wait);
  }
}

// The pause that a collector demands of the sender of a batch that it refuses
// (google.rpc.RetryInfo). nullopt: it demands none.
std::optional<std::chrono::nanoseconds> RetryDelay(
    const RpcClientController& controller) {
  const auto bytes = controller.GetResponseMetadata().Get(kGrpcStatusDetails);
  otlp::FailureDetails failure;
  if (!bytes ||
      !failure.ParseFromArray(bytes->data(), static_cast<int>(bytes->size()))) {
    return std::nullopt;
  }
  for (const otlp::FailurePart& part : failure.details()) {
    otlp::RetryInfo info;
    if (!part.type_url().ends_with("/google.rpc.RetryInfo") ||
        !info.ParseFromString(part.value())) {
      continue;
    }
    constexpr std::int64_t kLongest =
        1'000'000'000;  // 30 years don't overflow.
    const auto& delay = info.retry_delay();
    return std::chrono::seconds(
               std::clamp<std::int64_t>(delay.seconds(), 0, kLongest)) +
           std::chrono::nanoseconds(std::max(delay.nanos(), 0));
  }
  return std::nullopt;
}

// Whether the collector may take the same batch later, as the protocol says.
bool MayTakeLater(rpc::GrpcCode code, bool demands_pause) {
  switch (code) {
    case rpc::GrpcCode::kCancelled:
    case rpc::GrpcCode::kDeadlineExceeded:
    case rpc::GrpcCode::kAborted:
    case rpc::GrpcCode::kOutOfRange:
    case rpc::GrpcCode::kUnavailable:
    case rpc::GrpcCode::kDataLoss:
      return true;
    case rpc::GrpcCode::kResourceExhausted:
      return demands_pause;  // Else the batch may be too large.
    default:
      return false;
  }
}

class GrpcExporter final : public SpanExporter {
 public:
  explicit GrpcExporter(OtlpOptions options) : options_(std::move(options)) {}

  Status Open() {
    RpcChannel::Options options;
    options.extensions = false;  // No spans of sending spans.
    options.wait_for_ready = true;
    channel_.Open(options_.collector, options);
    return channel_.status();
  }

  Status Export(const SpanBatch& spans,
                std::chrono::steady_clock::time_point deadline) override {
    const auto request = Pack(spans, options_.service_name);
    return SendUntil(deadline, [&] { return Send(request, deadline); });
  }

 private:
  Attempt Send(const otlp::ExportTraceServiceRequest& request,
               std::chrono::steady_clock::time_point deadline) {
    RpcClientController controller;
    controller.SetTimeout(deadline);
    for (const auto& [name, value] : options_.headers) {
      controller.AddMetadata(name, value);
    }
    otlp::ExportTraceServiceResponse reply;
    channel_.CallMethod(ExportMethod(), &controller, &request, &reply, nullptr);
    if (!controller.Failed()) return {.status = StatusOf(reply)};
    const auto pause = RetryDelay(controller);
    const int code = controller.ErrorCode();
    // Our own client side doesn't come back for this channel.
    const bool ends = code == rpc::STATUS_CHANNEL_SHUTDOWN;
    return {.status = Status(code, controller.ErrorText()),
            .later = !ends &&
                     MayTakeLater(rpc::GrpcFromStatus(code), pause.has_value()),
            .pause = pause.value_or(std::chrono::nanoseconds(0))};
  }

  const OtlpOptions options_;
  RpcChannel channel_;
};

class HttpExporter final : public SpanExporter {
 public:
  // `url`: of requests, with the path.
  HttpExporter(OtlpOptions options, std::string url)
      : options_(std::move(options)), url_(std::move(url)) {
    for (const auto& [name, value] : options_.headers) {
      fields_.push_back(name + ": " + value);
    }
  }

  Status Export(const SpanBatch& spans,
                std::chrono::steady_clock::time_point deadline) override {
    const std::string body =
        Pack(spans, options_.service_name).SerializeAsString();
    return SendUntil(deadline, [&] { return Send(body, deadline); });
  }

 private:
  // As over a connection that the collector has closed meanwhile.
  static bool IsTransient(int error) {
    return error == rpc::ERROR_FAIL_TO_CONNECT_SERVER ||
           error == rpc::ERROR_FAIL_TO_RESOLVE_ADDRESS ||
           error == rpc::ERROR_CONNECTION;
  }

  // 0: it says nothing, or a date.
  static std::chrono::seconds RetryAfter(const HttpResponse& response) {
    const auto text = response.headers()->TryGet("Retry-After");
    return std::chrono::seconds(
        text ? TryParse<std::uint32_t>(*text).value_or(0) : 0);
  }

  Attempt Send(const std::string& body,
               std::chrono::steady_clock::time_point deadline) const {
    // Positive, so that there is an error that says what failed.
    const auto left = std::max<std::chrono::nanoseconds>(
        deadline - ReadSteadyClock(), std::chrono::milliseconds(1));
    const auto response =
        client_.Post(url_, body,
                     {.timeout = left,
                      .content_type = "application/x-protobuf",
                      .headers = fields_});
    if (!response) {
      return {.status = response.error(),
              .later = IsTransient(response.error().code())};
    }
    const int status = static_cast<int>(response->status());
    if (status / 100 == 2) {
      otlp::ExportTraceServiceResponse reply;
      static_cast<void>(reply.ParseFromString(*response->body()));
      return {.status = StatusOf(reply)};
    }
    return {.status = Status(rpc::STATUS_FAILED,
                             url_ + " answers " + std::to_string(status)),
            .later = status == 429 || (status >= 502 && status <= 504),
            .pause = RetryAfter(*response)};
  }

  const OtlpOptions options_;
  const std::string url_;
  std::vector<std::string> fields_;
  // No spans of sending spans.
  const HttpClient client_{HttpClient::Options{.extensions = false}};
};

Expected<std::shared_ptr<SpanExporter>, Status> NewGrpcExporter(
    OtlpOptions options) {
  Metadata scratch;
  for (const auto& [name, value] : options.headers) {
    if (Status status = scratch.Add(name, value); !status.ok()) return status;
  }
  auto exporter = std::make_shared<GrpcExporter>(std::move(options));
  if (Status status = exporter->Open(); !status.ok()) return status;
  return std::shared_ptr<SpanExporter>(std::move(exporter));
}

Expected<std::shared_ptr<SpanExporter>, Status> NewHttpExporter(
    OtlpOptions options) {
  auto url = rpc::ParseHttpUrl(options.collector);
  if (!url) return url.error();
  HttpHeaders scratch;
  for (const auto& [name, value] : options.headers) {
    Status status = rpc::AddHttpField(name + ": " + value, &scratch);
    if (!status.ok()) {
      return Status(status.code(), "the collector's field " + OneLine(name) +
                                       ": " + status.message());
    }
  }
  // As OpenTelemetry's libraries do it with the address of a collector.
  if (url->target == "/") url->target = "/v1/traces";
  return std::shared_ptr<SpanExporter>(std::make_shared<HttpExporter>(
      std::move(options), url->origin() + url->target));
}

}  // namespace

Expected<std::shared_ptr<SpanExporter>, Status> NewOtlpExporter(
    OtlpOptions options) {
  const std::string& collector = options.collector;
  if (collector.starts_with("http://") || collector.starts_with("https://")) {
    return NewHttpExporter(std::move(options));
  }
  if (collector.find("grpc://") == std::string::npos) {
    return Status(EINVAL, "the collector \"" + collector +
                              "\" should be \"grpc://HOST:PORT\", "
                              "\"tls+grpc://HOST:PORT\", or a URL of HTTP");
  }
  return NewGrpcExporter(std::move(options));
}

}  // namespace flare
