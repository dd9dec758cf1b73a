// Calls go well where there is no memory for their spans, whichever allocation
// is the first one to fail.
#include "flare/base/sanitizer.h"

#if !defined(FLARE_ASAN) && !defined(FLARE_TSAN)

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/ref_ptr.h"
#include "flare/base/testing/replaced_new.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/extension.h"
#include "flare/rpc/http_client.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/server_fixture.h"
#include "flare/rpc/tracing/baggage.h"
#include "flare/rpc/tracing/scoped_span.h"
#include "flare/rpc/tracing/span_exporter.h"
#include "flare/rpc/tracing/trace_context.h"
#include "flare/rpc/tracing/trace_headers.h"
#include "flare/rpc/tracing/tracing.h"
#include "gtest/gtest.h"

namespace {

// How many allocations of this thread go well before one fails, and all behind
// it unless tracing_memory_fails_once; negative: none fails.
thread_local int tracing_memory_left = -1;
std::atomic<bool> tracing_memory_fails_once{false};
std::atomic<bool> tracing_memory_failed{false};

// Never inlined: a fiber may go on in another thread.
[[gnu::noinline]] void SetMemoryLeft(int allocations) {
  tracing_memory_left = allocations;
}

}  // namespace

void flare::testing::OnAllocation(std::size_t) {
  if (tracing_memory_left < 0) return;
  if (tracing_memory_left == 0) {
    tracing_memory_failed = true;
    if (tracing_memory_fails_once) tracing_memory_left = -1;
    throw std::bad_alloc();
  }
  --tracing_memory_left;
}

namespace flare::rpc::testing {
namespace {

enum class Side { kServer, kClient, kHttpClient, kNone };
enum class Phase { kBegin, kEnd };

// The part of the interceptors of tracing that has no memory.
struct Shortage {
  Side side = Side::kNone;
  Phase phase = Phase::kBegin;
  int allocations = 0;
};
Shortage shortage;

struct Unlimited {
  ~Unlimited() { SetMemoryLeft(-1); }
};

// Runs the rest, tracing included.
template <class F>
auto RunOutside(Side side, F rest) {
  const Unlimited at_last;
  if (shortage.side == side && shortage.phase == Phase::kBegin) {
    SetMemoryLeft(shortage.allocations);
  }
  return rest();
}

// Runs the rest, within tracing.
template <class F>
auto RunInside(Side side, F rest) {
  SetMemoryLeft(-1);
  struct AtLast {
    ~AtLast() {
      if (limits) SetMemoryLeft(shortage.allocations);
    }
    const bool limits;
  } at_last{shortage.side == side && shortage.phase == Phase::kEnd};
  return rest();
}

template <bool kOutside>
class Bracket final : public ServerInterceptor,
                      public ClientInterceptor,
                      public HttpClientInterceptor {
 public:
  static Extension AsExtension() {
    const auto bracket = std::make_shared<Bracket>();
    return {.server_interceptor = bracket,
            .client_interceptor = bracket,
            .http_client_interceptor = bracket};
  }

  void Intercept(InterceptedCall&, ServerNext& next) override {
    Run(Side::kServer, [&] { next.Run(); });
  }
  void Intercept(ClientInterceptedCall&, ClientNext& next) override {
    Run(Side::kClient, [&] { next.Run(); });
  }
  Expected<HttpResponse> Intercept(const std::string&, HttpRequest*,
                                   const HttpClientNext& next) override {
    return Run(Side::kHttpClient, [&] { return next(); });
  }

 private:
  template <class F>
  static auto Run(Side side, F rest) {
    if constexpr (kOutside) {
      return RunOutside(side, std::move(rest));
    } else {
      return RunInside(side, std::move(rest));
    }
  }
};

// A caller's own: no good one.
const std::string kOwnTraceparent = "mine";

class KeepNothing final : public SpanExporter {
  flare::Status Export(const SpanBatch&,
                       std::chrono::steady_clock::time_point) override {
    return {};
  }
};

class TracingNoMemoryTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    auto tracing = Tracing::Install(
        {.header_forms = {TraceHeaderForm::kW3c, TraceHeaderForm::kB3Multi},
         .baggage = true,
         .exporters = {exporter_},
         .export_interval = std::chrono::hours(1)});
    ASSERT_TRUE(tracing) << tracing.error();
    tracing_ = *std::move(tracing);
    inside_.emplace(Bracket<false>::AsExtension());
    server().AddHttpHandler(
        "/", NewHttpGetHandler([](const HttpRequest& request,
                                  HttpResponse* response, HttpServerContext*) {
          ExpectAllTraceHeadersOrNone(*request.headers());
          response->set_body("found");
        }));
    StartServer({"flare", "http"});
    channel_ = std::make_unique<RpcChannel>("flare://" + endpoint().ToString());
    http_client_ = std::make_unique<HttpClient>();
  }
  void TearDown() override {
    shortage = {};
    tracing_memory_fails_once = false;
    http_client_.reset();
    channel_.reset();
    ShutdownClientSide();
    StopServer();
    inside_.reset();
    tracing_.reset();  // In the runtime.
    ServerTest::TearDown();
  }

