// One client of the proxy, from accept to the end: reads its PROXY header if
// there has to be one, connects to an upstream, lets a Relay pass the bytes,
// and watches the time.
//
// Both sockets are watched by the poller of one scheduling group. Events are
// collected in one word; the thread that finds it empty queues the session,
// which is a task: it runs at most once at a time, on any worker, and suspends
// nothing. An event that comes while it runs queues it again.

#ifndef EXAMPLE_PROXY_SESSION_H_
#define EXAMPLE_PROXY_SESSION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "example/proxy/config.h"
#include "example/proxy/relay.h"
#include "example/proxy/session_registry.h"
#include "example/proxy/session_report.h"
#include "example/proxy/upstream.h"
#include "flare/base/endpoint.h"
#include "flare/base/intrusive_list.h"
#include "flare/base/ref_ptr.h"
#include "flare/fiber/task.h"
#include "flare/fiber/timer.h"
#include "flare/io/descriptor.h"
#include "flare/io/fd.h"
#include "flare/io/handshakes.h"
#include "flare/io/transport.h"

namespace example::proxy {

// The common state of sessions that begin between two reloads. A reload makes a
// new one.
struct ServingState {
  // The servers of settings->upstreams, in that order.
  ServingState(std::shared_ptr<const ProxyConfig> settings,
               std::vector<flare::RefPtr<Upstream>> servers);

  // Those for a client that names this host, or none. Null: there are none.
  const UpstreamSet* SetFor(std::string_view host) const;

  const std::shared_ptr<const ProxyConfig> config;
  const UpstreamSet upstreams;  // All of them.

 private:
  struct Route {
    std::string host;
    std::unique_ptr<const UpstreamSet> upstreams;
  };

  std::unique_ptr<const UpstreamSet> SetOf(
      const std::function<bool(const UpstreamConfig&)>& is_in) const;

  std::vector<Route> routes_;  // Those of single hosts before others.
  std::unique_ptr<const UpstreamSet> others_;  // Null: there is no route.
};

class Session final : public flare::RefCounted<Session>,
                      public flare::IntrusiveListNode<>,
                      private flare::fiber::Task {
 public:
  // Serves the client behind `fd`, which was accepted at `listener` in the
  // scheduling group `group`. From here on the session keeps itself alive. Any
  // worker; doesn't block.
  static void Begin(flare::io::UniqueFd fd, flare::Endpoint client,
                    const flare::Endpoint& listener, std::size_t group,
                    std::shared_ptr<const ServingState> serving,
                    const std::shared_ptr<SessionRegistry>& registry);

  ~Session();

  // Ends it soon. Any thread; doesn't block.
  void Cut();

  // Has it look soon whether its upstream has been found silent
  // (Upstream::silent_since_ns), and end if no byte has passed since. Any
  // thread; doesn't block.
  void LookAtUpstream();

 private:
  class Side;
  struct SessionTimer : flare::fiber::Timer {
    Session* session = nullptr;
  };
  // The turn of the handshake with the client, at the CPU [SE4].
  enum class Turn { kNone, kAwaited, kHeld };
  struct OwnHandshake final : flare::io::Handshakes::Entry {
    void OnTurn() override;
    std::function<void()> MakeWay() override;

    Session* session = nullptr;
    flare::io::Handshakes* all = nullptr;  // Null: it hasn't begun.
    Turn turn = Turn::kNone;
  };
  enum class Phase {
    kHeader,
    kHandshake,  // TLS with the client.
    kHello,
    kConnecting,
    kRelaying,
    kOver
  };

  Session(flare::io::UniqueFd fd, std::size_t home,
          std::shared_ptr<const ServingState> serving,
          std::shared_ptr<SessionRegistry> registry, SessionReport report);

  [[nodiscard]] bool Signal(std::uint32_t events) noexcept;
  void SignalAndSubmit(std::uint32_t events);

  void Run();
  void Handle(std::uint32_t events);
  void OnStart();
  void OnTime();
  void SetDeadline(std::int64_t deadline_ns);

  void ReadHeader();
  void TakeHeader();
  void BeginHandshake();
  bool TakeTurn();
  void Handshake();
  void HandshakeFailed(int error, const std::string& why);
  void EndHandshake();
  void Choose();
  void ReadHello();
  void ConnectToNext();
  bool BeginOrWait();
  int BeginConnecting();
  void OnConnecting(std::uint32_t events);
  void BeginUpstreamHandshake();
  void UpstreamHandshake();
  void OnConnectTime(std::int64_t now);
  void OnClientWhileConnecting(std::uint32_t events);
  void ConnectFailed(int error, const std::string& why = "");
  void LeaveUpstream(int error, const std::string& why = "");
  void ReleaseUpstream();
  void OnConnected();
  std::string HeaderForUpstream();
  void RunRelay(std::uint32_t events);
  void OnRelayTime(std::int64_t now);
  std::int64_t RelayPatienceNs() const;
  void EndIfUpstreamIsSilent();
  void AccountBytes();
  void EndRelay();
  void EndForWantOfMemory();
  void SayTlsEnds();
  void EndAs(SessionEnd end, int error);
  void Finish();

  const std::shared_ptr<const ServingState> serving_;
  const std::shared_ptr<SessionRegistry> registry_;
  const std::size_t home_;  // The scheduling group it lives in.

  // session.cc [SE1]
  std::atomic<std::uint32_t> events_;

  // The rest is the running session's own.
  Phase phase_ = Phase::kHeader;
  bool run_again_ = false;
  bool run_last_ = false;  // Behind others, if it is to run again.
  bool timer_used_ = false;
  bool counted_by_upstream_ = false;
  bool out_of_means_ = false;       // IsShortage(): no use in more attempts.
  bool client_ended_ = false;       // Before it had sent a byte.
  bool relay_broken_ = false;       // Has been seen.
  int connect_error_ = 0;           // The last attempt's.
  std::uint32_t early_events_ = 0;  // The client's, before there was a relay.
  std::int64_t deadline_ns_ = 0;
  std::int64_t connect_began_ns_ = 0;  // The last attempt.
  std::int64_t last_activity_ns_ = 0;
  std::uint64_t accounted_to_upstream_ = 0;
  std::uint64_t accounted_to_client_ = 0;
  flare::RefPtr<Side> client_;
  flare::RefPtr<Side> upstream_;
  // Null: plain.
  std::unique_ptr<flare::io::Transport> client_tls_;
  OwnHandshake handshake_;  // Ends before client_tls_ does.
  std::unique_ptr<flare::io::Transport> upstream_tls_;
  std::optional<Relay> relay_;
  const UpstreamSet* choices_;   // In serving_.
  std::string received_;         // Before there was a relay.
  flare::Endpoint destination_;  // As the client's PROXY header says.
  std::vector<const Upstream*> tried_;
  SessionReport report_;
  SessionTimer timer_;
};

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_SESSION_H_
