// Recorded calls, ready to be sent again by a load.

#ifndef EXAMPLE_RPC_REPLAY_H_
#define EXAMPLE_RPC_REPLAY_H_

#include <google/protobuf/descriptor.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "example/rpc/method_source.h"
#include "example/rpc/schedule.h"
#include "flare/base/buffer.h"
#include "flare/base/expected.h"
#include "flare/base/histogram.h"
#include "flare/base/status.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/recording/recorded_call.h"

namespace example {

struct ReplayOptions {
  // Describes the service of a method, by that method's full name: for
  // protocols that don't carry binary messages. Null: the protocol does, and
  // nothing need be known but names.
  std::function<flare::Expected<std::unique_ptr<MethodSource>, flare::Status>(
      const std::string& method)>
      describe = nullptr;
  bool attachments = true;  // Whether the protocol carries them, ...
  bool metadata = true;     // ... and that.
  // In place of recorded entries of the same names.
  flare::Metadata more_metadata = {};
  // Nothing: recorded ones, or the default where there is none.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  std::chrono::milliseconds default_timeout{1000};
  bool compare_replies = false;  // Those that were recorded.
};

// Constant; all functions are thread-safe, and nothing blocks.
class Replay {
 public:
  struct Item {
    const google::protobuf::MethodDescriptor* method = nullptr;
    const MethodSource* source = nullptr;  // Null: by names only.
    flare::Buffer request;                 // Binary protobuf.
    flare::Buffer attachment;
    flare::Metadata metadata;
    std::chrono::nanoseconds timeout{0};
    std::int64_t received_unix_ns = 0;  // These are as recorded.
    int status = 0;
    std::optional<flare::RecordedCall::Reply> reply;  // To be compared.
  };

  // `calls`, in order. Fails with a text if there are none, or one can't be
  // sent. Entries of metadata that can't be sent, attachments that the protocol
  // doesn't carry and headers of traces are left out; the log says how many.
  // May ask a server, which blocks the fiber.
  static flare::Expected<std::shared_ptr<const Replay>, flare::Status> Make(
      std::vector<flare::RecordedCall> calls, const ReplayOptions& options);

  std::size_t size() const { return items_.size(); }
  // Call `number` of those that are made again and again.
  const Item& At(std::uint64_t number) const {
    return items_[static_cast<std::size_t>(number % items_.size())];
  }
  std::chrono::nanoseconds longest_timeout() const { return longest_timeout_; }

 private:
  class Maker;
  Replay() = default;

  // By the names of services: their messages, for protocols that need these,
  // ...
  std::map<std::string, std::unique_ptr<MethodSource>> sources_;
  // ... or nothing but the names of their methods.
  std::map<std::string, std::unique_ptr<google::protobuf::DescriptorPool>>
      pools_;
  std::vector<Item> items_;
  std::chrono::nanoseconds longest_timeout_{0};
};

// The time from one call to another that came no earlier.
double NsBetween(const flare::RecordedCall& first,
                 const flare::RecordedCall& later);

// The times of calls, in order, faster by `speed`, for so many targets, each of
// which takes its turn. All count from the first call. There are at least as
// many calls as targets.
std::vector<RecordedPace> PacesOf(const std::vector<flare::RecordedCall>& calls,
                                  double speed, std::size_t targets);

// The latencies of those that succeeded.
flare::Histogram LatenciesOf(const std::vector<flare::RecordedCall>& calls);

}  // namespace example

#endif  // EXAMPLE_RPC_REPLAY_H_
