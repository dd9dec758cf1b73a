#include "flare/rpc/server_statistics.h"

#include <chrono>
#include <cstdio>
#include <string>

namespace flare {

std::string AbandonedCall::ToString() const {
  std::string text = method.empty() ? "a request" : method;
  if (!peer.empty()) text += " of " + peer.ToString();
  if (!protocol.empty()) text += ", over " + protocol;
  char time[32];
  std::snprintf(time, sizeof(time), ", %.3f s",
                std::chrono::duration<double>(age).count());
  return text + time;
}

}  // namespace flare
