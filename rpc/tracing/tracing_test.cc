// Traces from end to end: real servers and channels, over each protocol.
#include "flare/rpc/tracing/tracing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/future.h"
#include "flare/base/ref_ptr.h"
#include "flare/fiber/async.h"
#include "flare/fiber/event.h"
#include "flare/fiber/future.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/http_client.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/server_fixture.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "flare/rpc/tracing/baggage.h"
#include "flare/rpc/tracing/recorded_span.h"
#include "flare/rpc/tracing/scoped_span.h"
#include "flare/rpc/tracing/trace_context.h"
#include "flare/rpc/tracing/trace_headers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using fiber::testing::Eventually;
using ::testing::HasSubstr;

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kParent[] =
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

using SpanPtr = std::shared_ptr<const SpanData>;

// Installs tracing, and finds spans.
class Traces {
 public:
  void Install(TracingOptions options = {}) {
    auto tracing = Tracing::Install(std::move(options));
    ASSERT_TRUE(tracing) << tracing.error().ToString();
    tracing_ = *std::move(tracing);
  }
  void Reset() { tracing_.reset(); }

  // Waits for that many, and gives them in the order of their beginning.
  std::vector<SpanPtr> Await(std::size_t n) {
    std::vector<SpanPtr> spans;
    EXPECT_TRUE(Eventually([&] {
      spans = tracing_->recent_spans();
      return spans.size() >= n;
    }));
    EXPECT_EQ(spans.size(), n);
    return spans;
  }
  std::size_t Count() { return tracing_->recent_spans().size(); }
  Tracing::Statistics statistics() { return tracing_->statistics(); }

 private:
  std::unique_ptr<Tracing> tracing_;
};

SpanPtr Find(const std::vector<SpanPtr>& spans, SpanKind kind,
             std::string_view name) {
  for (const SpanPtr& span : spans) {
    if (span->kind == kind && span->name.ends_with(name)) return span;
  }
  ADD_FAILURE() << "no span of " << name;
  return std::make_shared<const SpanData>();
}

void ExpectChild(const SpanPtr& child, const SpanPtr& parent, bool remote) {
  EXPECT_EQ(child->context.trace_id, parent->context.trace_id);
  EXPECT_EQ(child->parent_id, parent->context.span_id);
  EXPECT_NE(child->context.span_id, parent->context.span_id);
  EXPECT_EQ(child->parent_is_remote, remote);
}

class TracingTest : public ServerTest {
 protected:
  void TearDown() override {
    channel_.reset();
    ShutdownClientSide();
    ServerTest::TearDown();
    traces_.Reset();
  }

  void Serve(TracingOptions options = {}, const std::string& scheme = "flare") {
    traces_.Install(std::move(options));
    StartServer({"flare", "http+pb", "http+proto3-json", "baidu-std", "bolt",
                 "trpc", "grpc", "http"});
    channel_ =
        std::make_unique<RpcChannel>(scheme + "://" + endpoint().ToString());
  }

  // A call of Other() that blocks, as a method makes it.
  void CallOther(const Metadata& metadata = {}) {
    RpcClientController controller;
    *controller.MutableMetadata() = metadata;
    TestRequest request;
    TestResponse response;
    TestService_Stub(channel_.get())
        .Other(&controller, &request, &response, nullptr);
    EXPECT_FALSE(controller.Failed()) << controller.ErrorText();
  }

  // The reply to a GET, with further lines in its head.
  std::string Get(const std::string& path, const std::string& lines = "") {
    RawClient client(endpoint());
    client.Send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + lines +
                "Connection: close\r\n\r\n");
    return client.ReadAll();
  }

  Traces traces_;
  std::unique_ptr<RpcChannel> channel_;
};

class TracingProtocolsTest : public TracingTest,
                             public ::testing::WithParamInterface<const char*> {
};
INSTANTIATE_TEST_SUITE_P(Protocols, TracingProtocolsTest,
                         ::testing::Values("flare", "http+pb",
                                           "http+proto3-json", "baidu-std",
                                           "bolt", "trpc", "grpc"));

TEST_P(TracingProtocolsTest, ACallHasASpanOnEitherSide) {
  Serve({}, GetParam());
  TestedCall call;
  ASSERT_EQ(call.Start(channel_.get())->Await(), 0)
      << call.controller.ErrorText();
  const auto spans = traces_.Await(2);
  const SpanPtr client = Find(spans, SpanKind::kClient, "TestService/Call");
  const SpanPtr server = Find(spans, SpanKind::kServer, "TestService/Call");
  EXPECT_EQ(client->name, "flare.rpc.testing.TestService/Call");
  EXPECT_EQ(client->parent_id, 0u);
  ExpectChild(server, client, /*remote=*/true);
  EXPECT_EQ(client->peer, endpoint().ToString());
  EXPECT_THAT(server->peer, HasSubstr("127.0.0.1:"));
  for (const SpanPtr& span : spans) {
    EXPECT_EQ(span->status, 0);
    EXPECT_FALSE(span->failed);
    EXPECT_GT(span->duration_ns, 0);
    EXPECT_GT(span->start_unix_ns, 1'700'000'000'000'000'000);
    EXPECT_EQ(span->received.messages, 1u);
    EXPECT_EQ(span->sent.messages, 1u);
    EXPECT_EQ(span->sent.bytes, call.request.ByteSizeLong());
  }
  EXPECT_GE(client->duration_ns, server->duration_ns);
}

TEST_P(TracingProtocolsTest, FailuresAreInBothSpans) {
  service().on_call = [](TestCall call) {
    call.controller->SetFailed(4711, "later");
    call.Reply();
  };
  Serve({}, GetParam());
  TestedCall call;
  EXPECT_EQ(call.Start(channel_.get())->Await(), 4711);
  for (const SpanPtr& span : traces_.Await(2)) {
    EXPECT_TRUE(span->failed);
    EXPECT_EQ(span->status, 4711);
    EXPECT_EQ(span->error, "later");
  }
}

