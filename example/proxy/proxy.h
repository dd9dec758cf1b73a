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

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "example/proxy/config.h"
#include "example/proxy/session_report.h"
#include "example/proxy/upstream.h"
#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/io/acceptor.h"

namespace example::proxy {

class SessionRegistry;
struct ServingState;

class Proxy {
 public:
  // Listens and serves from now on. The runtime must be running with
  // EpollPollers. Doesn't block. Errors: as io::Acceptor::Listen, with the
  // listener's `where` in front.
  static flare::Expected<std::unique_ptr<Proxy>> Start(
      const std::shared_ptr<const ProxyConfig>& config, OnSessionEnd on_end);

  // Stops listening, cuts the remaining sessions and waits for their end.
  // Blocks the fiber.
  ~Proxy();

  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  // New clients are served by `config` from now on; those that are there go on
  // as they began. Listeners that stay (same address) don't miss a connection
  // and take the new backlog over, new ones are opened, others closed once the
  // connections that the kernel had completed are accepted. Upstreams that stay
  // (same name and address) keep their state. Errors: a new listener can't be
  // opened; then nothing has changed. One at a time, not after StopListening();
  // blocks the fiber shortly.
  [[nodiscard]] flare::Status Reload(
      const std::shared_ptr<const ProxyConfig>& config);

  // Accepts the connections that the kernel has completed by now, then closes
  // the listeners. Blocks the fiber shortly; any number of times.
  void StopListening();

  // Waits until there are no sessions: true, or NowNs() reaches the deadline:
  // false. Blocks the fiber.
  bool WaitUntilIdle(std::int64_t deadline_ns);

  // Ends all sessions now, as kCut. Doesn't wait for their ends; any thread.
  void CutAll();

  // Ends sessions that wait for an upstream which is silent
  // (Upstream::silent_since_ns), as kUpstreamAborted with ETIMEDOUT. Doesn't
  // wait for their ends; any thread.
  void CutSilent();

  // The following are thread-safe and don't block.
  // Where it listens, with real port numbers, in the configuration's order.
  std::vector<flare::Endpoint> listening() const;
  std::shared_ptr<const ProxyConfig> config() const;
  // The upstreams of the current configuration, in its order.
  std::vector<flare::RefPtr<Upstream>> upstreams() const;
  ProxyStatistics statistics() const;
  // Sessions per scheduling group, now.
  std::vector<std::uint64_t> sessions_per_group() const;

 private:
  struct Listening;

  Proxy(std::shared_ptr<const ServingState> serving, OnSessionEnd on_end);

  flare::Status OpenListeners(const ProxyConfig& config);
  static flare::Status WithOwnListener(const flare::Status& status,
                                       const flare::Endpoint& wanted,
                                       const std::vector<Listening>& own);
  flare::Expected<std::shared_ptr<flare::io::Acceptor>> Listen(
      const ListenerConfig& listener, int backlog);
  std::shared_ptr<const ServingState> serving() const;

  const std::shared_ptr<SessionRegistry> sessions_;
  mutable flare::Spinlock lock_;
  std::shared_ptr<const ServingState> serving_ FLARE_GUARDED_BY(lock_);
  std::vector<flare::Endpoint> addresses_ FLARE_GUARDED_BY(lock_);
  std::vector<Listening> listeners_;  // Start, Reload and StopListening only.
};

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_PROXY_H_
