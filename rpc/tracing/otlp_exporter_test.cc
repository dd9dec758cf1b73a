// A collector gets spans: a server of our own, over gRPC and over HTTP.
#include "flare/rpc/tracing/otlp_exporter.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flare/fiber/mutex.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/http_client.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/server.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/logged_lines.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/server_fixture.h"
#include "flare/rpc/tracing/scoped_span.h"
#include "flare/rpc/tracing/tracing.h"
#include "gtest/gtest.h"
#include "rpc/testing/otlp_collector.flare.pb.h"
#include "rpc/tracing/otlp.pb.h"

namespace flare::rpc::testing {
namespace {

namespace collector = opentelemetry::proto::collector::trace::v1;
using fiber::testing::Eventually;

class Collector : public collector::SyncTraceService {
 public:
  void Export(const otlp::ExportTraceServiceRequest& request,
              otlp::ExportTraceServiceResponse* response,
              RpcServerController* controller) override {
    ScopedLock guard(lock_);
    if (rejects != 0) {
      response->mutable_partial_success()->set_rejected_spans(rejects);
      response->mutable_partial_success()->set_error_message("too old");
      return;
    }
    EXPECT_EQ(controller->GetRequestMetadata().Get("api-key"), "secret");
    if (fails) return controller->SetFailed(4711, "no disk");
    if (const auto refusal = std::exchange(next_refusal_, {})) {
      const auto& [code, details] = *refusal;
      if (!details.empty()) {
        controller->AddResponseTrailer(kGrpcStatusDetails, details);
      }
      return controller->SetFailed(StatusFromGrpc(code), "busy");
    }
    requests_.push_back(request);
  }
  std::vector<otlp::ExportTraceServiceRequest> requests() {
    ScopedLock guard(lock_);
    return requests_;
  }
  std::vector<otlp::Span> spans() {
    std::vector<otlp::Span> all;
    for (const auto& request : requests()) {
      for (const auto& span :
           request.resource_spans(0).scope_spans(0).spans()) {
        all.push_back(span);
      }
    }
    return all;
  }
  // Refuses the next request. `details`: a google.rpc.Status.
  void RefuseOne(GrpcCode code, std::string details = "") {
    ScopedLock guard(lock_);
    next_refusal_.emplace(code, std::move(details));
  }

  int rejects = 0;
  bool fails = false;

 private:
  fiber::Mutex lock_;
  std::optional<std::pair<GrpcCode, std::string>> next_refusal_;
  std::vector<otlp::ExportTraceServiceRequest> requests_;
};

std::map<std::string, otlp::AnyValue> AttributesOf(const otlp::Span& span) {
  std::map<std::string, otlp::AnyValue> attributes;
  for (const auto& attribute : span.attributes()) {
    attributes[attribute.key()] = attribute.value();
  }
  return attributes;
}

class OtlpExporterTest : public ServerTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(ServerTest::SetUp());
    StartCollector(EndpointFromIpv4("127.0.0.1", 0));
  }
  void TearDown() override {
    channel_.reset();
    tracing_.reset();
    ShutdownClientSide();
    collecting_.reset();
    ServerTest::TearDown();
  }

  void StartCollector(const Endpoint& address) {
    collecting_.emplace();
    collecting_->AddProtocol("grpc");
    collecting_->AddService(&collector_);
    collecting_->ListenOn(address);
    ASSERT_TRUE(collecting_->Start());
  }

  void Install(TracingOptions options) {
    options.service_name = "fares";
    options.collector = "grpc://" + collecting_->endpoint().ToString();
    options.collector_headers = {{"api-key", "secret"}};
    auto tracing = Tracing::Install(std::move(options));
    ASSERT_TRUE(tracing) << tracing.error().ToString();
    tracing_ = *std::move(tracing);
    StartServer({"flare"});
    channel_ = std::make_unique<RpcChannel>("flare://" + endpoint().ToString());
  }

  // A call, and its two spans.
  void Call() {
    TestedCall call;
    call.Start(channel_.get())->Await();
  }

  Collector collector_;
  std::optional<Server> collecting_;
  std::unique_ptr<Tracing> tracing_;
  std::unique_ptr<RpcChannel> channel_;
};