TEST_P(TracingProtocolsTest, CallsOfAMethodAreItsChildren) {
  service().on_call = [this](TestCall call) {
    CallOther();
    FlexibleService::Echo(call);
  };
  Serve({}, GetParam());
  TestedCall call;
  ASSERT_EQ(call.Start(channel_.get())->Await(), 0);
  const auto spans = traces_.Await(4);
  const SpanPtr outer = Find(spans, SpanKind::kServer, "/Call");
  const SpanPtr client = Find(spans, SpanKind::kClient, "/Other");
  ExpectChild(client, outer, /*remote=*/false);
  ExpectChild(Find(spans, SpanKind::kServer, "/Other"), client,
              /*remote=*/true);
  ExpectChild(outer, Find(spans, SpanKind::kClient, "/Call"), true);
}

// A whole trace isn't recorded, but has its id everywhere.
TEST_P(TracingProtocolsTest, TracesThatAreNotSampledHaveAnId) {
  std::string seen_by_call, seen_by_other, id;
  service().on_call = [&](TestCall call) {
    seen_by_call = *call.controller->GetRequestMetadata().Get(kTraceparent);
    id = CurrentSpan().trace_id();
    EXPECT_FALSE(CurrentSpan().recording());
    CurrentSpan().AddEvent("nobody hears it");
    CallOther();
    FlexibleService::Echo(call);
  };
  service().on_other = [&](TestCall call) {
    seen_by_other = *call.controller->GetRequestMetadata().Get(kTraceparent);
    FlexibleService::Echo(call);
  };
  Serve({.sample_ratio = 0}, GetParam());
  TestedCall call;
  ASSERT_EQ(call.Start(channel_.get())->Await(), 0);
  ASSERT_EQ(id.size(), 32u);
  for (const std::string& seen : {seen_by_call, seen_by_other}) {
    EXPECT_EQ(seen.substr(3, 32), id);
    EXPECT_EQ(seen.substr(53), "00");
  }
  EXPECT_NE(seen_by_call, seen_by_other);
  EXPECT_EQ(traces_.Count(), 0u);
}

TEST_F(TracingTest, FibersOfAMethodBelongToItsSpan) {
  service().on_call = [this](TestCall call) {
    auto first = fiber::Async([&] { CallOther(); });
    auto second = fiber::Async([&] { CurrentSpan().AddEvent("from Async"); });
    fiber::BlockingGet(std::move(first));
    fiber::BlockingGet(std::move(second));
    FlexibleService::Echo(call);
  };
  Serve();
  TestedCall call;
  ASSERT_EQ(call.Start(channel_.get())->Await(), 0);
  const auto spans = traces_.Await(4);
  const SpanPtr outer = Find(spans, SpanKind::kServer, "/Call");
  ExpectChild(Find(spans, SpanKind::kClient, "/Other"), outer, false);
  ASSERT_EQ(outer->events.size(), 1u);
  EXPECT_EQ(outer->events[0].name, "from Async");
  EXPECT_GE(outer->events[0].unix_ns, outer->start_unix_ns);
}

TEST_F(TracingTest, MethodsAddWhatTheyKnow) {
  Span kept;
  service().on_call = [&](TestCall call) {
    Span span = CurrentSpan();
    EXPECT_TRUE(span.recording());
    span.SetAttribute("text", "hello");
    span.SetAttribute("number", 42);
    span.SetAttribute("number", 43);
    span.SetAttribute("share", 0.5);
    span.SetAttribute("good", true);
    span.SetAttribute("long", std::string(5000, 'x'));
    span.SetAttribute("bytes\xff", "\xc3\xa4\xc0\x80\xed\xa0\x80");
    for (int i = 0; i != 100; ++i) {
      span.SetAttribute("many" + std::to_string(i), i);
      span.AddEvent("event");
    }
    kept = span;
    FlexibleService::Echo(call);
  };
  Serve();
  TestedCall call;
  ASSERT_EQ(call.Start(channel_.get())->Await(), 0);
  const SpanPtr span = Find(traces_.Await(2), SpanKind::kServer, "/Call");
  ASSERT_EQ(span->attributes.size(), SpanData::kMaxAttributes);
  EXPECT_EQ(span->attributes[0].name, "text");
  EXPECT_EQ(std::get<std::string>(span->attributes[0].value), "hello");
  EXPECT_EQ(std::get<std::int64_t>(span->attributes[1].value), 43);
  EXPECT_EQ(std::get<double>(span->attributes[2].value), 0.5);
  EXPECT_EQ(std::get<bool>(span->attributes[3].value), true);
  EXPECT_EQ(std::get<std::string>(span->attributes[4].value).size(),
            SpanData::kMaxValueBytes);
  // Collectors refuse texts that aren't UTF-8.
  EXPECT_EQ(span->attributes[5].name, "bytes?");
  EXPECT_EQ(std::get<std::string>(span->attributes[5].value), "\xc3\xa4?????");
  EXPECT_EQ(span->dropped_attributes, 106 - SpanData::kMaxAttributes);
  EXPECT_EQ(span->events.size(), SpanData::kMaxEvents);
  EXPECT_EQ(span->dropped_events, 100 - SpanData::kMaxEvents);
  kept.SetAttribute("late", 1);  // After its end.
  kept.AddEvent("late");
  EXPECT_EQ(kept.trace_id(), span->context.trace_id.ToString());
}

