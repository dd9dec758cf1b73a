#include "flare/rpc/tracing/traces_page.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/string.h"
#include "flare/rpc/admin/page_text.h"

namespace flare {
namespace {

// --- the request -----------------------------------------------------------

struct Query {
  std::string trace;
  std::string method;
  bool failed = false;
  bool slow = false;
  std::size_t most = 100;
};

Query ReadQuery(std::string_view text) {
  Query query;
  for (const auto& [name, value] : rpc::ParseQuery(text)) {
    if (name == "trace") query.trace = ToLower(Trim(value));
    if (name == "method") query.method = Trim(value);
    if (name == "failed") query.failed = value == "1";
    if (name == "sort") query.slow = value == "slow";
    if (name == "n") query.most = TryParse<std::size_t>(value).value_or(100);
  }
  return query;
}

SpanBatch Select(SpanBatch spans, const Query& query) {
  std::erase_if(spans, [&](const auto& span) {
    return (!query.trace.empty() &&
            span->context.trace_id.ToString() != query.trace) ||
           span->name.find(query.method) == std::string::npos ||
           (query.failed && !span->failed);
  });
  if (query.slow) {
    std::stable_sort(spans.begin(), spans.end(),
                     [](const auto& a, const auto& b) {
                       return a->duration_ns > b->duration_ns;
                     });
  }
  if (spans.size() > query.most) spans.resize(query.most);
  return spans;
}

// --- the tree of a trace ---------------------------------------------------

struct Node {
  const SpanData* span;
  int depth;
};

// Puts the spans of a trace in order.
class SpanTree {
 public:
  // Parents before their children, which are in the order of their beginning.
  // Spans whose parents aren't here are roots.
  static std::vector<Node> Of(SpanBatch spans) {
    std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) {
      return a->start_unix_ns < b->start_unix_ns;
    });
    SpanTree tree;
    std::set<std::uint64_t> ids;
    for (const auto& span : spans) ids.insert(span->context.span_id);
    for (const auto& span : spans) {
      tree.children_.emplace(span->parent_id, span.get());
    }
    for (const auto& span : spans) {
      if (!ids.contains(span->parent_id)) tree.Add(span.get(), 0);
    }
    // Ids that peers repeat can make circles.
    for (const auto& span : spans) tree.Add(span.get(), 0);
    return std::move(tree.nodes_);
  }

 private:
  void Add(const SpanData* span, int depth) {
    constexpr int kMaxDepth = 100;  // Calls on our stack, too.
    if (depth > kMaxDepth || !seen_.insert(span).second) return;
    nodes_.push_back({span, depth});
    const auto [begin, end] = children_.equal_range(span->context.span_id);
    for (auto at = begin; at != end; ++at) Add(at->second, depth + 1);
  }

  std::multimap<std::uint64_t, const SpanData*> children_;
  std::set<const SpanData*> seen_;
  std::vector<Node> nodes_;
};

// --- texts of a span -------------------------------------------------------

std::string Milliseconds(std::int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f", static_cast<double>(ns) / kNsPerMs);
  return text;
}

// In UTC, whatever the zone of the machine.
std::string TimeOf(std::int64_t unix_ns) {
  const std::time_t seconds = unix_ns / kNsPerSecond;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  const std::size_t size = std::strftime(text, sizeof(text), "%T", &parts);
  char fraction[8];
  std::snprintf(fraction, sizeof(fraction), ".%03d",
                static_cast<int>(unix_ns / kNsPerMs % 1000));
  return std::string(text, size) + fraction;
}

std::string ValueOf(const SpanAttribute& attribute) {
  return std::visit(
      [](const auto& value) -> std::string {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return value;
        } else if constexpr (std::is_same_v<T, bool>) {
          return value ? "true" : "false";
        } else {
          return std::to_string(value);
        }
      },
      attribute.value);
}

