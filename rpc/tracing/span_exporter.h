// Takes spans out of the process: to a collector (otlp_exporter.h), a file, a
// test.
//
//   class PrintSpans : public flare::SpanExporter {
//     flare::Status Export(const flare::SpanBatch& spans,
//                          std::chrono::steady_clock::time_point) override {
//       for (const auto& span : spans) std::cout << span->name << '\n';
//       return {};
//     }
//   };
#ifndef FLARE_RPC_TRACING_SPAN_EXPORTER_H_
#define FLARE_RPC_TRACING_SPAN_EXPORTER_H_

#include <chrono>
#include <memory>
#include <vector>

#include "flare/base/status.h"
#include "flare/rpc/tracing/span_data.h"

namespace flare {

using SpanBatch = std::vector<std::shared_ptr<const SpanData>>;

class SpanExporter {
 public:
  virtual ~SpanExporter() = default;

  // Called by one fiber, in no execution context, for one batch at a time. May
  // block, until `deadline` at most: spans wait meanwhile, and are dropped if
  // there are too many. A batch that fails, by an error or an exception, is
  // dropped and counted, and the log says why; other exporters get it all the
  // same.
  virtual Status Export(const SpanBatch& spans,
                        std::chrono::steady_clock::time_point deadline) = 0;
};

}  // namespace flare

#endif  // FLARE_RPC_TRACING_SPAN_EXPORTER_H_
