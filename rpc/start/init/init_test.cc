#include "flare/init.h"

#include <gflags/gflags.h>
#include <google/protobuf/source_context.pb.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task.h"
#include "flare/fiber/this_fiber.h"
#include "flare/init/on_init.h"
#include "flare/init/override_flag.h"
#include "flare/io/fd.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/name_resolver.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/start/flags.h"
#include "flare/rpc/testing/logged_lines.h"
#include "flare/rpc/testing/start_fixture.h"
#include "gtest/gtest.h"

DEFINE_int32(test_default, 1, "Overridden here.");
DEFINE_string(test_forced, "old", "Forcibly overridden here.");
DEFINE_double(test_small, 1, "Overridden here.");

FLARE_OVERRIDE_FLAG(test_default, 2);
FLARE_FORCE_OVERRIDE_FLAG(test_forced, "new");
FLARE_OVERRIDE_FLAG(test_small, 1.25e-7);
FLARE_OVERRIDE_FLAG(logtostderr, true);

namespace flare {
namespace {

std::vector<std::string>& Events() {
  static std::vector<std::string> events;
  return events;
}

}  // namespace
}  // namespace flare

FLARE_ON_INIT(5, [] { flare::Events().push_back("5"); });
FLARE_ON_INIT([] { flare::Events().push_back("0"); });
FLARE_ON_INIT(
    -1,
    [] {
      flare::Events().push_back("-1");
      EXPECT_FALSE(flare::fiber::IsRuntimeRunning());
    },
    [] {
      flare::Events().push_back("end -1");
      EXPECT_FALSE(flare::fiber::IsRuntimeRunning());
    });
FLARE_ON_INIT(
    1, [] { flare::Events().push_back("1"); },
    [] { flare::Events().push_back("end 1"); });

// Two at one line, without a semicolon.
#define OF_A_USERS_MACRO                                    \
  FLARE_ON_INIT([] { flare::Events().push_back("first"); }, \
                [] { flare::Events().push_back("last"); })  \
  FLARE_ON_INIT(9, [held = std::make_unique<int>(9)] {      \
    flare::Events().push_back(std::to_string(*held));       \
  })
OF_A_USERS_MACRO

