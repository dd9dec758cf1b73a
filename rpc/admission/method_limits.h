// Limits of methods' calls as a text, "package.Service.Method:10,...": a flag,
// or Server::Options::max_concurrent_requests_per_method. Pure; nothing blocks.
#ifndef FLARE_RPC_ADMISSION_METHOD_LIMITS_H_
#define FLARE_RPC_ADMISSION_METHOD_LIMITS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace flare::rpc {

// Fails with a text that names the piece that isn't "name:number".
using MethodLimits = std::vector<std::pair<std::string, std::size_t>>;
Expected<MethodLimits, flare::Status> ParseMethodLimits(std::string_view text);

}  // namespace flare::rpc

#endif  // FLARE_RPC_ADMISSION_METHOD_LIMITS_H_
