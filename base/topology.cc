#include "flare/base/topology.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "flare/base/cgroup.h"
#include "flare/base/read_file.h"
#include "flare/base/string.h"

namespace flare {
namespace {

constexpr int kMaxCpu = 65535;
constexpr std::size_t kMaxFileBytes = 1 << 20;

std::vector<int> Intersection(const std::vector<int>& a,
                              const std::vector<int>& b) {
  std::vector<int> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(),
                        std::back_inserter(both));
  return both;
}

void SortUnique(std::vector<int>* cpus) {
  std::sort(cpus->begin(), cpus->end());
  cpus->erase(std::unique(cpus->begin(), cpus->end()), cpus->end());
}

Status Malformed(const char* what, std::string_view item, const char* why) {
  std::string message = "malformed ";
  message += what;
  message += ": \"";
  message.append(item);
  message += "\" ";
  message += why;
  return Status(EINVAL, std::move(message));
}

// Returns the content of the file /sys/... as a CPU list; empty if it can't be
// read.
std::vector<int> ReadList(const std::string& path) {
  auto list = ParseCpuList(Trim(ReadSmallFile(path)), kMaxCpu);
  return list ? *std::move(list) : std::vector<int>();
}

// A kernel mask of enough bits for any machine.
class CpuMask {
 public:
  CpuMask() : set_(CPU_ALLOC(kMaxCpu + 1), &Free) {
    CPU_ZERO_S(size(), set_.get());
  }
  static constexpr std::size_t size() { return CPU_ALLOC_SIZE(kMaxCpu + 1); }
  cpu_set_t* get() const { return set_.get(); }

