#include "flare/rpc/start/flags.h"

#include <gflags/gflags.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/topology.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task.h"
#include "flare/rpc/server.h"
#include "flare/rpc/start/runtime_flags.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

// Flags are as they were after each test.
class FlagsTest : public ::testing::Test {
 protected:
  void Set(const char* flag, const std::string& value) {
    ASSERT_FALSE(gflags::SetCommandLineOption(flag, value.c_str()).empty())
        << flag << "=" << value;
  }

 private:
  gflags::FlagSaver saver_;
};

TEST_F(FlagsTest, DefaultsAreThoseThatUsersKnow) {
  EXPECT_TRUE(ValidateFlags().ok()) << ValidateFlags().ToString();
  const std::vector<std::pair<const char*, const char*>> known = {
      {"flare_concurrency_hint", "0"},
      {"flare_scheduling_group_size", "0"},
      {"flare_numa_aware", "true"},
      {"flare_fiber_scheduling_optimize_for", "neutral"},
      {"flare_fiber_worker_accessible_cpus", ""},
      {"flare_fiber_worker_inaccessible_cpus", ""},
      {"flare_fiber_worker_disallow_cpu_migration", "false"},
      {"flare_work_stealing_ratio", "16"},
      {"flare_cross_numa_work_stealing_ratio", "0"},
      {"flare_fiber_run_queue_size", "65536"},
      {"flare_fiber_stack_size", "131072"},
      {"flare_fiber_reserve_workers", "8"},
      {"flare_fiber_max_blocking_threads", "256"},
      {"flare_fiber_stack_enable_guard_page", "true"},
      {"flare_fiber_stuck_threshold_ms", "1000"},
      {"flare_fiber_check_thread_locks", "default"},
      {"flare_abort_on_double_quit_signal", "true"},
      {"flare_raise_open_files_limit", "true"},
      {"flare_rpc_server_max_ongoing_calls", "10000"},
      {"flare_rpc_server_max_ongoing_calls_per_connection", "4096"},
      {"flare_rpc_server_max_ongoing_decompressed_bytes", "1073741824"},
      {"flare_rpc_server_max_output_per_connection", "67108864"},
      {"flare_rpc_server_max_buffered_bytes", "0"},
      {"flare_rpc_server_max_connections", "10000"},
      {"flare_rpc_server_max_request_queueing_delay", "-1"},
      {"flare_rpc_server_max_packet_size", "4194304"},
      {"flare_rpc_server_remove_idle_connection_interval", "15"},
      {"flare_rpc_server_connection_max_idle", "60"},
      {"flare_rpc_server_tcp_keep_alive", "60"},
      {"flare_rpc_server_message_timeout", "60"},
      {"flare_rpc_protocol_buffers_status_code_for_overloaded", "11"},
      {"flare_http_max_header_size", "8192"},
      {"flare_rpc_client_default_rpc_timeout_ms", "2000"},
      {"flare_rpc_client_connect_timeout_ms", "1000"},
      {"flare_rpc_client_max_connections_per_server", "8"},
      {"flare_rpc_client_connection_max_idle", "45"},
      {"flare_rpc_client_remove_idle_connection_interval", "15"},
      {"flare_rpc_channel_max_packet_size", "4194304"},
      {"flare_name_resolver_update_interval_seconds", "3"},
      {"flare_rpc_client_zone", ""},
  };
  for (const auto& [name, value] : known) {
    gflags::CommandLineFlagInfo info;
    ASSERT_TRUE(gflags::GetCommandLineFlagInfo(name, &info)) << name;
    EXPECT_EQ(info.default_value, value) << name;
    EXPECT_NE(info.description, "") << name;
  }
}

