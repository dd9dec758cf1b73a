#include "flare/fiber/startup/group_sets.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "flare/base/string.h"
#include "flare/base/topology.h"

namespace flare::fiber {
namespace {

Status Malformed(std::string_view item, const std::string& why) {
  return Status(EINVAL, "flare_scheduling_group_sets: '" + std::string(item) +
                            "' " + why);
}

}  // namespace

Expected<GroupSets, Status> GroupSets::Parse(std::string_view text,
                                             std::size_t groups) {
  GroupSets sets;
  sets.set_of_.resize(groups, 0);
  if (Trim(text).empty()) return sets;
  for (const std::string_view item : Split(text, ';', /*keep_empty=*/true)) {
    if (Status status = sets.Add(Trim(item)); !status.ok()) return status;
  }
  return sets;
}

Status GroupSets::Add(std::string_view item) {
  const std::size_t colon = item.find(':');
  const std::string name(Trim(item.substr(0, colon)));
  if (colon == item.npos || name.empty()) {
    return Malformed(item, "is not of the form name:groups, such as front:0-3");
  }
  if (std::find(names_.begin(), names_.end(), name) != names_.end()) {
    return Malformed(item, "names a set twice; list all its groups in one");
  }
  const auto members =
      ParseCpuList(item.substr(colon + 1), static_cast<int>(set_of_.size()));
  if (!members || members->empty()) {
    return Malformed(item,
                     "has no list of groups after the colon, such as "
                     "0-3 or 4,5" +
                         (members ? "" : "; " + members.error().message()));
  }
  names_.push_back(name);
  for (const int member : *members) {
    const auto group = static_cast<std::size_t>(member);
    if (group >= set_of_.size()) {
      return Malformed(
          item, "names group " + std::to_string(member) + ", but there are " +
                    std::to_string(set_of_.size()) +
                    " (numbered from 0): name others, or make more groups "
                    "by a smaller flare_scheduling_group_size or a larger "
                    "flare_concurrency_hint");
    }
    if (set_of_[group] != 0) {
      return Malformed(item, "names group " + std::to_string(member) +
                                 ", which is in set '" + NameOf(group) +
                                 "': a group is in one set at most");
    }
    set_of_[group] = names_.size();
  }
  return Status();
}

Expected<std::vector<std::size_t>, Status> GroupSets::Find(
    const std::string& name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (!name.empty() && found == names_.end()) {
    return Status(ENOENT, "there is no set of scheduling groups '" + name +
                              "'; flare_scheduling_group_sets has " +
                              (names_.empty() ? "none" : Join(names_, ", ")));
  }
  const auto set = static_cast<std::size_t>(found - names_.begin()) + 1;
  std::vector<std::size_t> groups;
  for (std::size_t i = 0; i < set_of_.size(); ++i) {
    if (name.empty() || set_of_[i] == set) groups.push_back(i);
  }
  return groups;
}

bool GroupSets::Together(std::size_t a, std::size_t b) const {
  return set_of_.at(a) == set_of_.at(b);
}

const std::string& GroupSets::NameOf(std::size_t group) const {
  static const std::string* const none = new std::string();
  const std::size_t set = set_of_.at(group);
  return set == 0 ? *none : names_[set - 1];
}

std::string GroupSets::ToString() const {
  if (names_.empty()) return "";
  std::vector<std::vector<int>> members(names_.size() + 1);
  for (std::size_t i = 0; i < set_of_.size(); ++i) {
    members[set_of_[i]].push_back(static_cast<int>(i));
  }
  std::string text;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (i != 0) text += ", ";
    text += names_[i] + " " + FormatCpuList(members[i + 1]);
  }
  if (!members[0].empty())
    text += ", " + FormatCpuList(members[0]) + " in none";
  return text;
}

}  // namespace flare::fiber
