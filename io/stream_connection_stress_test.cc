// Crowds of connections, and closing from many threads at once. Faults show as
// a hang, a failed count, or a sanitizer's report.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/fiber/fiber.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/stream_connection.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using testing::Deadline;
using testing::Pattern;
using testing::Receive;
using testing::RecordingHandler;
using testing::SendAll;

// An echo server that counts its connections.
class EchoServer {
 public:
  EchoServer() {
    auto acceptor =
        Acceptor::Listen(EndpointFromIpv4("127.0.0.1", 0), {},
                         [this](UniqueFd fd, Endpoint, std::size_t group) {
                           opened_.fetch_add(1);
                           auto* const handler = new testing::EchoHandler(
                               [this](const Status&) { closed_.fetch_add(1); });
                           handler->Serve(StreamConnection::Accepted(
                               std::move(fd), group, handler));
                         });
    EXPECT_TRUE(acceptor.has_value()) << acceptor.error().message();
    acceptor_ = std::move(*acceptor);
  }

  // Waits until all connections are closed, by their peers.
  ~EchoServer() {
    acceptor_->Join();
    const std::int64_t deadline = Deadline();
    while (closed_.load() != opened_.load() && NowNs() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_EQ(closed_.load(), opened_.load());
  }

  const Endpoint& endpoint() const { return acceptor_->local_endpoint(); }
  int opened() const { return opened_.load(); }

 private:
  std::atomic<int> opened_{0};
  std::atomic<int> closed_{0};
  std::unique_ptr<Acceptor> acceptor_;
};

// Plays ping-pong: sends the next message once the last has come back whole.
class PingPong : public StreamHandler {
 public:
  PingPong(int rounds, std::size_t size, fiber::Latch* done)
      : rounds_(rounds), message_(Pattern(size)), done_(done) {}

  void Play(const Endpoint& server, std::size_t group) {
    connection_ = StreamConnection::Connect(server, group, this,
                                            testing::PatientOptions());
    connection_->Start();
  }

  void OnConnected() override { Next(); }
  bool OnData(Buffer& in, std::size_t* need, std::string*) override {
    if (in.size() < message_.size()) {
      *need = message_.size();
      return true;
    }
    EXPECT_EQ(FlattenSlow(in), message_);
    in.Clear();
    Next();
    return true;
  }
  void OnClosed(const Status& why) override {
    EXPECT_EQ(why.message(), "played") << why.message();
    fiber::Latch* const done = done_;
    delete this;
    done->count_down();
  }

 private:
  void Next() {
    if (rounds_-- > 0) {
      EXPECT_EQ(connection_->Write(CreateBufferSlow(message_)),
                WriteResult::kOk);
    } else {
      connection_->CloseAfterFlush(Status(1, "played"));
    }
  }

  int rounds_;
  const std::string message_;
  fiber::Latch* const done_;
  RefPtr<StreamConnection> connection_;
};

class StressTest : public testing::IoTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(StressTest);

// A thousand at once, if the limit on descriptors lets us: two each.
TEST_P(StressTest, AThousandConnectionsEcho) {
  rlimit limit;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 4096);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  const int at_once = limit.rlim_cur >= 2200 ? 1000 : 250;
  EchoServer server;
  for (int opened = 0; opened < 1000; opened += at_once) {
    fiber::Latch done(at_once);
    for (int i = 0; i < at_once; ++i) {
      (new PingPong(/*rounds=*/4, /*size=*/1 + i * 5, &done))
          ->Play(server.endpoint(), i % fiber::GetSchedulingGroupCount());
    }
    ASSERT_TRUE(done.wait_for(testing::kLimit));
  }
  EXPECT_EQ(server.opened(), 1000);
}

TEST_P(StressTest, LargeMessagesEcho) {
  EchoServer server;
  fiber::Latch done(8);
  for (int i = 0; i < 8; ++i) {
    (new PingPong(/*rounds=*/3, /*size=*/1'000'000 + i, &done))
        ->Play(server.endpoint(), i % fiber::GetSchedulingGroupCount());
  }
  EXPECT_TRUE(done.wait_for(testing::kLimit));
}

