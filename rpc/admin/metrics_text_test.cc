// example/rpc/e2e/metrics_e2e_test.py has Prometheus' own parser read it.
#include "flare/rpc/admin/metrics_text.h"

#include <limits>
#include <locale>
#include <sstream>
#include <string>

#include "flare/rpc/metrics.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using metrics::Series;
using metrics::Snapshot;

std::string TextOf(const Snapshot& metric) {
  std::ostringstream text;
  WriteMetric(metric, text);
  return text.str();
}

std::string NumberIn(double value) {
  const std::string text =
      TextOf({.name = "x", .series = {Series{.value = value}}});
  const std::string head = "# HELP x \n# TYPE x counter\nx ";
  EXPECT_EQ(text.substr(0, head.size()), head);
  return text.substr(head.size());
}

TEST(MetricsTextTest, CountersWithLabels) {
  EXPECT_EQ(TextOf({.name = "shop_pages_total",
                    .help = "Pages sent.",
                    .label_names = {"page", "status"},
                    .series = {{.label_values = {"/", "200"}, .value = 3},
                               {.label_values = {"/", ""}, .value = 0}}}),
            "# HELP shop_pages_total Pages sent.\n"
            "# TYPE shop_pages_total counter\n"
            "shop_pages_total{page=\"/\",status=\"200\"} 3\n"
            "shop_pages_total{page=\"/\",status=\"\"} 0\n");
}

TEST(MetricsTextTest, BucketsAddUp) {
  EXPECT_EQ(TextOf({.name = "h",
                    .help = "H.",
                    .type = Snapshot::Type::kHistogram,
                    .label_names = {"a"},
                    .series = {{.label_values = {"b"},
                                .histogram = {.bounds = {0.25, 1},
                                              .counts = {1, 0, 2},
                                              .sum = 7.5}}}}),
            "# HELP h H.\n# TYPE h histogram\n"
            "h_bucket{a=\"b\",le=\"0.25\"} 1\nh_bucket{a=\"b\",le=\"1\"} 1\n"
            "h_bucket{a=\"b\",le=\"+Inf\"} 3\nh_sum{a=\"b\"} 7.5\n"
            "h_count{a=\"b\"} 3\n");
}

struct GroupedDigits : std::numpunct<char> {
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(MetricsTextTest, DoesNotGroupDigits) {
  std::ostringstream text;
  text.imbue(std::locale(std::locale::classic(), new GroupedDigits));
  WriteMetric({.name = "h",
               .type = Snapshot::Type::kHistogram,
               .series = {{.histogram = {.bounds = {},
                                         .counts = {1234567},
                                         .sum = 1234567}}}},
              text);
  EXPECT_EQ(text.str(),
            "# HELP h \n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1234567\n"
            "h_sum 1234567\nh_count 1234567\n");
}

TEST(MetricsTextTest, EscapesTexts) {
  EXPECT_EQ(TextOf({.name = "x",
                    .help = "a\\b\n\"c\"\xff",
                    .type = Snapshot::Type::kGauge,
                    .label_names = {"l"},
                    .series = {{.label_values = {"a\\b\n\"c\"\xff\xc3\xa4"},
                                .value = 1}}}),
            "# HELP x a\\\\b\\n\"c\"?\n# TYPE x gauge\n"
            "x{l=\"a\\\\b\\n\\\"c\\\"?\xc3\xa4\"} 1\n");
}

TEST(MetricsTextTest, Numbers) {
  EXPECT_EQ(NumberIn(0), "0\n");
  EXPECT_EQ(NumberIn(-2.5), "-2.5\n");
  EXPECT_EQ(NumberIn(0.1), "0.1\n");
  EXPECT_EQ(NumberIn(1234567890123), "1234567890123\n");
  EXPECT_EQ(NumberIn(1e300), "1e+300\n");
  EXPECT_EQ(NumberIn(std::numeric_limits<double>::infinity()), "+Inf\n");
  EXPECT_EQ(NumberIn(-std::numeric_limits<double>::infinity()), "-Inf\n");
  EXPECT_EQ(NumberIn(std::numeric_limits<double>::quiet_NaN()), "NaN\n");
}

TEST(MetricsTextTest, NothingOfNoSeries) {
  EXPECT_EQ(TextOf({.name = "x"}), "");
}

}  // namespace
}  // namespace flare::rpc
