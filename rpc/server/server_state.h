// The state that a Server's connections and calls share. It outlives the Server
// if calls had to be abandoned.
//
// Set up by one thread before the server starts; thread-safe afterwards.
#ifndef FLARE_RPC_SERVER_SERVER_STATE_H_
#define FLARE_RPC_SERVER_SERVER_STATE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/cpu.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/task.h"
#include "flare/io/memory_budget.h"
#include "flare/io/tls_context.h"
#include "flare/rpc/admission/admission_control.h"
#include "flare/rpc/log_throttle.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/server/call_gate.h"
#include "flare/rpc/server/call_limit.h"
#include "flare/rpc/server/connection_set.h"
#include "flare/rpc/server/interceptor_chain.h"
#include "flare/rpc/server/method_table.h"
#include "flare/rpc/server_options.h"
#include "flare/rpc/server_statistics.h"
#include "flare/rpc/stream/unpacked_bytes.h"

namespace flare::rpc {

class ServerState : public RefCounted<ServerState> {
 public:
  explicit ServerState(ServerOptions options);

  // The last step before serving: fixes the protocols and the limits, sizes the
  // counters for the runtime, which must be running. `names` are those of the
  // protocols, for messages; objects that they use live as long as this.
  flare::Status Freeze(ServerProtocolSet protocols,
                       const std::vector<std::string>& names,
                       std::shared_ptr<const void> used_by_protocols);

  // Destroys services and filter that were given to the server: so they don't
  // end at the release of the last reference, at any time on any thread. No
  // connection may be left, nor any call.
  void DropUserCode();

  const ServerOptions& options() const { return options_; }
  const ServerProtocolSet& protocols() const { return protocols_; }
  // Null: connections are plain.
  io::TlsServerContext* tls() const { return tls_.get(); }
  // Before the first connection.
  void SetTls(std::shared_ptr<io::TlsServerContext> tls) {
    tls_ = std::move(tls);
  }
  // "one, other", for messages.
  const std::string& protocol_names() const { return protocol_names_; }

  MethodTable methods;
  std::vector<std::unique_ptr<google::protobuf::Service>> owned_services;
  // Interceptors of all methods, and of requests that serve themselves.
  Interceptors interceptors;

  // For log lines: "Server NAME", or "Server" without one. That of a server on
  // port 0 may be known only when the first connections are there.
  std::string title() const FLARE_EXCLUDES(name_mutex_);
  void SetName(std::string name) FLARE_EXCLUDES(name_mutex_);

  // --- Calls. `group` is that of the call's connection. ---

  // Asks to run `n` more calls; returns how many may (fewer over the limit,
  // none while the group is short of fiber stacks), which are then counted as
  // running until CallFinished().
  std::size_t AdmitCalls(std::size_t group, std::size_t n);
  // Counts `n` calls that may not; returns 0.
  std::size_t RefuseCalls(std::size_t group, std::size_t n);
  void CallFinished(std::size_t worker) { call_limit_.Leave(worker); }

  // Streaming calls last as long as their peers like: a tenth of all places is
  // for other calls. False: as many run as may. True: call LeaveStream().
  bool EnterStream();
  void LeaveStream() {
    // relaxed: a limit, nothing is ordered by it.
    streams_.fetch_sub(1, std::memory_order_relaxed);
  }

  // Says whether a call of that group is begun when a worker comes to it.
  CallGate& gate(std::size_t group) { return gates_[group]; }
  // Null: the server has no such rules.
  AdmissionControl* admission() { return admission_.get(); }
  // In queue and running; approximate while calls come and go.
  std::uint64_t calls_running() const { return call_limit_.running(); }

  // Calls that come to their workers after `at_ns` (NowNs()) aren't begun.
  void CloseGates(std::int64_t at_ns) {
    for (CallGate& gate : gates_) gate.CloseAt(at_ns);
  }

  // Requests are small as they come and may be large decompressed. Shared, as
  // streams may be read from after the server's end.
  const std::shared_ptr<UnpackedBytes>& unpacked() const { return unpacked_; }

