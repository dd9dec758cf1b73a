#include "flare/rpc/tracing/traces_page.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "flare/rpc/http_message.h"
#include "flare/rpc/tracing/tracer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TracesPageTest : public ::testing::Test {
 protected:
  // The span's end; ids are chosen by the tracer.
  RefPtr<RecordedSpan> Add(const RefPtr<RecordedSpan>& parent, std::string name,
                           bool failed = false) {
    const TraceOrigin origin =
        parent == nullptr ? TraceOrigin() : parent->AsOrigin();
    auto span = tracer_.Begin(SpanKind::kClient, "", origin, 0);
    span->SetAttribute("user", "<b>\"Jo\" & Co</b>");
    span->AddEvent("looked");
    SpanData outcome;
    outcome.name = std::move(name);
    outcome.parent_id = origin.parent ? origin.parent->span_id : 0;
    outcome.failed = failed;
    outcome.error = failed ? "why\nnot" : "";
    outcome.peer = "10.0.0.1:80";
    tracer_.End(span.Get(), std::move(outcome));
    return span;
  }

  std::string Get(const std::string& query, bool html = false) {
    HttpRequest request;
    request.set_uri("/inspect/traces" + query);
    if (html) request.headers()->Set("Accept", "text/html,*/*");
    HttpResponse response;
    WriteTracesPage(tracer_, request, &response);
    EXPECT_THAT(std::string(*response.headers()->TryGet("Content-Type")),
                HasSubstr(html ? "text/html" : "text/plain"));
    return *response.body();
  }

  Tracer tracer_{Tracer::Options{.recent_spans = 100}, nullptr};
};

TEST_F(TracesPageTest, ListsSpans) {
  Add(nullptr, "shop.Prices/Find");
  Add(nullptr, "shop.Orders/Take", /*failed=*/true);
  const std::string all = Get("");
  EXPECT_THAT(all, HasSubstr("# 2 spans"));
  EXPECT_THAT(all, HasSubstr("shop.Prices/Find\n"));
  EXPECT_THAT(all, HasSubstr("10.0.0.1:80"));
  EXPECT_THAT(Get("?method=shop.Prices%2FF"), HasSubstr("# 1 span;"));
  EXPECT_THAT(Get("?failed=1"), Not(HasSubstr("Prices")));
  EXPECT_THAT(Get("?n=1"), HasSubstr("# 1 span;"));
  EXPECT_THAT(Get("?n=x&unknown&=&a=%zz%"), HasSubstr("# 2 spans"));
  EXPECT_THAT(Get("?method=nothing"), HasSubstr("# 0 spans"));
}

TEST_F(TracesPageTest, CountsLostSpansWithoutAnExporter) {
  EXPECT_THAT(Get(""), Not(HasSubstr("dropped")));
  tracer_.Drop();
  tracer_.Drop();
  EXPECT_EQ(tracer_.dropped(), 2u);
  EXPECT_THAT(Get(""), HasSubstr("; dropped 2 spans"));
}

TEST_F(TracesPageTest, ShowsATraceAsATree) {
  const auto root = Add(nullptr, "root");
  const auto child = Add(root, "child");
  Add(child, "grandchild", /*failed=*/true);
  Add(nullptr, "another");
  const std::string id = root->context().trace_id.ToString();
  const std::string page = Get("?trace=" + id);
  EXPECT_THAT(page, HasSubstr("# 3 spans"));
  EXPECT_THAT(page, HasSubstr("  root\n"));
  EXPECT_THAT(page, HasSubstr("    child\n"));
  EXPECT_THAT(page, HasSubstr("      grandchild\n"));
  EXPECT_THAT(page, HasSubstr("ms: looked\n"));
  EXPECT_THAT(page, HasSubstr("error: why"));
  EXPECT_THAT(page, Not(HasSubstr("why\nnot")));
  EXPECT_LT(page.find("child"), page.find("grandchild"));
}

// Strangers choose paths, and names over HTTP.
TEST_F(TracesPageTest, EscapesTextsInHtml) {
  const auto span = Add(nullptr, "<script>alert(1)</script>", true);
  for (const std::string& query :
       {std::string(), "?trace=" + span->context().trace_id.ToString(),
        std::string("?method=<script>alert(1)</script>"),
        std::string("?method=%3Cscript%3Ealert(1)%3C/script%3E"),
        std::string("?trace=\"><script>alert(1)</script>")}) {
    const std::string page = Get(query, /*html=*/true);
    EXPECT_THAT(page, HasSubstr("<h2>Traces</h2>"));
    EXPECT_THAT(page, Not(HasSubstr("<script>")));
    EXPECT_THAT(page, Not(HasSubstr("<b>")));
  }
  EXPECT_THAT(Get("?trace=" + span->context().trace_id.ToString(), true),
              HasSubstr("&lt;b>&quot;Jo&quot; &amp; Co&lt;/b>"));
}

// A peer can name a descendant as the parent of a span.
TEST_F(TracesPageTest, SurvivesCircles) {
  TraceContext parent{.trace_id = {.high = 1, .low = 2}, .sampled = true};
  for (std::uint64_t id = 1; id != 4; ++id) {
    auto span = std::make_shared<SpanData>();
    parent.span_id = id;
    RecordedSpan recorded(parent, 0);
    SpanData outcome;
    outcome.name = "circle";
    outcome.parent_id = id % 3 + 1;
    tracer_.End(&recorded, std::move(outcome));
  }
  // Its own parent, and the same id twice.
  for (int i = 0; i != 2; ++i) {
    parent.span_id = 7;
    RecordedSpan recorded(parent, 0);
    SpanData outcome;
    outcome.name = "self";
    outcome.parent_id = i == 0 ? 7 : 0;
    tracer_.End(&recorded, std::move(outcome));
  }
  const std::string page =
      Get("?trace=00000000000000010000000000000002", /*html=*/true);
  EXPECT_THAT(page, HasSubstr("5 spans"));
  std::size_t circles = 0;
  for (std::size_t at = 0; (at = page.find(">circle<", at)) != page.npos;
       ++at) {
    ++circles;
  }
  EXPECT_EQ(circles, 3u);
}

}  // namespace
}  // namespace flare
