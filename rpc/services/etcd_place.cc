#include "flare/rpc/services/etcd_place.h"

#include <algorithm>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/random.h"
#include "flare/rpc/rpc_status.h"

namespace flare {

Status EtcdError(std::string text) {
  return Status(rpc::STATUS_INVALID_CHANNEL, std::move(text));
}

Expected<EtcdPlace, Status> ReadEtcdPlace(std::string_view text) {
  const auto slash = text.find('/');
  if (slash == 0 || slash == std::string_view::npos ||
      slash + 1 == text.size()) {
    return EtcdError("\"" + std::string(text) +
                     "\" isn't etcd's addresses and the beginning of keys, "
                     "as in 10.0.0.1:2379,10.0.0.2:2379/services/echo/");
  }
  return EtcdPlace{.members = std::string(text.substr(0, slash)),
                   .prefix = std::string(text.substr(slash))};
}

std::int64_t EtcdPauses::NextNs() {
  const std::int64_t pause = std::min(next_ns_, limit_ns_);
  next_ns_ = std::min(2 * pause, limit_ns_);
  const auto random =
      MixBits(ReadTsc() ^ reinterpret_cast<std::uintptr_t>(this));
  return pause - static_cast<std::int64_t>(
                     random % (static_cast<std::uint64_t>(pause) / 2 + 1));
}

}  // namespace flare
