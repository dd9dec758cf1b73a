// The pages under /inspect/profile, as pprof gets them.
#include "flare/rpc/admin/profile_pages.h"

#include <signal.h>
#include <sys/time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/backtrace.h"
#include "flare/base/cpu_profile.h"
#include "flare/base/endpoint.h"
#include "flare/base/heap_profile.h"
#include "flare/base/sanitizer.h"
#include "flare/base/testing/at_last.h"
#include "flare/fiber/contention_profile.h"
#include "flare/fiber/event.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/sync/lock_wait.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {

std::atomic<bool> burning{false};

// Exported, so that a stripped program knows their names, too.
[[gnu::noinline]] void WaitForLock(fiber::Mutex& mutex) {
  mutex.lock();
  mutex.unlock();
}
[[gnu::noinline]] void BurnCpu() {
  burning = true;
  while (burning) continue;
}

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Whether nobody takes a CPU profile.
bool IsIdle() {
  itimerval timer;
  EXPECT_EQ(getitimer(ITIMER_PROF, &timer), 0);
  return timer.it_interval.tv_usec == 0;
}

class ProfilePagesTest : public ServerTest {
 protected:
  void StartServerWithProfiles() {
    server_options().pages_profiles = true;
    server_options().admin_address = "127.0.0.1:0";
    server_options().builtin_pages = BuiltinPages::kLoopback;
    StartServer();
  }
  const Endpoint& admin() { return server().admin_endpoint(); }

