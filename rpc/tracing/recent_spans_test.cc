#include "flare/rpc/tracing/recent_spans.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace flare {
namespace {

// Ends at `end_s`, in seconds.
std::shared_ptr<const SpanData> MakeSpan(std::int64_t end_s,
                                         std::int64_t duration_ns,
                                         std::string name = "method") {
  auto span = std::make_shared<SpanData>();
  span->name = std::move(name);
  span->duration_ns = duration_ns;
  span->start_unix_ns = end_s * 1'000'000'000 - duration_ns;
  return span;
}

std::vector<std::int64_t> Durations(const RecentSpans& spans) {
  std::vector<std::int64_t> durations;
  for (const auto& span : spans.Read()) durations.push_back(span->duration_ns);
  return durations;
}

TEST(RecentSpansTest, KeepsTheLastOnes) {
  RecentSpans spans(/*capacity=*/3);
  EXPECT_TRUE(spans.Read().empty());
  // Slower ones of the method, which stay, too.
  for (int i = 0; i != 8; ++i) spans.Add(MakeSpan(1, 1000 + i));
  for (int i = 1; i != 6; ++i) spans.Add(MakeSpan(10 + i, i));
  EXPECT_EQ(Durations(spans).size(), 3u + 8u);
  const std::vector<std::int64_t> durations = Durations(spans);
  EXPECT_EQ(std::vector(durations.begin(), durations.begin() + 3),
            (std::vector<std::int64_t>{5, 4, 3}));
}

TEST(RecentSpansTest, KeepsTheSlowestOfEachMethod) {
  RecentSpans spans(1);
  for (int i = 0; i != 100; ++i) {
    // In an order that isn't that of their durations.
    spans.Add(MakeSpan(i, i * 37 % 100, "a"));
    spans.Add(MakeSpan(i, 1000 + i, "b"));
  }
  std::size_t a = 0;
  std::size_t b = 0;
  for (const auto& span : spans.Read()) {
    EXPECT_GE(span->duration_ns, span->name == "a" ? 92 : 1092);
    ++(span->name == "a" ? a : b);
  }
  EXPECT_EQ(a, RecentSpans::kSlowest);
  EXPECT_EQ(b, RecentSpans::kSlowest);
}

TEST(RecentSpansTest, PartsAreNotAmongTheSlowest) {
  RecentSpans spans(1);
  auto part = std::make_shared<SpanData>(*MakeSpan(1, 1000, "part"));
  part->kind = SpanKind::kInternal;
  spans.Add(part);
  EXPECT_EQ(Durations(spans).size(), 1u);
  spans.Add(MakeSpan(2, 1, "a"));
  EXPECT_EQ(Durations(spans), (std::vector<std::int64_t>{1}));
}

TEST(RecentSpansTest, OldSlowOnesMakeRoom) {
  RecentSpans spans(1);
  for (int i = 0; i != 8; ++i) spans.Add(MakeSpan(0, 1'000'000));
  spans.Add(MakeSpan(600, 1));
  spans.Add(MakeSpan(600, 2));
  EXPECT_EQ(Durations(spans).size(), 1u + 8u);
  for (int i = 0; i != 9; ++i) spans.Add(MakeSpan(601, 10));
  EXPECT_EQ(Durations(spans),
            std::vector<std::int64_t>(1 + RecentSpans::kSlowest, 10));
}

TEST(RecentSpansTest, MethodsBeyondTheLimitHaveNoSlowOnes) {
  RecentSpans spans(1);
  for (std::size_t i = 0; i != RecentSpans::kMaxMethods + 10; ++i) {
    spans.Add(MakeSpan(0, 1, std::to_string(i)));
  }
  EXPECT_EQ(spans.Read().size(), RecentSpans::kMaxMethods + 1);
}

}  // namespace
}  // namespace flare
