// The proxy itself: listens, gives each client an upstream and passes bytes
// between the two until both are through.
//
//   auto proxy = Proxy::Start(config, [](const SessionReport& r) { ... });
//   if (!proxy) return proxy.error();
//   ...
//   if (Status s = (*proxy)->Reload(new_config); !s.ok()) LOG(ERROR) << s;
//   ...
//   (*proxy)->StopListening();
//   if (!(*proxy)->WaitUntilIdle(deadline_ns)) (*proxy)->CutAll();
//
// Wants scheduling groups of one worker each: one event loop per worker, and
// both connections of a client in the same one. It works in any other layout,
// too, at more cost.

#ifndef EXAMPLE_PROXY_PROXY_H_
#define EXAMPLE_PROXY_PROXY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "example/proxy/config.h"
#include "example/proxy/upstream.h"
#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"

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
  kCut,         // By CutAll().
};

// "finished", "client-aborted", ...: for logs.
std::string_view ToString(SessionEnd end);

// What became of a client.
struct SessionReport {
  flare::Endpoint client;    // Who has connected to us,
  flare::Endpoint source;    // and who its PROXY header says it is, else same.
  flare::Endpoint listener;  // Where.
  // The last one that was tried; null: none was.
  flare::RefPtr<Upstream> upstream;
  int attempts = 0;  // Upstreams tried.
  SessionEnd end = SessionEnd::kFinished;
  int error = 0;  // errno of what broke; 0 if nothing did.
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

class Proxy {
 public:
  // Is called once for each client that was accepted, when its session is over,
  // on a worker, and possibly on several at once. Must not block.
  using OnSessionEnd = std::function<void(const SessionReport&)>;

  // Listens and serves from now on. The runtime must be running with
  // EpollPollers. Doesn't block. Errors: as io::Acceptor::Listen, with the
  // listener's `where` in front.
  static flare::Expected<std::unique_ptr<Proxy>> Start(
      std::shared_ptr<const ProxyConfig> config, OnSessionEnd on_end);

  // Stops listening, cuts what is left and waits for its end. Blocks the fiber.
  ~Proxy();

  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  // New clients are served by `config` from now on; those that are there go on
  // as they began. Listeners that stay (same address) don't miss a connection,
  // new ones are opened, others closed once what the kernel had completed is
  // accepted. Upstreams that stay (same name and address) keep their state.
  // Errors: a new listener can't be opened; then nothing has changed. One at a
  // time, not after StopListening(); blocks the fiber shortly.
  [[nodiscard]] flare::Status Reload(std::shared_ptr<const ProxyConfig> config);

  // Accepts what the kernel has completed by now, then closes the listeners.
  // Blocks the fiber shortly; any number of times.
  void StopListening();

  // Waits until there are no sessions: true, or NowNs() reaches the deadline:
  // false. Blocks the fiber.
  bool WaitUntilIdle(std::int64_t deadline_ns);

  // Ends all sessions now, as kCut. Doesn't wait for their ends; any thread.
  void CutAll();

  // The following are thread-safe and don't block.
  // Where it listens, with real port numbers, in the configuration's order.
  std::vector<flare::Endpoint> listening() const;
  std::shared_ptr<const ProxyConfig> config() const;
  // Of the current configuration, in its order.
  std::vector<flare::RefPtr<Upstream>> upstreams() const;
  ProxyStatistics statistics() const;
  // Sessions per scheduling group, now.
  std::vector<std::uint64_t> sessions_per_group() const;

 private:
  class State;  // Shared with the sessions.

  explicit Proxy(std::shared_ptr<State> state);

  const std::shared_ptr<State> state_;
};

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_PROXY_H_
