// Special cases of connections over HTTP: servers that end them, input that is
// no reply, and replies that are too large.
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "flare/rpc/testing/raw_server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

class ClientHttpTest : public RawServerTest {
 protected:
  void SetUp() override {
    RawServerTest::SetUp();
    FLAGS_flare_rpc_client_max_connections_per_server = 1;
  }

  static std::string Uri(const RawServer& server) {
    return "http+pb://" + server.endpoint().ToString();
  }

  // Takes a request; returns the beginning of the reply to it.
  static std::string ReadRequest(RawPeer* peer) {
    const std::string request = peer->ReadUntil("ping");
    const std::size_t at = request.find("Rpc-SeqNo: ");
    return "HTTP/1.1 200 OK\r\n" +
           request.substr(at, request.find('\n', at) + 1 - at);
  }

  static constexpr std::string_view kEmpty = "Content-Length: 0\r\n\r\n";
};

// The replies that a server had sent before it decided to close may arrive
// after the one that says so.
TEST_F(ClientHttpTest, LastReplyLeavesTheOthersTheirs) {
  RawServer server;
  RpcChannel channel(Uri(server));
  std::vector<TestedCall> calls(3);
  for (TestedCall& call : calls) call.Start(&channel);
  auto peer = server.Accept();
  std::vector<std::string> replies;
  for (int i = 0; i != 3; ++i) replies.push_back(ReadRequest(peer.get()));
  peer->Send(replies[0].append("Connection: close\r\n").append(kEmpty));
  EXPECT_EQ(calls[0].Await(), STATUS_SUCCESS)
      << calls[0].controller.ErrorText();
  // A call that comes now takes another connection.
  TestedCall late;
  late.Start(&channel);
  auto another = server.Accept();
  peer->Send(replies[1].append(kEmpty));
  EXPECT_EQ(calls[1].Await(), STATUS_SUCCESS)
      << calls[1].controller.ErrorText();
  peer->Close();
  EXPECT_EQ(calls[2].Await(), STATUS_IO_ERROR);
  another->Close();
  EXPECT_EQ(late.Await(), STATUS_IO_ERROR);
}

// A request that was sent but not answered may be sent again.
TEST_F(ClientHttpTest, CallsBehindALastReplyAreRepeated) {
  RawServer server;
  RpcChannel channel(Uri(server));
  std::vector<TestedCall> calls(2);
  calls[1].controller.SetMaxRetries(2);
  for (TestedCall& call : calls) call.Start(&channel);
  auto peer = server.Accept();
  std::string reply = ReadRequest(peer.get());
  ReadRequest(peer.get());
  peer->Send(reply.append("Connection: close\r\n").append(kEmpty));
  EXPECT_EQ(calls[0].Await(), STATUS_SUCCESS)
      << calls[0].controller.ErrorText();
  peer->Close();
  auto another = server.Accept();
  another->Send(ReadRequest(another.get()).append(kEmpty));
  EXPECT_EQ(calls[1].Await(), STATUS_SUCCESS)
      << calls[1].controller.ErrorText();
}