TEST_F(FlagsTest, RuntimeOptionsFollowTheFlags) {
  auto options = RuntimeOptionsFromFlags();
  ASSERT_TRUE(options);
  EXPECT_EQ(options->concurrency, 0);
  EXPECT_EQ(options->optimize_for, "neutral");
  EXPECT_EQ(options->group_size, std::nullopt);
  EXPECT_EQ(options->numa_aware, std::nullopt);
  EXPECT_EQ(options->accessible_cpus, "");
  EXPECT_TRUE(options->make_poller);

  Set("flare_concurrency_hint", "40");
  Set("flare_scheduling_group_size", "10");
  Set("flare_numa_aware", "true");  // The default, but given.
  Set("flare_fiber_scheduling_optimize_for", "io-heavy");
  Set("flare_fiber_stack_size", "65536");
  Set("flare_fiber_stack_enable_guard_page", "false");
  Set("flare_fiber_stuck_threshold_ms", "0");
  Set("flare_fiber_max_stacks", "5000");
  Set("flare_fiber_stack_idle_seconds", "3");
  Set("flare_heap_idle_seconds", "7");
  Set("flare_fiber_stack_profile", "true");
  Set("flare_fiber_check_thread_locks", "report");
  Set("flare_work_stealing_ratio", "3");
  const std::string cpu = std::to_string(sched_getcpu());
  Set("flare_fiber_worker_accessible_cpus", cpu);
  options = RuntimeOptionsFromFlags();
  ASSERT_TRUE(options);
  EXPECT_EQ(options->concurrency, 40);
  EXPECT_EQ(options->optimize_for, "io-heavy");
  EXPECT_EQ(options->group_size, 10);
  EXPECT_EQ(options->numa_aware, true);
  EXPECT_EQ(options->stack_size, 65536u);
  EXPECT_FALSE(options->stack_guard);
  EXPECT_EQ(options->stuck_threshold.count(), 0);
  EXPECT_EQ(options->max_stacks, 5000U);
  EXPECT_EQ(options->stack_idle, std::chrono::seconds(3));
  EXPECT_EQ(options->heap_idle, std::chrono::seconds(7));
  EXPECT_TRUE(options->stack_profile);
  EXPECT_EQ(options->thread_lock_check, fiber::ThreadLockCheck::kReport);
  EXPECT_EQ(options->work_stealing_ratio, 3);
  EXPECT_EQ(options->accessible_cpus, cpu);
}

// With the published framework this divided by zero.
TEST_F(FlagsTest, NumaAwareAloneWorks) {
  for (const char* value : {"true", "false"}) {
    Set("flare_numa_aware", value);
    ASSERT_TRUE(ValidateFlags().ok());
    auto options = RuntimeOptionsFromFlags();
    ASSERT_TRUE(options);
    EXPECT_TRUE(options->numa_aware.has_value());
    EXPECT_EQ(options->group_size, std::nullopt);
    const flare::Status started = fiber::StartRuntime(*options);
    EXPECT_TRUE(started.ok()) << started.ToString();
    fiber::TerminateRuntime();
  }
}

// Each value is right by itself; together, or on this machine, they aren't.
TEST_F(FlagsTest, ImpossiblePlansAreRefused) {
  struct Case {
    const char* flag;
    const char* value;
    const char* says;
  };
  for (const Case& c : std::vector<Case>{
           {"flare_fiber_worker_accessible_cpus", "0-x", "\"0-x\""},
           {"flare_fiber_worker_accessible_cpus", "65000", "65000"},
           {"flare_fiber_worker_inaccessible_cpus", "zero", "\"zero\""},
           {"flare_fiber_worker_inaccessible_cpus", "0-65000", "none is left"},
           {"flare_scheduling_group_sets", "front", "name:groups"},
           {"flare_scheduling_group_sets", "front:77", "group 77"},
           {"flare_topology_file", "/nowhere/at/all", "/nowhere/at/all"}}) {
    gflags::FlagSaver restore;
    Set(c.flag, c.value);
    ASSERT_TRUE(ValidateFlags().ok()) << ValidateFlags().ToString();
    const auto options = RuntimeOptionsFromFlags();
    ASSERT_FALSE(options) << c.flag << "=" << c.value;
    EXPECT_NE(options.error().message().find(c.flag), std::string::npos)
        << options.error().ToString();
    EXPECT_NE(options.error().message().find(c.says), std::string::npos)
        << options.error().ToString();
  }
  Set("flare_concurrency_hint", "4096");
  Set("flare_fiber_worker_disallow_cpu_migration", "true");
  auto options = RuntimeOptionsFromFlags();
  ASSERT_FALSE(options);
  EXPECT_NE(options.error().message().find("lower flare_concurrency_hint"),
            std::string::npos);
  Set("flare_concurrency_hint", "0");
  EXPECT_TRUE(RuntimeOptionsFromFlags());
  Set("flare_concurrency_hint", "64");
  Set("flare_scheduling_group_size", "64");
  Set("flare_fiber_worker_disallow_cpu_migration", "false");
  Set("flare_fiber_run_queue_size", "128");
  options = RuntimeOptionsFromFlags();
  ASSERT_FALSE(options);
  EXPECT_NE(options.error().message().find("a power of two from 256"),
            std::string::npos);
}

