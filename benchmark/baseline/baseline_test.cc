// Loops, connections and threading models, with a peer at the other end of a
// socket pair.

#include <sys/epoll.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "benchmark/baseline/bare_stream.h"
#include "benchmark/baseline/baseline_testing.h"
#include "benchmark/baseline/event_loop.h"
#include "benchmark/baseline/server_connection.h"
#include "benchmark/baseline/stream.h"
#include "benchmark/baseline/worker_pool.h"
#include "example/rpc/echo_service.pb.h"
#include "flare/base/clock.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/rpc_status.h"
#include "gtest/gtest.h"

namespace baseline {
namespace {

using example::protobuf_echo::EchoRequest;

// --- EventLoop -------------------------------------------------------------

struct CountingTask final : LoopTask {
  void RunInLoop() override {
    in_order = *last < number;
    *last = number;
    // release: pairs with the acquire in the test.
    done->fetch_add(1, std::memory_order_release);
  }
  int number = 0;
  int* last = nullptr;  // The loop's own.
  bool in_order = false;
  std::atomic<int>* done = nullptr;
};

TEST(EventLoopTest, RunsWhatIsPostedInOrderAndOnce) {
  constexpr int kThreads = 4;
  constexpr int kTasks = 5000;
  std::vector<std::vector<CountingTask>> tasks(kThreads);
  int last[kThreads];
  std::atomic<int> done{0};
  RunningLoop loop;
  std::vector<std::thread> threads;
  for (int t = 0; t != kThreads; ++t) {
    last[t] = -1;
    tasks[t].resize(kTasks);
    threads.emplace_back([&, t] {
      for (int i = 0; i != kTasks; ++i) {
        CountingTask& task = tasks[t][i];
        task.number = i;
        task.last = &last[t];
        task.done = &done;
        loop->Post(&task);
        if (i % 100 == 0) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // acquire: pairs with the release in CountingTask.
  ASSERT_TRUE(Eventually([&] {
    return done.load(std::memory_order_acquire) == kThreads * kTasks;
  }));
  loop.Join();
  for (const auto& own : tasks) {
    for (const CountingTask& task : own) EXPECT_TRUE(task.in_order);
  }
}

TEST(EventLoopTest, StopBeforeRunIsSeen) {
  EventLoop loop;
  loop.Stop();
  loop.Run();
}

TEST(EventLoopTest, RunsWhatItWasLeftWith) {
  int last = -1;
  std::atomic<int> done{0};
  CountingTask task;
  task.last = &last;
  task.done = &done;
  {
    EventLoop loop;
    loop.Stop();
    loop.Post(&task);
  }
  EXPECT_EQ(done.load(), 1);
}

// --- Streams ---------------------------------------------------------------

class IgnoringStream final : public Stream {
 public:
  IgnoringStream(flare::io::UniqueFd fd, bool* ended)
      : Stream(std::move(fd)), ended_(ended) {}

 private:
  bool OnData(flare::Buffer& in, std::size_t*) override {
    in.Clear();
    return true;
  }
  void OnEndOfInput() override { *ended_ = true; }
  void OnClosed() override { Discard(); }

  bool* const ended_;
};

class IgnoringBareStream final : public BareStream {
 public:
  IgnoringBareStream(flare::io::UniqueFd fd, bool* ended)
      : BareStream(std::move(fd)), ended_(ended) {}

 private:
  std::size_t OnInput(char*, std::size_t size, std::size_t*) override {
    return size;
  }
  void OnClosed() override { *ended_ = true; }

  bool* const ended_;
};

template <class Stream>
class StreamTest : public testing::Test {};
using Streams = testing::Types<IgnoringStream, IgnoringBareStream>;
TYPED_TEST_SUITE(StreamTest, Streams);

// As when it was told of while input paused, or with more than is read at once.
TYPED_TEST(StreamTest, SeesAnEndThatWasToldOfEarlier) {
  EventLoop loop;  // Which the test is, itself.
  Peer peer;
  bool ended = false;
  auto stream = std::make_unique<TypeParam>(peer.TakeOtherEnd(), &ended);
  Watched* const it = stream.get();
  loop.AdoptHere(std::move(stream));
  it->OnEvents(EPOLLIN | EPOLLRDHUP);
  EXPECT_FALSE(ended);
  peer.Send("x");
  peer.EndOutput();
  it->OnEvents(EPOLLIN);  // The event that AskAgain() makes.
  EXPECT_TRUE(ended);
}

// --- Servers ---------------------------------------------------------------

enum class Model { kInline, kPool };

class ServerTest : public testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    protocols_ = *flare::rpc::ServerProtocolSet::FromNames(
        {"trpc", "flare", "http+pb"}, Peer::Limits());
    if (GetParam() == Model::kPool) {
      pool_ = std::make_unique<WorkerPool>(3, example::WorkSource());
      handler_ = std::make_unique<PoolHandler>(pool_.get());
    } else {
      handler_ = std::make_unique<InlineHandler>(example::WorkSource());
    }
    loop_ = std::make_unique<RunningLoop>();
  }
  void TearDown() override {
    loop_->Join();
    pool_.reset();
    loop_.reset();
  }

  void Connect(Peer* peer) {
    loop_->get()->Adopt(std::make_unique<ServerConnection>(
        peer->TakeOtherEnd(), *protocols_, handler_.get(), &requests_));
  }

  std::optional<flare::rpc::ServerProtocolSet> protocols_;
  example::RequestCounter requests_;
  std::unique_ptr<WorkerPool> pool_;
  std::unique_ptr<CallHandler> handler_;
  std::unique_ptr<RunningLoop> loop_;
};

INSTANTIATE_TEST_SUITE_P(Models, ServerTest,
                         testing::Values(Model::kInline, Model::kPool),
                         [](const auto& info) {
                           return info.param == Model::kInline ? "Inline"
                                                               : "Pool";
                         });

TEST_P(ServerTest, EchoesInAllProtocols) {
  for (const char* scheme : {"flare", "http+pb", "trpc"}) {
    SCOPED_TRACE(scheme);
    Peer peer(scheme);
    Connect(&peer);
    std::string bytes;
    for (std::uint64_t id = 1; id <= 300; ++id) {
      bytes += peer.Encode(id, std::string(id, 'x'));
    }
    peer.Send(bytes);
    const auto replies = peer.Receive(300);
    ASSERT_EQ(replies.size(), 300);
    for (const auto& [id, reply] : replies) {
      EXPECT_EQ(reply.status, 0);
      EXPECT_EQ(reply.body, std::string(id, 'x'));
    }
  }
  EXPECT_EQ(requests_.Total(), 900);
}

TEST_P(ServerTest, TakesRequestsInPieces) {
  for (const char* scheme : {"flare", "http+pb", "trpc"}) {
    SCOPED_TRACE(scheme);
    Peer peer(scheme);
    Connect(&peer);
    const std::string bytes = peer.Encode(1, "abc") + peer.Encode(2, "d");
    for (const char c : bytes) peer.Send({&c, 1});
    auto replies = peer.Receive(2);
    ASSERT_EQ(replies.size(), 2);
    EXPECT_EQ(replies[1].body, "abc");
    EXPECT_EQ(replies[2].body, "d");
  }
}

TEST_P(ServerTest, EchoesMuchAndAttachments) {
  Peer peer;
  Connect(&peer);
  const std::string body(5 << 20, 'b');
  // A thread of its own sends: the server doesn't read as long as nobody takes
  // its replies.
  std::thread sender([&] {
    for (std::uint64_t id = 1; id <= 2; ++id) {
      peer.Send(peer.Encode(id, body, kEchoMethod, "attached"));
    }
  });
  const auto replies = peer.Receive(2);
  sender.join();
  ASSERT_EQ(replies.size(), 2);
  for (const auto& [id, reply] : replies) {
    EXPECT_TRUE(reply.body == body);
    EXPECT_EQ(reply.attachment, "attached");
  }
}

TEST_P(ServerTest, RefusesUnknownMethodsAndGoesOn) {
  Peer peer;
  Connect(&peer);
  peer.Send(peer.Encode(1, "a", "no.such.Method") +
            peer.Encode(2, "a", kRelayMethod) + peer.Encode(3, "a"));
  auto replies = peer.Receive(3);
  EXPECT_EQ(replies[1].status, flare::rpc::STATUS_METHOD_NOT_FOUND);
  EXPECT_EQ(replies[2].status, flare::rpc::STATUS_METHOD_NOT_FOUND);
  EXPECT_EQ(replies[3].status, 0);
}

TEST_P(ServerTest, ClosesAfterNonsense) {
  Peer at_once;
  Connect(&at_once);
  at_once.Send("\x01\x02\x03 what is this?");
  EXPECT_TRUE(at_once.IsClosedByServer());

  // Earlier valid requests are answered first.
  Peer later;
  Connect(&later);
  later.Send(later.Encode(1, "a") + "nonsense, more than a header of it");
  EXPECT_EQ(later.Receive(1).size(), 1);
  EXPECT_TRUE(later.IsClosedByServer());
  EXPECT_TRUE(Eventually([&] { return loop_->get()->connections() == 0; }));
}

TEST_P(ServerTest, AnswersWhoHasEndedItsOutput) {
  Peer peer;
  Connect(&peer);
  std::string bytes;
  for (std::uint64_t id = 1; id <= 100; ++id) bytes += peer.Encode(id, "a");
  peer.Send(bytes);
  peer.EndOutput();
  EXPECT_EQ(peer.Receive(100).size(), 100);
  EXPECT_TRUE(peer.IsClosedByServer());
}

TEST_P(ServerTest, OutlivesPeersThatGo) {
  constexpr int kPeers = 100;
  for (int i = 0; i != kPeers; ++i) {
    Peer peer;
    Connect(&peer);
    const std::string bytes = peer.Encode(1, std::string(10000, 'a'));
    for (int j = 0; j != i % 4; ++j) peer.Send(bytes);
    peer.Send(bytes.substr(0, static_cast<std::size_t>(i) * 100));
    peer.Close();
  }
  EXPECT_TRUE(Eventually([&] { return loop_->get()->connections() == 0; }));
  Peer peer;
  Connect(&peer);
  peer.Send(peer.Encode(1, "still there"));
  EXPECT_EQ(peer.Receive(1)[1].body, "still there");
}

TEST_P(ServerTest, DoesWhatRequestsAskFor) {
  Peer peer;
  Connect(&peer);
  EchoRequest slow;
  slow.set_body("slow");
  slow.set_work(example::protobuf_echo::SLEEP_FIBER);  // Sleeps the thread.
  slow.set_work_us(2000);
  EchoRequest wrong;
  wrong.set_work_us(60'000'000);  // More than is allowed.
  const std::int64_t start = flare::NowNs();
  peer.Send(peer.Encode(1, slow) + peer.Encode(2, wrong));
  auto replies = peer.Receive(2);
  EXPECT_GE(flare::NowNs() - start, 2'000'000);
  EXPECT_EQ(replies[1].body, "slow");
  EXPECT_EQ(replies[2].status, flare::rpc::STATUS_FAILED);
}

TEST_P(ServerTest, StopsWithCallsUnderWay) {
  Peer peer;
  Connect(&peer);
  EchoRequest slow;
  slow.set_work(example::protobuf_echo::SLEEP_THREAD);
  slow.set_work_us(1000);
  std::string bytes;
  for (std::uint64_t id = 1; id <= 50; ++id) bytes += peer.Encode(id, slow);
  peer.Send(bytes);
  EXPECT_TRUE(Eventually([&] { return requests_.Total() != 0; }));
  // TearDown stops it; the sanitizers see leftovers.
}

// --- Workers ---------------------------------------------------------------

// Handlers' sleeps are compared with those of flare's: the default slack of 50
// us would double a short sleep.
TEST(WorkerPoolTest, SleepsExactly) {
  const WorkerPool pool(1, example::WorkSource());
  std::string slack;
  EXPECT_TRUE(Eventually([&] {
    for (const auto& task :
         std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      std::getline(std::ifstream(task.path() / "comm"), name);
      if (name != "worker") continue;
      const auto id = task.path().filename();
      std::getline(std::ifstream("/proc" / id / "timerslack_ns"), slack);
      return slack == "1000" || slack.empty();
    }
    return false;
  })) << slack;
  if (slack.empty()) GTEST_SKIP() << "not allowed to see it";
}

// --- Batches ---------------------------------------------------------------

class InlineHandlerTest : public testing::Test {
 protected:
  // How many replies to two calls at once come with the first write.
  std::size_t RepliesInFirstWrite(const example::WorkSource& work) {
    const auto protocols = *flare::rpc::ServerProtocolSet::FromNames({"flare"});
    example::RequestCounter requests;
    InlineHandler handler(work);
    RunningLoop loop;
    Peer peer("flare", SOCK_SEQPACKET);
    loop->Adopt(std::make_unique<ServerConnection>(
        peer.TakeOtherEnd(), protocols, &handler, &requests));
    peer.Send(peer.Encode(1, "a") + peer.Encode(2, "b"));
    const std::size_t n = peer.CountInOneRead();
    EXPECT_EQ(n + (n == 2 ? 0 : peer.CountInOneRead()), 2);
    loop.Join();
    return n;
  }
};

TEST_F(InlineHandlerTest, AnswersABatchWithOneWrite) {
  EXPECT_EQ(RepliesInFirstWrite(example::WorkSource()), 2);
}

TEST_F(InlineHandlerTest, SendsWhatIsReadyBeforeItWorks) {
  EXPECT_EQ(RepliesInFirstWrite(
                *example::MakeWorkSource("sleep_thread", 100, "fixed")),
            1);
}

}  // namespace
}  // namespace baseline