TEST_F(TracingTest, OutsideOfCallsThereIsNoSpan) {
  Serve();
  Span span = CurrentSpan();
  EXPECT_FALSE(span.recording());
  EXPECT_EQ(span.trace_id(), "");
  EXPECT_EQ(span.context().span_id, 0u);
  span.SetAttribute("a", 1);
  span.AddEvent("b");
}

// Its next call, by a channel that isn't traced, must not have them.
TEST_F(TracingTest, HeadersAreNotLeftWithTheCaller) {
  Serve();
  RpcClientController controller;
  controller.AddMetadata("tenant", "north");
  controller.AddMetadata("traceparent", "of another call");
  TestRequest request;
  TestResponse response;
  OnFiber([&] {
    TestService_Stub(channel_.get())
        .Call(&controller, &request, &response, nullptr);
  });
  EXPECT_FALSE(controller.Failed()) << controller.ErrorText();
  EXPECT_EQ(controller.MutableMetadata()->size(), 2u);
  EXPECT_EQ(controller.MutableMetadata()->Get("tenant"), "north");
  // The caller's own.
  EXPECT_EQ(controller.MutableMetadata()->Get("traceparent"),
            "of another call");
  const auto spans = traces_.Await(2);
  ExpectChild(Find(spans, SpanKind::kServer, "/Call"),
              Find(spans, SpanKind::kClient, "/Call"), true);
}

TEST_F(TracingTest, FullMetadataIsSentWithoutHeaders) {
  Serve();
  TestedCall call;
  for (std::size_t i = 0; i != Metadata::kMaxEntries; ++i) {
    call.controller.AddMetadata("name", "value");
  }
  ASSERT_EQ(call.Start(channel_.get())->Await(), 0)
      << call.controller.ErrorText();
  const auto spans = traces_.Await(2);
  EXPECT_EQ(Find(spans, SpanKind::kServer, "/Call")->parent_id, 0u);
}

TEST_F(TracingTest, ExceptionsOfAMethodAreFailures) {
  service().on_call = [](TestCall) { throw std::runtime_error("out of luck"); };
  Serve();
  TestedCall call;
  EXPECT_EQ(call.Start(channel_.get())->Await(), STATUS_FAILED);
  const SpanPtr span = Find(traces_.Await(2), SpanKind::kServer, "/Call");
  EXPECT_TRUE(span->failed);
  EXPECT_THAT(span->error, HasSubstr("out of luck"));
}

TEST_F(TracingTest, CancelledCallsHaveFailedOnBothSides) {
  fiber::Event began;
  service().on_call = [&](TestCall call) {
    fiber::Event cancelled;
    const std::stop_callback stopped(call.controller->GetStopToken(),
                                     [&] { cancelled.Set(); });
    began.Set();
    cancelled.Wait();
    FlexibleService::Echo(call);
  };
  Serve();
  TestedCall call;
  call.Start(channel_.get());
  began.Wait();
  call.controller.StartCancel();
  EXPECT_NE(call.Await(), 0);
  const auto spans = traces_.Await(2);
  EXPECT_TRUE(Find(spans, SpanKind::kClient, "/Call")->failed);
  const SpanPtr server = Find(spans, SpanKind::kServer, "/Call");
  EXPECT_TRUE(server->failed);
  EXPECT_THAT(server->error, HasSubstr("cancelled"));
}

TEST_F(TracingTest, CallsThatFindNoServerHaveASpan) {
  traces_.Install();
  RpcChannel nobody("flare://127.0.0.1:1");
  TestedCall call;
  EXPECT_NE(call.Start(&nobody)->Await(), 0);
  const SpanPtr span = traces_.Await(1)[0];
  EXPECT_TRUE(span->failed);
  EXPECT_EQ(span->status, call.controller.ErrorCode());
  EXPECT_EQ(span->kind, SpanKind::kClient);
}

// --- HTTP handlers ---------------------------------------------------------

TEST_F(TracingTest, HandlersBelongToTheTraceOfTheirCaller) {
  server().AddHttpHandler(
      "/hello",
      NewHttpGetHandler([this](const HttpRequest&, HttpResponse* response,
                               HttpServerContext*) {
        CallOther();
        response->set_body(CurrentSpan().trace_id());
      }));
  server().AddHttpHandler(
      "/broken", NewHttpGetHandler(
                     [](const HttpRequest&, HttpResponse*, HttpServerContext*) {
                       throw std::runtime_error("oh");
                     }));
  Metadata seen;
  service().on_other = [&](TestCall call) {
    seen = call.controller->GetRequestMetadata();
    FlexibleService::Echo(call);
  };
  Serve({.sample_ratio = 0});  // The caller has decided already.
  EXPECT_THAT(Get("/hello", std::string("TraceParent: ") + kParent +
                                "\r\nTracestate: a=1\r\ntracestate: b=2\r\n"),
              HasSubstr(kTrace));
  EXPECT_EQ(seen.Get(kTracestate), "a=1,b=2");
  EXPECT_EQ(seen.Get(kTraceparent)->substr(3, 32), kTrace);
  auto spans = traces_.Await(3);
  const SpanPtr span = Find(spans, SpanKind::kServer, "GET");
  EXPECT_EQ(span->context.trace_id.ToString(), kTrace);
  EXPECT_EQ(span->parent_id, 0xb7ad6b7169203331u);
  EXPECT_TRUE(span->parent_is_remote);
  EXPECT_EQ(span->status, 200);
  EXPECT_FALSE(span->failed);
  EXPECT_EQ(std::get<std::string>(span->attributes.at(0).value), "/hello");
  ExpectChild(Find(spans, SpanKind::kClient, "/Other"), span, false);

  Get("/broken", std::string("traceparent: ") + kParent + "\r\n");
  spans = traces_.Await(4);
  EXPECT_TRUE(std::ranges::any_of(spans, [](const SpanPtr& each) {
    return each->status == 500 && each->failed;
  }));
}

