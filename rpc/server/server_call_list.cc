// Calls as others see them: in lists of fibers, and in the list of those that a
// server abandons. They may end meanwhile, as may their connections. So nothing
// of them is touched: copies are looked at, which ReadOwnMemory() makes.
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/backtrace.h"
#include "flare/base/clock.h"
#include "flare/base/endpoint.h"
#include "flare/base/intrusive_list.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/execution_context.h"
#include "flare/rpc/server/call_connection.h"
#include "flare/rpc/server/server_call.h"
#include "flare/rpc/server/server_state.h"
#include "flare/rpc/stream/call_stream.h"

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

// All calls of the process, those in their pool included. The pool makes and
// destroys some only when the number of calls under way grows and shrinks.
class AllCalls {
 public:
  static AllCalls& Instance() {
    // Never destroyed: threads give calls back at their ends.
    static AllCalls& all = *new AllCalls();
    return all;
  }

  void Add(ServerCall* call) {
    ScopedLock guard(mutex_);
    calls_.PushBack(call);
  }
  void Remove(ServerCall* call) {
    ScopedLock guard(mutex_);
    calls_.Remove(call);
  }
  std::vector<const ServerCall*> Get() {
    std::vector<const ServerCall*> calls;
    ScopedLock guard(mutex_);
    for (const ServerCall& call : calls_) calls.push_back(&call);
    return calls;
  }

 private:
  ThreadMutex mutex_;
  IntrusiveList<ServerCall> calls_ FLARE_GUARDED_BY(mutex_);
};

// Empty for paths, which are elsewhere in memory.
Endpoint AddressOf(const CopyOf<Endpoint>& copy) {
  if (!copy) return {};
  const int family = copy->family();
  return family == AF_INET || family == AF_INET6 ? *copy : Endpoint();
}

}  // namespace

struct ServerCall::Glimpse {
  AbandonedCall call;
  const CallConnection* connection;
  const ServerProtocol* protocol;
  bool counts;  // As running.
};

ServerCall::ServerCall() {
  run = &ServerCall::RunTask;
  fiber::ExecutionContext::SetDescriber(&ServerCall::Describe);
  AllCalls::Instance().Add(this);
}

ServerCall::~ServerCall() { AllCalls::Instance().Remove(this); }

// Nothing of a call that isn't under way.
std::optional<ServerCall::Glimpse> ServerCall::Look(const ServerCall* call) {
  const CopyOf<ServerCall> copy(call);
  if (!copy || copy->run != &ServerCall::RunTask ||
      copy->connection_ == nullptr) {
    return std::nullopt;
  }
  Glimpse seen;
  seen.connection = copy->connection_;
  seen.protocol = copy->protocol_;
  seen.counts = copy->place_ != Place::kNone;
  const std::int64_t received_ns = copy->controller_.received_ns_;
  seen.call.age = std::chrono::nanoseconds(NowNs() - received_ns);
  const CopyOf peer(copy->controller_.remote_peer_);
  if (copy->method_ != nullptr) {
    const CopyOf name(&copy->method_->full_name);
    if (!name) return std::nullopt;
    std::string& text = seen.call.method;
    text.resize(std::min(name->size(), kMaxNameShown));
    text.resize(ReadOwnMemory(name->data(), text.data(), text.size()));
  }
  // It is still the same, and so is its connection, which has the address.
  const CopyOf again(&call->controller_.received_ns_);
  if (!again || *again != received_ns || received_ns == 0) return std::nullopt;
  seen.call.peer = AddressOf(peer);
  return seen;
}

std::string ServerCall::Describe(const Owner* owner) {
  const auto seen = Look(static_cast<const ServerCall*>(owner));
  return seen ? seen->call.ToString() : "";
}

std::vector<AbandonedCall> ServerCall::Running(ServerState* state) {
  std::vector<Glimpse> all;
  for (const ServerCall* call : AllCalls::Instance().Get()) {
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
