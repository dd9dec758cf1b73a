// Which of a set's connections a call gets.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/io/epoll_poller.h"
#include "flare/rpc/client/client_connection.h"
#include "flare/rpc/testing/raw_server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

class PeerConnectionsTest : public RawServerTest {};

// Busy connections make it open more, up to the limit, and then take turns.
TEST_F(PeerConnectionsTest, OpensMoreOnlyWhileAllAreBusy) {
  FLAGS_flare_rpc_client_max_connections_per_server = 3;
  RawServer server;
  RpcChannel channel(server.uri());
  std::vector<TestedCall> calls(12);
  std::vector<std::unique_ptr<RawPeer>> peers;
  std::vector<std::vector<std::uint64_t>> ids(3);
  for (int i = 0; i != 3; ++i) {
    calls[i].Start(&channel);
    peers.push_back(server.Accept());
    ids[i].push_back(peers[i]->ReadRequest()->id);  // It is established.
  }
  for (int i = 3; i != 12; ++i) calls[i].Start(&channel);
  for (int i = 0; i != 3; ++i) {
    for (int n = 0; n != 3; ++n) {
      ids[i].push_back(peers[i]->ReadRequest()->id);
    }
  }
  EXPECT_FALSE(server.HasVisitor());
  EXPECT_EQ(SetOf(server)->size(), 3);
  for (int i = 0; i != 3; ++i) {
    for (std::uint64_t id : ids[i]) peers[i]->Reply(id, "pong");
  }
  for (TestedCall& call : calls) EXPECT_EQ(call.Await(), STATUS_SUCCESS);
}

// A controller that is used again stays with its connection.
TEST_F(PeerConnectionsTest, ControllerPrefersItsConnection) {
  FLAGS_flare_rpc_client_max_connections_per_server = 2;
  RawServer server;
  RpcChannel channel(server.uri());
  std::vector<TestedCall> calls(2);
  std::vector<std::unique_ptr<RawPeer>> peers;
  std::vector<std::uint64_t> ids;
  for (TestedCall& call : calls) {
    call.Start(&channel);
    peers.push_back(server.Accept());
    ids.push_back(peers.back()->ReadRequest()->id);
  }
  for (std::size_t i = 0; i != calls.size(); ++i) {
    peers[i]->Reply(ids[i], "pong");
    calls[i].Await();
  }
  for (int i = 0; i != 10; ++i) {
    const int which = i * 7 % 3 % 2;
    RpcClientController& controller = calls[which].controller;
    controller.Reset();
    std::thread answering(
        [&] { peers[which]->Reply(peers[which]->ReadRequest()->id, "pong"); });
    TestService_Stub(&channel).Call(&controller, &calls[which].request,
                                    &calls[which].response, nullptr);
    EXPECT_FALSE(controller.Failed());
    answering.join();
  }
}

// Two connections, and no more, to one server; this is a user of each.
class TwoConnectionsTest : public PeerConnectionsTest {
 protected:
  void SetUp() override {
    PeerConnectionsTest::SetUp();
    FLAGS_flare_rpc_client_max_connections_per_server = 2;
    server_ = std::make_unique<RawServer>();
    channel_ = std::make_unique<RpcChannel>(server_->uri());
    peers_.push_back(Connect(channel_.get(), server_.get()));
    set_ = SetOf(*server_);
    first_ = *set_->Acquire(nullptr);
    second_ = *set_->Acquire(first_);
    peers_.push_back(server_->Accept());
  }

  void TearDown() override {
    for (ClientConnection* c : {first_, second_}) c->RemoveUser();
    set_.reset();
    peers_.clear();
    channel_.reset();
    server_.reset();
    PeerConnectionsTest::TearDown();
  }

  // It may take a while until the second one is established, and offered.
  bool BothAreOffered() {
    const std::int64_t deadline_ns = NowNs() + 20'000'000'000;
    while (NowNs() < deadline_ns) {
      ClientConnection* const chosen = *set_->Acquire(nullptr);
      chosen->RemoveUser();
      if (chosen == second_) return true;
    }
    return false;
  }

  std::unique_ptr<RawServer> server_;
  std::unique_ptr<RpcChannel> channel_;
  std::vector<std::unique_ptr<RawPeer>> peers_;
  std::shared_ptr<PeerConnections> set_;
  ClientConnection* first_ = nullptr;
  ClientConnection* second_ = nullptr;
};