TEST_F(TracingTest, RequestsOfHttpClientsBelongToTheTrace) {
  std::unique_ptr<HttpClient> client;
  server().AddHttpHandler(
      "/near", NewHttpGetHandler([&](const HttpRequest&, HttpResponse* response,
                                     HttpServerContext*) {
        const auto far = client->Get(
            "http://" + endpoint().ToString() + "/far?token=secret",
            {.headers = {"traceparent: mine", "tracestate: mine=1"}});
        EXPECT_TRUE(far) << far.error().ToString();
        response->set_body(*far->body());
      }));
  server().AddHttpHandler(
      "/far",
      NewHttpGetHandler([&](const HttpRequest& request, HttpResponse* response,
                            HttpServerContext*) {
        EXPECT_EQ(request.headers()->TryGetMultiple("traceparent").size(), 1u);
        EXPECT_EQ(request.headers()->TryGet("tracestate"), "a=b");
        response->set_body("hello");
      }));
  Serve();
  client = std::make_unique<HttpClient>();
  EXPECT_THAT(Get("/near", "traceparent: " + std::string(kParent) +
                               "\r\ntracestate: a=b\r\n"),
              HasSubstr("hello"));
  auto spans = traces_.Await(3);
  const SpanPtr request = Find(spans, SpanKind::kClient, "GET");
  EXPECT_EQ(request->name, "GET");
  EXPECT_EQ(request->peer, "http://" + endpoint().ToString());
  EXPECT_EQ(request->status, 200);
  EXPECT_FALSE(request->failed);
  EXPECT_EQ(request->received.bytes, 5u);
  EXPECT_EQ(request->context.trace_id.ToString(), kTrace);
  for (const SpanAttribute& attribute : request->attributes) {
    EXPECT_EQ(attribute.name, "http.response.status_code");
  }
  int above = 0;
  int below = 0;
  for (const SpanPtr& span : spans) {
    if (span->kind != SpanKind::kServer) continue;
    if (span->context.span_id == request->parent_id) {
      ExpectChild(request, span, /*remote=*/false);
      ++above;
    } else {
      ExpectChild(span, request, /*remote=*/true);
      ++below;
    }
  }
  EXPECT_EQ(above, 1);
  EXPECT_EQ(below, 1);

  // Without a call around it, and without a server or with a bad status.
  EXPECT_TRUE(client->Get("http://" + endpoint().ToString() + "/none"));
  const DeadAddress dead;
  EXPECT_FALSE(client->Get("http://" + dead.endpoint().ToString() + "/"));
  spans = traces_.Await(6);
  const auto with_status = [&spans](int status) {
    for (const SpanPtr& span : spans) {
      if (span->kind == SpanKind::kClient && span->status == status) {
        EXPECT_EQ(span->parent_id, 0u);
        EXPECT_TRUE(span->failed);
        return span->error;
      }
    }
    return std::string("there is none");
  };
  EXPECT_EQ(with_status(404), "");
  EXPECT_THAT(with_status(HttpClient::ERROR_FAIL_TO_CONNECT_SERVER),
              HasSubstr("refused"));
}

TEST_F(TracingTest, RequestsThatThrowHaveASpan) {
  Serve();
  HttpRequestOptions options;
  options.on_body = [](auto&, Buffer) -> bool {
    throw std::runtime_error("on purpose");
  };
  const std::string url = "http://" + endpoint().ToString() + "/metrics";
  EXPECT_THROW(static_cast<void>(HttpClient().Get(url, options)),
               std::runtime_error);
  const SpanPtr span = traces_.Await(1)[0];
  EXPECT_EQ(span->status, HttpClient::ERROR_CANCELLED);
  EXPECT_TRUE(span->failed);
  EXPECT_THAT(span->error, HasSubstr("exception"));
}

TEST_F(TracingTest, OriginsOfHttpRequestsMayBeExcluded) {
  Serve({.excluded = {"http://127.0.0.1:", "/metrics"}});
  EXPECT_TRUE(HttpClient().Get("http://" + endpoint().ToString() + "/metrics"));
  EXPECT_EQ(traces_.Count(), 0u);
}

TEST(RecordedSpan, CutsThePeer) {
  const auto span = MakeRefCounted<RecordedSpan>(
      TraceContext{.trace_id = NewTraceId(), .span_id = 1, .sampled = true}, 0);
  SpanData outcome;
  outcome.peer = std::string(5000, 'x');
  const auto data = span->End(std::move(outcome));
  ASSERT_NE(data, nullptr);
  EXPECT_EQ(data->peer.size(), SpanData::kMaxValueBytes);
}

TEST_F(TracingTest, HttpClientsMayStayOut) {
  Serve();
  const HttpClient client({.extensions = false});
  EXPECT_TRUE(client.Get("http://" + endpoint().ToString() + "/metrics"));
  EXPECT_EQ(traces_.Count(), 0u);
}

TEST_F(TracingTest, HostileHeadersBeginATraceOfOurOwn) {
  std::string id;
  server().AddHttpHandler(
      "/id", NewHttpGetHandler([&](const HttpRequest&, HttpResponse* response,
                                   HttpServerContext*) {
        id = CurrentSpan().trace_id();
        response->set_body(CurrentSpan().context().state);
      }));
  Serve();
  const std::string good = std::string("traceparent: ") + kParent + "\r\n";
  for (const std::string& lines :
       {good + good, "traceparent: " + std::string(6000, '0') + "\r\n",
        std::string("traceparent:\r\n"),
        std::string("traceparent: \x80\xff%00\r\n"),
        "traceparent: " + std::string(kParent) + "0\r\n",
        std::string("tracestate: a=1\r\n")}) {
    id.clear();
    const std::string reply = Get("/id", lines);
    EXPECT_THAT(reply, HasSubstr("200 OK")) << lines;
    EXPECT_EQ(id.size(), 32u) << lines;
    EXPECT_NE(id, kTrace) << lines;
    EXPECT_TRUE(reply.ends_with("\r\n\r\n")) << reply;
  }
  // A malformed state alone is left out.
  EXPECT_TRUE(
      Get("/id", good + "tracestate: a=1,,A=2\r\n").ends_with("\r\n\r\n"));
  EXPECT_EQ(id, kTrace);
}