namespace flare {
namespace {

using rpc::testing::StartTest;
using rpc::testing::StartWith;

TEST_F(StartTest, RunsTheEntryOnAFiberAndReturnsItsValue) {
  const int result = StartWith(
      {"--flare_concurrency_hint=3", "one", "--nologtostderr", "two"},
      [](int argc, char** argv) {
        EXPECT_TRUE(fiber::IsRuntimeRunning());
        EXPECT_TRUE(fiber::IsFiberWorker());
        EXPECT_EQ(
            fiber::GetSchedulingGroupCount() * fiber::GetSchedulingGroupSize(),
            3u);
        EXPECT_EQ(std::vector<std::string>(argv, argv + argc),
                  (std::vector<std::string>{"the_program", "one", "two"}));
        return 42;
      });
  EXPECT_EQ(result, 42);
  EXPECT_FALSE(fiber::IsRuntimeRunning());
}

TEST_F(StartTest, TakesWhatCanOnlyBeMoved) {
  char name[] = "the_program";
  char* argv[] = {name, nullptr};
  EXPECT_EQ(Start(1, argv,
                  [value = std::make_unique<int>(43)](int, char**) {
                    return *value;
                  }),
            43);
}

TEST_F(StartTest, MayBeCalledAgain) {
  for (int i = 0; i != 3; ++i) {
    EXPECT_EQ(StartWith({}, [&](int, char**) { return i; }), i);
  }
}

TEST_F(StartTest, IgnoresBrokenPipes) {
  StartWith({}, [](int, char**) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    close(ends[0]);
    EXPECT_EQ(write(ends[1], "x", 1), -1);  // And we are still alive.
    EXPECT_EQ(errno, EPIPE);
    close(ends[1]);
    return 0;
  });
}

TEST_F(StartTest, RaisesTheLimitOfOpenFiles) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit lower = before;
  lower.rlim_cur = 256;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &lower), 0);
  const auto limit_inside = [](int, char**) {
    return static_cast<int>(io::DescriptorLimit() % 1'000'000'007);
  };
  EXPECT_EQ(StartWith({"--noflare_raise_open_files_limit"}, limit_inside), 256);
  EXPECT_EQ(StartWith({"--flare_raise_open_files_limit"}, limit_inside),
            static_cast<int>(std::min<rlim_t>(before.rlim_max, 1 << 20)));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

// A sender of such messages can't fill the log by them.
TEST_F(StartTest, ProtobufLogsOncePerSecond) {
  // For when the test is repeated.
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  ::testing::internal::CaptureStderr();
  const auto begin = std::chrono::steady_clock::now();
  StartWith({}, [](int, char**) {
    google::protobuf::SourceContext message;
    for (int i = 0; i != 1000; ++i) {
      EXPECT_FALSE(message.ParseFromString("\x0a\x01\xff"));
    }
    return 0;
  });
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - begin;
  const std::string log = ::testing::internal::GetCapturedStderr();
  int lines = 0;
  for (std::size_t at = 0; (at = log.find("UTF-8", at)) != log.npos; ++at) {
    ++lines;
  }
  EXPECT_GE(lines, 1) << log;
  EXPECT_LE(lines, 1 + took.count()) << log;
}

TEST_F(StartTest, CallbacksRunInOrderOfPriority) {
  Events().clear();
  StartWith({}, [](int, char**) {
    Events().push_back("entry");
    return 0;
  });
  EXPECT_EQ(Events(),
            (std::vector<std::string>{"-1", "0", "first", "1", "5", "9",
                                      "entry", "end 1", "last", "end -1"}));
}

TEST_F(StartTest, OverridesAreDefaultsUnlessForced) {
  StartWith({}, [](int, char**) {
    EXPECT_EQ(FLAGS_test_default, 2);
    EXPECT_EQ(FLAGS_test_forced, "new");
    EXPECT_EQ(FLAGS_test_small, 1.25e-7);
    return 0;
  });
}

TEST_F(StartTest, CommandLineBeatsOverridesUnlessForced) {
  StartWith({"--test_default=1", "--test_forced=mine"}, [](int, char**) {
    EXPECT_EQ(FLAGS_test_default, 1);
    EXPECT_EQ(FLAGS_test_forced, "new");
    return 0;
  });
}

TEST_F(StartTest, EndsWithOneOnFlagsThatMakeNoSense) {
  const auto entry = [](int, char**) { return 0; };
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(StartWith({"--flare_fiber_scheduling_optimize_for=speed"}, entry),
            1);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("the_program"), std::string::npos) << said;
  EXPECT_NE(said.find("=speed"), std::string::npos) << said;
  EXPECT_NE(said.find("io-heavy"), std::string::npos) << said;
}

TEST_F(StartTest, EndsWithOneOnAFlagFileThatCannotBeRead) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(
      StartWith({"--flagfile=/nonexistent"}, [](int, char**) { return 0; }), 1);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "the_program: --flagfile=/nonexistent: No such file or "
            "directory.\n");
}

TEST_F(StartTest, EndsWithOneIfTheRuntimeDoesNotStart) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(StartWith({"--flare_fiber_worker_accessible_cpus=99999"},
                      [](int, char**) { return 0; }),
            1);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("99999"),
            std::string::npos);
}

using StartDeathTest = StartTest;

TEST_F(StartDeathTest, FlagsThatGflagsRefusesExitWithOne) {
  const auto entry = [](int, char**) { return 0; };
  EXPECT_EXIT(StartWith({"--no_such_flag=1"}, entry),
              ::testing::ExitedWithCode(1), "no_such_flag");
  EXPECT_EXIT(StartWith({"--flare_concurrency_hint=many"}, entry),
              ::testing::ExitedWithCode(1), "many");
}