// Not only read, but followed.
TEST_F(FlagsTest, WorkersGoWhereTheFlagsSay) {
  const std::vector<int> cpus = GetThreadAffinity();
  Set("flare_concurrency_hint", "4");
  Set("flare_scheduling_group_size", "2");
  Set("flare_scheduling_group_sets", "front:0;batch:1");
  Set("flare_fiber_run_queue_size", "8");
  Set("flare_cross_numa_work_stealing_ratio", "3");
  std::vector<int> allowed = cpus;
  if (cpus.size() > 1) {
    Set("flare_fiber_worker_inaccessible_cpus", std::to_string(cpus[0]));
    allowed.erase(allowed.begin());
  }
  const auto options = RuntimeOptionsFromFlags();
  ASSERT_TRUE(options) << options.error().ToString();
  EXPECT_EQ(options->cross_numa_work_stealing_ratio, 3);
  const flare::Status started = fiber::StartRuntime(*options);
  ASSERT_TRUE(started.ok()) << started.ToString();
  EXPECT_EQ(fiber::GetSchedulingGroupCount(), 2u);
  EXPECT_EQ(fiber::GetSchedulingGroupSize(), 2u);
  EXPECT_EQ(*fiber::FindSchedulingGroups("batch"), std::vector<std::size_t>{1});
  fiber::Latch done(101);
  fiber::SpawnTo(1, [&] {
    EXPECT_EQ(GetThreadAffinity(), allowed);
    for (int i = 0; i < 100; ++i) fiber::Spawn([&] { done.count_down(); });
    done.count_down();
  });
  done.wait();
  // 100 tasks don't fit into rings of four.
  EXPECT_GT(fiber::GetRuntimeStatistics().overflows, 0u);
  fiber::TerminateRuntime();
}

TEST_F(FlagsTest, MachinesOnPaper) {
  const std::string path = ::testing::TempDir() + "/flags_test_topology";
  std::ofstream(path) << "0-7\n8-15\n";
  Set("flare_topology_file", path);
  Set("flare_numa_aware", "true");
  const auto options = RuntimeOptionsFromFlags();
  ASSERT_TRUE(options);
  const auto plan = fiber::DescribePlan(*options);
  ASSERT_TRUE(plan);
  EXPECT_NE(plan->find("1 on node 1 (CPUs 8-15)"), std::string::npos) << *plan;
  std::filesystem::remove(path);
}

