// The proxy's reports about its clients: one by one, and in numbers.

#ifndef EXAMPLE_PROXY_SESSION_REPORT_H_
#define EXAMPLE_PROXY_SESSION_REPORT_H_

#include <cstdint>
#include <functional>
#include <string_view>

#include "example/proxy/upstream.h"
#include "flare/base/endpoint.h"
#include "flare/base/ref_ptr.h"

namespace example::proxy {

// Why a client's session is over.
enum class SessionEnd {
  kFinished,       // Both sides have ended their directions, all is delivered.
  kClientAborted,  // The client's connection broke: reset, time-out.
  kUpstreamAborted,
  kIdle,        // No byte for idle_timeout.
  kNoUpstream,  // Could be connected to none: `error` says why the last failed.
  kOverLimit,   // More than max_connections: closed at once.
  kBadHeader,   // accept_proxy_protocol, and it sent none.
  kNoRoute,     // sni_routes, and none was for it; or it didn't speak TLS.
  kTlsFailed,   // The handshake with it did.
  kCut,         // By CutAll().
  kNoMemory,    // For a side's bytes, or for the session itself.
};

// "finished", "client-aborted", ...: for logs.
std::string_view ToString(SessionEnd end);

// The fate of a client.
struct SessionReport {
  flare::Endpoint client;    // The client's address,
  flare::Endpoint source;    // and the one in its PROXY header, else same.
  flare::Endpoint listener;  // Where.
  // The last one that was tried; null: none was.
  flare::RefPtr<Upstream> upstream;
  int attempts = 0;  // Upstreams tried.
  SessionEnd end = SessionEnd::kFinished;
  int error = 0;  // errno of the broken side; 0 if none broke.
  std::uint64_t bytes_to_upstream = 0;  // Delivered to the kernel; without
  std::uint64_t bytes_to_client = 0;    // PROXY headers.
  std::int64_t accepted_ns = 0;         // NowNs() time.
  std::int64_t connected_ns = 0;        // To the upstream; 0: never.
  std::int64_t ended_ns = 0;
};

// Since the start, over all reloads.
struct ProxyStatistics {
  std::uint64_t accepted = 0;  // All of them; refused ones included.
  std::uint64_t active = 0;    // Now.
  std::uint64_t refused = 0;   // kOverLimit.
  std::uint64_t connect_failures = 0;
  std::uint64_t retries = 0;  // Upstreams tried after another one had failed.
  // Ended as kNoUpstream, kIdle; kClientAborted and kUpstreamAborted.
  std::uint64_t unserved = 0;
  std::uint64_t idle = 0;
  std::uint64_t aborted = 0;
  // As Upstream::AddBytes.
  std::uint64_t bytes_to_upstream = 0;
  std::uint64_t bytes_to_client = 0;
};

// Is called once for each client that was accepted, when its session is over,
// on a worker, and possibly on several at once. Must not block.
using OnSessionEnd = std::function<void(const SessionReport&)>;

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_SESSION_REPORT_H_
