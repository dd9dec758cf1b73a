#include "flare/rpc/websocket/websocket_counters.h"

#include "flare/rpc/metrics.h"

namespace flare::rpc {
namespace {

enum : std::size_t {
  kOpened,
  kClosed,
  kMessagesRead,
  kBytesRead,
  kMessagesWritten,
  kBytesWritten,
  kBroken,
  kLost,
  kCells
};

// Never destroyed: sockets may end while the process does.
metrics::WorkerCells* Cells(bool client) {
  static auto* const of_servers = new metrics::WorkerCells(kCells);
  static auto* const of_clients = new metrics::WorkerCells(kCells);
  return client ? of_clients : of_servers;
}

}  // namespace

void WebSocketCounters::Opened(bool client) { Cells(client)->Add(kOpened, 1); }

void WebSocketCounters::Closed(bool client, bool broken, bool lost) {
  Cells(client)->Add(kClosed, 1);
  if (broken) Cells(client)->Add(kBroken, 1);
  if (lost) Cells(client)->Add(kLost, 1);
}

void WebSocketCounters::Read(bool client, std::size_t bytes) {
  Cells(client)->AddToTwo(kMessagesRead, 1, kBytesRead, bytes);
}

void WebSocketCounters::Written(bool client, std::size_t bytes) {
  Cells(client)->AddToTwo(kMessagesWritten, 1, kBytesWritten, bytes);
}

WebSocketCounters::Values WebSocketCounters::Of(bool client) {
  const metrics::WorkerCells& cells = *Cells(client);
  Values values;
  // First, so that there are never more of them than opened ones.
  values.closed = cells.Sum(kClosed);
  values.opened = cells.Sum(kOpened);
  values.messages_read = cells.Sum(kMessagesRead);
  values.bytes_read = cells.Sum(kBytesRead);
  values.messages_written = cells.Sum(kMessagesWritten);
  values.bytes_written = cells.Sum(kBytesWritten);
  values.broken = cells.Sum(kBroken);
  values.lost = cells.Sum(kLost);
  return values;
}

}  // namespace flare::rpc
