// Loads against a server of this process, over the RPC stack. The draws for
// their calls are in call_draws_test.cc, loads over plain HTTP in
// http_call_test.cc.

#include "example/rpc/load_generator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "example/rpc/echo_load_fixture.h"
#include "example/rpc/echo_service.flare.pb.h"
#include "example/rpc/load_test_fixture.h"
#include "flare/base/clock.h"
#include "flare/base/sanitizer.h"
#include "flare/fiber/event.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/rpc_status.h"
#include "gtest/gtest.h"

namespace example {
namespace {

using namespace std::literals;
using Failures = std::map<int, std::uint64_t>;

class LoadGeneratorTest : public EchoLoadTest {
 protected:
  // A load of one call for each of `callers`, each of which the server answers
  // when the last one, which sets *all_here, has come.
  LoadOptions StartServerThatAwaits(int callers, CallerKind kind,
                                    flare::fiber::Event* all_here) {
    LoadOptions options =
        StartServer([=](int call, protobuf_echo::EchoResponse*,
                        flare::RpcServerController*) {
          if (call + 1 == callers) all_here->Set();
          all_here->Wait();
        });
    options.caller_kind = kind;
    options.max_pending = static_cast<std::size_t>(callers);
    options.requests = static_cast<std::uint64_t>(callers);
    return options;
  }
};

TEST_F(LoadGeneratorTest, OpenSaysWhatIsWrong) {
  const std::pair<std::string, std::string> wrong[] = {
      {"", "\"\""},
      {"127.0.0.1:5567", "127.0.0.1:5567"},
      {"carrier-pigeon://127.0.0.1:1", "carrier-pigeon"},
      {"flare://127.0.0.1", "127.0.0.1"},
  };
  for (const auto& [address, said] : wrong) {
    LoadOptions options;
    options.server_addr = address;
    LoadRecorder recorder;
    LoadGenerator load(options, &recorder);
    const auto status = load.Open();
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find(said), std::string::npos) << status;
  }
}

TEST_F(LoadGeneratorTest, OpenRefusesAttachmentsThatCantBeSent) {
  LoadOptions options;
  options.attachment = flare::CreateBufferSlow("attached");
  LoadRecorder recorder;
  for (const std::string protocol : {"bolt", "http+pb", "flare", "trpc"}) {
    options.server_addr = protocol + "://127.0.0.1:1";
    const auto status = LoadGenerator(options, &recorder).Open();
    EXPECT_EQ(status.ok(), protocol == "flare" || protocol == "trpc") << status;
    if (!status.ok()) {
      EXPECT_EQ(status.message(),
                "the protocol " + protocol + " carries no attachments");
    }
  }
}

TEST_F(LoadGeneratorTest, MakesExactlyTheCallsAskedFor) {
  LoadOptions options = StartServer();
  for (CallerKind kind : kAllKinds) {
    // More than a hundred callers take their time to start.
    const std::size_t many = kind == CallerKind::kLoop ? 150 : 15;
    for (std::uint64_t requests : {1, 7, 1000}) {
      for (std::size_t callers : {std::size_t{1}, many}) {
        options.caller_kind = kind;
        options.requests = requests;
        options.max_pending = callers;
        const CallStatistics calls = Run(options);
        EXPECT_EQ(calls.successes(), requests);
        EXPECT_EQ(calls.failures, Failures());
      }
    }
  }
}

// When all calls have been claimed, the load doesn't last until the last caller
// would have started.
TEST_F(LoadGeneratorTest, DoesNotStartCallersForNothing) {
  LoadOptions options = StartServer();
  options.requests = 10;
  options.max_pending = 2000;  // They take 666 ms.
  // The machine may be busy now and then.
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i != 10 && shortest > 400'000'000; ++i) {
    const std::int64_t begin = flare::NowNs();
    EXPECT_EQ(Run(options).successes(), 10u);
    shortest = std::min(shortest, flare::NowNs() - begin);
  }
  EXPECT_LE(shortest, 400'000'000);
}

