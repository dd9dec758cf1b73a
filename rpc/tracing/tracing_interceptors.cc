#include "flare/rpc/tracing/tracing_interceptors.h"

#include <google/protobuf/message.h>

#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/rpc/http_client_options.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/tracing/current_span.h"
#include "flare/rpc/tracing/trace_headers.h"

namespace flare {
namespace {

// "package.Service/Method".
std::string SpanName(const google::protobuf::MethodDescriptor& method) {
  std::string name(method.service()->full_name());
  name += '/';
  name += method.name();
  return name;
}

bool IsStreaming(const google::protobuf::MethodDescriptor& method) {
  return method.client_streaming() || method.server_streaming();
}

MessageObserver CountMessages(const RefPtr<RecordedSpan>& span) {
  return [span](const ObservedMessage& message) { span->Count(message); };
}

// One that isn't part of a stream.
void CountMessage(const google::protobuf::Message* message,
                  ObservedMessage::Direction direction, RecordedSpan* span) {
  if (message == nullptr) return;
  span->Count({.direction = direction, .bytes = message->ByteSizeLong()});
}

TraceOrigin OriginOf(const InterceptedCall& call,
                     const TraceHeaderOptions& options) {
  if (const HttpRequest* const request = call.http_request()) {
    const HttpHeaders& headers = *request->headers();
    return ReadTraceHeaders(options, [&](std::string_view name) {
      return headers.TryGetMultiple(name);
    });
  }
  const Metadata& metadata = call.controller().GetRequestMetadata();
  if (metadata.empty()) return {};
  return ReadTraceHeaders(
      options, [&](std::string_view name) { return metadata.GetAll(name); });
}

// The span of the call that is served, or of a part of it, as the parent.
TraceOrigin CurrentOrigin() {
  const RefPtr<RecordedSpan>* const current = CurrentRecordedSpan();
  if (current == nullptr || *current == nullptr) return {};
  return (*current)->AsOrigin();
}

class TracingServerInterceptor final : public ServerInterceptor {
 public:
  explicit TracingServerInterceptor(std::shared_ptr<Tracer> tracer)
      : tracer_(std::move(tracer)) {}

  void Intercept(InterceptedCall& call, ServerNext& next) override {
    if (tracer_->Excludes(call.method())) return next.Run();
    const TraceOrigin origin = OriginOf(call, tracer_->headers());
    const RefPtr<RecordedSpan> span =
        tracer_->Begin(SpanKind::kServer, call.method(), origin,
                       ToSteadyNs(call.received_at()));
    if (RefPtr<RecordedSpan>* const place = CurrentRecordedSpan()) {
      *place = span;
    }
    if (!span->recording()) return next.Run();
    // Now: the method may take the message's fields.
    CountMessage(call.request(), ObservedMessage::Direction::kReceived,
                 span.Get());
    call.ObserveMessages(CountMessages(span));
    next.Run();
    try {
      End(call, origin, span.Get());
    } catch (const std::bad_alloc&) {  // The reply is what matters.
      tracer_->Drop();
    }
  }

 private:
  void End(InterceptedCall& call, const TraceOrigin& origin,
           RecordedSpan* span) const {
    if (!call.failed()) {
      CountMessage(call.response(), ObservedMessage::Direction::kSent, span);
    }
    SpanData outcome = call.http_request() != nullptr ? HttpOutcome(call, span)
                                                      : CallOutcome(call);
    outcome.parent_id = origin.parent ? origin.parent->span_id : 0;
    outcome.parent_is_remote = origin.parent.has_value();
    outcome.kind = SpanKind::kServer;
    outcome.peer = call.peer().ToString();
    tracer_->End(span, std::move(outcome));
  }

