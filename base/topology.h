// Which CPUs this process may use and how they lie on NUMA nodes.
//
//   const Topology topology = Topology::FromSystem();
//   for (const Topology::Node& node : topology.nodes()) {
//     StartWorkers(node.cpus.size(), node.cpus);
//   }
//
//   // A machine on paper, for tests: node 1 without memory, two CPUs offline.
//   auto t = Topology::FromDescription("0-3;4-7:nomem;offline=2,5;quota=2.5");
//
// A value: a snapshot from the time it was made. Reading it is thread-safe.

#ifndef FLARE_BASE_TOPOLOGY_H_
#define FLARE_BASE_TOPOLOGY_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace flare {

class Topology {
 public:
  struct Node {
    int id = 0;             // The kernel's number; may have gaps.
    std::vector<int> cpus;  // Accessible ones, ascending; never empty.
    bool has_memory = true;
  };

  // Where FromSystem() looks; tests point it at files of their own.
  struct Source {
    std::string root;  // Put before "/sys/..." and "/proc/...".
    // The calling thread's affinity mask. nullopt: a sandbox forbids to ask for
    // it, so that the CPUs which the system reports as online count.
    std::optional<std::vector<int>> affinity;
  };

  // The CPUs in the affinity mask of the calling thread (hence online and in
  // its cpuset), and the CPU quota of its cgroups, version 1 or 2, with all
  // their ancestors. Never fails: an unreadable part counts as absent (no NUMA
  // information: one node; no quota: no limit).
  static Topology FromSystem();
  static Topology FromSystem(const Source& source);

  // Items separated by ';'. A CPU list is the next node, numbered from 0, with
  // ":nomem" behind it if it has no memory; an empty one is a node without
  // CPUs. The others are offline=LIST, affinity=LIST and quota=NUMBER (CPUs).
  // Errors: EINVAL for a malformed item, a CPU in two nodes, or if no CPU is
  // left.
  static Expected<Topology> FromDescription(std::string_view description);

  // Reads a description from a file: its lines are items, too, and the text
  // behind a '#' is a comment. Errors: those of FromDescription(), or that of
  // reading the file.
  static Expected<Topology> FromFile(const std::string& path);

  // Nodes with at least one accessible CPU, by id; at least one.
  const std::vector<Node>& nodes() const { return nodes_; }

  // Nodes with memory, those without accessible CPUs included; at least 1
  // unless a description says otherwise.
  std::size_t memory_nodes() const { return memory_nodes_; }

  // All accessible CPUs, ascending; at least one.
  const std::vector<int>& cpus() const { return cpus_; }

  // The cgroups' quota in CPUs (1.5: one and a half of each second); nullopt
  // if there is none.
  std::optional<double> quota() const { return quota_; }

  // Returns how many threads can run at once: the number of CPUs, or less if
  // the quota (rounded up) is. At least 1. A number of workers should follow
  // this, not cpus().size().
  int parallelism() const;

  // Position in nodes() of the node `cpu` belongs to; nullopt if it is not
  // accessible.
  std::optional<std::size_t> NodeIndexOf(int cpu) const;

  // Returns this topology with only those of its CPUs that are in `cpus` too.
  // Error EINVAL if none is left.
  Expected<Topology> RestrictedTo(const std::vector<int>& cpus) const;

  // Returns this topology without the CPUs that are in `cpus`. Error EINVAL if
  // none is left.
  Expected<Topology> Without(const std::vector<int>& cpus) const;

  // "node 0: CPUs 0-3; node 1: CPUs 4,6 (no memory); quota 2.5 CPUs"
  std::string ToString() const;

 private:
  std::size_t CountMemoryNodes() const;
  // Drops CPUs that aren't in `usable`, and empty nodes.
  void Keep(const std::vector<int>& usable);

  std::vector<Node> nodes_;
  std::vector<int> cpus_;
  std::size_t memory_nodes_ = 1;
  std::optional<double> quota_;
};

// "0-10,11,-1": numbers and ranges, in any order, duplicates allowed; the
// result is ascending. Negative numbers count from the end: -1 is the last of
// `cpu_count` CPUs (0: those configured in this machine). White space around
// items is ignored; an empty text is an empty list. Errors: EINVAL for anything
// else, for ranges that run backwards, for numbers before the first or above
// 65535.
Expected<std::vector<int>> ParseCpuList(std::string_view text,
                                        int cpu_count = 0);

// "0-3,6".
std::string FormatCpuList(const std::vector<int>& cpus);

// The calling thread's affinity mask, ascending; all CPUs that are online where
// a sandbox forbids to ask for it. Never empty.
std::vector<int> GetThreadAffinity();

// Restricts the calling thread to `cpus`. Error: EINVAL if none of them can be
// used (the kernel ignores those that can't).
Status SetThreadAffinity(const std::vector<int>& cpus);

}  // namespace flare

#endif  // FLARE_BASE_TOPOLOGY_H_