TEST_F(StartDeathTest, ALogFolderThatCannotBeWrittenIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::exit(StartWith({"--nologtostderr", "--log_dir=/no/folder"},
                                  [](int, char**) { return 3; })),
              ::testing::ExitedWithCode(3),
              "can't write logs to --log_dir=/no/folder: No such file");
}

TEST_F(StartDeathTest, BadOverridesAreRefused) {
  const auto entry = [](int, char**) { return 0; };
  const auto start_and_exit = [&] { std::exit(StartWith({}, entry)); };
  EXPECT_EXIT(
      {
        const init::FlagOverride again("test_default", 3, false);
        start_and_exit();
      },
      ::testing::ExitedWithCode(1), "test_default is overridden twice");
  EXPECT_EXIT(
      {
        const init::FlagOverride unknown("no_such_flag", true, false);
        start_and_exit();
      },
      ::testing::ExitedWithCode(1), "no_such_flag.*doesn't exist");
  EXPECT_EXIT(
      {
        const init::FlagOverride bad("flare_concurrency_hint", "x", false);
        start_and_exit();
      },
      ::testing::ExitedWithCode(1), "doesn't take \"x\"");
}

// A fiber that still runs when the client side has been shut down can't have it
// back.
TEST_F(StartTest, ChannelsOpenedAtTheEndAreShut) {
  static std::atomic<bool> done;
  done = false;
  StartWith({}, [](int, char**) {
    const RpcChannel before("flare://127.0.0.1:1");
    fiber::Spawn([] {
      while (rpc::IsClientSideOpen()) this_fiber::Yield();
      rpc::ShutdownClientSide();  // When that of Start() has ended.
      const RpcChannel late("flare://127.0.0.1:1");
      EXPECT_FALSE(rpc::IsClientSideOpen());
      done = true;
    });
    return 0;
  });
  EXPECT_TRUE(done);
  StartWith({}, [](int, char**) {
    const RpcChannel next("flare://127.0.0.1:1");
    EXPECT_TRUE(rpc::IsClientSideOpen());
    return 0;
  });
}

// A fiber that still runs when the client side has been shut down can't have
// names refreshed: another one, that waits for the answer, would be left
// behind.
TEST_F(StartTest, NamesAreNotRefreshedAtTheEnd) {
  static std::atomic<int> lookups;
  static std::atomic<bool> done;
  lookups = 0;
  done = false;
  rpc::SetHostLookupForTesting(
      [](std::string_view) -> Expected<std::vector<Endpoint>> {
        static const std::atomic<bool> answer{false};
        if (++lookups != 1) answer.wait(false);  // Only the first one has any.
        return std::vector{MustParseEndpoint("127.0.0.1:1")};
      });
  const rpc::testing::LoggedLines errors(google::ERROR);
  StartWith({}, [](int, char**) {
    FLAGS_flare_name_resolver_update_interval_seconds = 0;
    const RpcChannel before("flare://127.0.0.1:1");
    const auto names = rpc::ResolveName("list", "a.test:1");
    EXPECT_TRUE(names);
    if (!names) return 1;
    fiber::Spawn([names = *names] {
      while (rpc::IsClientSideOpen()) this_fiber::Yield();
      rpc::ShutdownClientSide();  // When that of Start() has ended.
      const RpcChannel late("flare://127.0.0.1:1");
      (void)names->Version();  // As a call of an older channel does.
      done = true;
    });
    return 0;
  });
  EXPECT_TRUE(done);
  // Else the next end would wait for that fiber for ever.
  ASSERT_FALSE(errors.Have("still suspended")) << errors.All();
  EXPECT_EQ(lookups.load(), 1);
  rpc::SetHostLookupForTesting(nullptr);
}

}  // namespace
}  // namespace flare