TEST_F(FlagsTest, ErrorsNameFlagValueAndWhatIsRight) {
  struct Case {
    const char* flag;
    const char* value;
    const char* wanted;
  };
  for (const Case& c : std::vector<Case>{
           {"flare_fiber_scheduling_optimize_for", "fast", "io-heavy"},
           {"flare_fiber_scheduling_optimize_for", "", "neutral"},
           {"flare_concurrency_hint", "-1", "from 0 to 4096"},
           {"flare_concurrency_hint", "1000000", "from 0 to 4096"},
           {"flare_scheduling_group_size", "65", "from 0 to 64"},
           {"flare_fiber_stack_size", "20000", "page size"},
           {"flare_fiber_stack_size", "0", "from 16384"},
           {"flare_fiber_reserve_workers", "-1", "from 0 to 64"},
           {"flare_fiber_max_blocking_threads", "0", "from 1 to 32768"},
           {"flare_fiber_stuck_threshold_ms", "-1", "at least 0"},
           {"flare_fiber_max_stacks", "-1", "at least 0"},
           {"flare_fiber_stack_idle_seconds", "-1", "from 0"},
           {"flare_heap_idle_seconds", "-1", "from 0"},
           {"flare_fiber_check_thread_locks", "", "off, report or abort"},
           {"flare_fiber_check_thread_locks", "yes", "off, report or abort"},
           {"flare_work_stealing_ratio", "-2", "at least 0"},
           {"flare_cross_numa_work_stealing_ratio", "-1", "at least 0"},
           {"flare_fiber_run_queue_size", "2", "from 4 to"},
           {"flare_fiber_run_queue_size", "1000", "a power of two"},
           {"flare_rpc_server_max_ongoing_calls", "0", "at least 1"},
           {"flare_rpc_server_max_ongoing_decompressed_bytes", "0",
            "at least 1"},
           {"flare_rpc_server_max_output_per_connection", "0", "at least 1"},
           {"flare_rpc_server_max_buffered_bytes", "-1", "at least 0"},
           {"flare_rpc_server_max_connections", "0", "at least 1"},
           {"flare_rpc_server_max_request_queueing_delay", "-2", "at least -1"},
           {"flare_rpc_server_max_packet_size", "-5", "at least 64"},
           {"flare_rpc_server_connection_max_idle", "-1", "from 0"},
           {"flare_rpc_server_tcp_keep_alive", "32768", "from 0 to 32767"},
           {"flare_rpc_server_message_timeout", "-1", "from 0"},
           {"flare_rpc_server_drain_timeout_ms", "-1", "at least 0"},
           {"flare_rpc_server_stop_linger_ms", "-1", "at least 0"},
           {"flare_rpc_protocol_buffers_status_code_for_overloaded", "0",
            "at least 1"},
           {"flare_http_max_header_size", "1", "from 64"},
           {"flare_http_compress_replies_from", "-1", "at least 0"},
           {"flare_http_compress_handlers_from", "-1", "at least 0"},
           {"flare_http_cors_origins", "example.com", "https://host"},
           {"flare_rpc_server_pages", "all", "loopback, everyone or none"},
           {"flare_rpc_server_admin_address", "9100", "with its port"},
           {"flare_rpc_server_adaptive_limit", "on", "off, count or refuse"},
           {"flare_rpc_server_adaptive_method_limits", "20",
            "off, count or refuse"},
           {"flare_rpc_server_queue_shedding", "true", "off, count or refuse"},
           {"flare_rpc_server_refuse_late", "yes", "off, count or refuse"},
           {"flare_rpc_server_priority_key", "X-Priority", "in lower case"},
           {"flare_rpc_server_queue_target_ms", "0", "from 1"},
           {"flare_rpc_server_queue_interval_ms", "5",
            "more than --flare_rpc_server_queue_target_ms, which is 5"},
           {"flare_rpc_client_default_rpc_timeout_ms", "0", "at least 1"},
           {"flare_rpc_client_connect_timeout_ms", "0", "at least 1"},
           {"flare_rpc_client_max_connections_per_server", "0", "from 1"},
           {"flare_rpc_channel_max_packet_size", "0", "at least 64"},
           {"flare_name_resolver_update_interval_seconds", "0", "from 1"},
           {"flare_rpc_server_protocol_buffers_max_ongoing_requests_per_method",
            "a.B.C", "package.Service.Method:limit"}}) {
    gflags::FlagSaver restore;
    Set(c.flag, c.value);
    const flare::Status status = ValidateFlags();
    ASSERT_FALSE(status.ok()) << c.flag << "=" << c.value;
    EXPECT_NE(status.message().find(std::string("--") + c.flag + "=" + c.value),
              std::string::npos)
        << status.ToString();
    EXPECT_NE(status.message().find(c.wanted), std::string::npos)
        << status.ToString();
  }
}

TEST_F(FlagsTest, CpuListsExcludeEachOther) {
  Set("flare_fiber_worker_accessible_cpus", "0");
  Set("flare_fiber_worker_inaccessible_cpus", "1");
  EXPECT_FALSE(ValidateFlags().ok());
}

TEST_F(FlagsTest, AllPresetsAreAccepted) {
  for (const char* preset : {"compute-heavy", "compute", "neutral", "io",
                             "io-heavy", "customized"}) {
    Set("flare_fiber_scheduling_optimize_for", preset);
    ASSERT_TRUE(ValidateFlags().ok()) << preset;
    const auto options = RuntimeOptionsFromFlags();
    ASSERT_TRUE(options);
    const flare::Status started = fiber::StartRuntime(*options);
    EXPECT_TRUE(started.ok()) << preset << ": " << started.ToString();
    fiber::TerminateRuntime();
  }
}

