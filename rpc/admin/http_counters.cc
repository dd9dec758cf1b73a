#include "flare/rpc/admin/http_counters.h"

#include <utility>

namespace flare::rpc {

HttpRequestCounters* HttpCounters::Of(std::string name) {
  const bool full =
      counters_.size() >= kMostHandlers && !counters_.contains(name);
  return &counters_[full ? "(other)" : std::move(name)];
}

std::map<std::string, CallCells::Values> HttpCounters::Read() const {
  std::map<std::string, CallCells::Values> all;
  for (const auto& [name, counters] : counters_) {
    all.emplace(name, counters.cells.Read());
  }
  return all;
}

}  // namespace flare::rpc
