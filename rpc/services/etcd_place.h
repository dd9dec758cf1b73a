// The place in etcd where servers are listed, and pauses between attempts to
// reach etcd. For etcd_resolver.h and etcd_registration.h.

#ifndef FLARE_RPC_SERVICES_ETCD_PLACE_H_
#define FLARE_RPC_SERVICES_ETCD_PLACE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace flare {

// Returns STATUS_INVALID_CHANNEL with this text.
Status EtcdError(std::string text);

struct EtcdPlace {
  bool tls = false;
  std::string members;  // "10.0.0.1:2379,10.0.0.2:2379"
  std::string prefix;   // "/services/echo/"
};

// Reads "10.0.0.1:2379,10.0.0.2:2379/services/echo/". Fails with
// STATUS_INVALID_CHANNEL and a text that says the missing part. Doesn't block.
Expected<EtcdPlace, Status> ReadEtcdPlace(std::string_view text);

// Pauses after failures: 50 ms, then twice as long each time, up to a limit.
// Each is shorter by up to a half, at random, so that all clients of an etcd
// that was restarted don't come back at once. Not thread-safe.
class EtcdPauses {
 public:
  explicit EtcdPauses(std::int64_t limit_ns) : limit_ns_(limit_ns) {}

  std::int64_t NextNs();
  // Call it when etcd has answered.
  void Reset() { next_ns_ = kFirstNs; }
  void set_limit_ns(std::int64_t limit_ns) { limit_ns_ = limit_ns; }

 private:
  static constexpr std::int64_t kFirstNs = 50'000'000;

  std::int64_t limit_ns_;
  std::int64_t next_ns_ = kFirstNs;
};

}  // namespace flare

#endif  // FLARE_RPC_SERVICES_ETCD_PLACE_H_
