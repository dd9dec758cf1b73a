#include "flare/rpc/http/http_coding.h"

#include <cstddef>

#include "flare/base/string.h"
#include "flare/rpc/http/http_text.h"

namespace flare::rpc {

namespace {

// "*", all codings that aren't named.
constexpr std::uint8_t kAny = 1;

// Whether the parameters of a coding give it a weight of 0 ("q=0.0").
bool HasNoWeight(std::string_view parameters) {
  bool none = false;
  while (!parameters.empty()) {
    const std::size_t end = parameters.find(';');
    const std::string_view one = TrimBlanks(parameters.substr(0, end));
    if (IEquals(one.substr(0, 2), "q=")) {
      none = one.find_first_not_of("0.", 2) == std::string_view::npos;
    }
    parameters = end == std::string_view::npos ? std::string_view()
                                               : parameters.substr(end + 1);
  }
  return none;
}

}  // namespace

CompressionAlgorithm HttpCodingOf(std::string_view name) {
  if (IEquals(name, "gzip") || IEquals(name, "x-gzip")) {
    return CompressionAlgorithm::kGzip;
  }
  if (IEquals(name, "deflate")) return CompressionAlgorithm::kZlib;
  return CompressionAlgorithm::kUnknown;
}

std::string_view HttpCodingName(CompressionAlgorithm algorithm) {
  switch (algorithm) {
    case CompressionAlgorithm::kGzip:
      return "gzip";
    case CompressionAlgorithm::kZlib:
      return "deflate";
    default:
      return {};
  }
}

CompressionAlgorithm PreferredHttpCoding(std::uint8_t usable) {
  for (auto algorithm :
       {CompressionAlgorithm::kGzip, CompressionAlgorithm::kZlib}) {
    if ((usable & HttpCodings::BitOf(algorithm)) != 0) return algorithm;
  }
  return CompressionAlgorithm::kNone;
}

void HttpCodings::Add(std::string_view value) {
  ForEachListMember(value, [this](std::string_view member) {
    const std::size_t end = member.find(';');
    const std::string_view name = TrimBlanks(member.substr(0, end));
    const CompressionAlgorithm algorithm = HttpCodingOf(name);
    const std::uint8_t bit = name == "*" ? kAny
                             : algorithm == CompressionAlgorithm::kUnknown
                                 ? 0
                                 : BitOf(algorithm);
    const bool refused =
        end != std::string_view::npos && HasNoWeight(member.substr(end + 1));
    (refused ? refused_ : accepted_) |= bit;
  });
}

std::uint8_t HttpCodings::usable() const {
  const std::uint8_t accepted = (accepted_ & kAny) != 0 ? kKnown : accepted_;
  return accepted & kKnown & static_cast<std::uint8_t>(~refused_);
}

}  // namespace flare::rpc
