// How long a part of a request may wait, for clients whose requests block.
//
//   const WaitLimit limit = WaitLimit::In(options.timeout);
//   if (!event.WaitUntil(limit.stop, limit.at)) {
//     return limit.Exceeded("connecting", {ERROR_TIMEOUT, ERROR_CANCELLED});
//   }
#ifndef FLARE_RPC_CLIENT_WAIT_LIMIT_H_
#define FLARE_RPC_CLIENT_WAIT_LIMIT_H_

#include <chrono>
#include <stop_token>
#include <string_view>

#include "flare/base/status.h"

namespace flare::rpc {

struct WaitLimit {
  // The codes of a Status.
  struct Codes {
    int timeout;
    int cancelled;
  };

  std::stop_token stop;
  std::chrono::steady_clock::time_point at;

  // `timeout` from now on, but no longer than the current execution context,
  // whose stop ends the wait, too.
  static WaitLimit In(std::chrono::nanoseconds timeout);

  // Half of the time that is left: for something that can be tried elsewhere.
  WaitLimit Half() const {
    const auto now = std::chrono::steady_clock::now();
    return {stop, now + (at - now) / 2};
  }

  bool exceeded() const {
    return stop.stop_requested() || std::chrono::steady_clock::now() >= at;
  }
  // The error of a wait that has ended so, `during` something. In the context
  // in which the limit was made.
  flare::Status Exceeded(std::string_view during, const Codes& codes) const;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_WAIT_LIMIT_H_