// Each call waits for the last one. One caller more per millisecond, as without
// a rate, would take 299 ms.
TEST_F(LoadGeneratorTest, FixedRateDoesNotWaitForTheRampUp) {
  constexpr int kCallers = 300;
  for (CallerKind kind : kAllKinds) {
    // The machine may be busy now and then.
    std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
    for (int i = 0; i != 10 && shortest > 200'000'000; ++i) {
      flare::fiber::Event all_here;
      LoadOptions options = StartServerThatAwaits(kCallers, kind, &all_here);
      options.qps = 10'000;  // The last one is due after 30 ms.
      const CallStatistics calls = Run(options);
      EXPECT_EQ(calls.successes(), kCallers);
      shortest = std::min(shortest, calls.latency_ns.max());
      TearDown();
    }
#if !defined(FLARE_ASAN) && !defined(FLARE_TSAN)
    EXPECT_LE(shortest, 200'000'000);
#endif
  }
}

// As many calls are under way as there are callers, whatever these are.
TEST_F(LoadGeneratorTest, CallersCallAtTheSameTime) {
  constexpr int kCallers = 20;
  for (CallerKind kind : kAllKinds) {
    flare::fiber::Event all_here;
    const LoadOptions options =
        StartServerThatAwaits(kCallers, kind, &all_here);
    EXPECT_EQ(Run(options).successes(), kCallers);
    TearDown();
  }
}

// Until so many have succeeded, during which the load doesn't end.
void AwaitCalls(std::uint64_t wanted, LoadGenerator* load,
                LoadRecorder* recorder) {
  for (std::uint64_t calls = 0; calls < wanted;
       calls += recorder->ordinary.Take().successes()) {
    EXPECT_FALSE(load->WaitUntilFinished(flare::NowNs() + 1'000'000));
  }
}

TEST_F(LoadGeneratorTest, RunsUntilStopped) {
  LoadOptions options = StartServer();
  options.max_pending = 5;
  LoadRecorder recorder;
  LoadGenerator load(options, &recorder);
  ASSERT_TRUE(load.Open().ok());
  load.Start();
  AwaitCalls(1000, &load, &recorder);
  EXPECT_EQ(load.running(), 5u);
  load.Stop();
  EXPECT_TRUE(load.WaitUntilFinished(flare::kNoDeadline));
}

