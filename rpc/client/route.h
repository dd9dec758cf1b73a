// How a channel gets from an address to a connection: the servers that the name
// resolver knows, the load balancer that chooses one, and each server's
// connections in each scheduling group.

#ifndef FLARE_RPC_CLIENT_ROUTE_H_
#define FLARE_RPC_CLIENT_ROUTE_H_

#include <google/protobuf/descriptor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/function.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/mutex.h"
#include "flare/io/tls_context.h"
#include "flare/rpc/balance/backend_group.h"
#include "flare/rpc/balance/zone_picker.h"
#include "flare/rpc/client/call_counters.h"
#include "flare/rpc/client/channel_list.h"
#include "flare/rpc/client/checked_servers.h"
#include "flare/rpc/client/client_defaults.h"
#include "flare/rpc/connection_kind.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/load_balancer.h"
#include "flare/rpc/name_resolver.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/rpc_channel_options.h"

namespace flare::rpc {

class Route final : public RefCounted<Route>, private ListedChannel {
 private:
  struct Table;

 public:
  // Reads "protocol://address". Fails with STATUS_INVALID_CHANNEL and a text;
  // may block while names are resolved. If it fails only because of hosts that
  // aren't known now, *later is a route that looks them up again.
  static Expected<RefPtr<Route>, flare::Status> Create(
      const std::string& uri, const RpcChannelOptions& options,
      RefPtr<Route>* later);

  // No server yet, in place of a server's number.
  static constexpr std::uint32_t kNoPeer =
      std::numeric_limits<std::uint32_t>::max();
  // The number of a call's server, and how many there are.
  struct Choice {
    // Where the call is counted, a reference, until End(); null: it isn't.
    Table* table = nullptr;
    std::uint32_t peer = kNoPeer;
    std::uint16_t peers : 14 = 0;  // Or more, if it is the greatest number.
    std::uint16_t probe : 1 = 0;
    std::uint16_t stream : 1 = 0;
    std::uint16_t refusals = 0;  // The call's: connections not to be made.

    bool counted() const { return table != nullptr; }
  };

  // A connection for one call (see PeerConnections::Acquire), which ends with
  // ClientConnection::Release() and, if the choice is counted, with End(). It
  // leads to the server that the load balancer chooses; or, if there is one in
  // *choice, to the one after that: so the attempts of a call go to different
  // servers, whatever other calls do. Servers known to be down are passed over;
  // if all are, it is the one that is tried again first, if that is before
  // `patience_ns`. *choice is then the one taken, also if that fails. Fails
  // with STATUS_NO_PEER, or as PeerConnections::Acquire does. Any thread in a
  // running runtime. noexcept ends the process where a resolution or balancer
  // throws: an exception would pass by all that belongs to the call.
  Expected<ClientConnection*, flare::Status> Acquire(ConnectionKind kind,
                                                     const void* preferred,
                                                     std::int64_t patience_ns,
                                                     const std::uint64_t* key,
                                                     Choice* choice) noexcept;

  // How a call has ended.
  enum class Ending : std::uint8_t {
    kReply,       // Its status is the server's own.
    kUnreadable,  // By a reply that can't be read.
    kOversized,   // By one that is larger than we take.
    kSilent,      // By the caller's deadline.
    kOther,       // As its status says.
  };
  // The call on the server of `choice`, which is counted, has ended with
  // `status`. A latency below 0 says that nothing is known of the server by it.
  // A stream's only tells failures with one cause. The route may be gone.
  [[gnu::noinline]] static void End(Choice* choice, int status, Ending ending,
                                    std::int64_t latency_ns) noexcept;

  // To be called when the first message of the stream of `choice` has come; its
  // End() says nothing more then. Empty if it isn't counted.
  static Function<void()> OnAnswered(const Choice& choice);

  // Acquires one for a stream: a shared connection, if the server has shown
  // that streams may have it with others, else one of its own.
  Expected<ClientConnection*, flare::Status> AcquireForStream(
      std::int64_t patience_ns, const std::uint64_t* key,
      Choice* choice) noexcept;

  // Whether who could not be connected to a server should try again: another
  // one may be well, or, if there is one alone, it has a connection that is. A
  // hint. Any thread in a running runtime.
  bool Hopeful() noexcept;

  // Where calls of the method are counted (call_counters.h). Any thread.
  std::uint16_t CountersOf(const google::protobuf::MethodDescriptor* method) {
    return call_counters_->Of(method);
  }