  static std::unique_ptr<RawClient> Ask(const Endpoint& address,
                                        const std::string& path) {
    auto client = std::make_unique<RawClient>(address);
    client->Send("GET " + path +
                 " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    return client;
  }
  static std::string Get(const Endpoint& address, const std::string& path) {
    return Ask(address, path)->ReadAll();
  }
  static std::unique_ptr<RawClient> Begin(const Endpoint& address) {
    auto client = Ask(address, "/inspect/profile/cpu?seconds=300");
    EXPECT_TRUE(fiber::testing::Eventually([] { return !IsIdle(); }));
    return client;
  }
};

TEST_F(ProfilePagesTest, AreRefusedUnlessAllowed) {
  StartServer();
  for (const char* path : {kCpuProfilePath, kHeapProfilePath,
                           kContentionProfilePath, kContentionPath}) {
    EXPECT_THAT(Get(endpoint(), path),
                AllOf(HasSubstr(" 403 "),
                      HasSubstr("--flare_rpc_server_pages_profiles")));
  }
}

TEST_F(ProfilePagesTest, RefuseTimesThatMayNotBe) {
  StartServerWithProfiles();
  for (const std::string path :
       {kCpuProfilePath, kContentionProfilePath, kContentionPath}) {
    for (const char* seconds : {"0", "-1", "301", "x", ""}) {
      EXPECT_THAT(Get(endpoint(), path + "?seconds=" + seconds),
                  AllOf(HasSubstr(" 400 "), HasSubstr("from 1 to 300")));
    }
  }
}

struct Sample {
  std::uintptr_t count;
  std::vector<std::uintptr_t> frames;
};

// Takes apart a profile, which must be whole.
std::vector<Sample> ReadSamples(const std::string& profile) {
  std::vector<std::uintptr_t> words(profile.size() / sizeof(std::uintptr_t));
  std::memcpy(words.data(), profile.data(), words.size() * sizeof(words[0]));
  EXPECT_GT(words.size(), 8u);
  EXPECT_EQ(std::vector(words.begin(), words.begin() + 5),
            (std::vector<std::uintptr_t>{0, 3, 0, 10'000, 0}));
  std::vector<Sample> samples;
  for (std::size_t at = 5; at + 2 < words.size();) {
    const auto begin = words.begin() + static_cast<std::ptrdiff_t>(at) + 2;
    const auto size = static_cast<std::ptrdiff_t>(words[at + 1]);
    if (words[at] == 0) {
      EXPECT_EQ(words[at + 1], 1u);
      EXPECT_EQ(words[at + 2], 0u);
      EXPECT_THAT(profile.substr((at + 3) * sizeof(words[0])),
                  HasSubstr("r-xp"));
      return samples;
    }
    samples.push_back({words[at], {begin, begin + size}});
    at += 2 + static_cast<std::size_t>(size);
  }
  ADD_FAILURE() << "no end";
  return samples;
}

// The functions of a sample, one in each line.
std::string NamesOf(const Sample& sample) {
  std::string names;
  for (const std::uintptr_t frame : sample.frames) {
    names += Symbolize(frame).function + "\n";
  }
  return names;
}

TEST_F(ProfilePagesTest, CpuProfileHasTheStacksOfFibers) {
  service().on_call = [](TestCall call) {
    BurnCpu();
    FlexibleService::Echo(call);
  };
  StartServerWithProfiles();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest("hello"));
  ASSERT_TRUE(fiber::testing::Eventually([] { return burning.load(); }));
  const std::string reply =
      Get(endpoint(), std::string(kCpuProfilePath) + "?seconds=1");
  burning = false;
  ASSERT_TRUE(client.ReadReply());
  ASSERT_THAT(reply, StartsWith("HTTP/1.1 200 "));
  const auto samples = ReadSamples(reply.substr(reply.find("\r\n\r\n") + 4));
#ifndef FLARE_TSAN  // It has handlers wait for the next call of a library.
  std::uintptr_t burnt = 0;
  std::string stacks;
  for (const Sample& sample : samples) {
    const std::string names = NamesOf(sample);
    stacks += names;
    if (names.find("BurnCpu") == names.npos) continue;
    EXPECT_THAT(names, HasSubstr("FlexibleService::Call("));
    burnt += sample.count;
  }
  EXPECT_GE(burnt, 5u) << stacks;  // On a busy machine, too.
#endif
}

TEST_F(ProfilePagesTest, OneCpuProfileAtATimeUntilItsReaderLeaves) {
  StartServerWithProfiles();
  for (const Endpoint& address : {endpoint(), admin()}) {
    auto client = Begin(address);
    for (const Endpoint& other : {endpoint(), admin()}) {
      EXPECT_THAT(Get(other, kCpuProfilePath),
                  AllOf(HasSubstr(" 503 "), HasSubstr("in the making")));
      // Other pages go on.
      EXPECT_THAT(Get(other, "/inspect/server"), HasSubstr(" 200 "));
    }
    client.reset();
    EXPECT_TRUE(fiber::testing::Eventually(IsIdle)) << address;
  }
  EXPECT_THAT(Get(admin(), std::string(kCpuProfilePath) + "?seconds=1"),
              StartsWith("HTTP/1.1 200 "));
}

TEST_F(ProfilePagesTest, CpuProfileEndsWithTheServer) {
  StartServerWithProfiles();
  auto client = Begin(endpoint());
  server().Stop();
  EXPECT_THAT(client->ReadAll(), HasSubstr(" 503 "));
  client.reset();  // The server waits for that.
  server().Join();
  EXPECT_TRUE(IsIdle());
}

TEST_F(ProfilePagesTest, CpuProfileOfTheAdminPortEndsWithTheServer) {
  StartServerWithProfiles();
  const auto client = Begin(admin());
  StopServer();
  EXPECT_TRUE(IsIdle());
}

TEST_F(ProfilePagesTest, ContentionProfilesLeaveTheAdminPortToOthers) {
  StartServerWithProfiles();
  for (const std::string path : {kContentionProfilePath, kContentionPath}) {
    auto client = Ask(admin(), path + "?seconds=300");
    ASSERT_TRUE(fiber::testing::Eventually(&fiber::LockWait::IsRecording));
    EXPECT_THAT(Get(admin(), "/inspect/server"), HasSubstr(" 200 "));
    client.reset();
    EXPECT_TRUE(fiber::testing::Eventually(
        [] { return !fiber::LockWait::IsRecording(); }));
  }
}

// The addresses in a line "NANOSECONDS COUNT @ ADDRESS ...", as names.
std::string NamesOfAddresses(const std::string& line) {
  std::istringstream words(line.substr(line.find('@') + 1));
  std::string names;
  for (std::uintptr_t address; words >> std::hex >> address;) {
    names += Symbolize(address).function + "\n";
  }
  return names;
}

TEST_F(ProfilePagesTest, ContentionProfilesHaveTheStacksOfCalls) {
  fiber::Mutex mutex;
  service().on_call = [&](TestCall call) {
    WaitForLock(mutex);
    FlexibleService::Echo(call);
  };
  StartServerWithProfiles();
  for (const bool text : {false, true}) {
    mutex.lock();
    const auto reader =
        text ? Ask(admin(), "/inspect/contention?seconds=1")
             : Ask(endpoint(), "/inspect/profile/contention?seconds=1");
    ASSERT_TRUE(fiber::testing::Eventually(&fiber::LockWait::IsRecording));
    EXPECT_THAT(Get(endpoint(), kContentionPath),
                AllOf(HasSubstr(" 503 "), HasSubstr("in the making")));
    RawClient client(endpoint());
    client.Call(1, kCall, MakeRequest("hello"));
    const std::string reply = reader->ReadAll();
    mutex.unlock();
    ASSERT_TRUE(client.ReadReply());
    ASSERT_THAT(reply, StartsWith("HTTP/1.1 200 "));
    std::string names = reply;
    if (text) {
      EXPECT_THAT(reply, AllOf(HasSubstr(": 1 wait for locks, "),
                               HasSubstr(", 1 not over: Mutex\n")));
    } else {
      const auto at = reply.find(" 1 @ 0x");
      ASSERT_NE(at, reply.npos) << reply;
      names = NamesOfAddresses(reply.substr(at, reply.find('\n', at) - at));
    }
    EXPECT_THAT(names, AllOf(HasSubstr("WaitForLock"),
                             HasSubstr("FlexibleService::Call(")));
  }
}

// Tests have no allocator that takes samples.
TEST_F(ProfilePagesTest, HeapProfileSaysWhatToDo) {
  StartServerWithProfiles();
  EXPECT_THAT(Get(endpoint(), kHeapProfilePath),
              AllOf(HasSubstr(" 501 "), HasSubstr("MALLOC_CONF=prof:true")));
}

TEST(HeapProfileTest, HasTheFormOfGperftools) {
  const auto profile = ConvertHeapProfile(
      "heap_v2/524288\n"
      "  t*: 3: 300 [0: 0]\n"
      "  t1: 3: 300 [0: 0]\n"
      "@ 0xa1 0xb2\n"
      "  t*: 1: 100 [0: 0]\n"
      "  t1: 1: 100 [0: 0]\n"
      "@ 0xc3\n"
      "  t*: 2: 200 [0: 0]\n"
      "\n"
      "MAPPED_LIBRARIES:\n"
      "1000-2000 r-xp 0 0:0 1 /bin/x\n");
  ASSERT_TRUE(profile);
  EXPECT_EQ(*profile,
            "heap profile: 3: 300 [0: 0] @ heap_v2/524288\n"
            "1: 100 [0: 0] @ 0xa1 0xb2\n"
            "2: 200 [0: 0] @ 0xc3\n"
            "\n"
            "MAPPED_LIBRARIES:\n"
            "1000-2000 r-xp 0 0:0 1 /bin/x\n");
  EXPECT_FALSE(ConvertHeapProfile("heap profile: ..."));
}

// [PF1], [PF2]: handlers of two threads run while profiles begin and end.
TEST(CpuProfileTest, EndsWhileSignalsArrive) {
  ASSERT_TRUE(CpuProfile::Start());  // There is a handler from here on.
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int i = 0; i != 2; ++i) {
    threads.emplace_back([&done] {
      while (!done) raise(SIGPROF);
    });
  }
  std::size_t samples = 0;
  for (int i = 0; i != 30; ++i) {
    auto profile = CpuProfile::Start();
    ASSERT_TRUE(profile);
    if (i % 3 == 0) continue;  // Thrown away.
    samples += ReadSamples((*profile)->Finish()).size();
  }
  while (samples == 0) {  // On a machine with a single CPU.
    auto profile = CpuProfile::Start();
    std::this_thread::yield();
    samples += ReadSamples((*profile)->Finish()).size();
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
}

// [PF1]: until the very end.
TEST(CpuProfileTest, MayTakeSamplesAtExit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto exit_while_active = [] {
    if (!CpuProfile::Start()->release()) std::_Exit(1);
    flare::testing::at_last = [] {
      for (int i = 0; i != 10; ++i) raise(SIGPROF);
      std::_Exit(0);
    };
    std::exit(0);
  };
  EXPECT_EXIT(exit_while_active(), ::testing::ExitedWithCode(0), "");
}

// A profiler of the program's own is left alone.
TEST(CpuProfileTest, LeavesOtherProfilersAlone) {
  struct sigaction before;
  struct sigaction theirs = {};
  theirs.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGPROF, &theirs, &before), 0);
  const auto profile = CpuProfile::Start();
  EXPECT_EQ(sigaction(SIGPROF, &before, nullptr), 0);
  ASSERT_FALSE(profile);
  EXPECT_THAT(profile.error().message(), HasSubstr("another profiler"));
}

}  // namespace
}  // namespace flare::rpc::testing
