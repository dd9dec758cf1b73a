#include "example/proxy/statistics.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <iomanip>
#include <sstream>
#include <string_view>
#include <utility>

#include "flare/base/string.h"

namespace example::proxy {
namespace {

using Counters = std::vector<std::pair<std::string_view, std::uint64_t>>;

// Under their names in text and JSON.
Counters CountersOf(const ProxyStatistics& s) {
  return {{"active", s.active},
          {"accepted", s.accepted},
          {"refused", s.refused},
          {"unserved", s.unserved},
          {"idle", s.idle},
          {"aborted", s.aborted},
          {"connect_failures", s.connect_failures},
          {"retries", s.retries},
          {"bytes_to_upstream", s.bytes_to_upstream},
          {"bytes_to_client", s.bytes_to_client}};
}

Counters CountersOf(const Snapshot::UpstreamRow& row) {
  return {{"active", row.connections.active},
          {"connections", row.connections.connections},
          {"failures", row.connections.failures},
          {"bytes_to_upstream", row.connections.bytes_to_upstream},
          {"bytes_to_client", row.connections.bytes_to_client},
          {"checks", row.health.checks},
          {"check_failures", row.health.failures}};
}

std::string Fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

// "unhealthy" and "paused" are told apart: the one is said by checks, the other
// by clients' connections.
std::string_view StateOf(const Upstream::Statistics& s) {
  if (!s.healthy) return "unhealthy";
  return s.paused ? "paused" : "up";
}

// A row of a table whose columns are as wide as their headings or wider.
void WriteRow(const std::vector<std::string>& cells,
              const std::vector<std::size_t>& widths, std::ostream& out) {
  for (std::size_t i = 0; i != cells.size(); ++i) {
    const bool last = i + 1 == cells.size();
    out << std::left << std::setw(last ? 0 : static_cast<int>(widths[i] + 2))
        << cells[i];
  }
  out << '\n';
}

void WriteTable(const std::vector<std::vector<std::string>>& rows,
                std::ostream& out) {
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i != row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  for (const auto& row : rows) WriteRow(row, widths, out);
}

void WriteUpstreams(const Snapshot& snapshot, std::ostream& out) {
  std::vector<std::vector<std::string>> rows;
  for (const Snapshot::UpstreamRow& upstream : snapshot.upstreams) {
    std::vector<std::string> heading = {"upstream", "state"};
    std::vector<std::string> row = {upstream.name,
                                    std::string(StateOf(upstream.connections))};
    for (const auto& [name, value] : CountersOf(upstream)) {
      heading.emplace_back(name);
      row.push_back(std::to_string(value));
    }
    heading.emplace_back("last_check_error");
    row.push_back(upstream.health.last_error);
    if (rows.empty()) rows.push_back(std::move(heading));
    rows.push_back(std::move(row));
  }
  if (!rows.empty()) WriteTable(rows, out);
}

// Builds one JSON object or list.
class JsonGroup {
 public:
  explicit JsonGroup(char open) : text_(1, open) {}

  JsonGroup& Add(std::string_view name, std::string_view json) {
    Separate();
    text_ += flare::JsonString(name);
    text_ += ": ";
    text_ += json;
    return *this;
  }
  JsonGroup& Add(std::string_view name, std::uint64_t value) {
    return Add(name, std::to_string(value));
  }
  JsonGroup& AddFlag(std::string_view name, bool value) {
    return Add(name, value ? "true" : "false");
  }
  JsonGroup& AddText(std::string_view name, std::string_view value) {
    return Add(name, flare::JsonString(value));
  }
  JsonGroup& AddAll(const Counters& counters) {
    for (const auto& [name, value] : counters) Add(name, value);
    return *this;
  }
  JsonGroup& Append(std::string_view json) {
    Separate();
    text_ += json;
    return *this;
  }

  std::string Close(char close) const { return text_ + close; }

 private:
  void Separate() {
    if (text_.size() > 1) text_ += ", ";
  }

