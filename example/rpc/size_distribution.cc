#include "example/rpc/size_distribution.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "flare/base/random.h"
#include "flare/base/string.h"

namespace example {
namespace {

constexpr std::size_t kLargest = std::size_t{1} << 30;

// "16", "16:9", "100-2000" or "100-2000:1".
std::optional<SizeDistribution::Part> ParsePart(std::string_view text) {
  SizeDistribution::Part part{0, 0, 1};
  if (const auto colon = text.find(':'); colon != text.npos) {
    const auto weight = flare::TryParse<double>(text.substr(colon + 1));
    if (!weight || !std::isfinite(*weight) || *weight <= 0) return {};
    part.weight = *weight;
    text = text.substr(0, colon);
  }
  const auto dash = text.find('-');
  const auto smallest = flare::TryParse<std::size_t>(text.substr(0, dash));
  const auto largest =
      dash == text.npos ? smallest
                        : flare::TryParse<std::size_t>(text.substr(dash + 1));
  if (!smallest || !largest || *smallest > *largest || *largest > kLargest) {
    return {};
  }
  part.smallest = *smallest;
  part.largest = *largest;
  return part;
}

}  // namespace

SizeDistribution::SizeDistribution(const std::vector<Part>& parts)
    : parts_(parts) {
  double total = 0;
  for (Part& part : parts_) total = part.weight += total;
  for (Part& part : parts_) part.weight /= total;
}

std::size_t SizeDistribution::Draw(std::uint64_t random) const {
  // Uses its upper 53 bits, which a double holds.
  const double share = static_cast<double>(random >> 11) * 0x1p-53;
  const auto part =
      std::find_if(parts_.begin(), parts_.end() - 1,
                   [&](const Part& p) { return share < p.weight; });
  return part->smallest +
         flare::MixBits(random) % (part->largest - part->smallest + 1);
}

std::size_t SizeDistribution::largest() const {
  std::size_t largest = 0;
  for (const Part& part : parts_) largest = std::max(largest, part.largest);
  return largest;
}

bool SizeDistribution::fixed() const {
  return std::all_of(parts_.begin(), parts_.end(), [&](const Part& part) {
    return part.smallest == largest() && part.largest == largest();
  });
}

flare::Expected<SizeDistribution, flare::Status> ParseSizeDistribution(
    std::string_view text) {
  std::vector<SizeDistribution::Part> parts;
  for (std::string_view piece : flare::Split(text, ',', /*keep_empty=*/true)) {
    const auto part = ParsePart(piece);
    if (!part) {
      return flare::Status(
          EINVAL, "\"" + std::string(piece) + "\" in \"" + std::string(text) +
                      "\" is no size: it should be like 100, 100-2000, 16:9 "
                      "or 100-2000:1, up to 1073741824 bytes");
    }
    parts.push_back(*part);
  }
  return SizeDistribution(parts);
}

}  // namespace example