  void Call() {
    TestedCall call;
    call.controller.AddMetadata(kBaggage, "name=" + std::string(200, 'x'));
    call.controller.AddMetadata("own", std::string(200, 'y'));
    EXPECT_EQ(call.Start(channel_.get())->Await(), 0)
        << call.controller.ErrorText();
    // As the caller has left it.
    EXPECT_EQ(call.controller.MutableMetadata()->size(), 2u);
  }
  // Or else those that the caller has set.
  static void ExpectAllTraceHeadersOrNone(const HttpHeaders& headers) {
    const bool any = headers.TryGet("traceparent") != kOwnTraceparent;
    for (const char* name : {"x-b3-traceid", "x-b3-spanid", "x-b3-sampled"}) {
      EXPECT_EQ(headers.contains(name), any) << headers.ToString();
    }
  }
  void Get() {
    const auto response =
        http_client_->Get("http://" + endpoint().ToString() + "/",
                          {.headers = {"traceparent: " + kOwnTraceparent}});
    ASSERT_TRUE(response) << response.error();
    EXPECT_EQ(*response->body(), "found");
  }
  // Calls, with more memory each time, until there is enough of it. `others`:
  // allocations before those of tracing.
  template <class F>
  void ExpectCallsToGoWell(Side side, F call, int others = 0) {
    for (const Phase phase : {Phase::kBegin, Phase::kEnd}) {
      const std::uint64_t dropped = tracing_->statistics().dropped;
      int calls = 0;
      do {
        tracing_memory_failed = false;
        shortage = {
            .side = side, .phase = phase, .allocations = others + calls++};
        call();
      } while (tracing_memory_failed);
      EXPECT_GT(calls, 2);
      const std::uint64_t lost = tracing_->statistics().dropped - dropped;
      // One that only isn't the current one in its call isn't lost.
      EXPECT_GE(lost + 2, static_cast<std::uint64_t>(calls));
    }
  }

  const InstalledExtension outside_{Bracket<true>::AsExtension()};
  const std::shared_ptr<KeepNothing> exporter_ =
      std::make_shared<KeepNothing>();
  std::unique_ptr<Tracing> tracing_;
  std::optional<InstalledExtension> inside_;
  std::unique_ptr<RpcChannel> channel_;
  std::unique_ptr<HttpClient> http_client_;
};

TEST_F(TracingNoMemoryTest, ServedCallsGoWell) {
  ExpectCallsToGoWell(Side::kServer, [&] { Call(); });
}

TEST_F(TracingNoMemoryTest, CallsOfClientsGoWell) {
  ExpectCallsToGoWell(Side::kClient, [&] { Call(); });
}

TEST_F(TracingNoMemoryTest, RequestsOfHttpClientsGoWell) {
  // The client itself names the server to each of the interceptors, before
  // tracing and behind it.
  tracing_memory_fails_once = true;
  const auto get = [&] {
    try {
      Get();
    } catch (const std::bad_alloc&) {
      EXPECT_EQ(tracing_->recent_spans().at(0)->error, "an exception ended it");
      tracing_memory_failed = false;
    }
  };
  ExpectCallsToGoWell(Side::kHttpClient, get, /*others=*/1);
}

SpanBatch SpansOf(const Tracing& tracing, SpanKind kind) {
  SpanBatch spans = tracing.recent_spans();
  std::erase_if(spans, [kind](const auto& span) { return span->kind != kind; });
  return spans;
}

TEST_F(TracingNoMemoryTest, PartsOfMethodsThrowNothing) {
  for (const bool once : {false, true}) {
    tracing_memory_fails_once = once;
    service().on_call = [&](TestCall call) {
      const std::string text(200, 'z');
      int runs = 0;
      do {
        tracing_memory_failed = false;
        const Unlimited at_last;
        SetMemoryLeft(runs++);
        ScopedSpan part(text);
        part.SetAttribute("name", text);
        part.SetAttribute(text, 1);
        part.AddEvent(text);
        part.SetFailed(text);
      } while (tracing_memory_failed);
      EXPECT_GT(runs, 2);
      FlexibleService::Echo(call);
    };
    Call();
  }
  ASSERT_TRUE(fiber::testing::Eventually(
      [&] { return SpansOf(*tracing_, SpanKind::kServer).size() == 2; }));
  // Nothing that was meant for a lost part.
  for (const auto& span : SpansOf(*tracing_, SpanKind::kServer)) {
    EXPECT_EQ(span->attributes.size() + span->dropped_attributes, 0u);
    EXPECT_EQ(span->events.size() + span->dropped_events, 0u);
  }
  std::size_t dropped = 0;
  for (const auto& span : SpansOf(*tracing_, SpanKind::kInternal)) {
    EXPECT_LE(span->dropped_attributes + span->dropped_events, 1u);
    dropped += span->dropped_attributes + span->dropped_events;
  }
  EXPECT_GE(dropped, 3u);  // Two attributes and an event, of a part each.
}

TEST_F(TracingNoMemoryTest, PartsBeginNoTracesInContextsOfTheProgramsOwn) {
  tracing_memory_fails_once = true;
  tracing_memory_failed = false;
  std::vector<RefPtr<fiber::ExecutionContext>> contexts;
  while (!tracing_memory_failed) {  // Until the pool of places is empty.
    contexts.push_back(fiber::ExecutionContext::Create());
    contexts.back()->Execute([] {
      const Unlimited at_last;
      SetMemoryLeft(0);
      const ScopedSpan part("part");
    });
  }
  EXPECT_TRUE(tracing_->recent_spans().empty());
}

}  // namespace
}  // namespace flare::rpc::testing

#endif  // sanitizers bring their own operators
