#include "flare/rpc/admin/metrics_text.h"

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flare/rpc/wire/utf8.h"

namespace flare::rpc {
namespace {

using metrics::Series;
using metrics::Snapshot;

// Within help texts a quote is one; within a label's value it ends that.
std::string EscapeMetricText(std::string_view text, bool quoted) {
  std::string scratch, escaped;
  for (const char c : AsUtf8(text, &scratch)) {
    if (c == '\\') {
      escaped += "\\\\";
    } else if (c == '\n') {
      escaped += "\\n";
    } else if (c == '"' && quoted) {
      escaped += "\\\"";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

// The shortest text that is read back as the same number.
std::string MetricNumber(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[32];
  constexpr double kExact = 9007199254740992.0;  // 2^53
  const auto end = std::nearbyint(value) == value && std::fabs(value) < kExact
                       ? std::to_chars(text, text + sizeof(text),
                                       static_cast<std::int64_t>(value))
                       : std::to_chars(text, text + sizeof(text), value);
  return std::string(text, end.ptr);
}

std::string_view MetricTypeName(Snapshot::Type type) {
  switch (type) {
    case Snapshot::Type::kCounter:
      return "counter";
    case Snapshot::Type::kGauge:
      return "gauge";
    case Snapshot::Type::kHistogram:
      break;
  }
  return "histogram";
}

// `le`: the label of a bucket; empty: it is none.
std::string MetricLabels(const Snapshot& metric, const Series& series,
                         std::string_view le) {
  std::string text;
  const auto add = [&](std::string_view name, std::string_view value) {
    text += text.empty() ? '{' : ',';
    text.append(name).append("=\"").append(
        EscapeMetricText(value, /*quoted=*/true));
    text += '"';
  };
  for (std::size_t i = 0; i != metric.label_names.size(); ++i) {
    add(metric.label_names[i], series.label_values[i]);
  }
  if (!le.empty()) add("le", le);
  if (!text.empty()) text += '}';
  return text;
}

// Buckets count all values up to their bounds. Numbers are written as texts:
// the stream may have a locale that groups digits.
void WriteHistogramMetric(const Snapshot& metric, const Series& series,
                          std::ostream& out) {
  const metrics::Histogram::Values& values = series.histogram;
  std::uint64_t count = 0;
  for (std::size_t i = 0; i != values.counts.size(); ++i) {
    count += values.counts[i];
    const std::string le =
        i == values.bounds.size() ? "+Inf" : MetricNumber(values.bounds[i]);
    out << metric.name << "_bucket" << MetricLabels(metric, series, le) << ' '
        << std::to_string(count) << '\n';
  }
  const std::string labels = MetricLabels(metric, series, "");
  out << metric.name << "_sum" << labels << ' ' << MetricNumber(values.sum)
      << '\n'
      << metric.name << "_count" << labels << ' ' << std::to_string(count)
      << '\n';
}

}  // namespace

void WriteMetric(const Snapshot& metric, std::ostream& out) {
  if (metric.series.empty()) return;
  out << "# HELP " << metric.name << ' '
      << EscapeMetricText(metric.help, /*quoted=*/false) << "\n# TYPE "
      << metric.name << ' ' << MetricTypeName(metric.type) << '\n';
  for (const Series& series : metric.series) {
    if (metric.type == Snapshot::Type::kHistogram) {
      WriteHistogramMetric(metric, series, out);
    } else {
      out << metric.name << MetricLabels(metric, series, "") << ' '
          << MetricNumber(series.value) << '\n';
    }
  }
}

}  // namespace flare::rpc