TEST_F(TracingTest, ThePageHasSpansAndNoneOfItself) {
  Serve();
  TestedCall call;
  ASSERT_EQ(call.Start(channel_.get())->Await(), 0);
  const auto spans = traces_.Await(2);
  EXPECT_THAT(Get("/inspect"), HasSubstr("/inspect/traces"));
  const std::string page = Get("/inspect/traces");
  EXPECT_THAT(page, HasSubstr("TestService/Call"));
  EXPECT_THAT(page, HasSubstr("no-store"));
  Get("/metrics");
  const std::string trace =
      Get("/inspect/traces?trace=" + spans[0]->context.trace_id.ToString());
  EXPECT_THAT(trace, HasSubstr("# 2 spans"));
  EXPECT_EQ(traces_.Count(), 2u);
}

// --- options ---------------------------------------------------------------

TEST_F(TracingTest, ExcludedMethodsAreLeftAlone) {
  bool has_header = true;
  service().on_call = [&](TestCall call) {
    has_header = call.controller->GetRequestMetadata().Contains("traceparent");
    FlexibleService::Echo(call);
  };
  Serve({.excluded = {"flare.rpc.testing.TestService.Ca"}});
  TestedCall call;
  ASSERT_EQ(call.Start(channel_.get())->Await(), 0);
  EXPECT_FALSE(has_header);
  OnFiber([&] { CallOther(); });
  traces_.Await(2);
}

TEST_F(TracingTest, SomeOfTheTracesAreSampled) {
  Serve({.sample_ratio = 0.25, .recent_spans = 1000});
  constexpr int kCalls = 400;
  for (int i = 0; i != kCalls; ++i) {
    TestedCall call;
    ASSERT_EQ(call.Start(channel_.get())->Await(), 0);
  }
  // Six standard deviations either way.
  const double mean = kCalls * 0.25 * 2;
  const double bound = 2 * 6 * std::sqrt(kCalls * 0.25 * 0.75);
  EXPECT_NEAR(static_cast<double>(traces_.Count()), mean, bound);
}

TEST_P(TracingProtocolsTest, OtherHeadersAndBaggageTravel) {
  Metadata seen;
  std::optional<std::string> tenant;
  service().on_call = [&](TestCall call) {
    tenant = CurrentSpan().baggage("tenant");
    CallOther();
    FlexibleService::Echo(call);
  };
  service().on_other = [&](TestCall call) {
    seen = call.controller->GetRequestMetadata();
    FlexibleService::Echo(call);
  };
  Serve({.header_forms = {TraceHeaderForm::kB3, TraceHeaderForm::kB3Multi},
         .baggage = true},
        GetParam());
  TestedCall call;
  call.controller.AddMetadata("baggage", "tenant=the%20north,a=1");
  ASSERT_EQ(call.Start(channel_.get())->Await(), 0);
  const auto spans = traces_.Await(4);
  const SpanPtr client = Find(spans, SpanKind::kClient, "/Other");
  ExpectChild(Find(spans, SpanKind::kServer, "/Other"), client, true);
  ExpectChild(client, Find(spans, SpanKind::kServer, "/Call"), false);
  EXPECT_EQ(tenant, "the north");
  EXPECT_EQ(seen.Get("baggage"), "tenant=the%20north,a=1");
  EXPECT_EQ(seen.Get("b3"), ToB3(client->context));
  EXPECT_EQ(seen.Get("x-b3-traceid"), client->context.trace_id.ToString());
  EXPECT_FALSE(seen.Contains(kTraceparent));
  // The caller's own is still there, and nothing else.
  EXPECT_EQ(call.controller.MutableMetadata()->size(), 1u);
}

TEST_P(TracingProtocolsTest, HostileBaggageIsCutAndFailsNoCall) {
  std::optional<std::string> seen;
  service().on_call = [&](TestCall call) {
    CallOther();
    FlexibleService::Echo(call);
  };
  service().on_other = [&](TestCall call) {
    const auto value = call.controller->GetRequestMetadata().Get(kBaggage);
    seen = value ? std::optional(std::string(*value)) : std::nullopt;
    FlexibleService::Echo(call);
  };
  Serve({.baggage = true, .max_baggage_bytes = kMaxBaggageBytes}, GetParam());
  const auto handed_on = [&](const std::string& baggage) {
    seen = "no call";
    TestedCall call;
    call.controller.AddMetadata(kBaggage, baggage);
    EXPECT_EQ(call.Start(channel_.get())->Await(), 0)
        << call.controller.ErrorText();
    return seen;
  };
  std::string most = "k=v";
  for (std::size_t i = 1; i != kMaxBaggageMembers; ++i) most += ",k=v";
  EXPECT_EQ(handed_on("no member,=,\"=1,," + most + ",k=v,k=v"), most);
  EXPECT_EQ(handed_on("no member;,,"), std::nullopt);
  EXPECT_EQ(traces_.statistics().dropped_baggage, 2u);
  // Servers take heads of HTTP of 8 KiB in all.
  if (std::string_view(GetParam()).starts_with("http")) return;
  const std::string longest = "a=" + std::string(kMaxBaggageBytes - 2, 'x');
  EXPECT_EQ(handed_on(longest + ",b=1"), longest);
}

