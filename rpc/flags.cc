#include "flare/rpc/flags.h"

#include <gflags/gflags.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <iterator>
#include <limits>

#include "flare/fiber/plan.h"
#include "flare/io/epoll_poller.h"
#include "flare/rpc/method_table.h"

// --- Workers ---

DEFINE_int32(
    flare_concurrency_hint, 0,
    "Number of fiber workers wanted, maybe rounded up a little so that "
    "scheduling groups are of equal size. 0: as many as CPUs may be "
    "used, but at least 4.");
DEFINE_int32(flare_scheduling_group_size, 0,
             "Fiber workers per scheduling group (at most 64). Giving it "
             "replaces the choice of --flare_fiber_scheduling_optimize_for.");
DEFINE_bool(flare_numa_aware, true,
            "Bind each scheduling group to a NUMA node. Giving it replaces the "
            "choice of --flare_fiber_scheduling_optimize_for.");
DEFINE_string(flare_fiber_scheduling_optimize_for, "neutral",
              "How workers are cut into scheduling groups and how readily idle "
              "ones are woken: compute-heavy, compute, neutral, io, io-heavy "
              "or customized.");
DEFINE_string(flare_fiber_worker_accessible_cpus, "",
              "CPUs that fiber workers may use, as in \"0-10,11,-1\"; negative "
              "numbers count from the last. Of these, the ones that the "
              "process may use; empty: all it may use.");
DEFINE_string(flare_fiber_worker_inaccessible_cpus, "",
              "CPUs that fiber workers may not use. Excludes "
              "--flare_fiber_worker_accessible_cpus.");
DEFINE_bool(flare_fiber_worker_disallow_cpu_migration, false,
            "Bind each fiber worker to one CPU of its own. There must be a CPU "
            "for each; with --flare_concurrency_hint=0 there are no more "
            "workers than CPUs.");
DEFINE_int32(flare_work_stealing_ratio, 16,
             "A worker that looks for work looks into another scheduling group "
             "of its NUMA node once in this many attempts; besides, sleeping "
             "workers are woken for groups without free ones. 0: never.");
DEFINE_int32(flare_cross_numa_work_stealing_ratio, 0,
             "The same for groups of other NUMA nodes, which are helped when "
             "they have been short of workers for this many periods of 50 us. "
             "0: never.");
DEFINE_string(flare_scheduling_group_sets, "",
              "Named sets of scheduling groups that never take work from each "
              "other: \"front:0-3;batch:4,5\". Groups in none make one more.");
DEFINE_int32(flare_fiber_run_queue_size, 65536,
             "Tasks that the run queues of a scheduling group's workers hold "
             "together (at most 256 each), a power of two. Beyond it tasks go "
             "through the group's shared queue, which has no limit.");
DEFINE_string(flare_topology_file, "",
              "A file that describes the CPUs and NUMA nodes to plan for, "
              "instead of this machine's: docs/numa.md.");
DEFINE_int32(flare_io_spin_us, 100,
             "Microseconds for which a worker without work looks for IO again "
             "before it sleeps, if that has proved worth it lately: a sleeping "
             "CPU is slow to wake. Less where others want the CPU. So do plain "
             "threads that wait for a reply. 0: never.");
DEFINE_int32(flare_fiber_reserve_workers, 8,
             "Workers that each scheduling group has in reserve: one takes the "
             "place of each that is found to block its thread in a task while "
             "others wait. At most 64 with the workers, so that groups of 64 "
             "have none; nor have those of a single worker. 0: none at all.");
DEFINE_int32(flare_fiber_max_blocking_threads, 256,
             "Threads that blocking regions (RunBlocking) may have together; "
             "further regions wait for one.");
DEFINE_int32(flare_fiber_stack_size, 131072,
             "Bytes of a fiber's stack, its guard page included, a multiple of "
             "the page size.");
DEFINE_bool(flare_fiber_stack_enable_guard_page, true,
            "An unusable page at the end of each fiber's stack, so that an "
            "overflow is reported instead of overwriting something.");
DEFINE_int32(flare_fiber_max_stacks, 0,
             "Stacks of fibers at a time, dealt evenly to the scheduling "
             "groups: two per worker, and one for each fiber that is to wait "
             "at a time. When there are no more, tasks that have not started "
             "wait. 0: as many as the system has.");
