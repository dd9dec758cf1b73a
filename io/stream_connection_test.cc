// A connection with one user at a time: connect, read, write, limits. Pauses of
// reading are in stream_connection_pause_test.cc, closing in
// stream_connection_close_test.cc, the times and threads of sends in
// stream_connection_flush_test.cc, crowds and races in
// stream_connection_stress_test.cc.
#include "flare/io/stream_connection.h"

#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "flare/fiber/latch.h"
#include "flare/fiber/scheduler/shuffle.h"
#include "flare/io/output_list.h"
#include "flare/io/testing/connection_fixture.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using testing::Deadline;
using testing::Pattern;
using testing::Receive;
using testing::RecordingHandler;
using testing::SendAll;

class StreamConnectionTest : public testing::ConnectionTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(StreamConnectionTest);

TEST_P(StreamConnectionTest, KnowsItsEnds) {
  Open();
  EXPECT_EQ(GetLocalEndpoint(connection_->fd()),
            GetRemoteEndpoint(peer_.get()));
  EXPECT_EQ(connection_->remote_endpoint(), GetLocalEndpoint(peer_.get()));
  EXPECT_EQ(connection_->group(), 0U);
  EXPECT_EQ(connection_->BufferedOutput(), 0U);
}

TEST_P(StreamConnectionTest, Reads) {
  Open();
  ASSERT_TRUE(SendAll(peer_.get(), "hello"));
  EXPECT_EQ(handler_.WaitReceived(5), "hello");
  ASSERT_TRUE(SendAll(peer_.get(), " there"));
  EXPECT_EQ(handler_.WaitReceived(11), "hello there");
}

TEST_P(StreamConnectionTest, ReadsWhatWasSentBeforeTheStart) {
  testing::SocketPair pair = testing::TcpPair();
  ASSERT_TRUE(SendAll(pair.peer.get(), "early"));
  connection_ = StreamConnection::Accepted(std::move(pair.ours), 0, &handler_);
  connection_->Start();
  EXPECT_EQ(handler_.WaitReceived(5), "early");
}

TEST_P(StreamConnectionTest, Writes) {
  Open();
  EXPECT_EQ(connection_->Write(CreateBufferSlow("one ")), WriteResult::kOk);
  EXPECT_EQ(connection_->Write(CreateBufferSlow("two")), WriteResult::kOk);
  EXPECT_EQ(connection_->Write(Buffer()), WriteResult::kOk);  // Nothing to do.
  EXPECT_EQ(Receive(peer_.get(), 7), "one two");
}

TEST_P(StreamConnectionTest, WritesBeforeTheStartGoOutAfterIt) {
  testing::SocketPair pair = testing::TcpPair();
  connection_ = StreamConnection::Accepted(std::move(pair.ours), 0, &handler_);
  EXPECT_EQ(connection_->Write(CreateBufferSlow("early")), WriteResult::kOk);
  EXPECT_EQ(connection_->BufferedOutput(), 5 + kWriteCharge);
  connection_->Start();
  EXPECT_EQ(Receive(pair.peer.get(), 5), "early");
}

// The handler sees the rest that it left together with new input, and its hint
// lets large bodies come in few pieces.
TEST_P(StreamConnectionTest, IncompleteMessagesAreKept) {
  constexpr std::size_t kMessage = 1 << 20;
  std::atomic<int> calls{0};
  std::string got;
  fiber::Event complete;
  handler_.on_data = [&](Buffer& in, std::size_t* need, std::string*) {
    EXPECT_EQ(*need, 0U);
    calls.fetch_add(1);
    if (in.size() < kMessage) {
      *need = kMessage;
      return true;
    }
    got = FlattenSlow(in.Cut(kMessage));
    EXPECT_TRUE(in.empty());
    complete.Set();
    return true;
  };
  Open();
  const std::string sent = Pattern(kMessage);
  ASSERT_TRUE(SendAll(peer_.get(), sent));
  ASSERT_TRUE(complete.WaitUntil(Deadline()));
  EXPECT_EQ(got, sent);
  EXPECT_GE(calls.load(), 1);
}