TEST_F(OtlpExporterTest, ACollectorGetsSpans) {
  service().on_call = [](TestCall call) {
    Span span = CurrentSpan();
    span.SetAttribute("cache.hit", false);
    span.SetAttribute("rows", 12);
    span.SetAttribute("share", 0.5);
    span.SetAttribute("name", "x");
    span.AddEvent("asked");
    call.controller->SetFailed(4711, "later");
    call.Reply();
  };
  Install({.export_interval = std::chrono::milliseconds(1)});
  Call();
  ASSERT_TRUE(Eventually([&] { return collector_.spans().size() == 2; }));
  const auto request = collector_.requests().front();
  const auto& resource = request.resource_spans(0).resource();
  ASSERT_GE(resource.attributes_size(), 1);
  EXPECT_EQ(resource.attributes(0).key(), "service.name");
  EXPECT_EQ(resource.attributes(0).value().string_value(), "fares");

  auto spans = collector_.spans();
  if (spans[0].kind() != otlp::Span::SPAN_KIND_CLIENT) {
    std::swap(spans[0], spans[1]);
  }
  const otlp::Span& client = spans[0];
  const otlp::Span& server = spans[1];
  EXPECT_EQ(client.kind(), otlp::Span::SPAN_KIND_CLIENT);
  EXPECT_EQ(server.kind(), otlp::Span::SPAN_KIND_SERVER);
  EXPECT_EQ(client.parent_span_id(), "");
  EXPECT_EQ(server.parent_span_id(), client.span_id());
  EXPECT_EQ(client.flags(), 0x101u);
  EXPECT_EQ(server.flags(), 0x301u);
  for (const otlp::Span& span : spans) {
    EXPECT_EQ(span.trace_id(), client.trace_id());
    EXPECT_EQ(span.trace_id().size(), 16u);
    EXPECT_EQ(span.span_id().size(), 8u);
    EXPECT_EQ(span.name(), "flare.rpc.testing.TestService/Call");
    EXPECT_GT(span.end_time_unix_nano(), span.start_time_unix_nano());
    EXPECT_EQ(span.status().code(), otlp::Status::STATUS_CODE_ERROR);
    EXPECT_EQ(span.status().message(), "later");
    auto attributes = AttributesOf(span);
    EXPECT_EQ(attributes["rpc.service"].string_value(),
              "flare.rpc.testing.TestService");
    EXPECT_EQ(attributes["rpc.method"].string_value(), "Call");
    EXPECT_EQ(attributes["rpc.flare.status_code"].int_value(), 4711);
    EXPECT_EQ(attributes["rpc.sent.messages"].int_value(),
              &span == &spans[0] ? 1 : 0);
  }
  EXPECT_EQ(AttributesOf(client)["network.peer.address"].string_value(),
            endpoint().ToString());
  auto attributes = AttributesOf(server);
  EXPECT_TRUE(attributes.contains("cache.hit"));
  EXPECT_FALSE(attributes["cache.hit"].bool_value());
  EXPECT_EQ(attributes["rows"].int_value(), 12);
  EXPECT_EQ(attributes["share"].double_value(), 0.5);
  EXPECT_EQ(attributes["name"].string_value(), "x");
  ASSERT_EQ(server.events_size(), 1);
  EXPECT_EQ(server.events(0).name(), "asked");
  // Sending spans makes none, or there would be no end of it.
  EXPECT_TRUE(Eventually([&] { return tracing_->statistics().exported == 2; }));
  EXPECT_EQ(tracing_->recent_spans().size(), 2u);
}

TEST_F(OtlpExporterTest, PartsAreInternal) {
  Install({.export_interval = std::chrono::milliseconds(1)});
  { ScopedSpan part("a/b"); }
  ASSERT_TRUE(Eventually([&] { return collector_.spans().size() == 1; }));
  const otlp::Span part = collector_.spans()[0];
  EXPECT_EQ(part.kind(), otlp::Span::SPAN_KIND_INTERNAL);
  EXPECT_EQ(part.name(), "a/b");
  EXPECT_EQ(part.attributes_size(), 0);
}

TEST_F(OtlpExporterTest, OriginsAreNoAddresses) {
  Install({.export_interval = std::chrono::milliseconds(1)});
  const DeadAddress dead;
  const std::string origin = "http://" + dead.endpoint().ToString();
  EXPECT_FALSE(HttpClient().Get(origin + "/secret"));
  ASSERT_TRUE(Eventually([&] { return collector_.spans().size() == 1; }));
  auto attributes = AttributesOf(collector_.spans()[0]);
  EXPECT_EQ(attributes["url.full"].string_value(), origin);
  EXPECT_FALSE(attributes.contains("network.peer.address"));
}