// Frames of many writers, from fibers and threads, arrive whole and in each
// writer's order.
TEST_P(StressTest, ManyWritersOneConnection) {
  constexpr int kWriters = 6;
  constexpr int kEach = 2000;
  constexpr std::size_t kFrame = 8;
  testing::SocketPair pair = testing::TcpPair(4096, 4096);
  RecordingHandler handler;
  auto connection =
      StreamConnection::Accepted(std::move(pair.ours), 0, &handler);
  connection->Start();
  const auto write = [&](std::uint32_t writer) {
    for (std::uint32_t i = 0; i < kEach; ++i) {
      char frame[kFrame];
      std::memcpy(frame, &writer, 4);
      std::memcpy(frame + 4, &i, 4);
      EXPECT_EQ(connection->Write(CreateBufferSlow({frame, kFrame})),
                WriteResult::kOk);
    }
  };
  fiber::Latch fibers(kWriters / 2);
  std::vector<std::thread> threads;
  for (std::uint32_t w = 0; w < kWriters / 2; ++w) {
    fiber::Spawn([&, w] {
      write(w);
      fibers.count_down();
    });
    threads.emplace_back(write, w + kWriters / 2);
  }
  std::vector<std::uint32_t> next(kWriters, 0);
  for (int i = 0; i < kWriters * kEach; ++i) {
    const std::string frame = Receive(pair.peer.get(), kFrame);
    ASSERT_EQ(frame.size(), kFrame);
    std::uint32_t writer;
    std::uint32_t number;
    std::memcpy(&writer, frame.data(), 4);
    std::memcpy(&number, frame.data() + 4, 4);
    ASSERT_LT(writer, next.size());
    ASSERT_EQ(number, next[writer]++);
  }
  for (auto& thread : threads) thread.join();
  fibers.wait();
  connection->Close(Status(1, "done"));
  handler.WaitClosed();
}

// Writers that respect the limit against a slow reader: memory stays bounded
// and nobody hangs.
TEST_P(StressTest, BackPressureEndToEnd) {
  constexpr int kWriters = 4;
  constexpr int kEach = 100;
  constexpr std::size_t kSize = 5000;
  testing::SocketPair pair = testing::TcpPair(4096, 4096);
  RecordingHandler handler;
  StreamConnection::Options options;
  options.max_output = 20'000;
  auto connection =
      StreamConnection::Accepted(std::move(pair.ours), 0, &handler, options);
  connection->Start();
  fiber::Latch written(kWriters);
  for (int w = 0; w < kWriters; ++w) {
    fiber::Spawn([&] {
      for (int i = 0; i < kEach; ++i) {
        Buffer data = CreateBufferSlow(Pattern(kSize));
        while (connection->Write(std::move(data)) == WriteResult::kOverLimit) {
          EXPECT_EQ(connection->WaitWritable(Deadline()), RoomResult::kRoom);
        }
        EXPECT_LE(connection->BufferedOutput(),
                  options.max_output + kWriters * kSize);
      }
      written.count_down();
    });
  }
  const std::size_t total = kWriters * kEach * kSize;
  EXPECT_EQ(Receive(pair.peer.get(), total).size(), total);
  EXPECT_TRUE(written.wait_for(testing::kLimit));
  connection->Close(Status(1, "done"));
  handler.WaitClosed();
}

