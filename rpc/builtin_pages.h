// Says which clients a server's own pages, /inspect and /metrics, answer on its
// port.
#ifndef FLARE_RPC_BUILTIN_PAGES_H_
#define FLARE_RPC_BUILTIN_PAGES_H_

#include <optional>
#include <string_view>

namespace flare {

enum class BuiltinPages {
  // kLoopback; kNone if there is an admin address, which has them then.
  kDefault,
  kNone,  // Nobody: there are no such pages on the port.
  // Peers on 127.0.0.0/8, ::1 or a Unix socket; others get 403, and so do
  // requests that a proxy says it passes on (X-Forwarded-For and the like).
  kLoopback,
  kEveryone,
};

// "", "none", "loopback", "everyone"; nullopt: something else.
constexpr std::optional<BuiltinPages> ParseBuiltinPages(std::string_view text) {
  if (text.empty()) return BuiltinPages::kDefault;
  if (text == "none") return BuiltinPages::kNone;
  if (text == "loopback") return BuiltinPages::kLoopback;
  if (text == "everyone") return BuiltinPages::kEveryone;
  return std::nullopt;
}

}  // namespace flare

#endif  // FLARE_RPC_BUILTIN_PAGES_H_
