// How large requests are: always the same, or drawn for each.
//
//   auto sizes = ParseSizeDistribution("16:9,1000-2000:1");
//   std::size_t size = sizes->Draw(random);

#ifndef EXAMPLE_RPC_SIZE_DISTRIBUTION_H_
#define EXAMPLE_RPC_SIZE_DISTRIBUTION_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace example {

// A plain value. Draw() is thread-safe.
class SizeDistribution {
 public:
  // Sizes from `smallest` to `largest`, each with the same chance, among which
  // one is drawn with a probability in proportion to `weight`.
  struct Part {
    std::size_t smallest;
    std::size_t largest;
    double weight;
  };

  // At least one part, weights that are positive and finite.
  explicit SizeDistribution(const std::vector<Part>& parts);

  // `random`: all of its bits are.
  std::size_t Draw(std::uint64_t random) const;

  std::size_t largest() const;
  // Is there one size only?
  bool fixed() const;

 private:
  // With the sum of the weights up to each, as a share of all.
  std::vector<Part> parts_;
};

// A size ("100"), a range ("100-2000"), or a list of these with weights
// ("16:9,1000-2000:1"; without a weight it's 1). Sizes up to a GiB. The error
// names the fault.
flare::Expected<SizeDistribution, flare::Status> ParseSizeDistribution(
    std::string_view text);

}  // namespace example

#endif  // EXAMPLE_RPC_SIZE_DISTRIBUTION_H_