// Lines with the other facts.
std::vector<std::string> NotesOf(const SpanData& span) {
  std::vector<std::string> notes;
  for (const SpanAttribute& attribute : span.attributes) {
    notes.push_back(attribute.name + " = " + ValueOf(attribute));
  }
  for (const SpanEvent& event : span.events) {
    notes.push_back("+" + Milliseconds(event.unix_ns - span.start_unix_ns) +
                    " ms: " + event.name);
  }
  if (span.dropped_attributes + span.dropped_events != 0) {
    notes.push_back(
        "dropped: " + CountOf(span.dropped_attributes, "attribute") + ", " +
        CountOf(span.dropped_events, "event"));
  }
  if (span.failed) notes.push_back("error: " + span.error);
  return notes;
}

const char* KindOf(const SpanData& span) {
  switch (span.kind) {
    case SpanKind::kServer:
      return "server";
    case SpanKind::kClient:
      return "client";
    case SpanKind::kInternal:
      return "part";
  }
  return "";
}

std::string TrafficOf(const SpanData::Traffic& traffic) {
  return std::to_string(traffic.messages) + "/" + std::to_string(traffic.bytes);
}

constexpr std::string_view kColumns[] = {"ended",    "ms",   "kind", "status",
                                         "received", "sent", "peer", "trace"};

std::vector<std::string> CellsOf(const SpanData& span) {
  return {TimeOf(span.start_unix_ns + span.duration_ns),
          Milliseconds(span.duration_ns),
          KindOf(span),
          std::to_string(span.status),
          TrafficOf(span.received),
          TrafficOf(span.sent),
          span.peer.empty() ? "-" : span.peer,
          span.context.trace_id.ToString()};
}

std::string Summary(const Tracer& tracer) {
  std::string text = "sent and received: messages/bytes; times are UTC";
  const std::uint64_t dropped = tracer.dropped();
  if (tracer.exporter() != nullptr) {
    const BatchExporter::Statistics s = tracer.exporter()->statistics();
    text += "; exported " + std::to_string(s.exported) + ", dropped " +
            std::to_string(dropped) + ", failed " + std::to_string(s.failed);
  } else if (dropped != 0) {
    text += "; dropped " + CountOf(dropped, "span");
  }
  if (const std::uint64_t members = tracer.dropped_baggage(); members != 0) {
    text += "; dropped " + CountOf(members, "member") + " of baggage";
  }
  return text;
}

// --- text ------------------------------------------------------------------

