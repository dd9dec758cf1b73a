#include "flare/rpc/tracing/tracing_interceptors.h"

#include <google/protobuf/message.h>

#include <exception>
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

// The parent that the headers of a request name. More than one `traceparent` is
// as good as none.
std::optional<TraceContext> ParentOf(
    const std::vector<std::string_view>& traceparents,
    const std::vector<std::string_view>& tracestates) {
  if (traceparents.size() != 1) return std::nullopt;
  auto parent = ParseTraceparent(traceparents.front());
  if (parent) parent->state = JoinTracestate(tracestates);
  return parent;
}

std::optional<TraceContext> ParentOf(const InterceptedCall& call) {
  if (const HttpRequest* const request = call.http_request()) {
    const HttpHeaders& headers = *request->headers();
    return ParentOf(headers.TryGetMultiple(kTraceparent),
                    headers.TryGetMultiple(kTracestate));
  }
  const Metadata& metadata = call.controller().GetRequestMetadata();
  if (metadata.empty()) return std::nullopt;
  return ParentOf(metadata.GetAll(kTraceparent), metadata.GetAll(kTracestate));
}

// The span of the call that is served; nullopt: there is none.
std::optional<TraceContext> CurrentContext() {
  const RefPtr<RecordedSpan>* const current = CurrentRecordedSpan();
  if (current == nullptr || *current == nullptr) return std::nullopt;
  return (*current)->context();
}

class TracingServerInterceptor final : public ServerInterceptor {
 public:
  explicit TracingServerInterceptor(std::shared_ptr<Tracer> tracer)
      : tracer_(std::move(tracer)) {}

  void Intercept(InterceptedCall& call, ServerNext& next) override {
    if (tracer_->Excludes(call.method())) return next.Run();
    const std::optional<TraceContext> parent = ParentOf(call);
    const RefPtr<RecordedSpan> span =
        tracer_->Begin(SpanKind::kServer, call.method(), parent,
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
    if (!call.failed()) {
      CountMessage(call.response(), ObservedMessage::Direction::kSent,
                   span.Get());
    }
    SpanData outcome = call.http_request() != nullptr
                           ? HttpOutcome(call, span.Get())
                           : CallOutcome(call);
    outcome.parent_id = parent ? parent->span_id : 0;
    outcome.parent_is_remote = parent.has_value();
    outcome.kind = SpanKind::kServer;
    outcome.peer = call.peer().ToString();
    tracer_->End(span.Get(), std::move(outcome));
  }

 private:
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
// long as it lives.
class TraceHeaders {
 public:
  TraceHeaders(const TraceContext& context, Metadata* metadata)
      : metadata_(metadata) {
    for (const auto& [name, value] : *metadata_) {
      if (name == kTraceparent || name == kTracestate) {
        callers_own_.emplace_back(name, value);
      }
    }
    // Without them if there is no room: the call is what matters.
    static_cast<void>(metadata_->Set(kTraceparent, context.ToTraceparent()));
    metadata_->Remove(kTracestate);
    if (!context.state.empty()) {
      static_cast<void>(metadata_->Set(kTracestate, context.state));
    }
  }
  // The caller's next call must not be sent with them.
  ~TraceHeaders() {
    metadata_->Remove(kTraceparent);
    metadata_->Remove(kTracestate);
    for (const auto& [name, value] : callers_own_) {
      static_cast<void>(metadata_->Add(name, value));
    }
  }
  TraceHeaders(const TraceHeaders&) = delete;
  TraceHeaders& operator=(const TraceHeaders&) = delete;

 private:
  Metadata* const metadata_;
  std::vector<std::pair<std::string, std::string>> callers_own_;
};

class TracingClientInterceptor final : public ClientInterceptor {
 public:
  explicit TracingClientInterceptor(std::shared_ptr<Tracer> tracer)
      : tracer_(std::move(tracer)) {}

  void Intercept(ClientInterceptedCall& call, ClientNext& next) override {
    const std::string_view method = call.method().full_name();
    if (tracer_->Excludes(method)) return next.Run();
    const std::optional<TraceContext> parent = CurrentContext();
    const RefPtr<RecordedSpan> span =
        tracer_->Begin(SpanKind::kClient, method, parent, NowNs());
    RpcClientController& controller = call.controller();
    {
      std::optional<TraceHeaders> headers;
      if (call.carries_metadata()) {
        headers.emplace(span->context(), controller.MutableMetadata());
      }
      if (span->recording()) call.ObserveMessages(CountMessages(span));
      next.Run();
    }
    if (!span->recording()) return;
    // Messages of streaming calls were observed, all of them.
    if (!IsStreaming(call.method())) {
      CountMessage(call.request(), ObservedMessage::Direction::kSent,
                   span.Get());
      if (!controller.Failed()) {
        CountMessage(call.response(), ObservedMessage::Direction::kReceived,
                     span.Get());
      }
    }
    SpanData outcome;
    outcome.parent_id = parent ? parent->span_id : 0;
    outcome.kind = SpanKind::kClient;
    outcome.name = SpanName(call.method());
    outcome.status = controller.ErrorCode();
    outcome.failed = controller.Failed();
    if (outcome.failed) outcome.error = controller.ErrorText();
    if (!controller.GetRemotePeer().empty()) {
      outcome.peer = controller.GetRemotePeer().ToString();
    }
    tracer_->End(span.Get(), std::move(outcome));
  }

 private:
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
    const std::optional<TraceContext> parent = CurrentContext();
    const RefPtr<RecordedSpan> span =
        tracer_->Begin(SpanKind::kClient, server, parent, NowNs());
    const TraceContext& context = span->context();
    HttpHeaders* const headers = request->headers();
    headers->Set(kTraceparent, context.ToTraceparent());
    headers->Remove(kTracestate);
    if (!context.state.empty()) headers->Append(kTracestate, context.state);
    if (!span->recording()) return next();
    span->Count({.direction = ObservedMessage::Direction::kSent,
                 .bytes = request->body_size()});
    SpanData outcome;
    outcome.parent_id = parent ? parent->span_id : 0;
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
