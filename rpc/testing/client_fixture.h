// A runtime with epoll under it, and calls to make in it, for tests of the
// client side.
//
//   class MyTest : public ClientTest {};
//   TEST_F(MyTest, Answers) {
//     RawServer server;
//     RpcChannel channel(server.uri());
//     TestedCall call;
//     call.Start(&channel);
//     auto peer = server.Accept();
//     peer->Reply(peer->ReadRequest()->id, "hello");
//     EXPECT_EQ(call.Await(), 0);
//   }
#ifndef FLARE_RPC_TESTING_CLIENT_FIXTURE_H_
#define FLARE_RPC_TESTING_CLIENT_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/fiber/event.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/name_resolver.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/testing/rpc_fixture.h"
#include "rpc/testing/test_service.pb.h"

namespace flare::rpc::testing {

class ClientTest : public RpcTest {
 protected:
  void TearDown() override {
    ShutdownClientSide();
    RpcTest::TearDown();
  }
};

// Runs `f` on a fiber and waits for its end.
inline void OnFiber(std::function<void()> f) {
  fiber::Event ended;
  fiber::Spawn([&] {
    f();
    ended.Set();
  });
  ended.Wait();
}

// For Options::override_nslb: no name has a server.
inline std::string NobodyNslb() {
  struct Nobody : NameResolution {
    bool IsStatic() const override { return true; }
    std::uint64_t Version() override { return 1; }
    std::vector<Peer> Peers() override { return {}; }
  };
  RegisterNameResolver(
      "test-nobody",
      [](std::string_view) -> Expected<std::shared_ptr<NameResolution>> {
        return std::shared_ptr<NameResolution>(std::make_shared<Nobody>());
      });
  return "test-nobody+rr";
}

inline const google::protobuf::MethodDescriptor* MethodNamed(const char* name) {
  return TestService::descriptor()->FindMethodByName(name);
}

// One call of TestService.Call that doesn't block, and all that it needs.
class TestedCall : public google::protobuf::Closure {
 public:
  TestedCall() { request.set_body("ping"); }

  TestedCall* Start(RpcChannel* channel) {
    channel->CallMethod(MethodNamed("Call"), &controller, &request, &response,
                        this);
    return this;
  }
  // Blocks until the call has ended; its status.
  int Await() {
    ended_.Wait();
    return controller.ErrorCode();
  }
  bool HasEnded() const { return ended_.IsSet(); }

  void Run() override {
    on_worker = fiber::IsFiberWorker();
    ended_.Set();
  }

  RpcClientController controller;
  TestRequest request;
  TestResponse response;
  bool on_worker = false;

 private:
  fiber::Event ended_;
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_TESTING_CLIENT_FIXTURE_H_