void WriteText(const std::vector<Node>& nodes, bool details,
               std::ostream& out) {
  std::vector<std::vector<std::string>> rows = {
      {std::begin(kColumns), std::end(kColumns)}};
  for (const Node& node : nodes) rows.push_back(CellsOf(*node.span));
  std::vector<std::size_t> widths(std::size(kColumns));
  for (const auto& row : rows) {
    for (std::size_t i = 0; i != row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  for (std::size_t i = 0; i != rows.size(); ++i) {
    for (std::size_t j = 0; j != widths.size(); ++j) {
      out << rows[i][j] << std::string(widths[j] - rows[i][j].size() + 2, ' ');
    }
    if (i == 0) {
      out << "method\n";
      continue;
    }
    const Node& node = nodes[i - 1];
    const std::string indent(static_cast<std::size_t>(2 * node.depth), ' ');
    out << indent << OneLine(node.span->name) << "\n";
    if (!details) continue;
    for (const std::string& note : NotesOf(*node.span)) {
      out << "#   " << indent << OneLine(note) << "\n";
    }
  }
}

// --- HTML ------------------------------------------------------------------

constexpr char kHead[] = R"(<!DOCTYPE html><meta charset="utf-8">
<title>/inspect/traces</title>
<style>
body { font: 14px system-ui, sans-serif; margin: 1.5em; }
table { border-collapse: collapse; }
td, th { text-align: left; padding: 2px 10px 2px 0; white-space: nowrap; }
th { border-bottom: 1px solid #888; }
tr.failed td { color: #b00020; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
code, .note { font: 12px ui-monospace, monospace; }
.note { color: #555; white-space: pre-wrap; }
.bar { background: #3a76c4; height: 10px; min-width: 1px; }
.failed .bar { background: #b00020; }
.lane { width: 320px; }
</style>
)";

void WriteForm(const Query& query, std::ostream& out) {
  out << "<form>method <input name=method value=\""
      << rpc::EscapeHtml(query.method)
      << "\"> trace <input name=trace size=34 value=\""
      << rpc::EscapeHtml(query.trace)
      << "\"> <label><input type=checkbox name=failed value=1"
      << (query.failed ? " checked" : "")
      << "> failed</label> <label><input type=checkbox name=sort value=slow"
      << (query.slow ? " checked" : "")
      << "> slowest first</label> <button>show</button> "
         "<a href=\"/inspect/traces\">all</a></form>\n";
}

struct TimeRange {
  std::int64_t begin;
  std::int64_t end;
};

// Where the span is in the time of all.
void WriteBar(const SpanData& span, const TimeRange& all, std::ostream& out) {
  const double scale = 100.0 / static_cast<double>(std::max<std::int64_t>(
                                   all.end - all.begin, 1));
  out << "<td class=lane><div class=bar style=\"margin-left:"
      << static_cast<double>(span.start_unix_ns - all.begin) * scale
      << "%;width:" << static_cast<double>(span.duration_ns) * scale
      << "%\"></div></td>";
}

void WriteHtmlRow(const Node& node, bool details, const TimeRange& all,
                  std::ostream& out) {
  const SpanData& span = *node.span;
  const std::vector<std::string> cells = CellsOf(span);
  out << (span.failed ? "<tr class=failed>" : "<tr>");
  for (std::size_t i = 0; i + 1 != cells.size(); ++i) {
    out << (i == 1 ? "<td class=number>" : "<td>") << rpc::EscapeHtml(cells[i])
        << "</td>";
  }
  const std::string& id = cells.back();
  out << "<td><a href=\"?trace=" << id << "\"><code>"
      << (details ? id : id.substr(0, 8)) << "</code></a></td>"
      << "<td style=\"padding-left:" << 2 * node.depth << "em\">"
      << rpc::EscapeHtml(span.name) << "</td>";
  if (details) WriteBar(span, all, out);
  out << "</tr>\n";
  if (!details) return;
  for (const std::string& note : NotesOf(span)) {
    out << "<tr><td colspan=8></td><td class=note colspan=2 "
           "style=\"padding-left:"
        << 2 * node.depth + 1 << "em\">" << rpc::EscapeHtml(note)
        << "</td></tr>\n";
  }
}

void WriteHtml(const Tracer& tracer, const Query& query,
               const std::vector<Node>& nodes, bool details,
               std::ostream& out) {
  out << kHead << "<h2>Traces</h2>\n";
  WriteForm(query, out);
  out << "<p>" << CountOf(nodes.size(), "span") << "; " << Summary(tracer)
      << "</p>\n<table><tr>";
  for (const std::string_view column : kColumns) {
    out << "<th>" << column << "</th>";
  }
  out << "<th>method</th></tr>\n";
  TimeRange all{INT64_MAX, 0};
  for (const Node& node : nodes) {
    const SpanData& span = *node.span;
    all.begin = std::min(all.begin, span.start_unix_ns);
    all.end = std::max(all.end, span.start_unix_ns + span.duration_ns);
  }
  for (const Node& node : nodes) WriteHtmlRow(node, details, all, out);
  out << "</table>\n";
}

}  // namespace

void WriteTracesPage(const Tracer& tracer, const HttpRequest& request,
                     HttpResponse* response) {
  const Query query = ReadQuery(request.query());
  const SpanBatch spans = Select(tracer.recent().Read(), query);
  const bool details = !query.trace.empty();
  std::vector<Node> nodes;
  if (details) {
    nodes = SpanTree::Of(spans);
  } else {
    for (const auto& span : spans) nodes.push_back({span.get(), 0});
  }
  const bool html = rpc::WantsHtml(request);
  std::ostringstream out;
  if (html) {
    WriteHtml(tracer, query, nodes, details, out);
  } else {
    out << "# " << CountOf(nodes.size(), "span") << "; " << Summary(tracer)
        << "\n";
    WriteText(nodes, details, out);
  }
  response->headers()->Set("Content-Type", html ? "text/html; charset=utf-8"
                                                : "text/plain; charset=utf-8");
  response->set_body(std::move(out).str());
}

}  // namespace flare