// Half of the head that servers take by default.
TEST_F(TracingTest, MuchBaggageFailsNoCallOverHttp) {
  Metadata seen;
  std::unique_ptr<RpcChannel> http;
  service().on_call = [&](TestCall call) {
    RpcClientController controller;
    TestRequest request;
    TestResponse response;
    TestService_Stub(http.get())
        .Other(&controller, &request, &response, nullptr);
    EXPECT_FALSE(controller.Failed()) << controller.ErrorText();
    FlexibleService::Echo(call);
  };
  service().on_other = [&](TestCall call) {
    seen = call.controller->GetRequestMetadata();
    FlexibleService::Echo(call);
  };
  Serve({.baggage = true});
  http = std::make_unique<RpcChannel>("http+pb://" + endpoint().ToString());
  const std::string half = "h=" + std::string(kMaxBaggageBytes / 2 - 7, 'x');
  TestedCall call;
  call.controller.AddMetadata(kBaggage, half + "," + half + ",b=1");
  ASSERT_EQ(call.Start(channel_.get())->Await(), 0);
  http.reset();
  EXPECT_EQ(seen.Get(kBaggage), half + ",b=1");
  EXPECT_EQ(traces_.statistics().dropped_baggage, 1u);
}

TEST_F(TracingTest, CallsMayHaveBaggageOfTheirOwn) {
  std::string seen;
  service().on_call = [&](TestCall call) {
    const ScopedSpan part("Parts have it, too");
    Metadata metadata;
    EXPECT_TRUE(metadata.Add(kBaggage, CurrentSpan().baggage() + ",b=2").ok());
    CallOther(metadata);
    FlexibleService::Echo(call);
  };
  service().on_other = [&](TestCall call) {
    seen = call.controller->GetRequestMetadata().Get(kBaggage).value_or("none");
    FlexibleService::Echo(call);
  };
  Serve({.baggage = true});
  TestedCall call;
  call.controller.AddMetadata(kBaggage, "a=1");
  ASSERT_EQ(call.Start(channel_.get())->Await(), 0);
  EXPECT_EQ(seen, "a=1,b=2");
}

TEST_F(TracingTest, BaggageThatHasNoRoomIsLeftOut) {
  Metadata seen;
  Metadata own;
  ASSERT_TRUE(own.Add("own", std::string(Metadata::kMaxBytes / 2, 'y')).ok());
  service().on_call = [&](TestCall call) {
    CallOther(own);
    FlexibleService::Echo(call);
  };
  service().on_other = [&](TestCall call) {
    seen = call.controller->GetRequestMetadata();
    FlexibleService::Echo(call);
  };
  Serve({.baggage = true, .max_baggage_bytes = kMaxBaggageBytes});
  TestedCall call;
  call.controller.AddMetadata(kBaggage,
                              "a=" + std::string(kMaxBaggageBytes - 2, 'x'));
  ASSERT_EQ(call.Start(channel_.get())->Await(), 0);
  EXPECT_EQ(seen.Get("own"), own.Get("own"));
  EXPECT_TRUE(seen.Contains(kTraceparent));
  EXPECT_FALSE(seen.Contains(kBaggage));
  EXPECT_EQ(traces_.statistics().dropped_baggage, 1u);
}

TEST_F(TracingTest, BaggageIsOffUnlessAskedFor) {
  Metadata seen;
  std::string baggage;
  service().on_call = [&](TestCall call) {
    baggage = CurrentSpan().baggage();
    CallOther();
    FlexibleService::Echo(call);
  };
  service().on_other = [&](TestCall call) {
    seen = call.controller->GetRequestMetadata();
    FlexibleService::Echo(call);
  };
  Serve();
  TestedCall call;
  call.controller.AddMetadata(kBaggage, "a=1");
  ASSERT_EQ(call.Start(channel_.get())->Await(), 0);
  EXPECT_EQ(baggage, "");
  EXPECT_EQ(seen.size(), 1u);  // traceparent
}

TEST_F(TracingTest, HostileBaggageOfHttpRequestsIsCut) {
  server().AddHttpHandler(
      "/baggage",
      NewHttpGetHandler(
          [&](const HttpRequest&, HttpResponse* response, HttpServerContext*) {
            response->set_body("<" + CurrentSpan().baggage() + ">");
          }));
  Serve({.baggage = true});
  std::string many = "k=v";
  for (std::size_t i = 1; i != kMaxBaggageMembers; ++i) many += ",k=v";
  for (const auto& [lines, baggage] :
       std::vector<std::pair<std::string, std::string>>{
           {"", ""},
           {"baggage:\r\n", ""},
           {"baggage: a=\x80\xff\r\n", ""},
           {"baggage: " + std::string(6000, ',') + "\r\n", ""},
           {"baggage: " + std::string(6000, 'a') + "\r\n", ""},
           {"Baggage: a\t=\t1 ;\tp\r\nbaggage: b=\"\r\nBAGGAGE: c=3\r\n",
            "a=1;p,c=3"},
           {"baggage: " + many + "," + many + "\r\n", many}}) {
    EXPECT_THAT(Get("/baggage", lines), HasSubstr("<" + baggage + ">"))
        << lines;
  }
}

