// When a call to several channels is over, and the use of their replies:
// ParallelChannel::Options and, with a little more, PartitionChannel::Options.
#ifndef FLARE_RPC_FAN_OUT_FAN_OUT_OPTIONS_H_
#define FLARE_RPC_FAN_OUT_FAN_OUT_OPTIONS_H_

#include <google/protobuf/message.h>

#include <cstddef>
#include <functional>

#include "flare/base/status.h"

namespace flare {

class RpcClientController;

// A channel's reply to a call.
struct FanOutReply {
  std::size_t channel;  // Its place in the list of channels.
  const google::protobuf::Message& message;
  const RpcClientController& controller;  // Attachment, metadata, server.
};

// Adds a reply to the response of the call. Runs when all calls have ended,
// once for each reply that counts, in the order of the channels, on one fiber.
// A failure is that of the call; so is an exception.
using FanOutMerger = std::function<Status(const FanOutReply& reply,
                                          google::protobuf::Message* response)>;

struct FanOutOptions {
  // So many successes end the call at once: the other calls are cancelled, and
  // later replies don't count. 0: all channels that are called.
  std::size_t enough = 0;
  // With fewer successes the call fails. 0: as `enough`. So with 1 the call
  // waits for all channels and is content with the reply of one.
  std::size_t needed = 0;
  // So many failures end the call at once, as a failure. 0: those that leave
  // fewer than `needed` channels.
  std::size_t too_many_failures = 0;
  // Null: response->MergeFrom(reply), which appends to repeated fields and
  // overwrites others.
  FanOutMerger merge = nullptr;
};

}  // namespace flare

#endif  // FLARE_RPC_FAN_OUT_FAN_OUT_OPTIONS_H_