// Everything at once on short-lived connections: writers, a talkative peer, a
// peer that vanishes, pauses, and closers of each kind. At the end there is one
// OnClosed each, and nothing is left.
TEST_P(StressTest, ClosingRaces) {
  constexpr int kRounds = 150;
  std::mt19937 random(7);
  for (int round = 0; round < kRounds; ++round) {
    RecordingHandler handler;
    testing::SocketPair pair = testing::TcpPair(2048, 2048);
    StreamConnection::Options options;
    options.linger_ns = 1'000'000;
    options.max_output = 100'000;
    auto connection = StreamConnection::Accepted(
        std::move(pair.ours), round % fiber::GetSchedulingGroupCount(),
        &handler, options);
    fiber::Latch ended(5);
    const auto spawn = [&](auto f) {
      fiber::Spawn([&ended, f] {
        f();
        ended.count_down();
      });
    };
    const unsigned kind = random() % 5;
    spawn([&] { connection->Start(); });
    spawn([&] {
      for (int i = 0; i < 100; ++i) {
        if (connection->Write(CreateBufferSlow(Pattern(3000))) ==
            WriteResult::kClosed) {
          break;
        }
      }
    });
    spawn([&] {
      connection->PauseReading();
      connection->ResumeReading();
      while (connection->WaitWritable(NowNs() + 100'000) !=
             RoomResult::kClosed) {
        this_fiber::Yield();  // It may be writable all the time.
      }
    });
    spawn([&, kind] {
      if (kind == 0) connection->CloseAfterFlush(Status(1, "flushed"));
      if (kind == 1) connection->EndInput();
      connection->Close(Status(2, "closed"));
    });
    spawn([&, kind] {
      if (kind != 2) connection->Close(Status(3, "closed too"));
    });
    static_cast<void>(SendAll(pair.peer.get(), Pattern(2000)));
    if (kind == 3) testing::ResetOnClose(pair.peer.get());
    if (kind >= 3) pair.peer.Reset();
    handler.WaitClosed();
    ASSERT_TRUE(ended.wait_for(testing::kLimit));
    testing::ExpectGone(connection);
  }
}

// Peers that go away while writers write and wait for room, as does the reader:
// nothing that is written beside the send that fails stays behind.
TEST_P(StressTest, WritesBesideASendThatFails) {
  constexpr int kRounds = 15;
  constexpr int kConnections = 8;
  constexpr int kWriters = 3;
  struct One {
    RecordingHandler handler;
    testing::SocketPair pair = testing::TcpPair();
    RefPtr<StreamConnection> connection;
  };
  StreamConnection::Options options;
  options.max_output = 20'000;
  const std::string large = Pattern(15'000);  // One of them leaves no room.
  for (int round = 0; round < kRounds; ++round) {
    std::vector<One> all(kConnections);
    fiber::Latch ended(kConnections * kWriters);
    for (One& one : all) {
      one.handler.on_data = [&](Buffer& in, std::size_t*, std::string*) {
        in.Clear();
        static_cast<void>(one.connection->Write(CreateBufferSlow(large)));
        one.connection->PauseReadingForOutput();
        return true;
      };
      one.connection = StreamConnection::Accepted(std::move(one.pair.ours), 0,
                                                  &one.handler, options);
      one.connection->Start();
      for (int w = 0; w < kWriters; ++w) {
        fiber::Spawn([&] {
          WriteResult result;
          do {
            result = one.connection->Write(CreateBufferSlow(large));
            if (result == WriteResult::kOverLimit &&
                one.connection->WaitWritable(Deadline()) ==
                    RoomResult::kTimedOut) {
              break;
            }
          } while (result != WriteResult::kClosed);
          EXPECT_EQ(result, WriteResult::kClosed);
          ended.count_down();
        });
      }
    }
    std::vector<std::thread> peers;
    for (One& one : all) {
      peers.emplace_back([&one] {
        EXPECT_TRUE(SendAll(one.pair.peer.get(), "x"));
        static_cast<void>(Receive(one.pair.peer.get(), 200'000));
        testing::ResetOnClose(one.pair.peer.get());
        one.pair.peer.Reset();
      });
    }
    for (std::thread& peer : peers) peer.join();
    for (One& one : all) one.handler.WaitClosed();
    ASSERT_TRUE(ended.wait_for(testing::kLimit));
    for (One& one : all) testing::ExpectGone(one.connection);
  }
}

// Outgoing connections closed at any moment of their making.
TEST_P(StressTest, ConnectingRaces) {
  constexpr int kRounds = 200;
  EchoServer server;
  for (int round = 0; round < kRounds; ++round) {
    RecordingHandler handler;
    auto connection = StreamConnection::Connect(
        server.endpoint(), round % fiber::GetSchedulingGroupCount(), &handler);
    fiber::Latch ended(3);
    fiber::Spawn([&] {
      connection->Start();
      ended.count_down();
    });
    fiber::Spawn([&] {
      while (connection->Write(CreateBufferSlow("x")) == WriteResult::kOk) {
        this_fiber::Yield();
      }
      ended.count_down();
    });
    fiber::Spawn([&, round] {
      for (int i = 0; i < round % 20; ++i) this_fiber::Yield();
      if (round % 3 == 0) {
        connection->CloseAfterFlush(Status(1, "flushed"));
      } else {
        connection->Close(Status(2, "closed"));
      }
      ended.count_down();
    });
    handler.WaitClosed();
    ASSERT_TRUE(ended.wait_for(testing::kLimit));
  }
}

}  // namespace
}  // namespace flare::io
