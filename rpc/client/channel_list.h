// The channels of the process, for the page /inspect/channels.

#ifndef FLARE_RPC_CLIENT_CHANNEL_LIST_H_
#define FLARE_RPC_CLIENT_CHANNEL_LIST_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "flare/base/status.h"

namespace flare::rpc {

// A channel's knowledge of one of its servers.
struct ChannelServerState {
  std::string server;
  std::uint32_t weight = 1;
  std::string zone;
  // "well", "recovering", "down" (it can't be connected to), "unhealthy" (its
  // health checks fail), or "ejected:" and the reason.
  std::string state;
  std::string check_failure;     // Why the last check failed; empty: it didn't.
  std::int64_t retry_in_ns = 0;  // For an ejected one: until its probe.
  // False: the numbers below aren't counted, as it is the only server.
  bool counted = false;
  std::uint32_t in_flight = 0;
  std::uint64_t calls = 0;
  std::uint64_t failures = 0;
  std::uint64_t ejections = 0;
  std::int64_t latency_ns = 0;  // A moving average; 0: there is none yet.
};

struct ChannelState {
  std::string uri;
  std::string nslb;       // "list+rr"
  flare::Status failure;  // Why servers aren't known, or ok.
  bool panic = false;     // So few servers are left that ejections don't count.
  // Those of the last call; none before the first one.
  std::vector<ChannelServerState> servers;
};

class ListedChannel {
 public:
  // Under the list's lock. Any thread; must not block.
  virtual ChannelState Describe() = 0;

 protected:
  ~ListedChannel() = default;
};

// Borrows `channel` until it is removed. Both may block the thread for as long
// as another one takes to describe all channels.
void AddListedChannel(ListedChannel* channel);
void RemoveListedChannel(ListedChannel* channel);

// At most so many, and how many there are. *ended, if it isn't null: the totals
// of channels that have ended, by their URIs, with `server`, `calls`,
// `failures` and `ejections` of servers alone. Any thread.
std::vector<ChannelState> DescribeChannels(
    std::size_t most, std::size_t* all,
    std::vector<ChannelState>* ended = nullptr);

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_CHANNEL_LIST_H_