  std::string text_;
};

std::string JsonOf(const Snapshot::UpstreamRow& row) {
  return JsonGroup('{')
      .AddText("name", row.name)
      .AddText("address", row.address)
      .AddFlag("healthy", row.connections.healthy)
      .AddFlag("paused", row.connections.paused)
      .AddAll(CountersOf(row))
      .AddText("last_check_error", row.health.last_error)
      .Close('}');
}

}  // namespace

std::string StatisticsLine(const Snapshot& before, const Snapshot& now,
                           double seconds) {
  const ProxyStatistics& a = before.sessions;
  const ProxyStatistics& b = now.sessions;
  const auto mb_per_s = [&](std::uint64_t bytes) {
    return Fixed(static_cast<double>(bytes) / 1e6 / std::max(seconds, 1e-3), 1);
  };
  const auto up = std::count_if(
      now.upstreams.begin(), now.upstreams.end(),
      [](const auto& row) { return StateOf(row.connections) == "up"; });
  std::ostringstream line;
  line << b.active << " sessions; in " << Fixed(seconds, 1)
       << " s: " << b.accepted - a.accepted << " accepted, "
       << b.refused - a.refused << " refused, " << b.unserved - a.unserved
       << " unserved, " << b.idle - a.idle << " idle, " << b.aborted - a.aborted
       << " aborted, " << b.connect_failures - a.connect_failures
       << " connect failures; "
       << mb_per_s(b.bytes_to_upstream - a.bytes_to_upstream)
       << " MB/s to upstreams, "
       << mb_per_s(b.bytes_to_client - a.bytes_to_client)
       << " MB/s to clients; " << up << " of " << now.upstreams.size()
       << " upstreams up.";
  return line.str();
}

std::string StatisticsText(const Snapshot& snapshot) {
  std::ostringstream out;
  out << "uptime_s " << Fixed(snapshot.uptime_s, 3)            //
      << "\ndraining " << (snapshot.draining ? 1 : 0)          //
      << "\ngeneration " << snapshot.generation                //
      << "\nreloads_refused " << snapshot.reloads_refused      //
      << "\nlast_reload_error " << snapshot.last_reload_error  //
      << "\naccess_log_dropped " << snapshot.access_log_dropped
      << "\nlog_lines_lost " << snapshot.log_lines_lost << '\n';
  for (const std::string& address : snapshot.listening) {
    out << "listening " << address << '\n';
  }
  for (const auto& [name, value] : CountersOf(snapshot.sessions)) {
    out << name << ' ' << value << '\n';
  }
  out << "sessions_per_group";
  for (const std::uint64_t n : snapshot.sessions_per_group) out << ' ' << n;
  out << "\n\n";
  WriteUpstreams(snapshot, out);
  return out.str();
}

std::string StatisticsJson(const Snapshot& snapshot) {
  JsonGroup listening('[');
  for (const std::string& address : snapshot.listening) {
    listening.Append(flare::JsonString(address));
  }
  JsonGroup groups('[');
  for (const std::uint64_t n : snapshot.sessions_per_group) {
    groups.Append(std::to_string(n));
  }
  JsonGroup upstreams('[');
  for (const auto& row : snapshot.upstreams) upstreams.Append(JsonOf(row));
  return JsonGroup('{')
             .Add("uptime_s", Fixed(snapshot.uptime_s, 3))
             .AddFlag("draining", snapshot.draining)
             .Add("generation", snapshot.generation)
             .Add("reloads_refused", snapshot.reloads_refused)
             .AddText("last_reload_error", snapshot.last_reload_error)
             .Add("access_log_dropped", snapshot.access_log_dropped)
             .Add("log_lines_lost", snapshot.log_lines_lost)
             .Add("listening", listening.Close(']'))
             .AddAll(CountersOf(snapshot.sessions))
             .Add("sessions_per_group", groups.Close(']'))
             .Add("upstreams", upstreams.Close(']'))
             .Close('}') +
         '\n';
}

}  // namespace example::proxy