// A server that says that it closes the connection with this reply.
TEST_F(ClientHttpTest, LastReplyEndsTheConnection) {
  RawServer server;
  RpcChannel channel(Uri(server));
  const std::uint64_t before = GetClientStatistics().connections_opened;
  for (int i = 0; i != 3; ++i) {
    std::thread serving([&] {
      auto peer = server.Accept();
      const std::string request = peer->ReadUntil("ping");
      const std::size_t at = request.find("Rpc-SeqNo: ");
      const std::string id = request.substr(at, request.find('\r', at) - at);
      EXPECT_NE(request.find("Host: " + server.endpoint().ToString()),
                std::string::npos)
          << request;
      peer->Send("HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n" +
                 id + "\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
      peer->ReadAll();
    });
    std::string text;
    EXPECT_EQ(CallOnce(&channel, &text), STATUS_SUCCESS) << text;
    serving.join();
  }
  EXPECT_EQ(GetClientStatistics().connections_opened, before + 3);
}

// One that comes too late shows, too, that the server is well: the next call
// isn't told to wait for a better time to connect.
TEST_F(ClientHttpTest, LateLastReplyIsNoFailure) {
  RawServer server;
  RpcChannel channel(Uri(server));
  for (int i = 0; i != 3; ++i) {
    TestedCall call;
    call.Start(&channel);
    auto peer = server.Accept();
    std::string reply = ReadRequest(peer.get());
    call.controller.StartCancel();
    EXPECT_EQ(call.Await(), STATUS_FAILED) << call.controller.ErrorText();
    peer->Send(reply.append("Connection: close\r\n").append(kEmpty));
    EXPECT_TRUE(peer->AtEnd());
  }
}

// Calls don't wait for their time-outs when something else listens there.
TEST_F(ClientHttpTest, WhatIsNoHttpFailsCallsAtOnce) {
  RawServer server;
  RpcChannel channel(Uri(server));
  TestedCall call;
  call.Start(&channel);
  auto peer = server.Accept();
  peer->Send("SSH-2.0-some_server\r\n");
  EXPECT_EQ(call.Await(), STATUS_IO_ERROR);
  const std::string text = call.controller.ErrorText();
  EXPECT_NE(text.find(server.endpoint().ToString()), std::string::npos) << text;
  EXPECT_NE(text.find("no HTTP/1.x response"), std::string::npos) << text;
}

TEST_F(ClientHttpTest, TooLargeAReplyFailsItsCallAlone) {
  RawServer server;
  RpcChannel channel(Uri(server), {.maximum_packet_size = 1000});
  std::vector<TestedCall> calls(2);
  for (TestedCall& call : calls) call.Start(&channel);
  auto peer = server.Accept();
  std::vector<std::string> replies;
  for (int i = 0; i != 2; ++i) replies.push_back(ReadRequest(peer.get()));
  peer->Send(replies[0] + "Content-Length: 100000\r\n\r\n");
  // Before its body has come.
  EXPECT_EQ(calls[0].Await(), STATUS_MALFORMED_DATA);
  const std::string text = calls[0].controller.ErrorText();
  EXPECT_NE(text.find("exceeds the limit of 1000"), std::string::npos) << text;
  peer->Send(std::string(100'000, 'x') + replies[1].append(kEmpty));
  EXPECT_EQ(calls[1].Await(), STATUS_SUCCESS)
      << calls[1].controller.ErrorText();
  // Nor is the connection given up.
  TestedCall next;
  next.Start(&channel);
  peer->Send(ReadRequest(peer.get()).append(kEmpty));
  EXPECT_EQ(next.Await(), STATUS_SUCCESS) << next.controller.ErrorText();
}

// Nothing waits behind bytes that may never come.
TEST_F(ClientHttpTest, TooLargeAReplyToSkipEndsTheConnection) {
  RawServer server;
  RpcChannel channel(Uri(server));
  std::vector<TestedCall> calls(2);
  for (TestedCall& call : calls) call.Start(&channel);
  auto peer = server.Accept();
  const std::string reply = ReadRequest(peer.get());
  ReadRequest(peer.get());
  peer->Send(reply + "Content-Length: 18446744073709551615\r\n\r\n");
  EXPECT_EQ(calls[0].Await(), STATUS_MALFORMED_DATA);
  EXPECT_EQ(calls[1].Await(), STATUS_IO_ERROR);
  EXPECT_TRUE(peer->AtEnd());
}

// How much of it is to come isn't known.
TEST_F(ClientHttpTest, TooLargeAReplyInChunksEndsTheConnection) {
  RawServer server;
  RpcChannel channel(Uri(server), {.maximum_packet_size = 1000});
  std::vector<TestedCall> calls(2);
  for (TestedCall& call : calls) call.Start(&channel);
  auto peer = server.Accept();
  const std::string reply = ReadRequest(peer.get());
  ReadRequest(peer.get());
  peer->Send(reply + "Transfer-Encoding: chunked\r\n\r\n1000\r\n");
  EXPECT_EQ(calls[0].Await(), STATUS_MALFORMED_DATA);
  const std::string text = calls[0].controller.ErrorText();
  EXPECT_NE(text.find("exceeds the limit of 1000"), std::string::npos) << text;
  EXPECT_EQ(calls[1].Await(), STATUS_IO_ERROR);
  EXPECT_TRUE(peer->AtEnd());
}

}  // namespace
}  // namespace flare::rpc::testing
