#include "flare/rpc/tracing/tracing.h"

#include <gflags/gflags.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "flare/fiber/runtime.h"
#include "flare/rpc/tracing/batch_exporter.h"
#include "flare/rpc/tracing/otlp_exporter.h"
#include "flare/rpc/tracing/tracer.h"
#include "flare/rpc/tracing/traces_page.h"
#include "flare/rpc/tracing/tracing_interceptors.h"

namespace flare {
namespace {

// Two would make two spans of each call.
std::atomic<bool> installed{false};

Status CheckOptions(const TracingOptions& options) {
  const auto wrong = [](const char* option, const char* rule) {
    return Status(
        EINVAL, std::string("TracingOptions::") + option + " must be " + rule);
  };
  // NaN is wrong, too.
  if (!(options.sample_ratio >= 0 && options.sample_ratio <= 1)) {
    return wrong("sample_ratio", "from 0 to 1");
  }
  if (options.header_forms.empty()) {
    return wrong("header_forms", "of one form at least");
  }
  if (options.max_baggage_bytes < 1 ||
      options.max_baggage_bytes > kMaxBaggageBytes) {
    return wrong("max_baggage_bytes", "from 1 to 8192");
  }
  if (options.recent_spans < 1) return wrong("recent_spans", "at least 1");
  if (options.max_batch < 1) return wrong("max_batch", "at least 1");
  if (options.max_queue < options.max_batch) {
    return wrong("max_queue", "at least max_batch");
  }
  if (options.export_interval.count() < 1) {
    return wrong("export_interval", "positive");
  }
  if (options.export_timeout.count() < 1) {
    return wrong("export_timeout", "positive");
  }
  return {};
}

// Null: there is no exporter.
Expected<std::unique_ptr<BatchExporter>, Status> MakeExporter(
    const TracingOptions& options) {
  std::vector<std::shared_ptr<SpanExporter>> exporters = options.exporters;
  if (!options.collector.empty()) {
    auto exporter = NewOtlpExporter(
        {.collector = options.collector,
         .service_name = options.service_name.empty()
                             ? gflags::ProgramInvocationShortName()
                             : options.service_name,
         .headers = options.collector_headers});
    if (!exporter) return exporter.error();
    exporters.push_back(*std::move(exporter));
  }
  if (exporters.empty()) return std::unique_ptr<BatchExporter>();
  return std::make_unique<BatchExporter>(
      BatchExporter::Options{.exporters = std::move(exporters),
                             .max_queue = options.max_queue,
                             .max_batch = options.max_batch,
                             .interval = options.export_interval,
                             .timeout = options.export_timeout});
}

Extension ExtensionOf(const std::shared_ptr<Tracer>& tracer) {
  return {.server_interceptor = NewTracingServerInterceptor(tracer),
          .client_interceptor = NewTracingClientInterceptor(tracer),
          .http_client_interceptor = NewTracingHttpClientInterceptor(tracer),
          .page = Extension::Page{
              .path = "/inspect/traces",
              .what = "spans of calls, the last and the slowest",
              .write = [tracer](const HttpRequest& request,
                                HttpResponse* response) {
                WriteTracesPage(*tracer, request, response);
              }}};
}

}  // namespace

struct Tracing::Turn {
  // relaxed: see Install().
  ~Turn() { installed.store(false, std::memory_order_relaxed); }
};

Expected<std::unique_ptr<Tracing>, Status> Tracing::Install(
    TracingOptions options) {
  if (Status status = CheckOptions(options); !status.ok()) return status;
  if (!fiber::IsRuntimeRunning()) {
    return Status(EINVAL,
                  "the fiber runtime isn't running: use flare::Start()");
  }
  // relaxed: nothing but the flag is shared.
  if (installed.exchange(true, std::memory_order_relaxed)) {
    return Status(EBUSY, "tracing is installed already");
  }
  auto turn = std::make_unique<Turn>();
  auto exporter = MakeExporter(options);
  if (!exporter) return exporter.error();
  auto tracer = std::make_shared<Tracer>(
      Tracer::Options{
          .sample_ratio = options.sample_ratio,
          .sampler = std::move(options.sampler),
          .headers = {.forms = std::move(options.header_forms),
                      .baggage = options.baggage,
                      .max_baggage_bytes = options.max_baggage_bytes},
          .excluded = std::move(options.excluded),
          .recent_spans = options.recent_spans},
      *std::move(exporter));
  return std::unique_ptr<Tracing>(
      new Tracing(std::move(turn), std::move(tracer)));
}

Tracing::Tracing(std::unique_ptr<Turn> turn, std::shared_ptr<Tracer> tracer)
    : turn_(std::move(turn)),
      tracer_(std::move(tracer)),
      extension_(ExtensionOf(tracer_)) {
  Tracer::SetInstalled(tracer_);
}

Tracing::~Tracing() {
  Tracer::SetInstalled(nullptr);
  if (tracer_->exporter() != nullptr) tracer_->exporter()->Close();
}

Tracing::Statistics Tracing::statistics() const {
  Statistics all = {.dropped = tracer_->dropped(),
                    .dropped_baggage = tracer_->dropped_baggage()};
  if (tracer_->exporter() == nullptr) return all;
  const BatchExporter::Statistics s = tracer_->exporter()->statistics();
  all.exported = s.exported;
  all.failed = s.failed;
  return all;
}

SpanBatch Tracing::recent_spans() const { return tracer_->recent().Read(); }

}  // namespace flare