TEST_F(OtlpExporterTest, TheEndSendsTheRest) {
  Install({.export_interval = std::chrono::hours(1)});
  for (int i = 0; i != 10; ++i) Call();
  EXPECT_TRUE(collector_.spans().empty());
  StopServer();
  tracing_.reset();
  EXPECT_EQ(collector_.spans().size(), 20u);
}

TEST_F(OtlpExporterTest, ACollectorThatRefusesIsLogged) {
  const LoggedLines warnings(google::WARNING);
  Install({.export_interval = std::chrono::milliseconds(1)});
  collector_.fails = true;
  Call();
  EXPECT_TRUE(Eventually([&] { return tracing_->statistics().failed == 2; }));
  EXPECT_TRUE(warnings.Have("no disk")) << warnings.All();
}

TEST_F(OtlpExporterTest, ABusyCollectorIsAskedAgain) {
  Install({.export_interval = std::chrono::milliseconds(1),
           .export_timeout = std::chrono::seconds(20)});
  std::size_t spans = 0;
  for (const GrpcCode code :
       {GrpcCode::kCancelled, GrpcCode::kDeadlineExceeded, GrpcCode::kAborted,
        GrpcCode::kOutOfRange, GrpcCode::kUnavailable, GrpcCode::kDataLoss}) {
    collector_.RefuseOne(code);
    { ScopedSpan part("job"); }
    ++spans;
    EXPECT_TRUE(
        Eventually([&] { return tracing_->statistics().exported == spans; }));
  }
  EXPECT_EQ(collector_.spans().size(), spans);
  EXPECT_EQ(tracing_->statistics().failed, 0u);
}

// A google.rpc.Status with a google.rpc.RetryInfo, and another part before it.
std::string DetailsOf(std::int64_t seconds, std::int32_t nanos) {
  otlp::FailureDetails failure;
  otlp::FailurePart* part = failure.add_details();
  part->set_type_url("type.googleapis.com/google.rpc.DebugInfo");
  part->set_value("\x0a\x01x");
  otlp::RetryInfo info;
  info.mutable_retry_delay()->set_seconds(seconds);
  info.mutable_retry_delay()->set_nanos(nanos);
  part = failure.add_details();
  part->set_type_url("type.googleapis.com/google.rpc.RetryInfo");
  part->set_value(info.SerializeAsString());
  return failure.SerializeAsString();
}

TEST_F(OtlpExporterTest, ABusyCollectorSaysWhen) {
  Install({.export_interval = std::chrono::milliseconds(1),
           .export_timeout = std::chrono::seconds(20)});
  collector_.RefuseOne(GrpcCode::kResourceExhausted, DetailsOf(0, 300'000'000));
  const auto begin = std::chrono::steady_clock::now();
  { ScopedSpan part("job"); }
  ASSERT_TRUE(Eventually([&] { return tracing_->statistics().exported == 1; }));
  EXPECT_GE(std::chrono::steady_clock::now() - begin,
            std::chrono::milliseconds(300));
  // Later than the batch lives: it is dropped at once.
  std::size_t failed = 0;
  for (const auto& [code, seconds] :
       {std::pair(GrpcCode::kResourceExhausted, std::int64_t{3600}),
        std::pair(GrpcCode::kUnavailable, INT64_MAX)}) {
    collector_.RefuseOne(code, DetailsOf(seconds, 0));
    { ScopedSpan part("job"); }
    ++failed;
    EXPECT_TRUE(
        Eventually([&] { return tracing_->statistics().failed == failed; }));
  }
  EXPECT_EQ(collector_.requests().size(), 1u);
}

TEST_F(OtlpExporterTest, MalformedDetailsDemandNothing) {
  Install({.export_interval = std::chrono::milliseconds(1),
           .export_timeout = std::chrono::seconds(20)});
  std::size_t failed = 0;
  for (const std::string& details :
       {std::string("\xff"), std::string("\x1a\x05x"),
        DetailsOf(0, 1).substr(0, DetailsOf(0, 1).size() - 1)}) {
    collector_.RefuseOne(GrpcCode::kResourceExhausted, details);
    { ScopedSpan part("job"); }
    ++failed;
    EXPECT_TRUE(
        Eventually([&] { return tracing_->statistics().failed == failed; }));
  }
  EXPECT_EQ(collector_.requests().size(), 0u);
}