  enum class Failure {
    kOther,
    kOverloaded,
    kMalformed,
    kUnknown,
    kUnauthenticated,
    kDenied,
  };
  // The kind of failure of a call that ends with that status by the will of its
  // service or an interceptor.
  static Failure FailureOf(int status);
  void CountFailure(std::size_t group, Failure failure);
  void CountCancelled(std::size_t group) { Count(&counters_[group].cancelled); }

  // --- Connections ---

  ConnectionSet connections;

  struct ConnectionCounters {
    std::atomic<std::uint64_t> accepted{0};
    std::atomic<std::uint64_t> refused{0};
    std::atomic<std::uint64_t> idle{0};
    std::atomic<std::uint64_t> slow{0};
    std::atomic<std::uint64_t> greedy{0};
    std::atomic<std::uint64_t> malformed{0};
    std::atomic<std::uint64_t> broken{0};
  };
  ConnectionCounters connection_counters;
  static void Count(std::atomic<std::uint64_t>* counter) {
    counter->fetch_add(1, std::memory_order_relaxed);
  }

  // The bytes that all connections hold together (ServedConnection::held()).
  io::MemoryBudget& budget() const { return *budget_; }
  const RefPtr<io::MemoryBudget>& shared_budget() const { return budget_; }
  // Whether `bytes` more are within it if all workers take as many.
  bool HasRoomFor(std::size_t bytes) const;
  // Held while a message is parsed for which there isn't such room: so the
  // bytes of one at a time can come on top of the budget.
  fiber::Mutex& large_parse() { return large_parse_; }
  // If they exceed the budget: closes those that hold most, idle ones first,
  // until the sum is an eighth below the limit; or, as calls of closed ones
  // keep their memory, until those that are open hold an eighth of it. On a
  // worker; may suspend the fiber for a moment.
  void CloseGreedy();

  // A warning about a connection, at most one per second.
  void LogConnection(const Endpoint& peer, const std::string& what);

  ServerStatistics statistics() const;

 private:
  // One per scheduling group, so that groups don't share a cache line on each
  // call that fails.
  struct alignas(kCacheLine) Counters {
    std::atomic<std::uint64_t> refused{0};
    std::atomic<std::uint64_t> failed{0};
    std::atomic<std::uint64_t> overloaded{0};
    std::atomic<std::uint64_t> malformed{0};
    std::atomic<std::uint64_t> unknown{0};
    std::atomic<std::uint64_t> unauthenticated{0};
    std::atomic<std::uint64_t> denied{0};
    std::atomic<std::uint64_t> cancelled{0};
  };

  struct Share {
    std::size_t score;  // The higher, the earlier it is closed; 0: never.
    std::size_t bytes;
  };
  static Share ShareOf(const ServedConnection& connection,
                       std::int64_t since_ns);
  std::size_t CloseMostGreedy();

  // Runs CloseGreedy() once.
  struct ReliefTask : fiber::Task {
    ServerState* state = nullptr;
  };
  void AskForRelief();
  static void RunRelief(fiber::Task* task);

  CallGate::OtherRules RulesBesideGate() const;
  flare::Status SetUpAdmission();

  mutable ThreadMutex name_mutex_;
  std::string name_ FLARE_GUARDED_BY(name_mutex_);
  ServerOptions options_;  // Fixed, except in DropUserCode().
  std::shared_ptr<const void> used_by_protocols_;
  ServerProtocolSet protocols_;
  std::shared_ptr<io::TlsServerContext> tls_;
  std::string protocol_names_;
  std::vector<Counters> counters_;
  std::vector<CallGate> gates_;  // One for each scheduling group.
  LogThrottle connection_log_;
  CallLimit call_limit_;
  alignas(kCacheLine) std::atomic<std::size_t> streams_{0};  // Running ones.
  std::unique_ptr<AdmissionControl> admission_;
  RefPtr<io::MemoryBudget> budget_;
  fiber::Mutex large_parse_;
  ReliefTask relief_;
  std::atomic<bool> relief_asked_{false};    // relief_ is queued.
  std::atomic<bool> closing_greedy_{false};  // By one at a time.
  const std::shared_ptr<UnpackedBytes> unpacked_ =
      std::make_shared<UnpackedBytes>(
          options_.max_concurrent_decompressed_bytes);
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_SERVER_STATE_H_
