#include "flare/rpc/admission/method_limits.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <optional>

#include "flare/base/string.h"

namespace flare::rpc {

namespace {

bool IsMethodName(std::string_view name) {
  const auto is_part = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
  };
  return !name.empty() && std::all_of(name.begin(), name.end(), is_part);
}

}  // namespace

Expected<MethodLimits, flare::Status> ParseMethodLimits(std::string_view text) {
  MethodLimits limits;
  for (std::string_view piece : Split(text, ',')) {
    piece = Trim(piece);
    if (piece.empty()) continue;
    const std::size_t colon = piece.rfind(':');
    const auto limit =
        colon == std::string_view::npos
            ? std::nullopt
            : TryParse<std::uint32_t>(Trim(piece.substr(colon + 1)));
    const std::string_view name =
        Trim(piece.substr(0, limit ? colon : piece.size()));
    if (!limit || *limit == 0 || !IsMethodName(name)) {
      return flare::Status(EINVAL, "\"" + std::string(piece) +
                                       "\" isn't package.Service.Method:limit "
                                       "with a limit of at least 1");
    }
    limits.emplace_back(std::string(name), *limit);
  }
  return limits;
}

}  // namespace flare::rpc
