// The client's side of epoll_limit: connections that each keep a number of
// requests under way, all of them encoded beforehand.

#ifndef BENCHMARK_BASELINE_BARE_CLIENT_H_
#define BENCHMARK_BASELINE_BARE_CLIENT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "benchmark/baseline/bare_frames.h"
#include "benchmark/baseline/bare_stream.h"
#include "benchmark/baseline/program.h"
#include "example/rpc/call_recorder.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/io/fd.h"

namespace baseline {

// The shared state of a run's connections. Thread-safe.
class BareLoad {
 public:
  explicit BareLoad(example::CallRecorder* recorder) : recorder_(recorder) {}

  // There will be so many more requests; 0: no limit, as at first.
  void Limit(std::uint64_t requests) {
    // relaxed: a number; nothing else is told by it.
    left_.store(requests == 0 ? kNoLimit : requests, std::memory_order_relaxed);
  }
  // No new requests.
  void Stop() {
    // relaxed: a wish; nothing else is told by it.
    stopped_.store(true, std::memory_order_relaxed);
  }
  // Requests that were sent and have not ended.
  std::size_t under_way() const {
    // relaxed: for readers that look now and then.
    return under_way_.load(std::memory_order_relaxed);
  }

  // A request is about to be sent. False: send none.
  bool Begin();
  void Succeeded(std::int64_t latency_ns) {
    recorder_->Succeeded(latency_ns);
    End();
  }
  void Failed(int status) {
    recorder_->Failed(status);
    End();
  }

 private:
  static constexpr auto kNoLimit = std::numeric_limits<std::uint64_t>::max();

  void End() {
    // relaxed: see under_way().
    under_way_.fetch_sub(1, std::memory_order_relaxed);
  }

  example::CallRecorder* const recorder_;
  std::atomic<std::uint64_t> left_{kNoLimit};
  std::atomic<std::size_t> under_way_{0};
  std::atomic<bool> stopped_{false};
};

// The requests of one connection, by slot.
struct BareRequests {
  // "http": plain requests without ids; else as flare::rpc::NewClientProtocol.
  static flare::Expected<BareRequests, flare::Status> Encode(
      const ServerAddress& server, std::size_t slots, std::size_t body_size);

  std::vector<std::string> heads;  // The id of slot i is i + 1.
  std::string body;                // The body of each of them.
  bool ids = true;  // Without ids replies come in the order of the requests.
};

class BareClientConnection final : public BareStream {
 public:
  // `fd` is connected. The others must outlive this.
  BareClientConnection(flare::io::UniqueFd fd, const BareRequests* requests,
                       std::size_t slots, BareLoad* load);

 private:
  struct Slot {
    bool used = false;
    std::int64_t sent_ns = 0;
  };

  void OnAdopted() override;
  std::size_t OnInput(char* data, std::size_t size, std::size_t* need) override;
  void OnClosed() override;
  bool ReadsWhileSending() const override { return true; }

  // Sends the next request of that slot, if there is one.
  void Begin(std::size_t slot, std::int64_t now_ns);
  bool Finish(const BareMessage& response, std::int64_t now_ns);

  const BareRequests* const requests_;
  BareLoad* const load_;
  std::vector<Slot> slots_;
  std::size_t oldest_ = 0;  // Without ids: whose reply is next.
};

}  // namespace baseline

#endif  // BENCHMARK_BASELINE_BARE_CLIENT_H_
