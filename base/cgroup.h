// How much CPU time and memory the control groups of this process allow.

#ifndef FLARE_BASE_CGROUP_H_
#define FLARE_BASE_CGROUP_H_

#include <cstdint>
#include <optional>
#include <string>

namespace flare {

// The smallest CPU quota among this process's cgroup and its ancestors, in CPUs
// (1.5: one and a half seconds of CPU time per second): cpu.max of version 2,
// cpu.cfs_quota_us / cpu.cfs_period_us of version 1, or both. nullopt: no limit
// to be seen. Files are looked up below `root` ("" for the system's own). Reads
// a handful of files: for start-up.
std::optional<double> ReadCpuQuota(const std::string& root);

// Bytes of memory that this process may use: the smallest of the limits of its
// cgroups and their ancestors (memory.max of version 2, memory.limit_in_bytes
// of version 1), the machine's memory, and the limits of address space and data
// (`ulimit -v`, `-d`). Files are looked up below `root` ("" for the system's
// own). Reads a handful of files.
std::uint64_t UsableMemory(const std::string& root);

// Returns the content of the file; empty if it can't be read.
std::string ReadSmallFile(const std::string& path);

}  // namespace flare

#endif  // FLARE_BASE_CGROUP_H_