TEST_F(TracingTest, RequestsOfHttpClientsHaveOtherHeadersAndBaggage) {
  std::string b3, baggage;
  server().AddHttpHandler(
      "/far", NewHttpGetHandler([&](const HttpRequest& request, HttpResponse*,
                                    HttpServerContext*) {
        b3 = request.headers()->TryGet("b3").value_or("none");
        baggage = request.headers()->TryGet("baggage").value_or("none");
        EXPECT_FALSE(request.headers()->contains("traceparent"));
      }));
  std::unique_ptr<HttpClient> client;
  server().AddHttpHandler(
      "/near", NewHttpGetHandler([&](const HttpRequest&, HttpResponse*,
                                     HttpServerContext*) {
        EXPECT_TRUE(client->Get("http://" + endpoint().ToString() + "/far"));
      }));
  Serve({.header_forms = {TraceHeaderForm::kB3}, .baggage = true});
  client = std::make_unique<HttpClient>();
  // The caller has no span, and wants none.
  Get("/near", "b3: 0\r\nBaggage: a=1\r\n");
  EXPECT_TRUE(b3.ends_with("-0")) << b3;
  EXPECT_EQ(baggage, "a=1");
  EXPECT_EQ(traces_.Count(), 0u);
  Get("/near", std::string("b3: ") + kTrace + "-b7ad6b7169203331-1\r\n");
  EXPECT_TRUE(b3.starts_with(kTrace)) << b3;
  EXPECT_EQ(baggage, "none");
  EXPECT_EQ(traces_.Await(3)[0]->context.trace_id.ToString(), kTrace);
}

TEST_F(TracingTest, ASamplerDecidesForItsPartOfTheTrace) {
  std::vector<SamplingQuestion> questions;
  std::vector<std::string> names;
  fiber::Mutex lock;
  std::string seen;
  service().on_call = [&](TestCall call) {
    EXPECT_FALSE(CurrentSpan().recording());
    CallOther();
    FlexibleService::Echo(call);
  };
  service().on_other = [&](TestCall call) {
    seen = *call.controller->GetRequestMetadata().Get(kTraceparent);
    FlexibleService::Echo(call);
  };
  Serve({.sampler = [&](const SamplingQuestion& question) {
    ScopedLock guard(lock);
    questions.push_back(question);
    names.emplace_back(question.name);
    return question.kind != SpanKind::kServer || !question.by_default;
  }});
  TestedCall call;
  ASSERT_EQ(call.Start(channel_.get())->Await(), 0);
  // The client's span is sampled. The first server takes no part in that, and
  // says so to the second one, which does.
  const auto spans = traces_.Await(2);
  Find(spans, SpanKind::kClient, "/Call");
  Find(spans, SpanKind::kServer, "/Other");
  EXPECT_EQ(seen.substr(53), "00");
  ASSERT_EQ(questions.size(), 3u);
  EXPECT_EQ(questions[0].kind, SpanKind::kClient);
  EXPECT_FALSE(questions[0].has_parent);
  EXPECT_TRUE(questions[0].by_default);
  EXPECT_EQ(questions[1].kind, SpanKind::kServer);
  EXPECT_TRUE(questions[1].has_parent);
  EXPECT_TRUE(questions[1].by_default);
  EXPECT_FALSE(questions[2].by_default);
  EXPECT_EQ(questions[2].trace_id, questions[0].trace_id);
  EXPECT_EQ(names,
            (std::vector<std::string>{"flare.rpc.testing.TestService.Call",
                                      "flare.rpc.testing.TestService.Call",
                                      "flare.rpc.testing.TestService.Other"}));
}

TEST_F(TracingTest, ChannelsMayStayOut) {
  Serve();
  const RpcChannel::Options options{.extensions = false};
  RpcChannel apart("flare://" + endpoint().ToString(), options);
  TestedCall call;
  ASSERT_EQ(call.Start(&apart)->Await(), 0);
  const SpanPtr span = traces_.Await(1)[0];
  EXPECT_EQ(span->kind, SpanKind::kServer);
  EXPECT_EQ(span->parent_id, 0u);
}

TEST_F(TracingTest, OptionsThatMakeNoSenseAreNamed) {
  const auto error = [](TracingOptions options) {
    const auto tracing = Tracing::Install(std::move(options));
    return tracing ? "none" : tracing.error().message();
  };
  EXPECT_THAT(error({.sample_ratio = 1.5}), HasSubstr("sample_ratio"));
  for (const std::size_t bytes : {std::size_t{0}, kMaxBaggageBytes + 1}) {
    EXPECT_THAT(error({.max_baggage_bytes = bytes}),
                HasSubstr("max_baggage_bytes"));
  }
  EXPECT_THAT(error({.sample_ratio = -0.1}), HasSubstr("sample_ratio"));
  EXPECT_THAT(error({.sample_ratio = std::nan("")}), HasSubstr("sample_ratio"));
  EXPECT_THAT(error({.collector = "127.0.0.1:4317"}), HasSubstr("grpc://"));
  EXPECT_THAT(error({.collector = "grpc://"}), HasSubstr("grpc://"));
  EXPECT_THAT(error({.collector = "http://"}), HasSubstr("http://"));
  for (const char* collector : {"grpc://127.0.0.1:1", "http://127.0.0.1:1"}) {
    EXPECT_THAT(error({.collector = collector,
                       .collector_headers = {{"api key", "secret"}}}),
                HasSubstr("api key"));
  }
  EXPECT_THAT(error({.header_forms = {}}), HasSubstr("header_forms"));
  EXPECT_THAT(error({.recent_spans = 0}), HasSubstr("recent_spans"));
  EXPECT_THAT(error({.max_queue = 10, .max_batch = 11}),
              HasSubstr("max_queue"));
  EXPECT_THAT(error({.max_batch = 0}), HasSubstr("max_batch"));
  EXPECT_THAT(error({.export_interval = std::chrono::nanoseconds(0)}),
              HasSubstr("export_interval"));
  EXPECT_THAT(error({.export_timeout = std::chrono::nanoseconds(0)}),
              HasSubstr("export_timeout"));
  traces_.Install();
  EXPECT_THAT(error({}), HasSubstr("installed already"));
}

