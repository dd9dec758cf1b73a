// The calls that press makes: a number of loops, each with one call under way
// at a time, which send the next one as soon as the last one has ended (or is
// due, at a fixed rate).

#ifndef EXAMPLE_RPC_LOAD_GENERATOR_H_
#define EXAMPLE_RPC_LOAD_GENERATOR_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "example/rpc/call_recorder.h"
#include "example/rpc/schedule.h"
#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/base/status.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/rpc/rpc_channel.h"

namespace example {

struct LoadOptions {
  std::string server_addr;
  std::string override_nslb;    // Empty: the default.
  bool relay_stub = false;      // RelayService.Relay, not EchoService.Echo.
  std::size_t max_pending = 1;  // Loops.
  std::chrono::milliseconds timeout{1000};
  double qps = 0;              // Calls per second; 0: no fixed rate.
  std::uint64_t requests = 0;  // Calls to make; 0: no limit.
  std::string body;
  flare::Buffer attachment;
  flare::CompressionAlgorithm compression = flare::CompressionAlgorithm::kNone;
  bool verify = false;  // Replies that aren't an echo count as failures.
};

class CallLoop;

// How many loops are left.
class LoopCount {
 public:
  explicit LoopCount(std::size_t loops) : left_(loops) {}

  // A loop's last act.
  void OneEnded() {
    // acq_rel: the last one publishes what all have done, to who waits.
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) all_ended_.Set();
  }
  // Blocks the fiber. False: the deadline passed first.
  bool WaitUntilAllEnded(std::int64_t deadline_ns) {
    return all_ended_.WaitUntil(deadline_ns);
  }
  std::size_t left() const {
    return left_.load(std::memory_order_relaxed);  // For people.
  }

 private:
  std::atomic<std::size_t> left_;
  flare::fiber::Event all_ended_;
};

// Open(), Start(), Stop() and WaitUntilFinished() are for one fiber.
class LoadGenerator {
 public:
  // The recorder must outlive this.
  LoadGenerator(const LoadOptions& options, CallRecorder* recorder);
  // Not while calls are under way: after WaitUntilFinished() was true, or
  // without Start().
  ~LoadGenerator();

  // Finds out whether the server can be called at all: the URI, the protocol,
  // host names. Makes no connection.
  flare::Status Open();

  // Starts the loops, loop i in scheduling group i % groups. Doesn't block:
  // more than a hundred of them are started bit by bit within the next second,
  // so that the server doesn't see them all as one burst.
  void Start();

  // No new calls; those under way go on to their end.
  void Stop();

  // Blocks the fiber until all loops have ended: after Stop(), or when all
  // calls of LoadOptions::requests have been made. False: the deadline (of
  // NowNs()) passed first.
  bool WaitUntilFinished(std::int64_t deadline_ns) {
    return running_.WaitUntilAllEnded(deadline_ns);
  }

  // Loops that haven't ended.
  std::size_t running() const { return running_.left(); }

 private:
  void RampUp();

  const LoadOptions options_;
  CallRecorder* const recorder_;
  // One per scheduling group.
  std::vector<std::unique_ptr<flare::RpcChannel>> channels_;
  std::optional<Schedule> schedule_;
  std::vector<std::unique_ptr<CallLoop>> loops_;
  LoopCount running_;
  flare::Fiber ramp_up_;
};

}  // namespace example

#endif  // EXAMPLE_RPC_LOAD_GENERATOR_H_
