// The counts of a server: Server::statistics() and method_statistics(), and the
// pages /inspect/server and /inspect/methods; and the calls that its stop cut
// short: Server::abandoned_calls(). Plain values.
#ifndef FLARE_RPC_SERVER_STATISTICS_H_
#define FLARE_RPC_SERVER_STATISTICS_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "flare/base/endpoint.h"
#include "flare/base/histogram.h"

namespace flare {

// A rule of AdmissionOptions (admission_options.h), in the order in which calls
// are judged.
enum class AdmissionRule : std::size_t { kQueue, kLate, kLimit, kMethodLimit };
inline constexpr std::size_t kAdmissionRules = 4;
inline constexpr const char* kAdmissionRuleNames[kAdmissionRules] = {
    "queue", "late", "limit", "method_limit"};

// Priorities of calls: 0 to 9.
inline constexpr std::size_t kPriorities = 10;

struct AdmissionStatistics {
  bool on = false;          // Some rule is on.
  std::uint64_t limit = 0;  // The server's current limit; 0: it has none.
  // Calls by rule. One rule counts a call that it refuses; each rule that only
  // counts counts an admitted call that it would have refused.
  std::array<std::uint64_t, kAdmissionRules> refused = {};
  std::array<std::uint64_t, kAdmissionRules> would_refuse = {};
  // Whether calls have priorities (AdmissionOptions::priority_key), and the
  // refused calls of each priority.
  bool has_priorities = false;
  std::array<std::uint64_t, kPriorities> refused_by_priority = {};
};

// Totals since Start(); approximate while the server runs.
struct ServerStatistics {
  std::uint64_t connections_accepted = 0;
  std::uint64_t connections_open = 0;
  std::uint64_t connections_refused = 0;    // over the limit, by the filter
  std::uint64_t connections_idle = 0;       // closed as idle
  std::uint64_t connections_slow = 0;       // closed within a slow message
  std::uint64_t connections_greedy = 0;     // closed for the memory they held
  std::uint64_t connections_malformed = 0;  // closed for bad input
  // Ended by an IO error, or by the peer within a message.
  std::uint64_t connections_broken = 0;
  // The bytes that connections hold of Server::Options::max_buffered_bytes.
  std::uint64_t buffered_bytes = 0;
  std::uint64_t calls = 0;             // messages taken off connections
  std::uint64_t calls_running = 0;     // ... of these not finished
  std::uint64_t calls_failed = 0;      // answered with a status that isn't 0
  std::uint64_t calls_overloaded = 0;  // ... of these over some limit
  std::uint64_t calls_malformed = 0;   // ... of these not understood
  std::uint64_t calls_unknown = 0;     // ... of these no such method
  // ... of these whose caller has shown no good credentials, and of these that
  // their caller may not make; over plain HTTP answered 401 and 403.
  std::uint64_t calls_unauthenticated = 0;
  std::uint64_t calls_denied = 0;
  // Those that were told to stop before they had been answered, and watched
  // for it (docs/cancellation.md), or didn't begin, as their callers had left.
  std::uint64_t calls_cancelled = 0;
  AdmissionStatistics admission;
};

// The calls of one method in the last seconds, from a sample of its counters
// once a second. Latencies are as in ServerMethodStatistics, known to 1/16.
struct RecentCallStatistics {
  // The time that this is about, up to the latest sample; 0: there is none yet.
  double seconds = 0;
  double calls_per_second = 0;   // answered, or refused
  double failed_per_second = 0;  // ... of these
  // 0: no call was measured in that time.
  std::int64_t p50_ns = 0;
  std::int64_t p90_ns = 0;
  std::int64_t p99_ns = 0;
};

// Statistics of one method, since Start(); approximate while the server runs,
// but a client that has got a reply finds its call counted. Calls that were
// refused before their method was looked for are counted, too, if it exists.
struct ServerMethodStatistics {
  std::string name;              // package.Service.Method
  std::uint64_t calls = 0;       // that came
  std::uint64_t running = 0;     // ... of these not answered
  std::uint64_t failed = 0;      // answered with a status that isn't 0
  std::uint64_t overloaded = 0;  // ... of these over some limit
  // Failed calls by status. The first 24 statuses of a method are told apart;
  // `failed` counts the others, too.
  std::map<int, std::uint64_t> failures;
  // From the arrival of requests to their replies, in nanoseconds; of calls
  // that the service has answered, with whatever status. All calls are
  // measured, but where a worker answers more than 1,000 a second of this
  // method: there it is one of 101, which counts for all of these.
  Histogram latencies_ns;
  std::uint64_t limit = 0;  // The current adaptive limit; 0: none.
  RecentCallStatistics last_10s;
  RecentCallStatistics last_minute;
};

// A call that Server::Join() has abandoned.
struct AbandonedCall {
  // "package.Service.Method"; the beginning of a very long name. Empty: a
  // request to an HTTP handler, or one that no worker had come to.
  std::string method;
  Endpoint peer;  // Empty: at a Unix socket.
  // As in Server::AddProtocol(), and "http" for all that HTTP/1 carries. Empty:
  // its connection had been closed before.
  std::string protocol;
  std::chrono::nanoseconds age{};  // Since its arrival.

  // "package.Service.Method of 127.0.0.1:5, over flare, 1.234 s".
  std::string ToString() const;
};

}  // namespace flare

#endif  // FLARE_RPC_SERVER_STATISTICS_H_