// A controller's connection is not preferred while another call is on it and
// there may be more: callers who came to share one part again.
TEST_F(TwoConnectionsTest, BusyOnesAreNotPreferredBelowTheLimit) {
  EXPECT_NE(second_, first_);
  ClientConnection* const third = *set_->Acquire(first_);
  EXPECT_EQ(third, first_);
  third->RemoveUser();
}

// Where there may be no more, callers who have all come to use the same one
// divide themselves among all.
TEST_F(TwoConnectionsTest, CallersEvenOut) {
  std::vector<ClientConnection*> callers(20);
  for (ClientConnection*& caller : callers) {
    first_->AddUser();
    caller = first_;
  }
  int moves = 0;
  const auto call_again = [&] {
    for (ClientConnection*& caller : callers) {
      ClientConnection* const before = caller;
      caller->RemoveUser();
      caller = *set_->Acquire(caller);
      if (caller != before) ++moves;
    }
  };
  // It may take a while until the second one is established.
  const std::int64_t deadline_ns = NowNs() + 20'000'000'000;
  while (moves < 10 && NowNs() < deadline_ns) call_again();
  for (int round = 0; round != 100; ++round) call_again();
  EXPECT_EQ(std::count(callers.begin(), callers.end(), second_), 10);
  EXPECT_EQ(moves, 10);  // Nobody has gone back.
  for (ClientConnection* c : callers) c->RemoveUser();
}

// Calls that fibers make between two looks for events share a connection, 16 at
// most.
TEST_F(TwoConnectionsTest, CallsOfOneMomentShareOne) {
  ASSERT_TRUE(BothAreOffered());
  std::vector<ClientConnection*> chosen(160);
  std::uint64_t fetches = 0;
  OnFiber([&] {
    const auto* const poller =
        io::EpollPoller::OfGroup(fiber::GetCurrentSchedulingGroupIndex());
    const std::uint64_t before = poller->fetches();
    for (ClientConnection*& c : chosen) c = *set_->Acquire(nullptr);
    fetches = poller->fetches() - before;
  });
  std::size_t turns = 1, length = 1;
  for (std::size_t i = 1; i != chosen.size(); ++i) {
    length = chosen[i] == chosen[i - 1] ? length + 1 : 1;
    ASSERT_LE(length, 16);
    if (length == 1) ++turns;
  }
  EXPECT_GE(turns, 160 / 16);
  EXPECT_LE(turns, 160 / 16 + 1 + fetches);
  for (ClientConnection* c : chosen) c->RemoveUser();
}

// Threads send each call at once, so it gains nothing by company.
TEST_F(TwoConnectionsTest, CallsOfThreadsTakeTurns) {
  ASSERT_TRUE(BothAreOffered());
  ClientConnection* last = nullptr;
  for (int i = 0; i != 20; ++i) {
    ClientConnection* const chosen = *set_->Acquire(nullptr);
    EXPECT_NE(chosen, last);
    last = chosen;
    chosen->RemoveUser();
  }
}

// Three scheduling groups of one worker.
class GroupedConnectionsTest : public PeerConnectionsTest {
 protected:
  int workers() const override { return 3; }
  std::optional<int> group_size() const override { return 1; }

  // How many calls that wait at the same time open, at most, in a group.
  static std::size_t LimitOf(std::size_t group, const RawServer& server) {
    RpcChannel channel(server.uri());  // There is a client side, then.
    const auto set = SetOf(server, group);
    std::vector<ClientConnection*> busy(9);
    for (ClientConnection*& c : busy) c = *set->Acquire(nullptr);
    const std::size_t size = set->size();
    for (ClientConnection* c : busy) c->RemoveUser();
    return size;
  }
};

TEST_F(GroupedConnectionsTest, AllConnectionsAreDealtOut) {
  FLAGS_flare_rpc_client_max_connections_per_server = 5;
  RawServer server;
  EXPECT_EQ(LimitOf(0, server), 2);
  EXPECT_EQ(LimitOf(1, server), 2);
  EXPECT_EQ(LimitOf(2, server), 1);
}

TEST_F(GroupedConnectionsTest, EachGroupHasOneAtLeast) {
  FLAGS_flare_rpc_client_max_connections_per_server = 1;
  RawServer server;
  for (std::size_t group = 0; group != 3; ++group) {
    EXPECT_EQ(LimitOf(group, server), 1) << group;
  }
}

}  // namespace
}  // namespace flare::rpc::testing