TEST_F(LoadGeneratorTest, StopDoesNotWaitForTheRate) {
  LoadOptions options = StartServer();
  options.max_pending = 5;
  // The second call is due in a quarter of an hour, or never.
  for (double qps : {1e-3, 1e-12}) {
    for (CallerKind kind : kAllKinds) {
      options.qps = qps;
      options.caller_kind = kind;
      LoadRecorder recorder;
      LoadGenerator load(options, &recorder);
      ASSERT_TRUE(load.Open().ok());
      load.Start();
      AwaitCalls(1, &load, &recorder);
      load.Stop();
      EXPECT_TRUE(load.WaitUntilFinished(flare::NowNs() + 60'000'000'000));
      EXPECT_EQ(recorder.ordinary.Take().successes(), 0u);
    }
  }
}

// Nor does a limit wait for calls that are due later and too many.
TEST_F(LoadGeneratorTest, RequestsCountFromTheEndOfTheWarmUp) {
  LoadOptions options = StartServer();
  options.max_pending = 5;
  options.requests = 10;
  for (double qps : {0, 1000}) {
    for (CallerKind kind : kAllKinds) {
      options.qps = qps;
      options.caller_kind = kind;
      LoadRecorder recorder;
      LoadGenerator load(options, &recorder);
      ASSERT_TRUE(load.Open().ok());
      load.Start(/*warm_up=*/true);
      AwaitCalls(50, &load, &recorder);
      load.EndWarmUp();
      EXPECT_TRUE(load.WaitUntilFinished(flare::kNoDeadline));
      EXPECT_GE(recorder.ordinary.Take().successes(), 10u);
    }
  }
}

TEST_F(LoadGeneratorTest, WithoutStartThereIsNothingToWaitFor) {
  const LoadOptions options = StartServer();
  LoadRecorder recorder;
  LoadGenerator load(options, &recorder);
  EXPECT_TRUE(load.Open().ok());
}

TEST_F(LoadGeneratorTest, FailuresAreCountedByStatus) {
  LoadOptions options = StartServer([](int call, protobuf_echo::EchoResponse*,
                                       flare::RpcServerController* controller) {
    if (call % 2 == 0) controller->SetFailed(1234, "even");
    if (call % 10 == 1) controller->SetFailed("ends with 1");
  });
  options.requests = 100;
  options.max_pending = 4;
  const CallStatistics calls = Run(options);
  EXPECT_EQ(calls.successes(), 40u);
  EXPECT_EQ(calls.failures,
            (Failures{{1234, 50}, {flare::rpc::STATUS_FAILED, 10}}));
}

TEST_F(LoadGeneratorTest, TimeoutIsAFailure) {
  CallStatistics calls;
  // The others may need more on a busy machine.
  for (const auto timeout : {1s, 5s, 25s}) {
    flare::fiber::Event next_call;  // Comes when the first has timed out.
    LoadOptions options =
        StartServer([&](int call, protobuf_echo::EchoResponse*,
                        flare::RpcServerController*) {
          if (call == 0) next_call.Wait();
          next_call.Set();
        });
    options.requests = 10;
    options.timeout = timeout;
    calls = Run(options);
    StopServer();
    if (calls.successes() == 9) break;
  }
  EXPECT_EQ(calls.failures, (Failures{{flare::rpc::STATUS_TIMEOUT, 1}}));
  EXPECT_EQ(calls.successes(), 9u);
}

TEST_F(LoadGeneratorTest, VerifyFindsRepliesThatDiffer) {
  LoadOptions options =
      StartServer([](int call, protobuf_echo::EchoResponse* response,
                     flare::RpcServerController* controller) {
        if (call < 3) response->set_body("else");
        if (call == 3) controller->SetResponseAttachment(flare::Buffer());
      });
  options.requests = 20;
  options.body = "body";
  options.attachment = flare::CreateBufferSlow("attached");
  options.verify = true;
  const CallStatistics calls = Run(options);
  EXPECT_EQ(calls.failures, (Failures{{flare::rpc::STATUS_MALFORMED_DATA, 4}}));
  EXPECT_EQ(calls.successes(), 16u);
}

TEST_F(LoadGeneratorTest, EveryRequestIsCompressedAndHasItsAttachment) {
  std::atomic<int> attached{0};
  LoadOptions options =
      StartServer([&](int, protobuf_echo::EchoResponse*,
                      flare::RpcServerController* controller) {
        attached += controller->GetRequestAttachment().size() == 5000;
      });
  options.requests = 50;
  options.max_pending = 3;
  options.body = std::string(3000, 'b');
  options.attachment = flare::CreateBufferSlow(std::string(5000, 'a'));
  options.compression = flare::CompressionAlgorithm::kZstd;
  options.verify = true;
  EXPECT_EQ(Run(options).successes(), 50u);
  EXPECT_EQ(attached.load(), 50);
}

TEST_F(LoadGeneratorTest, FixedRateIsNeverRunAheadOf) {
  LoadOptions options = StartServer();
  options.requests = 51;
  options.qps = 500;
  options.max_pending = 10;
  const std::int64_t begin = flare::NowNs();
  EXPECT_EQ(Run(options).successes(), 51u);
  EXPECT_GE(flare::NowNs() - begin, 100'000'000 - 1000);
}

// One call at a time, and the first takes 100 ms. Those that were due in the
// meantime, one per ms, must show how late they were sent.
TEST_F(LoadGeneratorTest, LatencyCountsFromWhenTheCallWasDue) {
  LoadOptions options = StartServer(
      [](int call, protobuf_echo::EchoResponse*, flare::RpcServerController*) {
        if (call == 0) flare::this_fiber::SleepFor(100ms);
      });
  options.requests = 50;
  options.qps = 1000;
  options.max_pending = 1;
  const CallStatistics calls = Run(options);
  EXPECT_EQ(calls.successes(), 50u);
  EXPECT_GE(calls.latency_ns.min(), 50'000'000);
}

// With a second loop the others don't wait for the slow one.
TEST_F(LoadGeneratorTest, SlowCallDelaysOnlyItsOwnLoop) {
  flare::fiber::Event others_done;
  LoadOptions options = StartServer(
      [&](int call, protobuf_echo::EchoResponse*, flare::RpcServerController*) {
        if (call == 0) others_done.Wait();
        if (call == 99) others_done.Set();
      });
  options.requests = 100;
  options.qps = 10'000;
  options.max_pending = 2;
  EXPECT_EQ(Run(options).successes(), 100u);
}

// Nobody listens. A loop pauses after each call that fails, twice as long each
// time, instead of spinning.
TEST_F(LoadGeneratorTest, LoopsThatReachNobodyPause) {
  for (const char* address : {"flare://127.0.0.1:1", "http+pb://127.0.0.1:1",
                              "http://127.0.0.1:1/"}) {
    LoadOptions options;
    options.server_addr = address;
    options.requests = 9;
    options.max_pending = 1;
    const std::int64_t begin = flare::NowNs();
    const CallStatistics calls = Run(options);
    EXPECT_EQ(calls.failures,
              (Failures{{flare::rpc::STATUS_FAIL_TO_CONNECT, 9}}));
    // At least half of 1, 2, 4, ... 128 ms.
    EXPECT_GE(flare::NowNs() - begin, 127'000'000) << address;
  }
}

// However long it takes to be refused: they wait for each other.
TEST_F(LoadGeneratorTest, ManyLoopsThatReachNobodyPause) {
  for (const char* address : {"flare://127.0.0.1:1", "http://127.0.0.1:1/"}) {
    LoadOptions options;
    options.server_addr = address;
    options.requests = 2500;
    options.max_pending = 500;
    const std::int64_t begin = flare::NowNs();
    EXPECT_EQ(Run(options).failure_count(), 2500u);
    // Five each if all are as fast, with pauses of 15 ms in all; but some may
    // have had more, and longer ones.
    EXPECT_GE(flare::NowNs() - begin, 7'000'000) << address;
  }
}

// A server that has calls for which there are no loops when the window ends.
TEST_F(LoadGeneratorTest, CallsThatWereDueInTheWindowAreSentAfterIt) {
  flare::fiber::Event begun;
  flare::fiber::Event go_on;
  for (CallerKind kind : kAllKinds) {
    begun.Reset();
    go_on.Reset();
    LoadOptions options =
        StartServer([&](int call, protobuf_echo::EchoResponse*,
                        flare::RpcServerController*) {
          if (call != 0) return;
          begun.Set();
          go_on.Wait();
        });
    options.qps = 1000;
    options.max_pending = 1;
    options.timeout = std::chrono::minutes(1);
    options.caller_kind = kind;
    LoadRecorder recorder;
    LoadGenerator load(options, &recorder);
    ASSERT_TRUE(load.Open().ok());
    const std::int64_t begin = flare::NowNs();
    load.Start();
    begun.Wait();
    while (flare::NowNs() - begin < 5'000'000) flare::this_fiber::Yield();
    load.End();
    const std::int64_t due_at_most = (flare::NowNs() - begin) / 1'000'000 + 1;
    go_on.Set();
    ASSERT_TRUE(load.WaitUntilFinished(flare::kNoDeadline));
    const std::uint64_t sent = recorder.ordinary.Take().successes();
    EXPECT_GT(sent, 1u);
    EXPECT_LE(sent, static_cast<std::uint64_t>(due_at_most));
    EXPECT_EQ(load.unsent(), 0u);
  }
}

TEST_F(LoadGeneratorTest, CallsThatAreNotSentEvenThenAreCounted) {
  flare::fiber::Event begun;
  flare::fiber::Event go_on;
  LoadOptions options = StartServer(
      [&](int, protobuf_echo::EchoResponse*, flare::RpcServerController*) {
        begun.Set();
        go_on.Wait();
      });
  options.qps = 1e6;
  options.max_pending = 2;
  options.timeout = std::chrono::minutes(1);
  LoadRecorder recorder;
  LoadGenerator load(options, &recorder);
  ASSERT_TRUE(load.Open().ok());
  const std::int64_t begin = flare::NowNs();
  load.Start();
  begun.Wait();
  while (flare::NowNs() - begin < 10'000) flare::this_fiber::Yield();
  load.End();
  load.Stop();
  go_on.Set();
  ASSERT_TRUE(load.WaitUntilFinished(flare::kNoDeadline));
  const std::uint64_t sent = recorder.ordinary.Take().successes();
  EXPECT_GE(sent, 1u);
  EXPECT_LE(sent, 2u);
  EXPECT_GE(load.unsent(), 8u);
}

TEST_F(LoadGeneratorTest, FailuresByTheServiceAreRepeatedAtFullSpeed) {
  CallsWithoutPause at_once;
  LoadOptions options = StartServer([&](int call, auto*, auto* controller) {
    at_once.Begin();
    controller->SetFailed(call % 2 == 0 ? flare::rpc::STATUS_FROM_USER : -7,
                          "as it wants");
  });
  options.requests = 600;
  options.max_pending = 1;
  EXPECT_EQ(Run(options).failures,
            (Failures{{flare::rpc::STATUS_FROM_USER, 300}, {-7, 300}}));
  EXPECT_GE(at_once.count(), 50);
}

}  // namespace
}  // namespace example