DEFINE_int32(flare_fiber_stack_idle_seconds, 10,
             "Seconds after which stacks that were not needed return their "
             "memory to the system. 0: never.");

// --- Finding mistakes ---

DEFINE_int32(flare_fiber_stuck_threshold_ms, 1000,
             "Milliseconds after which a task that holds its worker, by "
             "computing or by blocking the thread, is logged with its "
             "backtrace. 0: never.");
DEFINE_string(flare_fiber_check_thread_locks, "default",
              "What happens when a fiber is suspended while its thread holds a "
              "flare::ThreadMutex: \"report\" logs both places as an error, "
              "\"abort\" ends the program as well, \"off\" doesn't look; "
              "\"default\" is abort in debug builds, off in others.");

DEFINE_bool(flare_fiber_stack_profile, false,
            "Record how deep the stacks of fibers get, at 1 to 3 us per task "
            "(fiber/stack_profile.h).");

// --- Process ---

DEFINE_bool(flare_abort_on_double_quit_signal, true,
            "Abort when a second SIGINT, SIGQUIT or SIGTERM arrives while the "
            "first is still being acted upon.");

DEFINE_bool(flare_raise_open_files_limit, true,
            "Raise the soft limit of open files (ulimit -n) to the hard one, "
            "or to 1048576 where that allows more. Not for programs that call "
            "select(), which knows no descriptor "
            "from 1024 on, or start others that do.");

// --- Server ---

DEFINE_int32(flare_rpc_server_max_ongoing_calls, 10000,
             "Calls that a server runs at a time; further ones are answered "
             "\"Server overloaded.\".");
DEFINE_int32(flare_rpc_server_max_ongoing_calls_per_connection, 4096,
             "Calls of one connection that a server runs at a time; further "
             "ones stay unread until half of them are done.");
DEFINE_int32(flare_rpc_server_max_ongoing_decompressed_bytes, 1073741824,
             "Bytes of decompressed requests in the calls that a server runs "
             "at a time; with as many, further compressed ones are answered "
             "\"Server overloaded.\".");
DEFINE_int32(flare_rpc_server_max_output_per_connection, 67108864,
             "Bytes of replies that wait for a peer to take them; each counts "
             "as some 80 bytes more. With more than half of that nothing is "
             "read from its connection, and calls wait before they answer, or "
             "before their requests are decompressed.");
DEFINE_int32(flare_rpc_server_max_connections, 10000,
             "Connections of a server; further ones are closed at once.");
DEFINE_int32(flare_rpc_server_max_request_queueing_delay, 0,
             "Milliseconds a call may wait for a worker; one that waited "
             "longer is answered \"Server overloaded.\". Methods may have less "
             "in their .proto files (max_queueing_delay_ms). 0: no limit.");
DEFINE_int32(flare_rpc_server_max_packet_size, 4194304,
             "Bytes of one message that a server accepts. A larger one fails; "
             "one over 64 MiB, or over HTTP one in chunks or with \"Expect: "
             "100-continue\", is the last on its connection, too.");
DEFINE_int32(flare_rpc_server_remove_idle_connection_interval, 15,
             "Seconds between two looks for connections that are idle, or take "
             "too long for a message. 0: none.");
DEFINE_int32(flare_rpc_server_connection_max_idle, 60,
             "Seconds without traffic after which a server closes a "
             "connection. 0: never, but for one from which nothing has ever "
             "come, which is closed after --flare_rpc_server_message_timeout.");
DEFINE_int32(flare_rpc_server_message_timeout, 60,
             "Seconds after its first byte, the first time after the "
             "connection was accepted, in which a message must arrive, or 64 "
             "KiB more of a larger one; else the server closes the "
             "connection, having answered what came before. 0: no limit.");
DEFINE_string(flare_rpc_server_protocol_buffers_max_ongoing_requests_per_method,
              "",
              "Limits of calls at a time for single methods: "
              "\"package.Service.Method:10,...\". Of one in the .proto file "
              "(max_ongoing_requests) and one here the smaller holds.");
