#include "flare/rpc/tracing/trace_headers.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

namespace flare {
namespace {

using Form = TraceHeaderForm;
using Headers = std::multimap<std::string, std::string>;

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kSpan[] = "b7ad6b7169203331";

TraceOrigin Read(const std::vector<Form>& forms, const Headers& headers,
                 bool baggage = false) {
  return ReadTraceHeaders(
      {.forms = forms, .baggage = baggage}, [&](std::string_view name) {
        std::vector<std::string_view> values;
        const auto [begin, end] = headers.equal_range(std::string(name));
        for (auto at = begin; at != end; ++at) {
          values.push_back(at->second);
        }
        return values;
      });
}

Headers Write(const std::vector<Form>& forms, const TraceContext& context) {
  Headers headers;
  WriteTraceHeaders({.forms = forms}, context,
                    [&](std::string_view name, const std::string& value) {
                      headers.emplace(name, value);
                    });
  return headers;
}

TraceContext Context() {
  return {.trace_id = {.high = 0x0af7651916cd43dd, .low = 0x8448eb211c80319c},
          .span_id = 0xb7ad6b7169203331,
          .sampled = true,
          .state = "a=1"};
}

TEST(TraceHeadersTest, AllFormsAreWritten) {
  const std::string trace = kTrace;
  const std::string span = kSpan;
  const auto headers =
      Write({Form::kW3c, Form::kB3, Form::kB3Multi}, Context());
  EXPECT_EQ(headers,
            (Headers{{"traceparent", "00-" + trace + "-" + span + "-01"},
                     {"tracestate", "a=1"},
                     {"b3", trace + "-" + span + "-1"},
                     {"x-b3-traceid", trace},
                     {"x-b3-spanid", span},
                     {"x-b3-sampled", "1"}}));
}

TEST(TraceHeadersTest, ShortIdsStayShort) {
  TraceContext context = Context();
  context.trace_id.high = 0;
  context.sampled = false;
  EXPECT_EQ(Write({Form::kB3}, context),
            (Headers{{"b3", std::string("8448eb211c80319c-") + kSpan + "-0"}}));
}

TEST(TraceHeadersTest, EachFormIsReadAsWritten) {
  for (const Form form : {Form::kW3c, Form::kB3, Form::kB3Multi}) {
    for (const bool sampled : {true, false}) {
      for (const bool is_short : {true, false}) {
        TraceContext context = Context();
        context.sampled = sampled;
        if (is_short) context.trace_id.high = 0;
        const TraceOrigin origin = Read({form}, Write({form}, context));
        ASSERT_TRUE(origin.parent);
        EXPECT_EQ(origin.parent->trace_id, context.trace_id);
        EXPECT_EQ(origin.parent->span_id, context.span_id);
        EXPECT_EQ(origin.sampled, sampled);
        EXPECT_EQ(origin.parent->state, form == Form::kW3c ? "a=1" : "");
      }
    }
  }
}

TEST(TraceHeadersTest, B3MayLeaveADecisionOpenOrBeOneAlone) {
  const std::string ids = std::string(kTrace) + "-" + kSpan;
  TraceOrigin origin = Read({Form::kB3}, {{"b3", ids}});
  EXPECT_TRUE(origin.parent);
  EXPECT_FALSE(origin.sampled);
  origin = Read({Form::kB3}, {{"b3", "0"}});
  EXPECT_FALSE(origin.parent);
  EXPECT_EQ(origin.sampled, false);
  EXPECT_EQ(Read({Form::kB3}, {{"b3", ids + "-d"}}).sampled, true);
  EXPECT_EQ(Read({Form::kB3}, {{"b3", ids + "-1-05e3ac9a4f6e3b90"}}).sampled,
            true);

  const Headers multi = {{"x-b3-traceid", kTrace}, {"x-b3-spanid", kSpan}};
  EXPECT_TRUE(Read({Form::kB3Multi}, multi).parent);
  EXPECT_FALSE(Read({Form::kB3Multi}, multi).sampled);
  EXPECT_EQ(Read({Form::kB3Multi}, {{"x-b3-sampled", "false"}}).sampled, false);
  EXPECT_EQ(Read({Form::kB3Multi}, {{"x-b3-flags", "1"}}).sampled, true);
}

TEST(TraceHeadersTest, MalformedOnesSayNothing) {
  const std::string trace = kTrace;
  const std::string span = kSpan;
  for (const std::string& value :
       {std::string(), std::string("-"), std::string("---"), std::string("2"),
        trace, trace + "-", trace + "-" + span.substr(1), trace + "--" + span,
        "A" + trace.substr(1) + "-" + span, trace.substr(1) + "-" + span,
        std::string(32, '0') + "-" + span, trace + "-" + std::string(16, '0'),
        trace + "-" + span + "-1-05e3ac9a4f6e3b90-0"}) {
    const TraceOrigin origin = Read({Form::kB3}, {{"b3", value}});
    EXPECT_FALSE(origin.parent) << value;
    EXPECT_FALSE(origin.sampled) << value;
  }
  // Twice is as good as none.
  const std::string good = trace + "-" + span + "-1";
  EXPECT_FALSE(Read({Form::kB3}, {{"b3", good}, {"b3", good}}).parent);
  EXPECT_FALSE(Read({Form::kB3Multi}, {{"x-b3-traceid", trace}}).parent);
  EXPECT_FALSE(Read({Form::kB3Multi}, {{"x-b3-spanid", span}}).parent);
}

TEST(TraceHeadersTest, TheFirstFormThatSaysSomethingCounts) {
  Headers headers = Write({Form::kW3c}, Context());
  headers.emplace("b3", "0");
  EXPECT_EQ(Read({Form::kW3c, Form::kB3}, headers).sampled, true);
  EXPECT_EQ(Read({Form::kB3, Form::kW3c}, headers).sampled, false);
  headers.erase("traceparent");
  EXPECT_EQ(Read({Form::kW3c, Form::kB3}, headers).sampled, false);
  EXPECT_FALSE(Read({Form::kB3Multi}, headers).sampled);
}

TEST(TraceHeadersTest, ADecisionAloneHidesNoParent) {
  const std::string parent = std::string("00-") + kTrace + "-" + kSpan + "-00";
  const auto origin = Read({Form::kB3Multi, Form::kB3, Form::kW3c},
                           {{"x-b3-sampled", "1"}, {"traceparent", parent}});
  ASSERT_TRUE(origin.parent);
  EXPECT_EQ(origin.parent->span_id, 0xb7ad6b7169203331);
  EXPECT_EQ(origin.sampled, true);
  EXPECT_EQ(
      Read({Form::kB3Multi, Form::kB3}, {{"x-b3-sampled", "1"}, {"b3", "0"}})
          .sampled,
      true);
}

TEST(TraceHeadersTest, BaggageIsReadIfToldTo) {
  const Headers headers = {{"baggage", "a=1"}, {"baggage", " b=2;p=3 "}};
  const auto baggage = Read({Form::kW3c}, headers, true).baggage;
  ASSERT_NE(baggage, nullptr);
  EXPECT_EQ(*baggage, "a=1,b=2;p=3");
  EXPECT_EQ(Read({Form::kW3c}, headers, false).baggage, nullptr);
  EXPECT_EQ(Read({Form::kW3c}, {{"baggage", "x"}}, true).baggage, nullptr);
}

}  // namespace
}  // namespace flare
