// Counters of a server's HTTP handlers, for the page /metrics.
#ifndef FLARE_RPC_ADMIN_HTTP_COUNTERS_H_
#define FLARE_RPC_ADMIN_HTTP_COUNTERS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "flare/rpc/call_cells.h"
#include "flare/rpc/http/http_routes.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/metrics.h"

namespace flare::rpc {

class HttpCounters final : public HttpCounterSet {
 public:
  // Names beyond so many share "(other)".
  static constexpr std::size_t kMostHandlers = metrics::kMaxSeries;

  HttpRequestCounters* Of(std::string name) override;

  // By name. Any thread, once the server has started.
  std::map<std::string, CallCells::Values> Read() const;

 private:
  class Counters final : public HttpRequestCounters {
   public:
    void End(HttpStatus status, std::int64_t ns) override {
      cells.End(static_cast<int>(status), ns);
    }
    CallCells cells{static_cast<int>(HttpStatus::OK)};
  };

  std::map<std::string, Counters> counters_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_ADMIN_HTTP_COUNTERS_H_
