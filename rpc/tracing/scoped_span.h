// Spans of parts of a method: where its time goes between its calls.
//
//   void Resize(const ResizeRequest& request, ...) override {
//     ...
//     {
//       flare::ScopedSpan part("decode");
//       part.SetAttribute("bytes", request.picture().size());
//       if (!Decode(request.picture())) part.SetFailed("no picture");
//     }                                            // It ends here.
//     flare::ScopedSpan part("scale");
//     ...
//   }
//
// A part is a child of the current span (span.h), and is itself the current one
// until it ends: for this fiber, and for all that the execution context goes
// with (fiber/execution_context.h), such as fiber::Async, children of a
// TaskGroup, and calls, which are children of the part. Parts may have parts.
//
// Names should be few, as those of functions are. Facts of a single request
// belong into attributes.
#ifndef FLARE_RPC_TRACING_SCOPED_SPAN_H_
#define FLARE_RPC_TRACING_SCOPED_SPAN_H_

#include <memory>
#include <string_view>

#include "flare/rpc/tracing/span.h"

namespace flare {

// The handle of the part's span, from construction to the end of the scope, in
// which it has to be destroyed by the fiber (or thread) that made it, before
// those that were made earlier: not behind a co_await, for one. Else the
// process ends with a text. Copies of the handle as a Span may go anywhere.
//
// | the code runs                               | there is          |
// | ------------------------------------------- | ----------------- |
// | in a call whose trace is sampled            | a span            |
// | in a call whose trace isn't                 | none, see below   |
// | in a call that isn't traced (excluded), or  | none              |
// | in another context of the program's own     |                   |
// | in no execution context: a job of a program | a trace of its own|
// | without tracing, or without memory for it   | none              |
//
// Where there is none, nothing is recorded, and the handle is empty; in a call
// whose trace isn't sampled it names that trace. Nothing is allocated then,
// except by the first one in such a context. Never blocks; the end of a sampled
// one takes the locks of the page and of the exporter for a moment.
class [[nodiscard]] ScopedSpan : public Span {
 public:
  // Copies the name, if there is a span.
  explicit ScopedSpan(std::string_view name);
  ~ScopedSpan();
  ScopedSpan(const ScopedSpan&) = delete;
  ScopedSpan& operator=(const ScopedSpan&) = delete;

  // The part has failed, as it has if an exception leaves the scope; the last
  // text stays.
  void SetFailed(std::string_view error);

 private:
  struct Part;

  static std::unique_ptr<Part> Begin(std::string_view name);

  std::unique_ptr<Part> part_;  // Null: there is no span.
};

}  // namespace flare

#endif  // FLARE_RPC_TRACING_SCOPED_SPAN_H_