TEST_F(OtlpExporterTest, ABatchThatIsTooLargeIsSentOnce) {
  Install({.export_interval = std::chrono::milliseconds(1),
           .export_timeout = std::chrono::seconds(20)});
  collector_.RefuseOne(GrpcCode::kResourceExhausted);
  { ScopedSpan part("job"); }
  EXPECT_TRUE(Eventually([&] { return tracing_->statistics().failed == 1; }));
  EXPECT_EQ(collector_.requests().size(), 0u);
}

TEST_F(OtlpExporterTest, RejectedSpansAreLogged) {
  const LoggedLines warnings(google::WARNING);
  Install({.export_interval = std::chrono::milliseconds(1)});
  collector_.rejects = 1;
  Call();
  EXPECT_TRUE(Eventually([&] { return tracing_->statistics().failed != 0; }));
  EXPECT_TRUE(warnings.Have("rejects 1 of them: too old")) << warnings.All();
}

TEST_F(OtlpExporterTest, ACollectorThatComesBackGetsTheSpans) {
  Install({.export_interval = std::chrono::milliseconds(1),
           .export_timeout = std::chrono::seconds(20)});
  const Endpoint address = collecting_->endpoint();
  collecting_.reset();
  Call();
  StartCollector(address);
  EXPECT_TRUE(Eventually([&] { return collector_.spans().size() == 2; }));
  // This collector is a server of a program with traces, but has no spans of
  // the calls that bring it spans: there would be no end of them.
  EXPECT_TRUE(Eventually([&] { return tracing_->statistics().exported == 2; }));
  EXPECT_EQ(tracing_->recent_spans().size(), 2u);
}

TEST_F(OtlpExporterTest, ACollectorThatIsGoneHoldsNobodyUpForLong) {
  Install({.max_queue = 4,
           .max_batch = 2,
           .export_timeout = std::chrono::milliseconds(50)});
  collecting_.reset();
  for (int i = 0; i != 50; ++i) Call();
  EXPECT_TRUE(Eventually([&] {
    Call();
    return tracing_->statistics().dropped != 0;
  }));
  const auto begin = std::chrono::steady_clock::now();
  tracing_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST_F(OtlpExporterTest, TheEndOfTheClientSideIsNoReasonToRepeat) {
  Install({.export_interval = std::chrono::hours(1),
           .export_timeout = std::chrono::minutes(4)});
  { ScopedSpan part("job"); }
  channel_.reset();
  ShutdownClientSide();
  const auto begin = std::chrono::steady_clock::now();
  tracing_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
}

// A collector over HTTP, with a reply to each request.
class HttpCollector {
 public:
  struct Request {
    std::string path;
    std::string type;
    std::string key;
    otlp::ExportTraceServiceRequest spans;
  };

  void AddTo(Server* server, const std::string& path) {
    server->AddHttpHandler(
        path,
        NewHttpPostHandler([this](const HttpRequest& request,
                                  HttpResponse* response, HttpServerContext*) {
          const HttpHeaders& fields = *request.headers();
          Request got{
              .path = std::string(request.path()),
              .type =
                  std::string(fields.TryGet("Content-Type").value_or("none")),
              .key = std::string(fields.TryGet("api-key").value_or("none")),
              .spans = {}};
          EXPECT_TRUE(got.spans.ParseFromString(*request.body()));
          ScopedLock guard(lock_);
          requests_.push_back(std::move(got));
          if (busy-- > 0) {
            response->headers()->Set("Retry-After", retry_after);
            return response->set_status(HttpStatus::ServiceUnavailable);
          }
          if (refuses) return response->set_status(HttpStatus::BadRequest);
          otlp::ExportTraceServiceResponse reply;
          reply.mutable_partial_success()->set_rejected_spans(rejects);
          reply.mutable_partial_success()->set_error_message("too old");
          response->set_body(reply.SerializeAsString());
        }));
  }
  std::vector<Request> requests() {
    ScopedLock guard(lock_);
    return requests_;
  }

  int busy = 0;  // So many requests are answered 503 first.
  std::string retry_after = "Tue, 01 Dec 2026 00:00:00 GMT";
  bool refuses = false;
  int rejects = 0;

 private:
  fiber::Mutex lock_;
  std::vector<Request> requests_;
};

class OtlpHttpTest : public ServerTest {
 protected:
  void TearDown() override {
    tracing_.reset();
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  // The server is the collector, and isn't traced as such.
  void Start(const std::string& path, const std::string& served) {
    collector_.AddTo(&server(), served);
    StartServer({"http"});
    Install("http://" + endpoint().ToString() + path);
  }
  void Install(const std::string& url) {
    auto tracing =
        Tracing::Install({.service_name = "fares",
                          .collector = url,
                          .collector_headers = {{"api-key", "secret"}},
                          .export_interval = std::chrono::milliseconds(1),
                          .export_timeout = std::chrono::seconds(20)});
    ASSERT_TRUE(tracing) << tracing.error().ToString();
    tracing_ = *std::move(tracing);
  }

  HttpCollector collector_;
  std::unique_ptr<Tracing> tracing_;
};

TEST_F(OtlpHttpTest, ACollectorGetsSpans) {
  Start("", "/v1/traces");
  { ScopedSpan part("job"); }
  ASSERT_TRUE(Eventually([&] { return tracing_->statistics().exported == 1; }));
  const auto requests = collector_.requests();
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0].type, "application/x-protobuf");
  EXPECT_EQ(requests[0].key, "secret");
  const auto& spans = requests[0].spans.resource_spans(0);
  EXPECT_EQ(spans.resource().attributes(0).value().string_value(), "fares");
  EXPECT_EQ(spans.scope_spans(0).spans(0).name(), "job");
}