  static SpanData CallOutcome(const InterceptedCall& call) {
    SpanData outcome;
    outcome.name = SpanName(*call.descriptor());
    outcome.status = call.status();
    outcome.failed = call.failed();
    if (outcome.failed) {
      outcome.error = call.controller().ErrorText();
    } else if (call.controller().IsCanceled()) {
      outcome.failed = true;
      outcome.error = "the caller has cancelled the call, or has left";
    }
    return outcome;
  }

  static SpanData HttpOutcome(const InterceptedCall& call, RecordedSpan* span) {
    SpanData outcome;
    // The path isn't: there may be any number of them.
    outcome.name = ToStringView(call.http_request()->method());
    outcome.status = call.status();
    // Others are the caller's mistakes.
    outcome.failed = outcome.status >= 500;
    span->SetAttribute("url.path", std::string(call.method()));
    span->SetAttribute("http.response.status_code",
                       std::int64_t{outcome.status});
    return outcome;
  }

  const std::shared_ptr<Tracer> tracer_;
};

// The headers in a request's metadata, in place of the caller's own, for as
// long as it lives. Baggage of the caller's own stays.
class TraceHeaders {
 public:
  TraceHeaders(const TraceHeaderOptions& options, const RecordedSpan& span,
               Metadata* metadata)
      : metadata_(metadata), before_(*metadata) {
    try {
      Write(options, span);
    } catch (...) {
      *metadata_ = std::move(before_);
      throw;
    }
  }
  // The caller's next call must not be sent with them.
  ~TraceHeaders() { *metadata_ = std::move(before_); }
  TraceHeaders(const TraceHeaders&) = delete;
  TraceHeaders& operator=(const TraceHeaders&) = delete;

 private:
  void Write(const TraceHeaderOptions& options, const RecordedSpan& span) {
    for (const TraceHeaderForm form : options.forms) {
      for (const auto name : TraceHeaderNames(form)) metadata_->Remove(name);
    }
    // Without them if there is no room: the call is what matters.
    WriteTraceHeaders(options, span.context(),
                      [this](std::string_view name, const std::string& value) {
                        static_cast<void>(metadata_->Set(name, value));
                      });
    if (!span.baggage().empty() && !metadata_->Contains(kBaggage)) {
      static_cast<void>(metadata_->Set(kBaggage, span.baggage()));
    }
  }

  Metadata* const metadata_;
  Metadata before_;
};

class TracingClientInterceptor final : public ClientInterceptor {
 public:
  explicit TracingClientInterceptor(std::shared_ptr<Tracer> tracer)
      : tracer_(std::move(tracer)) {}

  void Intercept(ClientInterceptedCall& call, ClientNext& next) override {
    const std::string_view method = call.method().full_name();
    if (tracer_->Excludes(method)) return next.Run();
    const TraceOrigin origin = CurrentOrigin();
    const RefPtr<RecordedSpan> span =
        tracer_->Begin(SpanKind::kClient, method, origin, NowNs());
    RpcClientController& controller = call.controller();
    {
      std::optional<TraceHeaders> headers;
      if (call.carries_metadata()) {
        headers.emplace(tracer_->headers(), *span,
                        controller.MutableMetadata());
      }
      if (span->recording()) call.ObserveMessages(CountMessages(span));
      next.Run();
    }
    if (!span->recording()) return;
    try {
      End(call, origin, span.Get());
    } catch (const std::bad_alloc&) {  // The reply is what matters.
      tracer_->Drop();
    }
  }

 private:
  void End(ClientInterceptedCall& call, const TraceOrigin& origin,
           RecordedSpan* span) const {
    const RpcClientController& controller = call.controller();
    // Messages of streaming calls were observed, all of them.
    if (!IsStreaming(call.method())) {
      CountMessage(call.request(), ObservedMessage::Direction::kSent, span);
      if (!controller.Failed()) {
        CountMessage(call.response(), ObservedMessage::Direction::kReceived,
                     span);
      }
    }
    SpanData outcome;
    outcome.parent_id = origin.parent ? origin.parent->span_id : 0;
    outcome.kind = SpanKind::kClient;
    outcome.name = SpanName(call.method());
    outcome.status = controller.ErrorCode();
    outcome.failed = controller.Failed();
    if (outcome.failed) outcome.error = controller.ErrorText();
    if (!controller.GetRemotePeer().empty()) {
      outcome.peer = controller.GetRemotePeer().ToString();
    }
    tracer_->End(span, std::move(outcome));
  }

