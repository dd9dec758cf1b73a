// Named sets of scheduling groups, so that one service can't starve another:
// groups of different sets never take work from each other.
//
//   front:0-3;batch:4,5      groups that are in no set make one without a name
//
// Which groups there are follows from the plan (plan.h); a set that names one
// beyond the last is an error.

#ifndef FLARE_FIBER_GROUP_SETS_H_
#define FLARE_FIBER_GROUP_SETS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace flare::fiber {

// A value; reading it is thread-safe.
class GroupSets {
 public:
  // No groups.
  GroupSets() = default;

  // Reads "name:groups;name:groups"; groups are written like CPU lists
  // (topology.h), negative numbers counting from the last. White space around
  // items is ignored, an empty text names nothing. Errors (EINVAL): a malformed
  // item, a name twice, a set without groups, a group in two sets, or one that
  // is not below `groups`.
  static Expected<GroupSets, Status> Parse(std::string_view text,
                                           std::size_t groups);

  // The groups of a set, ascending; "" stands for all groups. Error ENOENT: no
  // such set; the message lists those there are.
  Expected<std::vector<std::size_t>, Status> Find(
      const std::string& name) const;

  // Are two groups in the same set, or both in none?
  bool Together(std::size_t a, std::size_t b) const;

  // The name of the set that `group` is in; "" if it is in none.
  const std::string& NameOf(std::size_t group) const;

  // For the start-up log: "front 0-2, batch 3, 4-5 in none"; empty without
  // sets.
  std::string ToString() const;

 private:
  // One item of the text.
  Status Add(std::string_view item);

  std::vector<std::string> names_;   // In the order given.
  std::vector<std::size_t> set_of_;  // By group: 1 + index in names_; 0: none.
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_GROUP_SETS_H_