DEFINE_bool(flare_rpc_server_no_builtin_pages, false,
            "Leaves out the pages under /inspect, for which every server "
            "speaks \"http\".");
DEFINE_int32(
    flare_rpc_protocol_buffers_status_code_for_overloaded, 11,
    "Status with which calls over some limit are answered, but for those over "
    "trpc and bolt, which have codes of their own. Clients of this library "
    "then try another server (SetMaxRetries) if it is 11 or, over baidu-std, "
    "2004; other codes above 1000 they take for a service's own.");
DEFINE_int32(flare_rpc_server_drain_timeout_ms, 10000,
             "Milliseconds that running calls are given when a server stops.");
DEFINE_int32(flare_http_max_header_size, 8192,
             "Bytes of request line and header fields that a server accepts.");

// --- Client ---

DEFINE_int32(flare_rpc_client_default_rpc_timeout_ms, 2000,
             "Milliseconds a call may take unless its controller says "
             "otherwise.");
DEFINE_int32(flare_rpc_client_connect_timeout_ms, 1000,
             "Milliseconds that establishing a connection may take. The calls "
             "that wait for it then fail.");
DEFINE_int32(flare_rpc_client_max_connections_per_server, 8,
             "Connections per server and protocol, shared by all scheduling "
             "groups (each has at least one).");
DEFINE_int32(
    flare_rpc_client_connection_max_idle, 45,
    "Seconds without traffic after which a client closes a "
    "connection. Less than the server's, so that the client is first.");
DEFINE_int32(flare_rpc_client_remove_idle_connection_interval, 15,
             "Seconds between two looks for idle connections. 0: none.");
DEFINE_int32(flare_rpc_channel_max_packet_size, 4194304,
             "Bytes of one message that a client accepts. A larger one fails "
             "its call; one over 64 MiB ends its connection, too.");
DEFINE_int32(flare_rpc_max_decompressed_size, 67108864,
             "Bytes that a compressed body or attachment may have in truth, on "
             "both sides. A larger one fails its call.");
DEFINE_int32(flare_name_resolver_update_interval_seconds, 3,
             "Seconds after which host names are resolved again.");