  const std::shared_ptr<Tracer> tracer_;
};

// Neither the path nor the query is shown: they may have secrets.
class TracingHttpClientInterceptor final : public HttpClientInterceptor {
 public:
  explicit TracingHttpClientInterceptor(std::shared_ptr<Tracer> tracer)
      : tracer_(std::move(tracer)) {}

  Expected<HttpResponse> Intercept(const std::string& server,
                                   HttpRequest* request,
                                   const HttpClientNext& next) override {
    if (tracer_->Excludes(server)) return next();
    const TraceOrigin origin = CurrentOrigin();
    const RefPtr<RecordedSpan> span =
        tracer_->Begin(SpanKind::kClient, server, origin, NowNs());
    SetHeaders(*span, request->headers());
    if (!span->recording()) return next();
    span->Count({.direction = ObservedMessage::Direction::kSent,
                 .bytes = request->body_size()});
    SpanData outcome;
    outcome.parent_id = origin.parent ? origin.parent->span_id : 0;
    outcome.kind = SpanKind::kClient;
    outcome.name = ToStringView(request->method());
    outcome.peer = server;
    std::optional<Expected<HttpResponse>> returned;
    std::exception_ptr thrown;
    try {
      returned.emplace(next());
    } catch (...) {  // End() may suspend the fiber, which mustn't be in here.
      thrown = std::current_exception();
      if (thrown == nullptr) throw;  // The end of a thread.
      returned.emplace(Status(rpc::ERROR_CANCELLED, "an exception ended it"));
    }
    Expected<HttpResponse>& result = *returned;
    if (result) {
      outcome.status = static_cast<int>(result->status());
      outcome.failed = outcome.status >= 400;
      span->SetAttribute("http.response.status_code",
                         std::int64_t{outcome.status});
      span->Count({.direction = ObservedMessage::Direction::kReceived,
                   .bytes = result->body_size()});
    } else {
      outcome.status = result.error().code();
      outcome.failed = true;
      outcome.error = result.error().message();
    }
    tracer_->End(span.Get(), std::move(outcome));
    if (thrown != nullptr) std::rethrow_exception(thrown);
    return std::move(result);
  }

 private:
  // In place of the caller's own, except baggage.
  void SetHeaders(const RecordedSpan& span, HttpHeaders* headers) const {
    const TraceHeaderOptions& options = tracer_->headers();
    for (const TraceHeaderForm form : options.forms) {
      for (const auto name : TraceHeaderNames(form)) headers->Remove(name);
    }
    WriteTraceHeaders(options, span.context(),
                      [&](std::string_view name, const std::string& value) {
                        headers->Set(name, value);
                      });
    if (!span.baggage().empty() && !headers->contains(kBaggage)) {
      headers->Append(kBaggage, span.baggage());
    }
  }

  const std::shared_ptr<Tracer> tracer_;
};

}  // namespace

std::shared_ptr<ServerInterceptor> NewTracingServerInterceptor(
    std::shared_ptr<Tracer> tracer) {
  return std::make_shared<TracingServerInterceptor>(std::move(tracer));
}

std::shared_ptr<ClientInterceptor> NewTracingClientInterceptor(
    std::shared_ptr<Tracer> tracer) {
  return std::make_shared<TracingClientInterceptor>(std::move(tracer));
}

std::shared_ptr<HttpClientInterceptor> NewTracingHttpClientInterceptor(
    std::shared_ptr<Tracer> tracer) {
  return std::make_shared<TracingHttpClientInterceptor>(std::move(tracer));
}

}  // namespace flare