TEST_P(StreamConnectionTest, LargeTransfersBothWays) {
  Open();
  const std::string there = Pattern(3 << 20, 1);
  const std::string back = Pattern(5 << 20, 2);
  std::thread sender([&] { EXPECT_TRUE(SendAll(peer_.get(), there)); });
  for (std::size_t at = 0; at < back.size(); at += 50'000) {
    ASSERT_EQ(connection_->Write(CreateBufferSlow(back.substr(at, 50'000))),
              WriteResult::kOk);
  }
  EXPECT_EQ(Receive(peer_.get(), back.size()), back);
  sender.join();
  EXPECT_EQ(handler_.WaitReceived(there.size()), there);
  // The peer may have the last bytes before the flusher has counted them.
  while (connection_->BufferedOutput() != 0) std::this_thread::yield();
}

// A socket that takes only little at a time: the flusher waits for room again
// and again.
TEST_P(StreamConnectionTest, PartialWritesToASlowReader) {
  Open({}, /*our_send_buffer=*/2048, /*peer_receive_buffer=*/2048);
  const std::string sent = Pattern(400'000);
  for (std::size_t at = 0; at < sent.size(); at += 1000) {
    ASSERT_EQ(connection_->Write(CreateBufferSlow(sent.substr(at, 1000))),
              WriteResult::kOk);
  }
  EXPECT_GT(connection_->BufferedOutput(), 0U);
  std::string got;
  while (got.size() < sent.size()) {
    const std::string piece = Receive(
        peer_.get(), std::min<std::size_t>(777, sent.size() - got.size()));
    ASSERT_FALSE(piece.empty());
    got += piece;
  }
  EXPECT_EQ(got, sent);
}

// More pieces than one system call takes: separate blocks don't merge.
TEST_P(StreamConnectionTest, ManyPieces) {
  Open();
  std::vector<std::string> pieces;
  std::string all;
  Buffer message;
  for (int i = 0; i < 1000; ++i) {
    pieces.push_back(Pattern(300, i));
    all += pieces.back();
    message.Append(MakeForeignBuffer(std::string(pieces.back())));
  }
  ASSERT_EQ(connection_->Write(std::move(message)), WriteResult::kOk);
  EXPECT_EQ(Receive(peer_.get(), all.size()), all);
}

// Most of the memory of short ones is not their bytes.
TEST_P(StreamConnectionTest, ShortWritesCountForMore) {
  StreamConnection::Options options;
  options.max_output = 100'000;
  testing::SocketPair pair = testing::TcpPair();
  connection_ =
      StreamConnection::Accepted(std::move(pair.ours), 0, &handler_, options);
  std::size_t accepted = 0;
  while (connection_->Write(CreateBufferSlow("x")) == WriteResult::kOk)
    ++accepted;
  EXPECT_EQ(accepted, options.max_output / (1 + kWriteCharge) + 1);
  connection_->Start();
  EXPECT_EQ(Receive(pair.peer.get(), accepted), std::string(accepted, 'x'));
  while (connection_->BufferedOutput() != 0) std::this_thread::yield();
}

TEST_P(StreamConnectionTest, OutputLimit) {
  StreamConnection::Options options;
  options.max_output = 100'000;
  Open(options, 2048, 2048);
  // The peer doesn't read: soon the kernel takes no more.
  Buffer refused;
  std::size_t accepted = 0;
  for (;;) {
    refused = CreateBufferSlow(Pattern(10'000));
    const WriteResult result = connection_->Write(std::move(refused));
    if (result == WriteResult::kOverLimit) break;
    ASSERT_EQ(result, WriteResult::kOk);
    accepted += 10'000;
  }
  EXPECT_EQ(refused.size(), 10'000U);  // Untouched.
  EXPECT_GE(accepted, options.max_output);
  EXPECT_EQ(connection_->WaitWritable(1), RoomResult::kTimedOut);

  fiber::Latch written(1);
  fiber::Spawn([&] {
    EXPECT_EQ(connection_->WaitWritable(Deadline()), RoomResult::kRoom);
    EXPECT_LE(connection_->BufferedOutput(), options.max_output / 2);
    EXPECT_EQ(connection_->Write(CreateBufferSlow("last")), WriteResult::kOk);
    written.count_down();
  });
  const std::string got = Receive(peer_.get(), accepted + 4);
  EXPECT_EQ(got.size(), accepted + 4);
  EXPECT_EQ(got.substr(accepted), "last");
  EXPECT_TRUE(written.wait_for(testing::kLimit));
}

// A writer that looks for room first may write more than fits.
TEST_P(StreamConnectionTest, OutputLimitThatOnlyWaitersMind) {
  StreamConnection::Options options;
  options.max_output = 100'000;
  options.refuse_writes = false;
  Open(options, 2048, 2048);
  const std::string piece = Pattern(10'000);
  std::string all;
  for (int i = 0; i != 100; ++i) {
    ASSERT_EQ(connection_->Write(CreateBufferSlow(piece)), WriteResult::kOk)
        << i;
    all += piece;
  }
  EXPECT_FALSE(connection_->HasOutputRoom());
  EXPECT_EQ(connection_->WaitWritable(1), RoomResult::kTimedOut);
  EXPECT_EQ(Receive(peer_.get(), all.size()), all);
  EXPECT_EQ(connection_->WaitWritable(Deadline()), RoomResult::kRoom);
}

TEST_P(StreamConnectionTest, ClosingWakesWaitingWriters) {
  StreamConnection::Options options;
  options.max_output = 100'000;
  Open(options, 2048, 2048);
  // The peer doesn't read, and the kernel takes less than half of this: nobody
  // finds room before the end.
  while (connection_->Write(CreateBufferSlow(Pattern(10'000))) ==
         WriteResult::kOk) {
  }
  fiber::Latch woken(2);
  for (int i = 0; i < 2; ++i) {
    fiber::Spawn([&] {
      EXPECT_EQ(connection_->WaitWritable(), RoomResult::kClosed);
      woken.count_down();
    });
  }
  connection_->Close(Status(ECANCELED, "enough"));
  EXPECT_TRUE(woken.wait_for(testing::kLimit));
  EXPECT_EQ(connection_->WaitWritable(), RoomResult::kClosed);
}

// Output that is dropped, since the peer is gone, is no room for more: though
// nobody has read yet that it is gone.
TEST_P(StreamConnectionTest, WritersThatWaitAreToldOfAReset) {
  StreamConnection::Options options;
  options.max_output = 100'000;
  Open(options, 2048, 2048);
  ASSERT_TRUE(SendAll(peer_.get(), "x"));
  handler_.WaitReceived(1);
  connection_->PauseReading();
  while (connection_->Write(CreateBufferSlow(Pattern(10'000))) ==
         WriteResult::kOk) {
  }
  fiber::Latch woken(1);
  fiber::Spawn([&] {
    EXPECT_EQ(connection_->WaitWritable(), RoomResult::kClosed);
    woken.count_down();
  });
  peer_.Reset();  // With unread input: a reset.
  EXPECT_TRUE(woken.wait_for(testing::kLimit));
  connection_->Close(Status(ECANCELED, "enough"));
}

TEST_P(StreamConnectionTest, UrgentDataIsDataToWhomWeConnect) {
  Endpoint address;
  const UniqueFd listener = testing::PlainListener(&address);
  connection_ = StreamConnection::Connect(address, 0, &handler_);
  connection_->Start();
  peer_ = testing::PlainAccept(listener);
  ASSERT_EQ(::send(peer_.get(), "ab", 2, MSG_OOB), 2);
  ASSERT_TRUE(SendAll(peer_.get(), "c"));
  EXPECT_EQ(handler_.WaitReceived(3), "abc");
}

TEST_P(StreamConnectionTest, ActivityIsNoted) {
  const std::int64_t before = NowNs();
  Open();
  const std::int64_t created = connection_->last_activity_ns();
  EXPECT_GE(created, before - 1000);
  ASSERT_TRUE(SendAll(peer_.get(), "x"));
  handler_.WaitReceived(1);
  const std::int64_t received = connection_->last_activity_ns();
  EXPECT_GE(received, created);
  ASSERT_EQ(connection_->Write(CreateBufferSlow("y")), WriteResult::kOk);
  Receive(peer_.get(), 1);
  EXPECT_GE(connection_->last_activity_ns(), received);
}

TEST_P(StreamConnectionTest, Connects) {
  Endpoint address;
  const UniqueFd listener = testing::PlainListener(&address);
  handler_.on_connected = [&] {
    EXPECT_EQ(connection_->remote_endpoint(), address);
    EXPECT_EQ(connection_->Write(CreateBufferSlow("second")), WriteResult::kOk);
  };
  connection_ = StreamConnection::Connect(address, 0, &handler_);
  // Queued until it is connected, and before the output of OnConnected.
  EXPECT_EQ(connection_->Write(CreateBufferSlow("first ")), WriteResult::kOk);
  connection_->Start();
  peer_ = testing::PlainAccept(listener);
  handler_.WaitConnected();
  EXPECT_EQ(Receive(peer_.get(), 12), "first second");
  ASSERT_TRUE(SendAll(peer_.get(), "answer"));
  EXPECT_EQ(handler_.WaitReceived(6), "answer");
}

TEST_P(StreamConnectionTest, ConnectsInEveryGroup) {
  Endpoint address;
  const UniqueFd listener = testing::PlainListener(&address);
  for (std::size_t g = 0; g < fiber::GetSchedulingGroupCount(); ++g) {
    RecordingHandler handler;
    auto connection = StreamConnection::Connect(address, g, &handler);
    connection->Start();
    const UniqueFd peer = testing::PlainAccept(listener);
    ASSERT_TRUE(SendAll(peer.get(), "hi"));
    EXPECT_EQ(handler.WaitReceived(2), "hi");
    EXPECT_EQ(connection->group(), g);
    connection->Close(Status(ECANCELED, "done"));
    handler.WaitClosed();
  }
}

TEST_P(StreamConnectionTest, ConnectRefused) {
  // Bound, so that nobody else gets the port, but not listening.
  const UniqueFd bound(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage storage;
  const socklen_t length =
      EndpointFromIpv4("127.0.0.1", 0).ToSockaddr(&storage);
  ASSERT_EQ(::bind(bound.get(), reinterpret_cast<sockaddr*>(&storage), length),
            0);
  const Endpoint address = GetLocalEndpoint(bound.get());
  connection_ = StreamConnection::Connect(address, 0, &handler_);
  EXPECT_EQ(connection_->Write(CreateBufferSlow("lost")), WriteResult::kOk);
  connection_->Start();
  const Status why = handler_.WaitClosed();
  EXPECT_EQ(why.code(), ECONNREFUSED);
  EXPECT_EQ(why.message(),
            "connect to " + address.ToString() + ": Connection refused");
  EXPECT_EQ(connection_->Write(CreateBufferSlow("late")), WriteResult::kClosed);
}

TEST_P(StreamConnectionTest, ConnectToNonsense) {
  for (const Endpoint& address :
       {Endpoint(), EndpointFromUnix("/no/such/socket")}) {
    RecordingHandler handler;
    auto connection = StreamConnection::Connect(address, 0, &handler);
    connection->Start();
    const Status why = handler.WaitClosed();
    EXPECT_NE(why.code(), 0);
    EXPECT_EQ(why.message().rfind("connect to " + address.ToString(), 0), 0U)
        << why.message();
  }
}

TEST_P(StreamConnectionTest, BadInputCloses) {
  handler_.on_data = [](Buffer&, std::size_t*, std::string* error) {
    *error = "no magic number";
    return false;
  };
  Open();
  ASSERT_TRUE(SendAll(peer_.get(), "garbage"));
  const Status why = handler_.WaitClosed();
  EXPECT_EQ(why.code(), EPROTO);
  EXPECT_NE(why.message().find("no magic number"), std::string::npos);
  EXPECT_NE(why.message().find(connection_->remote_endpoint().ToString()),
            std::string::npos);
}

TEST_P(StreamConnectionTest, InputLimit) {
  handler_.on_data = [](Buffer&, std::size_t*, std::string*) { return true; };
  StreamConnection::Options options;
  options.max_input = 1000;
  Open(options);
  ASSERT_TRUE(SendAll(peer_.get(), Pattern(1001)));
  const Status why = handler_.WaitClosed();
  EXPECT_EQ(why.code(), EMSGSIZE);
  EXPECT_NE(why.message().find("1000 bytes"), std::string::npos)
      << why.message();
}

TEST_P(StreamConnectionTest, AnnouncedInputIsLimitedToo) {
  handler_.on_data = [](Buffer&, std::size_t* need, std::string*) {
    *need = 1001;
    return true;
  };
  StreamConnection::Options options;
  options.max_input = 1000;
  Open(options);
  ASSERT_TRUE(SendAll(peer_.get(), "x"));
  EXPECT_EQ(handler_.WaitClosed().code(), EMSGSIZE);
}

TEST(StreamConnectionSize, AnIdleOneIsSmall) {
  EXPECT_LT(sizeof(StreamConnection), 1024U);
}

}  // namespace
}  // namespace flare::io
