// Calls may end while they are looked at, as may their connections. So nothing
// of them is touched: copies are looked at, which ReadOwnMemory() makes.
#include "flare/rpc/server/running_calls.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "flare/base/backtrace.h"
#include "flare/base/clock.h"
#include "flare/base/endpoint.h"
#include "flare/fiber/execution_context.h"
#include "flare/rpc/server/call_connection.h"
#include "flare/rpc/server/server_call.h"

namespace flare::rpc {
namespace {

// The most bytes of a method's name.
constexpr std::size_t kMaxNameShown = 200;

// The bytes of a T, whatever its memory holds now. Its destructor doesn't run.
template <class T>
class CopyOf {
 public:
  explicit CopyOf(const T* from)
      : whole_(ReadOwnMemory(from, bytes_, sizeof(T)) == sizeof(T)) {}

  explicit operator bool() const { return whole_; }
  const T& operator*() const {
    return *std::launder(reinterpret_cast<const T*>(bytes_));
  }
  const T* operator->() const { return &**this; }

 private:
  alignas(T) std::byte bytes_[sizeof(T)];
  const bool whole_;
};

struct Glimpse {
  AbandonedCall call;
  const CallConnection* connection;
  const ServerProtocol* protocol;
  bool counts;  // As running.
};

// Empty for paths, which are elsewhere in memory.
Endpoint AddressOf(const CopyOf<Endpoint>& copy) {
  if (!copy) return {};
  const int family = copy->family();
  return family == AF_INET || family == AF_INET6 ? *copy : Endpoint();
}

std::optional<ServerCall::Sight> SightOf(const ServerCall* call) {
  const CopyOf<ServerCall> copy(call);
  return copy ? copy->sight() : std::nullopt;
}

// Nothing of a call that isn't under way.
std::optional<Glimpse> Look(const ServerCall* call) {
  const auto sight = SightOf(call);
  if (!sight) return std::nullopt;
  Glimpse seen;
  seen.connection = sight->connection;
  seen.protocol = sight->protocol;
  seen.counts = sight->counts;
  seen.call.age = std::chrono::nanoseconds(NowNs() - sight->received_ns);
  const CopyOf peer(sight->peer);
  if (sight->method != nullptr) {
    const CopyOf name(&sight->method->full_name);
    if (!name) return std::nullopt;
    std::string& text = seen.call.method;
    text.resize(std::min(name->size(), kMaxNameShown));
    text.resize(ReadOwnMemory(name->data(), text.data(), text.size()));
  }
  // It is still the same, and so is its connection, which has the address.
  const auto again = SightOf(call);
  if (!again || again->received_ns != sight->received_ns) return std::nullopt;
  seen.call.peer = AddressOf(peer);
  return seen;
}

std::string Describe(const fiber::ExecutionContext::Owner* owner) {
  const auto seen = Look(static_cast<const ServerCall*>(owner));
  return seen ? seen->call.ToString() : "";
}

}  // namespace

void ShowCallsOfFibers() { fiber::ExecutionContext::SetDescriber(&Describe); }

std::vector<AbandonedCall> RunningCalls(ServerState* state) {
  std::vector<Glimpse> all;
  for (const ServerCall* call : ServerCall::All()) {
    std::optional<Glimpse> seen = Look(call);
    if (!seen || !seen->counts) continue;
    const CopyOf its(seen->connection);
    if (its && its->shared_state().Get() == state) {
      all.push_back(*std::move(seen));
    }
  }
  const auto before = [](const Glimpse& a, const ServedConnection* b) {
    return a.connection < b;
  };
  std::sort(all.begin(), all.end(), [&](const Glimpse& a, const Glimpse& b) {
    return before(a, b.connection);
  });
  // The protocols live as long as the connection, which doesn't close here.
  state->connections.ForEachOpen([&](const ServedConnection* connection) {
    for (auto it = std::lower_bound(all.begin(), all.end(), connection, before);
         it != all.end() && it->connection == connection; ++it) {
      it->call.protocol = connection->NameOf(it->protocol);
    }
  });
  std::vector<AbandonedCall> calls;
  for (Glimpse& seen : all) calls.push_back(std::move(seen.call));
  std::sort(calls.begin(), calls.end(),
            [](const AbandonedCall& a, const AbandonedCall& b) {
              return a.age > b.age;
            });
  return calls;
}

}  // namespace flare::rpc