 private:
  static void Free(cpu_set_t* set) { CPU_FREE(set); }
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set_;
};

// The calling thread's mask, which has no CPU that is offline or outside of its
// cpuset. nullopt: a sandbox forbids to ask.
std::optional<std::vector<int>> AskForAffinity() {
  const CpuMask mask;
  const bool known = sched_getaffinity(0, mask.size(), mask.get()) == 0;
  const int count = known ? CPU_COUNT_S(mask.size(), mask.get()) : 0;
  if (count == 0) return std::nullopt;
  std::vector<int> cpus;
  for (int cpu = 0; static_cast<int>(cpus.size()) < count; ++cpu) {
    if (CPU_ISSET_S(cpu, mask.size(), mask.get())) cpus.push_back(cpu);
  }
  return cpus;
}

// The CPUs that are assumed where that can't be known. No more than that: lxcfs
// shows a container as many as its quota here, not those that it runs on.
std::vector<int> OnlineCpus(const std::string& root) {
  std::vector<int> cpus = ReadList(root + "/sys/devices/system/cpu/online");
  if (cpus.empty()) {
    cpus.resize(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
    std::iota(cpus.begin(), cpus.end(), 0);
  }
  return cpus;
}

// "3", "-1", "0-10", "-4--2": one item of a CPU list, as the CPUs that it
// means.
struct CpuRange {
  int first = 0;
  int last = 0;
};

std::optional<CpuRange> ParseCpuRange(std::string_view item, int cpu_count) {
  // The first character may be a sign; a range's dash comes later.
  const std::size_t dash = item.find('-', 1);
  const auto first = TryParse<int>(item.substr(0, dash));
  const auto last =
      dash == item.npos ? first : TryParse<int>(item.substr(dash + 1));
  if (!first || !last) return std::nullopt;
  const auto resolve = [cpu_count](int n) { return n < 0 ? cpu_count + n : n; };
  return CpuRange{resolve(*first), resolve(*last)};
}

// An item of a description, except CPU lists of nodes.
struct DescriptionOptions {
  std::vector<int> offline;
  std::optional<std::vector<int>> affinity;
  std::optional<double> quota;
};

Status ParseOption(std::string_view item, std::size_t equals,
                   DescriptionOptions* options) {
  const std::string_view key = Trim(item.substr(0, equals));
  const std::string_view value = Trim(item.substr(equals + 1));
  if (key == "quota") {
    const auto quota = TryParse<double>(value);
    if (!quota || !(*quota > 0)) {
      return Malformed("topology", item, "must be a number of CPUs above 0");
    }
    options->quota = quota;
    return Status();
  }
  auto list = ParseCpuList(value);
  if (!list) return list.error();
  if (key == "offline") {
    options->offline = *std::move(list);
  } else if (key == "affinity") {
    options->affinity = *std::move(list);
  } else {
    return Malformed("topology", item,
                     "is unknown (expected offline=, affinity= or quota=)");
  }
  return Status();
}

}  // namespace

Topology Topology::FromSystem() {
  return FromSystem(Source{"", AskForAffinity()});
}

Topology Topology::FromSystem(const Source& source) {
  const std::string node_root = source.root + "/sys/devices/system/node/";
  Topology topology;
  for (const int id : ReadList(node_root + "online")) {
    Node node{id,
              ReadList(node_root + "node" + std::to_string(id) + "/cpulist"),
              true};
    topology.nodes_.push_back(std::move(node));
  }
  const std::vector<int> with_memory = ReadList(node_root + "has_memory");
  for (Node& node : topology.nodes_) {
    // An old kernel has no such file: then all nodes are taken to have some.
    node.has_memory =
        with_memory.empty() ||
        std::binary_search(with_memory.begin(), with_memory.end(), node.id);
  }
  topology.memory_nodes_ = topology.CountMemoryNodes();
  std::vector<int> usable =
      source.affinity ? *source.affinity : OnlineCpus(source.root);
  SortUnique(&usable);
  topology.Keep(usable);
  // CPUs the node files don't know of, if they say anything at all.
  if (topology.cpus_ != usable) {
    topology.nodes_ = {Node{0, usable, true}};
    topology.memory_nodes_ = 1;
    topology.Keep(usable);
  }
  topology.quota_ = ReadCpuQuota(source.root);
  return topology;
}

Expected<Topology> Topology::FromDescription(std::string_view description) {
  constexpr std::string_view kNoMemory = ":nomem";
  Topology topology;
  DescriptionOptions options;
  std::vector<int> usable;
  int id = 0;
  for (std::string_view item : Split(description, ';', /*keep_empty=*/true)) {
    item = Trim(item);
    if (const std::size_t equals = item.find('='); equals != item.npos) {
      if (Status status = ParseOption(item, equals, &options); !status.ok()) {
        return status;
      }
      continue;
    }
    Node node{id++, {}, !item.ends_with(kNoMemory)};
    if (!node.has_memory) item.remove_suffix(kNoMemory.size());
    auto cpus = ParseCpuList(item);
    if (!cpus) return cpus.error();
    if (!Intersection(usable, *cpus).empty()) {
      return Malformed("topology", item, "has a CPU of another node");
    }
    node.cpus = *cpus;
    usable.insert(usable.end(), cpus->begin(), cpus->end());
    SortUnique(&usable);
    topology.nodes_.push_back(std::move(node));
  }
  topology.memory_nodes_ = topology.CountMemoryNodes();
  std::erase_if(usable, [&](int cpu) {
    return std::binary_search(options.offline.begin(), options.offline.end(),
                              cpu);
  });
  if (options.affinity) usable = Intersection(usable, *options.affinity);
  if (usable.empty()) {
    return Malformed("topology", description, "leaves no CPU to run on");
  }
  topology.Keep(usable);
  topology.quota_ = options.quota;
  return topology;
}

Expected<Topology> Topology::FromFile(const std::string& path) {
  const auto text = ReadFile(path, kMaxFileBytes);
  if (!text) return text.error();
  std::string items;
  for (const std::string_view line : Split(*text, '\n')) {
    const std::string_view item = Trim(line.substr(0, line.find('#')));
    // An empty line means nothing; a node without CPUs is an empty item in one
    // that isn't.
    if (item.empty()) continue;
    if (!items.empty()) items += ';';
    items += item;
  }
  auto topology = FromDescription(items);
  if (topology) return topology;
  return Status(topology.error().code(),
                "the file " + path + ": " + topology.error().message());
}

std::size_t Topology::CountMemoryNodes() const {
  return static_cast<std::size_t>(
      std::count_if(nodes_.begin(), nodes_.end(),
                    [](const Node& node) { return node.has_memory; }));
}

void Topology::Keep(const std::vector<int>& usable) {
  cpus_.clear();
  for (Node& node : nodes_) {
    node.cpus = Intersection(node.cpus, usable);
    cpus_.insert(cpus_.end(), node.cpus.begin(), node.cpus.end());
  }
  std::erase_if(nodes_, [](const Node& node) { return node.cpus.empty(); });
  SortUnique(&cpus_);
}

Expected<Topology> Topology::RestrictedTo(const std::vector<int>& cpus) const {
  std::vector<int> wanted = cpus;
  SortUnique(&wanted);
  Topology restricted = *this;
  restricted.Keep(wanted);
  if (!restricted.cpus_.empty()) return restricted;
  return Status(EINVAL, "none of the CPUs " + FormatCpuList(wanted) +
                            " is accessible; this process may use " +
                            FormatCpuList(cpus_));
}

Expected<Topology> Topology::Without(const std::vector<int>& cpus) const {
  std::vector<int> unwanted = cpus;
  SortUnique(&unwanted);
  std::vector<int> left;
  std::set_difference(cpus_.begin(), cpus_.end(), unwanted.begin(),
                      unwanted.end(), std::back_inserter(left));
  if (!left.empty()) return RestrictedTo(left);
  return Status(EINVAL, "without the CPUs " + FormatCpuList(unwanted) +
                            " none is left; this process may use " +
                            FormatCpuList(cpus_));
}

int Topology::parallelism() const {
  const int cpus = static_cast<int>(cpus_.size());
  if (!quota_ || *quota_ >= cpus) return cpus;
  return std::max(1, static_cast<int>(std::ceil(*quota_)));
}

std::optional<std::size_t> Topology::NodeIndexOf(int cpu) const {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const std::vector<int>& cpus = nodes_[i].cpus;
    if (std::binary_search(cpus.begin(), cpus.end(), cpu)) return i;
  }
  return std::nullopt;
}

