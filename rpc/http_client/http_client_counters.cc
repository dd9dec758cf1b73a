#include "flare/rpc/http_client/http_client_counters.h"

#include "flare/rpc/client/server_cells.h"
#include "flare/rpc/http_message.h"

namespace flare::rpc {
namespace {

ServerCells* CellsOfHttpClients() {
  static auto* const cells = new ServerCells(static_cast<int>(HttpStatus::OK));
  return cells;
}

}  // namespace

CallCells* HttpClientCounters::Of(const std::string& server, bool connected) {
  return CellsOfHttpClients()->Of(server, connected);
}

std::map<std::string, CallCells::Values> HttpClientCounters::Read() {
  return CellsOfHttpClients()->Read();
}

}  // namespace flare::rpc