  // For the channel's calls.
  ConnectionKind connection_kind() const { return options_.connection_kind; }
  // Null: none.
  const ChannelCredentials* credentials() const {
    return options_.credentials.get();
  }
  // Filled in from the flags once, at the first call. A load from then on.
  const ClientSettings& settings() {
    // acquire: pairs with the release in FillSettings [RT2].
    const ClientSettings* const settings =
        settings_.load(std::memory_order_acquire);
    return settings != nullptr ? *settings : FillSettings();
  }

  // The protocol's name.
  const std::string& protocol() const { return protocol_; }
  PayloadFormat format() const { return format_; }
  const ProtocolTraits& traits() const { return traits_; }

 private:
  friend class RefCounted<Route>;
  friend struct std::default_delete<Route>;

  // Each peer's connections by scheduling group: sets[peer * groups + group].
  struct Table : RefCounted<Table> {
    std::uint64_t version = 0;
    std::size_t groups = 0;
    std::size_t peers = 0;
    std::size_t without_tags = 0;  // Further ones, which get no calls.
    std::vector<std::shared_ptr<PeerConnections>> sets;
    bool (*is_from_service)(int) = nullptr;
    std::shared_ptr<LoadBalancer> balancer;
    std::shared_ptr<LoadBalancer> far_balancer;  // For other zones; or null.
    std::shared_ptr<BackendGroup> group;
    Backends backends;
    // Null: there is nothing to pick or to observe.
    std::unique_ptr<Picker> picker;
    ZonePicker* zones = nullptr;  // The picker, if it is one.
    bool observes = false;        // The picker does.

    PeerConnections* SetOf(std::size_t peer, std::size_t group) const {
      return sets[peer * groups + group].get();
    }
    // Tells the group how many servers are left.
    void CountUsable() const;
    // Compares the servers, if it is time to.
    void Review(std::int64_t now_ns) const;
  };

  Route() = default;
  ~Route() { RemoveListedChannel(this); }
  ChannelState Describe() override;
  Table* FinalTable();
  // Kept out of line, as few calls need it, and its frame is large.
  [[gnu::noinline]] RefPtr<Table> CurrentTable();
  RefPtr<Table> MakeTable(std::uint64_t version) FLARE_REQUIRES(rebuild_mutex_);
  // The watches of a table, each with a reference to it.
  using Watches = std::vector<std::unique_ptr<ServerWatch>>;
  std::shared_ptr<const Watches> WatchServers(const RefPtr<Table>& table) const;
  void MakePicker(Table* table) FLARE_REQUIRES(rebuild_mutex_);
  [[gnu::cold, gnu::noinline]] flare::Status NoPeer(const Table& table) const;
  template <class F>
  auto WithTable(const F& f);
  static std::size_t Choose(const Table& table, std::size_t group,
                            std::size_t first, bool dedicated, Choice* choice);
  static std::size_t Pick(Table& table, std::size_t group, bool dedicated,
                          const std::uint64_t* key, Choice* choice);
  static Admission Admit(const Table& table, std::size_t number);
  static void Count(Table& table, Choice* choice);
  // Which of the two it is, the server tells.
  static constexpr auto kForStream = static_cast<ConnectionKind>(255);

  Expected<ClientConnection*, flare::Status> AcquireFrom(
      Table& table, ConnectionKind kind, const void* preferred,
      std::int64_t patience, const std::uint64_t* key, Choice* choice);

  [[gnu::cold, gnu::noinline]] const ClientSettings& FillSettings();

  RpcChannelOptions options_;
  std::string protocol_;
  std::string address_;
  PayloadFormat format_ = PayloadFormat::kProtobuf;
  ProtocolTraits traits_;
  std::optional<MethodCallCounters> call_counters_;  // Once it is made.
  std::shared_ptr<io::TlsClientContext> tls_;        // Null: plain.
  std::shared_ptr<io::TlsClientContext> check_tls_;  // For health checks.
  std::shared_ptr<NameResolution> resolution_;
  std::shared_ptr<LoadBalancer> balancer_;
  std::shared_ptr<BackendGroup> group_;

  // Making a table is long for lock_, which guards the pointer only.
  fiber::Mutex rebuild_mutex_;
  std::shared_ptr<LoadBalancer> far_balancer_ FLARE_GUARDED_BY(rebuild_mutex_);
  Spinlock lock_;
  RefPtr<Table> table_ FLARE_GUARDED_BY(lock_);
  // Watches of the servers of table_, in their order. Null: they aren't
  // checked.
  std::shared_ptr<const Watches> watches_ FLARE_GUARDED_BY(lock_);
  std::unique_ptr<const ClientSettings> own_settings_ FLARE_GUARDED_BY(lock_);
  std::atomic<const ClientSettings*> settings_{nullptr};
  // table_, once it is made, if the resolution is static: no lock is needed.
  std::atomic<Table*> final_table_{nullptr};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_ROUTE_H_
