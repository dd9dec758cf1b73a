// Counters of all WebSockets of the process, for the pages /inspect/server and
// /metrics. Any thread; nothing blocks.
#ifndef FLARE_RPC_WEBSOCKET_WEBSOCKET_COUNTERS_H_
#define FLARE_RPC_WEBSOCKET_WEBSOCKET_COUNTERS_H_

#include <cstddef>
#include <cstdint>

namespace flare::rpc {

class WebSocketCounters {
 public:
  // One side has those that handlers of servers serve, the other one those of
  // HttpClients.
  struct Values {
    std::uint64_t opened = 0;
    std::uint64_t closed = 0;
    std::uint64_t messages_read = 0;
    std::uint64_t bytes_read = 0;
    std::uint64_t messages_written = 0;
    std::uint64_t bytes_written = 0;
    // Closed ones: those for a fault of the peer, and those without a close
    // frame of it.
    std::uint64_t broken = 0;
    std::uint64_t lost = 0;

    std::uint64_t open() const { return opened > closed ? opened - closed : 0; }
  };

  static void Opened(bool client);
  static void Closed(bool client, bool broken, bool lost);
  static void Read(bool client, std::size_t bytes);
  static void Written(bool client, std::size_t bytes);

  static Values Of(bool client);
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_WEBSOCKET_WEBSOCKET_COUNTERS_H_