namespace flare::rpc {
namespace {

struct Range {
  const char* flag;
  const gflags::int32* value;
  int min;
  int max;
};

constexpr int kMax = std::numeric_limits<int>::max();
// Longer than a year: refused, so that deadlines can be added up safely.
constexpr int kMaxSeconds = 366 * 24 * 3600;
constexpr int kMaxGroupSize = fiber::kMaxGroupSize;

const Range kRanges[] = {
    {"flare_concurrency_hint", &FLAGS_flare_concurrency_hint, 0,
     fiber::kMaxConcurrency},
    {"flare_scheduling_group_size", &FLAGS_flare_scheduling_group_size, 0,
     kMaxGroupSize},
    {"flare_work_stealing_ratio", &FLAGS_flare_work_stealing_ratio, 0, kMax},
    {"flare_cross_numa_work_stealing_ratio",
     &FLAGS_flare_cross_numa_work_stealing_ratio, 0, kMax},
    {"flare_fiber_run_queue_size", &FLAGS_flare_fiber_run_queue_size, 4,
     1 << 24},
    {"flare_io_spin_us", &FLAGS_flare_io_spin_us, 0, 1000},
    {"flare_fiber_reserve_workers", &FLAGS_flare_fiber_reserve_workers, 0,
     kMaxGroupSize},
    {"flare_fiber_max_blocking_threads",
     &FLAGS_flare_fiber_max_blocking_threads, 1, 1 << 15},
    {"flare_fiber_stack_size", &FLAGS_flare_fiber_stack_size, 16384, 1 << 30},
    {"flare_fiber_max_stacks", &FLAGS_flare_fiber_max_stacks, 0, kMax},
    {"flare_fiber_stack_idle_seconds", &FLAGS_flare_fiber_stack_idle_seconds, 0,
     kMaxSeconds},
    {"flare_fiber_stuck_threshold_ms", &FLAGS_flare_fiber_stuck_threshold_ms, 0,
     kMax},
    {"flare_rpc_server_max_ongoing_calls",
     &FLAGS_flare_rpc_server_max_ongoing_calls, 1, kMax},
    {"flare_rpc_server_max_ongoing_calls_per_connection",
     &FLAGS_flare_rpc_server_max_ongoing_calls_per_connection, 1, kMax},
    {"flare_rpc_server_max_ongoing_decompressed_bytes",
     &FLAGS_flare_rpc_server_max_ongoing_decompressed_bytes, 1, kMax},
    {"flare_rpc_server_max_output_per_connection",
     &FLAGS_flare_rpc_server_max_output_per_connection, 1, kMax},
    {"flare_rpc_server_max_connections",
     &FLAGS_flare_rpc_server_max_connections, 1, kMax},
    {"flare_rpc_server_max_request_queueing_delay",
     &FLAGS_flare_rpc_server_max_request_queueing_delay, 0, kMax},
    {"flare_rpc_server_max_packet_size",
     &FLAGS_flare_rpc_server_max_packet_size, 64, kMax},
    {"flare_rpc_server_remove_idle_connection_interval",
     &FLAGS_flare_rpc_server_remove_idle_connection_interval, 0, kMaxSeconds},
    {"flare_rpc_server_connection_max_idle",
     &FLAGS_flare_rpc_server_connection_max_idle, 0, kMaxSeconds},
    {"flare_rpc_server_message_timeout",
     &FLAGS_flare_rpc_server_message_timeout, 0, kMaxSeconds},
    {"flare_rpc_protocol_buffers_status_code_for_overloaded",
     &FLAGS_flare_rpc_protocol_buffers_status_code_for_overloaded, 1, kMax},
    {"flare_rpc_server_drain_timeout_ms",
     &FLAGS_flare_rpc_server_drain_timeout_ms, 0, kMax},
    {"flare_http_max_header_size", &FLAGS_flare_http_max_header_size, 64,
     1 << 26},
    {"flare_rpc_client_default_rpc_timeout_ms",
     &FLAGS_flare_rpc_client_default_rpc_timeout_ms, 1, kMax},
    {"flare_rpc_client_connect_timeout_ms",
     &FLAGS_flare_rpc_client_connect_timeout_ms, 1, kMax},
    {"flare_rpc_client_max_connections_per_server",
     &FLAGS_flare_rpc_client_max_connections_per_server, 1, 65536},
    {"flare_rpc_client_connection_max_idle",
     &FLAGS_flare_rpc_client_connection_max_idle, 0, kMaxSeconds},
    {"flare_rpc_client_remove_idle_connection_interval",
     &FLAGS_flare_rpc_client_remove_idle_connection_interval, 0, kMaxSeconds},
    {"flare_rpc_channel_max_packet_size",
     &FLAGS_flare_rpc_channel_max_packet_size, 64, kMax},
    {"flare_rpc_max_decompressed_size", &FLAGS_flare_rpc_max_decompressed_size,
     64, kMax},
    {"flare_name_resolver_update_interval_seconds",
     &FLAGS_flare_name_resolver_update_interval_seconds, 1, kMaxSeconds},
};

struct ThreadLockCheckName {
  const char* name;
  fiber::ThreadLockCheck check;
};
constexpr ThreadLockCheckName kThreadLockChecks[] = {
    {"default", fiber::kDefaultThreadLockCheck},
    {"off", fiber::ThreadLockCheck::kOff},
    {"report", fiber::ThreadLockCheck::kReport},
    {"abort", fiber::ThreadLockCheck::kAbort},
};

// nullptr: there is none of that name.
const ThreadLockCheckName* FindThreadLockCheck(const std::string& name) {
  const auto* const found =
      std::find_if(std::begin(kThreadLockChecks), std::end(kThreadLockChecks),
                   [&](const auto& check) { return name == check.name; });
  return found == std::end(kThreadLockChecks) ? nullptr : found;
}

flare::Status BadFlag(const std::string& flag, const std::string& value,
                      const std::string& wanted) {
  return flare::Status(EINVAL,
                       "--" + flag + "=" + value + ": must be " + wanted + ".");
}

bool GivenExplicitly(const char* flag) {
  gflags::CommandLineFlagInfo info;
  return gflags::GetCommandLineFlagInfo(flag, &info) && !info.is_default;
}

}  // namespace

ServerDefaults ServerDefaultsFromFlags() {
  using std::chrono::milliseconds;
  using std::chrono::seconds;
  return ServerDefaults{
      .max_ongoing_calls =
          static_cast<std::size_t>(FLAGS_flare_rpc_server_max_ongoing_calls),
      .max_ongoing_calls_per_connection = static_cast<std::size_t>(
          FLAGS_flare_rpc_server_max_ongoing_calls_per_connection),
      .max_ongoing_decompressed_bytes = static_cast<std::size_t>(
          FLAGS_flare_rpc_server_max_ongoing_decompressed_bytes),
      .max_output_per_connection = static_cast<std::size_t>(
          FLAGS_flare_rpc_server_max_output_per_connection),
      .max_connections =
          static_cast<std::size_t>(FLAGS_flare_rpc_server_max_connections),
      .max_request_queueing_delay =
          milliseconds(FLAGS_flare_rpc_server_max_request_queueing_delay),
      .max_packet_size =
          static_cast<std::size_t>(FLAGS_flare_rpc_server_max_packet_size),
      .max_decompressed_size = MaxDecompressedSizeFromFlags(),
      .max_http_header_size =
          static_cast<std::size_t>(FLAGS_flare_http_max_header_size),
      .remove_idle_connection_interval =
          seconds(FLAGS_flare_rpc_server_remove_idle_connection_interval),
      .connection_max_idle =
          seconds(FLAGS_flare_rpc_server_connection_max_idle),
      .message_timeout = seconds(FLAGS_flare_rpc_server_message_timeout),
      .drain_timeout = milliseconds(FLAGS_flare_rpc_server_drain_timeout_ms),
      .max_ongoing_calls_per_method =
          FLAGS_flare_rpc_server_protocol_buffers_max_ongoing_requests_per_method,
      .status_code_for_overloaded =
          FLAGS_flare_rpc_protocol_buffers_status_code_for_overloaded,
      .no_builtin_pages = FLAGS_flare_rpc_server_no_builtin_pages,
  };
}

ClientDefaults ClientDefaultsFromFlags() {
  using std::chrono::milliseconds;
  using std::chrono::seconds;
  return ClientDefaults{
      .rpc_timeout =
          milliseconds(FLAGS_flare_rpc_client_default_rpc_timeout_ms),
      .connect_timeout =
          milliseconds(FLAGS_flare_rpc_client_connect_timeout_ms),
      .max_connections_per_server = static_cast<std::size_t>(
          FLAGS_flare_rpc_client_max_connections_per_server),
      .connection_max_idle =
          seconds(FLAGS_flare_rpc_client_connection_max_idle),
      .remove_idle_connection_interval =
          seconds(FLAGS_flare_rpc_client_remove_idle_connection_interval),
      .max_packet_size =
          static_cast<std::size_t>(FLAGS_flare_rpc_channel_max_packet_size),
      .name_resolver_update_interval =
          seconds(FLAGS_flare_name_resolver_update_interval_seconds),
  };
}

std::size_t MaxDecompressedSizeFromFlags() {
  return static_cast<std::size_t>(FLAGS_flare_rpc_max_decompressed_size);
}

Expected<fiber::RuntimeOptions, flare::Status> RuntimeOptionsFromFlags() {
  fiber::RuntimeOptions options;
  options.concurrency = FLAGS_flare_concurrency_hint;
  options.optimize_for = FLAGS_flare_fiber_scheduling_optimize_for;
  if (FLAGS_flare_scheduling_group_size > 0) {
    options.group_size = FLAGS_flare_scheduling_group_size;
  }
  if (GivenExplicitly("flare_numa_aware")) {
    options.numa_aware = FLAGS_flare_numa_aware;
  }
  options.reserve_workers = FLAGS_flare_fiber_reserve_workers;
  options.max_blocking_threads =
      static_cast<std::size_t>(FLAGS_flare_fiber_max_blocking_threads);
  options.stack_size = static_cast<std::size_t>(FLAGS_flare_fiber_stack_size);
  options.stack_guard = FLAGS_flare_fiber_stack_enable_guard_page;
  options.stack_profile = FLAGS_flare_fiber_stack_profile;
  options.max_stacks = static_cast<std::size_t>(FLAGS_flare_fiber_max_stacks);
  options.stack_idle =
      std::chrono::seconds(FLAGS_flare_fiber_stack_idle_seconds);
  options.stuck_threshold =
      std::chrono::milliseconds(FLAGS_flare_fiber_stuck_threshold_ms);
  if (const auto* const found =
          FindThreadLockCheck(FLAGS_flare_fiber_check_thread_locks)) {
    options.thread_lock_check = found->check;
  }
  options.make_poller = io::EpollPoller::Factory(
      {.spin = std::chrono::microseconds(FLAGS_flare_io_spin_us)});
  options.thread_spin = std::chrono::microseconds(FLAGS_flare_io_spin_us);
  options.work_stealing_ratio = FLAGS_flare_work_stealing_ratio;
  options.cross_numa_work_stealing_ratio =
      FLAGS_flare_cross_numa_work_stealing_ratio;
  options.run_queue_size =
      static_cast<std::size_t>(FLAGS_flare_fiber_run_queue_size);
  options.accessible_cpus = FLAGS_flare_fiber_worker_accessible_cpus;
  options.inaccessible_cpus = FLAGS_flare_fiber_worker_inaccessible_cpus;
  options.disallow_cpu_migration =
      FLAGS_flare_fiber_worker_disallow_cpu_migration;
  options.group_sets = FLAGS_flare_scheduling_group_sets;
  options.topology_file = FLAGS_flare_topology_file;
  // Each may be right and all of them together impossible.
  auto plan = fiber::DescribePlan(options);
  if (!plan) return plan.error();
  return options;
}

flare::Status ValidateFlags() {
  for (const Range& range : kRanges) {
    if (*range.value >= range.min && *range.value <= range.max) continue;
    const std::string wanted = range.max == kMax
                                   ? "at least " + std::to_string(range.min)
                                   : "from " + std::to_string(range.min) +
                                         " to " + std::to_string(range.max);
    return BadFlag(range.flag, std::to_string(*range.value), wanted);
  }
  if (FLAGS_flare_fiber_stack_size % sysconf(_SC_PAGESIZE) != 0) {
    return BadFlag("flare_fiber_stack_size",
                   std::to_string(FLAGS_flare_fiber_stack_size),
                   "a multiple of the page size, " +
                       std::to_string(sysconf(_SC_PAGESIZE)));
  }
  if (const auto size = static_cast<unsigned>(FLAGS_flare_fiber_run_queue_size);
      !std::has_single_bit(size)) {
    return BadFlag("flare_fiber_run_queue_size", std::to_string(size),
                   "a power of two");
  }
  if (FindThreadLockCheck(FLAGS_flare_fiber_check_thread_locks) == nullptr) {
    return BadFlag("flare_fiber_check_thread_locks",
                   FLAGS_flare_fiber_check_thread_locks,
                   "default, off, report or abort");
  }
  const std::string& preset = FLAGS_flare_fiber_scheduling_optimize_for;
  if (!fiber::IsPreset(preset)) {
    return BadFlag("flare_fiber_scheduling_optimize_for", preset,
                   "compute-heavy, compute, neutral, io, io-heavy or "
                   "customized");
  }
  if (!FLAGS_flare_fiber_worker_accessible_cpus.empty() &&
      !FLAGS_flare_fiber_worker_inaccessible_cpus.empty()) {
    return flare::Status(EINVAL,
                         "--flare_fiber_worker_accessible_cpus and "
                         "--flare_fiber_worker_inaccessible_cpus exclude each "
                         "other: give one of them.");
  }
  const std::string& limits =
      FLAGS_flare_rpc_server_protocol_buffers_max_ongoing_requests_per_method;
  if (auto parsed = ParseMethodLimits(limits); !parsed) {
    return BadFlag(
        "flare_rpc_server_protocol_buffers_max_ongoing_requests_per_method",
        limits,
        "a list package.Service.Method:limit,...; " + parsed.error().message());
  }
  return flare::Status();
}

}  // namespace flare::rpc
