#include "flare/rpc/tracing/tracing_interceptors.h"

#include <google/protobuf/message.h>

#include <cstdint>
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
std::string SpanName(std::string_view method) {
  std::string name(method);
  if (const std::size_t dot = name.rfind('.'); dot != std::string::npos) {
    name[dot] = '/';
  }
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

// A span that runs. Empty: there was no memory for it.
struct Begun {
  RefPtr<RecordedSpan> span = nullptr;
  std::uint64_t parent_id = 0;

  bool recording() const { return span != nullptr && span->recording(); }
};

Begun Begin(const Tracer& tracer, SpanKind kind, std::string_view name,
            const TraceOrigin& origin, std::int64_t start_ns) {
  return {.span = tracer.Begin(kind, name, origin, start_ns),
          .parent_id = origin.parent ? origin.parent->span_id : 0};
}

// Without memory the span is lost, and counted: the call is what matters.
template <class F>
void IfThereIsMemory(Tracer* tracer, F&& f) {
  try {
    f();
  } catch (const std::bad_alloc&) {
    tracer->Drop();
  }
}

class TracingServerInterceptor final : public ServerInterceptor {
 public:
  explicit TracingServerInterceptor(std::shared_ptr<Tracer> tracer)
      : tracer_(std::move(tracer)) {}

  void Intercept(InterceptedCall& call, ServerNext& next) override {
    if (tracer_->Excludes(call.method())) return next.Run();
    Begun begun;
    IfThereIsMemory(tracer_.get(), [&] { begun = BeginCall(call); });
    next.Run();
    if (!begun.recording()) return;
    IfThereIsMemory(tracer_.get(), [&] { End(call, begun); });
  }

 private:
  Begun BeginCall(InterceptedCall& call) const {
    const TraceOrigin origin = OriginOf(call, tracer_->headers());
    tracer_->DropBaggage(origin.dropped_baggage);
    Begun begun = Begin(*tracer_, SpanKind::kServer, call.method(), origin,
                        ToSteadyNs(call.received_at()));
    if (begun.recording()) {
      // Now: the method may take the message's fields.
      CountMessage(call.request(), ObservedMessage::Direction::kReceived,
                   begun.span.Get());
      call.ObserveMessages(CountMessages(begun.span));
    }
    SetCurrentRecordedSpan(begun.span);
    return begun;
  }

  void End(InterceptedCall& call, const Begun& begun) const {
    RecordedSpan* const span = begun.span.Get();
    if (!call.failed()) {
      CountMessage(call.response(), ObservedMessage::Direction::kSent, span);
    }
    SpanData outcome = call.http_request() != nullptr ? HttpOutcome(call, span)
                                                      : CallOutcome(call);
    outcome.parent_id = begun.parent_id;
    outcome.parent_is_remote = begun.parent_id != 0;
    outcome.kind = SpanKind::kServer;
    outcome.peer = call.peer().ToString();
    tracer_->End(span, std::move(outcome));
  }

  static SpanData CallOutcome(const InterceptedCall& call) {
    SpanData outcome;
    outcome.name = SpanName(call.method());
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
  TraceHeaders(Tracer* tracer, const RecordedSpan& span, Metadata* metadata)
      : metadata_(metadata), before_(*metadata) {
    try {
      Write(tracer, span);
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
  void Write(Tracer* tracer, const RecordedSpan& span) {
    const TraceHeaderOptions& options = tracer->headers();
    for (const TraceHeaderForm form : options.forms) {
      for (const auto name : TraceHeaderNames(form)) metadata_->Remove(name);
    }
    // Without them if there is no room: the call is what matters.
    WriteTraceHeaders(options, span.context(),
                      [this](std::string_view name, const std::string& value) {
                        static_cast<void>(metadata_->Set(name, value));
                      });
    if (!span.baggage().empty() && !metadata_->Contains(kBaggage) &&
        !metadata_->Set(kBaggage, span.baggage()).ok()) {
      tracer->DropBaggage(CountBaggage(span.baggage()));
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
    if (tracer_->Excludes(call.method_name())) return next.Run();
    Begun begun;
    {
      std::optional<TraceHeaders> headers;
      IfThereIsMemory(tracer_.get(),
                      [&] { begun = BeginCall(call, &headers); });
      next.Run();
    }
    if (!begun.recording()) return;
    IfThereIsMemory(tracer_.get(), [&] { End(call, begun); });
  }

 private:
  Begun BeginCall(ClientInterceptedCall& call,
                  std::optional<TraceHeaders>* headers) const {
    Begun begun = Begin(*tracer_, SpanKind::kClient, call.method_name(),
                        CurrentOrigin(), NowNs());
    if (begun.recording()) call.ObserveMessages(CountMessages(begun.span));
    if (call.carries_metadata()) {
      headers->emplace(tracer_.get(), *begun.span,
                       call.controller().MutableMetadata());
    }
    return begun;
  }

  void End(ClientInterceptedCall& call, const Begun& begun) const {
    RecordedSpan* const span = begun.span.Get();
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
    outcome.parent_id = begun.parent_id;
    outcome.kind = SpanKind::kClient;
    outcome.name = SpanName(call.method_name());
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
    Begun begun;
    IfThereIsMemory(tracer_.get(),
                    [&] { begun = BeginRequest(server, request); });
    if (!begun.recording()) return next();
    const HttpMethod method = request->method();
    std::optional<Expected<HttpResponse>> result;
    std::exception_ptr thrown;
    try {
      result.emplace(next());
    } catch (...) {  // End() may suspend the fiber, which mustn't be in here.
      thrown = std::current_exception();
      if (thrown == nullptr) throw;  // The end of a thread.
    }
    IfThereIsMemory(tracer_.get(), [&] {
      End(begun, server, method, result ? &*result : nullptr);
    });
    if (thrown != nullptr) std::rethrow_exception(thrown);
    return *std::move(result);
  }

 private:
  Begun BeginRequest(const std::string& server, HttpRequest* request) const {
    Begun begun =
        Begin(*tracer_, SpanKind::kClient, server, CurrentOrigin(), NowNs());
    SetHeaders(*begun.span, request->headers());
    begun.span->Count({.direction = ObservedMessage::Direction::kSent,
                       .bytes = request->body_size()});
    return begun;
  }

  // `result` is null if an exception has ended the request.
  void End(const Begun& begun, const std::string& server, HttpMethod method,
           const Expected<HttpResponse>* result) const {
    RecordedSpan* const span = begun.span.Get();
    SpanData outcome;
    outcome.parent_id = begun.parent_id;
    outcome.kind = SpanKind::kClient;
    outcome.name = ToStringView(method);
    outcome.peer = server;
    if (result == nullptr) {
      outcome.status = rpc::ERROR_CANCELLED;
      outcome.failed = true;
      outcome.error = "an exception ended it";
    } else if (*result) {
      const HttpResponse& response = **result;
      outcome.status = static_cast<int>(response.status());
      outcome.failed = outcome.status >= 400;
      span->SetAttribute("http.response.status_code",
                         std::int64_t{outcome.status});
      span->Count({.direction = ObservedMessage::Direction::kReceived,
                   .bytes = response.body_size()});
    } else {
      outcome.status = result->error().code();
      outcome.failed = true;
      outcome.error = result->error().message();
    }
    tracer_->End(span, std::move(outcome));
  }

  // In place of the caller's own, except baggage. All of them, or without
  // memory none.
  void SetHeaders(const RecordedSpan& span, HttpHeaders* headers) const {
    const TraceHeaderOptions& options = tracer_->headers();
    HttpHeaders changed = *headers;
    for (const TraceHeaderForm form : options.forms) {
      for (const auto name : TraceHeaderNames(form)) changed.Remove(name);
    }
    WriteTraceHeaders(options, span.context(),
                      [&](std::string_view name, const std::string& value) {
                        changed.Append(name, value);
                      });
    if (!span.baggage().empty() && !changed.contains(kBaggage)) {
      changed.Append(kBaggage, span.baggage());
    }
    *headers = std::move(changed);
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