TEST_F(TracingTest, CallsGoOnWhenItHasEnded) {
  Serve();
  traces_.Reset();
  TestedCall call;
  EXPECT_EQ(call.Start(channel_.get())->Await(), 0);
  // Others aren't traced any more.
  traces_.Install();
  RpcChannel later("flare://" + endpoint().ToString());
  TestedCall other;
  EXPECT_EQ(other.Start(&later)->Await(), 0);
  EXPECT_EQ(traces_.Await(1)[0]->kind, SpanKind::kClient);
}

// --- streaming calls -------------------------------------------------------

class TracingStreamsTest : public StreamerTest,
                           public ::testing::WithParamInterface<const char*> {
 protected:
  void AddInterceptors(Server*) override { traces_.Install(); }
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StreamerTest::SetUp());
    ASSERT_TRUE(channel_.Open(std::string(GetParam()) + "://" +
                              server_->endpoint().ToString()));
  }
  void TearDown() override {
    StreamerTest::TearDown();
    traces_.Reset();
  }

  // The spans of the only call, if both sides agree.
  std::pair<SpanPtr, SpanPtr> AwaitBoth(std::string_view name) {
    const auto spans = traces_.Await(2);
    const SpanPtr client = Find(spans, SpanKind::kClient, name);
    const SpanPtr server = Find(spans, SpanKind::kServer, name);
    ExpectChild(server, client, /*remote=*/true);
    return {client, server};
  }

  Traces traces_;
};
INSTANTIATE_TEST_SUITE_P(Protocols, TracingStreamsTest,
                         ::testing::Values("flare", "trpc", "baidu-std",
                                           "grpc"));

TEST_P(TracingStreamsTest, CountMessagesBothWays) {
  auto [reader, writer] = stub_.Echo(&controller_);
  for (int i = 0; i != 3; ++i) {
    ASSERT_TRUE(writer.Write(MakeNumber(i, 10)));
    ASSERT_TRUE(reader.Read());
  }
  EXPECT_EQ(traces_.Count(), 0u);  // It goes on.
  writer.Close();
  EXPECT_FALSE(reader.Read());
  const auto [client, server] = AwaitBoth("Streamer/Echo");
  for (const SpanPtr& span : {client, server}) {
    EXPECT_EQ(span->received.messages, 3u);
    EXPECT_EQ(span->sent.messages, 3u);
    EXPECT_GE(span->sent.bytes, 30u);
    EXPECT_FALSE(span->failed) << span->error;
  }
}

TEST_P(TracingStreamsTest, CountTheSingleMessages) {
  auto reader = stub_.Count(MakeNumber(5), &controller_);
  while (reader.Read()) continue;
  const auto [client, server] = AwaitBoth("Streamer/Count");
  EXPECT_EQ(client->sent.messages, 1u);
  // The caller may read behind the end of the stream.
  EXPECT_LE(client->received.messages, 5u);
  EXPECT_EQ(server->received.messages, 1u);
  EXPECT_EQ(server->sent.messages, 5u);
}

TEST_P(TracingStreamsTest, CountTheSingleReply) {
  auto [reader, writer] = stub_.Sum(&controller_);
  ASSERT_TRUE(writer.Write(MakeNumber(1)));
  ASSERT_TRUE(writer.Write(MakeNumber(2)));
  writer.Close();
  const auto sum = reader.Read();
  ASSERT_TRUE(sum);
  EXPECT_EQ(sum->value(), 3);
  const auto [client, server] = AwaitBoth("Streamer/Sum");
  EXPECT_EQ(client->sent.messages, 2u);
  EXPECT_LE(client->received.messages, 1u);
  EXPECT_EQ(server->received.messages, 2u);
  EXPECT_EQ(server->sent.messages, 1u);
}

TEST_P(TracingStreamsTest, CallsInAStreamAreItsChildren) {
  service_.on_echo = [this](StreamReader<Number>, StreamWriter<Number> writer,
                            RpcServerController*) {
    EXPECT_TRUE(stub_.Double(MakeNumber(1)));
    writer.Close();
  };
  auto [reader, writer] = stub_.Echo(&controller_);
  writer.Close();
  EXPECT_FALSE(reader.Read());
  const auto spans = traces_.Await(4);
  ExpectChild(Find(spans, SpanKind::kClient, "Streamer/Double"),
              Find(spans, SpanKind::kServer, "Streamer/Echo"), false);
}

TEST_P(TracingStreamsTest, FailuresAreInBothSpans) {
  service_.on_echo = [](StreamReader<Number> reader, StreamWriter<Number>,
                        RpcServerController* controller) {
    EXPECT_TRUE(reader.Read());
    controller->SetFailed(4711, "no more");
  };
  auto [reader, writer] = stub_.Echo(&controller_);
  ASSERT_TRUE(writer.Write(MakeNumber(1)));
  EXPECT_FALSE(reader.Read());
  const auto [client, server] = AwaitBoth("Streamer/Echo");
  EXPECT_EQ(server->status, 4711);
  EXPECT_EQ(server->error, "no more");
  EXPECT_TRUE(client->failed);
  EXPECT_EQ(client->status, controller_.ErrorCode());
}

TEST_P(TracingStreamsTest, CancelledOnesEnd) {
  auto [reader, writer] = stub_.Echo(&controller_);
  ASSERT_TRUE(writer.Write(MakeNumber(1)));
  ASSERT_TRUE(reader.Read());
  controller_.StartCancel();
  EXPECT_FALSE(reader.Read());
  const auto [client, server] = AwaitBoth("Streamer/Echo");
  EXPECT_TRUE(client->failed);
  EXPECT_TRUE(server->failed);
}

}  // namespace
}  // namespace flare::rpc::testing
