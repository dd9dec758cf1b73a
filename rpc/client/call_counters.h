// Counters of calls by clients, by channel and method, for the page /metrics.
//
//   MethodCallCounters counters(uri);   // Of a channel.
//   const std::uint16_t number = counters.Of(method);
//   MethodCallCounters::End(number, status, ns);
//
// Channels with the same URI share counters, which stay until the process ends.
// Calls are counted when they end, streaming ones, too; so is each attempt that
// a policy makes (call_policy.h). Open streams are counted by themselves.
#ifndef FLARE_RPC_CLIENT_CALL_COUNTERS_H_
#define FLARE_RPC_CLIENT_CALL_COUNTERS_H_

#include <google/protobuf/descriptor.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "flare/rpc/call_cells.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {

// The counters of one method of channels with one URI.
struct ClientCallCells {
  CallCells calls{STATUS_SUCCESS};
  std::atomic<std::int64_t> open_streams{0};
};

// A channel's own list of the methods that it has called. It knows them by
// their descriptors' addresses, and keeps them until it is destroyed: where a
// channel outlives a DescriptorPool of the program, calls of a method whose
// descriptor has a former one's address count as calls of the former method.
class MethodCallCounters {
 public:
  explicit MethodCallCounters(std::string uri) : uri_(std::move(uri)) {}
  ~MethodCallCounters();
  MethodCallCounters(const MethodCallCounters&) = delete;
  MethodCallCounters& operator=(const MethodCallCounters&) = delete;

  // A number of 10 bits, which calls have room for. It is valid until the
  // process ends.
  static constexpr std::uint16_t kNumbers = 1024;
  static constexpr std::uint16_t kNone = 0;

  // The number of the method. Any thread. Takes a lock only at the first call
  // of a method. kNone: there is no memory.
  std::uint16_t Of(const google::protobuf::MethodDescriptor* method) {
    // acquire: pairs with the release in Add [MK1].
    const Node* node = ListOf(method)->load(std::memory_order_acquire);
    for (; node != nullptr; node = node->next) {
      if (node->method == method) return node->number;
    }
    return Add(method);
  }

  // Counts a streaming call that begins. EndStream() is to follow.
  static void BeginStream(std::uint16_t number) {
    // relaxed, both: as in End(), and a number that orders nothing.
    numbered_[number]
        .load(std::memory_order_relaxed)
        ->open_streams.fetch_add(1, std::memory_order_relaxed);
  }
  static void EndStream(std::uint16_t number, int status, std::int64_t ns) {
    // relaxed, both: as in End(), and a number that orders nothing.
    ClientCallCells* const cells =
        numbered_[number].load(std::memory_order_relaxed);
    cells->calls.End(status, ns);
    cells->open_streams.fetch_sub(1, std::memory_order_relaxed);
  }

  // Counts a call that has ended. `number` is a result of Of(), not kNone.
  static void End(std::uint16_t number, int status, std::int64_t ns) {
    // relaxed: a thread that has the number from Of() sees the cells [MK1].
    numbered_[number].load(std::memory_order_relaxed)->calls.End(status, ns);
  }

 private:
  struct Node {
    const google::protobuf::MethodDescriptor* method;
    std::uint16_t number;
    Node* next;
  };
  static constexpr std::size_t kLists = 8;

  std::atomic<Node*>* ListOf(const google::protobuf::MethodDescriptor* method) {
    const auto address = reinterpret_cast<std::uintptr_t>(method);
    return &lists_[(address / alignof(std::max_align_t) ^ address / 256) %
                   kLists];
  }
  [[gnu::cold, gnu::noinline]] std::uint16_t Add(
      const google::protobuf::MethodDescriptor* method);

  friend class ClientCallRegistry;
  static std::array<std::atomic<ClientCallCells*>, kNumbers> numbered_;

  const std::string uri_;
  std::array<std::atomic<Node*>, kLists> lists_{};
};

// The counters of all channels.
struct ClientCalls {
  std::string channel;
  std::string method;
  // The method is a streaming one; of "(other)": one of the methods is.
  bool streams = false;
  CallCells::Values values;
  std::int64_t open_streams = 0;
};
std::vector<ClientCalls> ReadClientCalls();

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_CALL_COUNTERS_H_
