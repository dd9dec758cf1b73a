// A runtime with a RawServer, and steps that tests of it share.
#ifndef FLARE_RPC_TESTING_RAW_SERVER_FIXTURE_H_
#define FLARE_RPC_TESTING_RAW_SERVER_FIXTURE_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "flare/base/clock.h"
#include "flare/rpc/client/client_defaults.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {

class RawServerTest : public ClientTest {
 protected:
  // One call through, so that the connection is established.
  static std::unique_ptr<RawPeer> Connect(RpcChannel* channel,
                                          RawServer* server) {
    TestedCall call;
    call.Start(channel);
    auto peer = server->Accept();
    peer->Reply(peer->ReadRequest()->id, "pong");
    EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
    return peer;
  }

  // A call that was sent and waits for a reply, with so little time (by
  // default: the flag's) that on a busy machine it may be over before it is
  // sent. Then it is started anew.
  static std::unique_ptr<TestedCall> StartShort(
      RpcChannel* channel,
      std::optional<std::chrono::milliseconds> timeout = std::nullopt) {
    const std::int64_t give_up_ns = NowNs() + 20'000'000'000;
    for (;;) {
      auto call = std::make_unique<TestedCall>();
      if (timeout) call->controller.SetTimeout(*timeout);
      call->Start(channel);
      const auto sent = call->controller.GetTimestampSent();
      if (sent.time_since_epoch().count() != 0) return call;
      EXPECT_EQ(call->Await(), STATUS_TIMEOUT);
      if (NowNs() > give_up_ns) return call;
    }
  }

  // Answers everything until the client or somebody else closes.
  static void Serve(RawPeer* peer) {
    while (auto request = peer->ReadRequest()) peer->Reply(request->id, "pong");
  }

  static std::shared_ptr<PeerConnections> SetOf(
      const RawServer& server,
      std::size_t group = fiber::GetCurrentSchedulingGroupIndex()) {
    return ConnectionPool::Default()->Find(
        group, {"flare",
                {server.endpoint(), server.endpoint().ToString()},
                FillDefaults({}).connections});
  }

  static int CallOnce(RpcChannel* channel, std::string* text = nullptr) {
    TestedCall call;
    const int code = call.Start(channel)->Await();
    if (text != nullptr) *text = call.controller.ErrorText();
    return code;
  }
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_TESTING_RAW_SERVER_FIXTURE_H_
