// The relay mode of merge_server: passes calls on to another server over
// connections of the same thread and answers when the replies come. Nothing
// waits: it is a chain of callbacks, where a fiber would block.
//
//   caller -> ServerConnection -> Relay -> Downstream -> server
//   caller <- ServerConnection <- Call::Reply <- Downstream <- server

#ifndef BENCHMARK_BASELINE_RELAY_H_
#define BENCHMARK_BASELINE_RELAY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "benchmark/baseline/program.h"
#include "benchmark/baseline/server_connection.h"
#include "flare/base/buffer.h"
#include "flare/base/status.h"
#include "flare/rpc/client_protocol.h"

namespace baseline {

struct RelayOptions {
  ServerAddress server;
  std::size_t connections = 1;
  std::uint32_t timeout_ms = 1000;  // For calls that don't say less.
  // Bytes of requests that may wait on a connection for the server to take
  // them, or to be connected to; with more, calls fail.
  std::size_t max_waiting = 256 << 20;
};

class Relay;

// A connection to the server, and the calls that wait for its replies.
class Downstream final : public Stream {
 public:
  // `fd` is connecting. Tells `relay` of its end.
  Downstream(flare::io::UniqueFd fd,
             std::unique_ptr<flare::rpc::ClientProtocol> protocol,
             Relay* relay);
  // Drops the calls that wait.
  ~Downstream() override;

  // `call` was parsed. It replies when the server has, or when it's too late.
  void Forward(Call* call, std::uint32_t timeout_ms);
  bool has_calls() const { return calls_ != 0; }
  // Calls that have waited for too long fail.
  void FailOverdue(std::int64_t now_ns);

 private:
  struct Slot {
    Call* call = nullptr;  // Null: free.
    std::int64_t deadline_ns = 0;
    std::uint16_t use = 0;
  };

  bool OnData(flare::Buffer& in, std::size_t* need) override;
  void OnEndOfInput() override { Close(); }
  void OnClosed() override;
  void OnConnected() override { connected_ = true; }
  bool ReadsWhileSending() const override { return true; }

  void FinishCall(Call* call);
  // A correlation id, never 0: 16 bits say which slot, and 16 which use of it,
  // so that a reply that comes too late isn't taken for another one's. 0: there
  // are too many calls.
  std::uint32_t Enter(Call* call, std::uint32_t timeout_ms);
  // Null: nobody waits for it (any more).
  Call* Leave(std::uint64_t id);
  // Takes the call of a slot, which must have one.
  Call* Take(std::size_t index);
  void FailCall(Call* call, int status, const char* text);

  const std::unique_ptr<flare::rpc::ClientProtocol> protocol_;
  Relay* const relay_;
  flare::rpc::InboundResponse response_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_slots_;
  std::size_t calls_ = 0;
  bool connected_ = false;
};

// One for each loop, which it must outlive; everything happens in its thread.
class Relay final : public CallHandler, public Ticker {
 public:
  // The scheme must be one of flare::rpc::IsClientProtocol().
  Relay(EventLoop* loop, const RelayOptions& options);

  void Handle(Call* call) override;

  bool WantsTicks() const override;
  void OnTick(std::int64_t now_ns) override;

  // `connected`: as opposed to one that never was.
  void Forget(Downstream* connection, bool connected);

 private:
  // Null: there can't be one now.
  Downstream* PickConnection();
  Downstream* Connect();

  EventLoop* const loop_;
  const RelayOptions options_;
  // The loop owns them. Null: to be opened when it's needed.
  std::vector<Downstream*> connections_;
  std::size_t next_ = 0;
  // After a failure nothing is tried for a moment.
  std::int64_t retry_at_ns_ = 0;
};

}  // namespace baseline

#endif  // BENCHMARK_BASELINE_RELAY_H_
