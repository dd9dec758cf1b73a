// Which cgroup we are in is said by /proc/self/cgroup, where the hierarchies
// are mounted by /proc/self/mountinfo. In a container the former may name a
// path as the host sees it while only a part of the tree, the mount's root, is
// visible: that part is taken off. If what remains isn't there, the top of the
// mount applies to us. There may be several mounts of a hierarchy, such as the
// host's in a container that sees its files.
#include "flare/base/cgroup.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/string.h"

namespace flare {
namespace {

struct Mount {
  std::string root;   // The mounted parts of the hierarchy ...
  std::string point;  // ... and where.
};

struct Mounts {
  std::vector<Mount> v1;  // One controller's mounts.
  std::vector<Mount> v2;
};

// Where our process is in both hierarchies.
struct Membership {
  std::optional<std::string> v1;
  std::optional<std::string> v2;
};

bool HasItem(std::string_view list, std::string_view item) {
  const auto items = Split(list, ',');
  return std::find(items.begin(), items.end(), item) != items.end();
}

// The later one of two mounts at the same place hides the other.
void AddMount(Mount mount, std::vector<Mount>* mounts) {
  std::erase_if(*mounts,
                [&](const Mount& old) { return old.point == mount.point; });
  mounts->push_back(std::move(mount));
}

// "36 35 98:0 /root /mount/point rw,noatime master:1 - type source options";
// before the dash there may be any number of optional fields.
Mounts ReadMounts(const std::string& root, std::string_view controller) {
  Mounts mounts;
  const std::string text = ReadSmallFile(root + "/proc/self/mountinfo");
  for (const std::string_view line : Split(text, '\n')) {
    const std::size_t dash = line.find(" - ");
    if (dash == line.npos) continue;
    const auto front = Split(line.substr(0, dash), ' ');
    const auto back = Split(line.substr(dash + 3), ' ');
    if (front.size() < 5 || back.size() < 3) continue;
    Mount mount{std::string(front[3]), std::string(front[4])};
    if (back[0] == "cgroup2") {
      AddMount(std::move(mount), &mounts.v2);
    } else if (back[0] == "cgroup" && HasItem(back[2], controller)) {
      AddMount(std::move(mount), &mounts.v1);
    }
  }
  return mounts;
}

// "4:cpu,cpuacct:/path" for version 1, "0::/path" for version 2.
Membership ReadMembership(const std::string& root,
                          std::string_view controller) {
  Membership membership;
  const std::string text = ReadSmallFile(root + "/proc/self/cgroup");
  for (const std::string_view line : Split(text, '\n')) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string_view controllers =
        line.substr(first + 1, second - first - 1);
    std::string path(line.substr(second + 1));
    if (controllers.empty()) {
      membership.v2 = std::move(path);
    } else if (HasItem(controllers, controller)) {
      membership.v1 = std::move(path);
    }
  }
  return membership;
}

bool Shows(const Mount& mount, const std::string& path) {
  return mount.root == "/" ||
         (path.starts_with(mount.root) &&
          (path.size() == mount.root.size() || path[mount.root.size()] == '/'));
}

// The part of `path` below the mount: "/" + components, or "".
std::string BelowMount(const Mount& mount, std::string path) {
  if (mount.root != "/") {
    path = Shows(mount, path) ? path.substr(mount.root.size()) : "";
  }
  return path == "/" ? "" : path;
}

// "max 100000" or "150000 100000".
std::optional<double> ReadCpuV2(const std::string& folder) {
  const std::string text = ReadSmallFile(folder + "/cpu.max");
  const auto fields = Split(Trim(text), ' ');
  if (fields.size() != 2) return std::nullopt;
  const auto quota = TryParse<double>(fields[0]);
  const auto period = TryParse<double>(fields[1]);
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return *quota / *period;
}

// A quota of -1 means none.
std::optional<double> ReadCpuV1(const std::string& folder) {
  const std::string quota_text = ReadSmallFile(folder + "/cpu.cfs_quota_us");
  const std::string period_text = ReadSmallFile(folder + "/cpu.cfs_period_us");
  const auto quota = TryParse<double>(Trim(quota_text));
  const auto period = TryParse<double>(Trim(period_text));
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return *quota / *period;
}

// "max", or bytes; a number beyond all memory of version 1 means none, too.
std::optional<double> ReadBytes(const std::string& file) {
  return TryParse<double>(Trim(ReadSmallFile(file)));
}
std::optional<double> ReadMemoryV2(const std::string& folder) {
  return ReadBytes(folder + "/memory.max");
}
std::optional<double> ReadMemoryV1(const std::string& folder) {
  return ReadBytes(folder + "/memory.limit_in_bytes");
}

std::optional<double> Smaller(std::optional<double> a,
                              std::optional<double> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

// The smallest of the quotas from `path` up to the mount point.
template <class Reader>
std::optional<double> SmallestUpwards(const std::string& root,
                                      const std::vector<Mount>& mounts,
                                      const std::optional<std::string>& path,
                                      Reader read) {
  if (mounts.empty() || !path) return std::nullopt;
  auto mount = std::find_if(mounts.begin(), mounts.end(),
                            [&](const Mount& m) { return Shows(m, *path); });
  if (mount == mounts.end()) mount = mounts.begin();
  const std::string top = root + mount->point;
  std::string below = BelowMount(*mount, *path);
  std::optional<double> smallest = read(top);
  while (!below.empty()) {
    smallest = Smaller(smallest, read(top + below));
    const std::size_t slash = below.rfind('/');
    below.resize(slash == below.npos ? 0 : slash);
  }
  return smallest;
}

template <class ReaderV2, class ReaderV1>
std::optional<double> Smallest(const std::string& root,
                               std::string_view controller, ReaderV2 read_v2,
                               ReaderV1 read_v1) {
  const Mounts mounts = ReadMounts(root, controller);
  const Membership membership = ReadMembership(root, controller);
  return Smaller(SmallestUpwards(root, mounts.v2, membership.v2, read_v2),
                 SmallestUpwards(root, mounts.v1, membership.v1, read_v1));
}

}  // namespace

std::optional<double> ReadCpuQuota(const std::string& root) {
  return Smallest(root, "cpu", ReadCpuV2, ReadCpuV1);
}

std::uint64_t UsableMemory(const std::string& root) {
  // Exact up to 2^53 bytes.
  double bytes = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                 static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (const auto allowed =
          Smallest(root, "memory", ReadMemoryV2, ReadMemoryV1)) {
    bytes = std::min(bytes, *allowed);
  }
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit limit;
    if (::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
      bytes = std::min(bytes, static_cast<double>(limit.rlim_cur));
    }
  }
  return static_cast<std::uint64_t>(bytes);
}

std::string ReadSmallFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace flare