TEST_F(FlagsTest, ServerOptionsStartFromTheFlags) {
  Set("flare_rpc_server_max_ongoing_calls", "7");
  Set("flare_rpc_server_max_ongoing_calls_per_connection", "6");
  Set("flare_rpc_server_max_ongoing_streams_per_connection", "5");
  Set("flare_rpc_server_max_ongoing_decompressed_bytes", "60000");
  Set("flare_rpc_server_max_output_per_connection", "70000");
  const std::size_t quarter = Server::Options().max_buffered_bytes;
  EXPECT_GE(quarter, 1u << 24);
  Set("flare_rpc_server_max_buffered_bytes", "80000000000");
  Set("flare_rpc_server_max_connections", "8");
  Set("flare_rpc_server_max_request_queueing_delay", "9");
  Set("flare_rpc_server_max_packet_size", "1000");
  Set("flare_rpc_server_connection_max_idle", "11");
  Set("flare_rpc_server_remove_idle_connection_interval", "12");
  Set("flare_rpc_server_tcp_keep_alive", "18");
  Set("flare_rpc_server_drain_timeout_ms", "13");
  Set("flare_rpc_server_stop_linger_ms", "17");
  Set("flare_rpc_server_message_timeout", "16");
  Set("flare_http_max_header_size", "140");
  Set("flare_http_compress_handlers_from", "1024");
  Set("flare_rpc_protocol_buffers_status_code_for_overloaded", "15");
  const Server::Options options;
  EXPECT_EQ(options.max_concurrent_requests, 7u);
  EXPECT_EQ(options.max_concurrent_requests_per_connection, 6u);
  EXPECT_EQ(options.max_concurrent_streams_per_connection, 5u);
  EXPECT_EQ(options.max_concurrent_decompressed_bytes, 60'000u);
  EXPECT_EQ(options.max_output_per_connection, 70'000u);
  EXPECT_EQ(options.max_buffered_bytes, 80'000'000'000u);
  EXPECT_EQ(options.max_concurrent_connections, 8u);
  EXPECT_EQ(options.max_request_queueing_delay, std::chrono::milliseconds(9));
  EXPECT_EQ(options.maximum_packet_size, 1000u);
  EXPECT_EQ(options.compress_http_handlers_from, 1024u);
  EXPECT_EQ(options.connection_max_idle, std::chrono::seconds(11));
  EXPECT_EQ(options.remove_idle_connection_interval, std::chrono::seconds(12));
  EXPECT_EQ(options.tcp_keep_alive, std::chrono::seconds(18));
  EXPECT_EQ(options.drain_timeout, std::chrono::milliseconds(13));
  EXPECT_EQ(options.stop_linger, std::chrono::milliseconds(17));
  EXPECT_EQ(options.message_timeout, std::chrono::seconds(16));
  EXPECT_EQ(options.max_http_header_size, 140u);
  EXPECT_EQ(options.status_code_for_overloaded, 15);
  // A value given in code wins.
  const Server::Options given{.max_concurrent_requests = 70};
  EXPECT_EQ(given.max_concurrent_requests, 70u);
  EXPECT_EQ(given.max_concurrent_connections, 8u);
}

TEST_F(FlagsTest, ClientDefaultsFollowTheFlags) {
  Set("flare_rpc_client_default_rpc_timeout_ms", "1");
  Set("flare_rpc_client_connect_timeout_ms", "7");
  Set("flare_rpc_client_max_connections_per_server", "2");
  Set("flare_rpc_client_connection_max_idle", "3");
  Set("flare_rpc_client_remove_idle_connection_interval", "4");
  Set("flare_rpc_channel_max_packet_size", "500");
  Set("flare_name_resolver_update_interval_seconds", "6");
  Set("flare_rpc_client_zone", "b");
  const ClientDefaults defaults = ClientDefaultsFromFlags();
  EXPECT_EQ(defaults.rpc_timeout, std::chrono::milliseconds(1));
  EXPECT_EQ(defaults.connect_timeout, std::chrono::milliseconds(7));
  EXPECT_EQ(defaults.max_connections_per_server, 2u);
  EXPECT_EQ(defaults.connection_max_idle, std::chrono::seconds(3));
  EXPECT_EQ(defaults.remove_idle_connection_interval, std::chrono::seconds(4));
  EXPECT_EQ(defaults.max_packet_size, 500u);
  EXPECT_EQ(defaults.name_resolver_update_interval, std::chrono::seconds(6));
  EXPECT_EQ(defaults.zone, "b");
}

}  // namespace
}  // namespace flare::rpc
