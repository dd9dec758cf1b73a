// Counters of the process' TLS handshakes by their outcome, for the page
// /metrics.
#ifndef FLARE_IO_TLS_COUNTERS_H_
#define FLARE_IO_TLS_COUNTERS_H_

#include <atomic>
#include <cstdint>

namespace flare::io {

// Counts since the start. All orders are relaxed, as they order no other
// memory. Threads share the counters: a handshake costs thousands of times as
// much as counting it.
struct TlsCounters {
  std::atomic<std::uint64_t> full{0};
  std::atomic<std::uint64_t> resumed{0};
  std::atomic<std::uint64_t> failed{0};
  // The connection was closed before the end: by a timeout, or by either side.
  std::atomic<std::uint64_t> abandoned{0};
  std::atomic<std::uint64_t> refused{
      0};  // Over TlsServerOptions::max_handshakes.

  static void Count(std::atomic<std::uint64_t>* counter) {
    counter->fetch_add(1, std::memory_order_relaxed);
  }
};

// The counters of servers, or of clients. Any thread; valid until the process
// ends.
inline TlsCounters& TlsCountersOf(bool is_server) {
  static constinit TlsCounters servers;
  static constinit TlsCounters clients;
  return is_server ? servers : clients;
}

}  // namespace flare::io

#endif  // FLARE_IO_TLS_COUNTERS_H_