TEST_F(OtlpHttpTest, PathsAreTakenAsTheyAre) {
  Start("/otlp/traces?tenant=1", "/otlp/traces");
  { ScopedSpan part("job"); }
  ASSERT_TRUE(Eventually([&] { return !collector_.requests().empty(); }));
  EXPECT_EQ(collector_.requests()[0].path, "/otlp/traces");
}

TEST_F(OtlpHttpTest, ABusyCollectorIsAskedAgain) {
  collector_.busy = 1;
  Start("", "/v1/traces");
  { ScopedSpan part("job"); }
  ASSERT_TRUE(Eventually([&] { return tracing_->statistics().exported == 1; }));
  EXPECT_EQ(collector_.requests().size(), 2u);
  EXPECT_EQ(tracing_->statistics().failed, 0u);
}

TEST_F(OtlpHttpTest, ABusyCollectorSaysWhen) {
  collector_.busy = 1;
  collector_.retry_after = "1";
  Start("", "/v1/traces");
  const auto begin = std::chrono::steady_clock::now();
  { ScopedSpan part("job"); }
  ASSERT_TRUE(Eventually([&] { return tracing_->statistics().exported == 1; }));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

// As that of a collector that restarts while a request comes.
TEST_F(OtlpHttpTest, AConnectionThatBreaksIsReplaced) {
  RawServer restarting;
  StartServer({"http"});
  Install("http://" + restarting.endpoint().ToString());
  { ScopedSpan part("job"); }
  for (const char* reply :
       {"", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"}) {
    const auto peer = restarting.Accept();
    ASSERT_NE(peer, nullptr);
    EXPECT_TRUE(peer->ReadUntil("\r\n\r\n").starts_with("POST /v1/traces"));
    peer->Send(reply);
    if (*reply == '\0') continue;  // Closes it.
    EXPECT_TRUE(
        Eventually([&] { return tracing_->statistics().exported == 1; }));
  }
  EXPECT_EQ(tracing_->statistics().failed, 0u);
}

TEST_F(OtlpHttpTest, ARefusalIsLogged) {
  const LoggedLines warnings(google::WARNING);
  collector_.refuses = true;
  Start("", "/v1/traces");
  { ScopedSpan part("job"); }
  ASSERT_TRUE(Eventually([&] { return tracing_->statistics().failed == 1; }));
  EXPECT_TRUE(warnings.Have("/v1/traces answers 400")) << warnings.All();
  EXPECT_EQ(collector_.requests().size(), 1u);
}

TEST_F(OtlpHttpTest, RejectedSpansAreLogged) {
  const LoggedLines warnings(google::WARNING);
  collector_.rejects = 1;
  Start("", "/v1/traces");
  { ScopedSpan part("job"); }
  ASSERT_TRUE(Eventually([&] { return tracing_->statistics().failed == 1; }));
  EXPECT_TRUE(warnings.Have("rejects 1 of them: too old")) << warnings.All();
}

}  // namespace
}  // namespace flare::rpc::testing