std::string Topology::ToString() const {
  std::string text;
  for (const Node& node : nodes_) {
    if (!text.empty()) text += "; ";
    text += "node " + std::to_string(node.id) + ": CPUs " +
            FormatCpuList(node.cpus);
    if (!node.has_memory) text += " (no memory)";
  }
  if (quota_) {
    char quota[48];
    std::snprintf(quota, sizeof(quota), "; quota %g CPUs", *quota_);
    text += quota;
  }
  return text;
}

Expected<std::vector<int>> ParseCpuList(std::string_view text, int cpu_count) {
  if (cpu_count <= 0) {
    cpu_count = static_cast<int>(sysconf(_SC_NPROCESSORS_CONF));
  }
  std::vector<int> cpus;
  if (Trim(text).empty()) return cpus;
  for (const std::string_view piece : Split(text, ',', /*keep_empty=*/true)) {
    const std::string_view item = Trim(piece);
    const auto range = ParseCpuRange(item, cpu_count);
    if (!range) {
      return Malformed("CPU list", item, "is neither a number nor a range");
    }
    if (range->first < 0 || range->last < 0 || range->last > kMaxCpu) {
      return Malformed("CPU list", item, "is out of range");
    }
    if (range->first > range->last) {
      return Malformed("CPU list", item, "runs backwards");
    }
    for (int cpu = range->first; cpu <= range->last; ++cpu) {
      cpus.push_back(cpu);
    }
  }
  SortUnique(&cpus);
  return cpus;
}

std::string FormatCpuList(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    if (!text.empty()) text += ",";
    text += std::to_string(cpus[i]);
    if (end - i > 1) text += "-" + std::to_string(cpus[end - 1]);
    i = end;
  }
  return text;
}

std::vector<int> GetThreadAffinity() {
  auto cpus = AskForAffinity();
  return cpus ? *std::move(cpus) : OnlineCpus("");
}

Status SetThreadAffinity(const std::vector<int>& cpus) {
  const CpuMask mask;
  for (const int cpu : cpus) {
    if (cpu >= 0 && cpu <= kMaxCpu) CPU_SET_S(cpu, mask.size(), mask.get());
  }
  if (sched_setaffinity(0, mask.size(), mask.get()) == 0) return Status();
  return StatusFromErrno(
      errno, "can't bind the thread to the CPUs " + FormatCpuList(cpus));
}

}  // namespace flare
