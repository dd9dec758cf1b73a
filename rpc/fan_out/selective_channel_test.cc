#include "flare/rpc/fan_out/selective_channel.h"

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/servers_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using std::chrono::milliseconds;

class SelectiveChannelTest : public ServersTest {
 protected:
  static std::unique_ptr<SelectiveChannel> Open(
      const std::vector<std::string>& uris,
      SelectiveChannel::Options options = {}) {
    std::vector<std::shared_ptr<google::protobuf::RpcChannel>> channels;
    for (const std::string& uri : uris) {
      channels.push_back(std::make_shared<RpcChannel>(uri));
    }
    return std::make_unique<SelectiveChannel>(std::move(channels),
                                              std::move(options));
  }
};

TEST_F(SelectiveChannelTest, CallsEachInTurn) {
  StartServers(2);
  service(0).on_call = Says("zero");
  service(1).on_call = Says("one");
  const auto channel = Open({uri(0), uri(1)});
  std::map<std::string, int> counts;
  for (int i = 0; i != 10; ++i) {
    AnyChannelCall call;
    EXPECT_EQ(call.StartOn(channel.get())->Await(), STATUS_SUCCESS);
    EXPECT_FALSE(call.controller.GetRemotePeer().empty());
    ++counts[call.response.body()];
  }
  EXPECT_EQ(counts["zero"], 5);
  EXPECT_EQ(counts["one"], 5);
}

TEST_F(SelectiveChannelTest, TriesAnotherIfOneFails) {
  StartServers(2);
  const DeadAddress dead;
  service(0).on_call = FailsWith(STATUS_OVERLOADED);
  service(1).on_call = Says("one");
  const auto channel = Open({dead.uri(), uri(0), uri(1)}, {.in_order = true});
  const auto call = [&] {
    RpcClientController controller;
    const TestRequest request;
    TestResponse response;
    TestService_Stub(channel.get())
        .Call(&controller, &request, &response, nullptr);
    EXPECT_EQ(controller.ErrorText(), "");
    EXPECT_EQ(response.body(), "one");
    EXPECT_EQ(controller.GetRemotePeer().ToString(), address(1));
  };
  call();
  OnFiber(call);
  AnyChannelCall with_done;
  EXPECT_EQ(with_done.StartOn(channel.get())->Await(), STATUS_SUCCESS);
  EXPECT_EQ(with_done.response.body(), "one");
}

TEST_F(SelectiveChannelTest, FailsAsTheLastOne) {
  StartServers(2);
  const DeadAddress dead;
  service(0).on_call = FailsWith(STATUS_OVERLOADED, "busy");
  const auto all = Open({dead.uri(), uri(0)}, {.in_order = true});
  AnyChannelCall call;
  EXPECT_EQ(call.StartOn(all.get())->Await(), STATUS_OVERLOADED);
  EXPECT_EQ(call.controller.ErrorText(), "busy");
  const auto one =
      Open({dead.uri(), uri(1)}, {.max_attempts = 1, .in_order = true});
  AnyChannelCall first;
  EXPECT_EQ(first.StartOn(one.get())->Await(), STATUS_FAIL_TO_CONNECT);
  AnyChannelCall nobody;
  EXPECT_EQ(nobody.StartOn(Open({}).get())->Await(), STATUS_NO_PEER);
  EXPECT_TRUE(nobody.on_worker);
}

// A service's own failure is an answer.
TEST_F(SelectiveChannelTest, AnswersAreFinal) {
  StartServers(2);
  service(0).on_call = FailsWith(1234, "not today");
  const auto channel = Open({uri(0), uri(1)}, {.in_order = true});
  AnyChannelCall call;
  EXPECT_EQ(call.StartOn(channel.get())->Await(), 1234);
  const auto other =
      Open({uri(0), uri(1)},
           {.in_order = true,
            .try_another = [](const google::protobuf::MethodDescriptor& method,
                              int code) {
              return method.name() == "Call" && code == 1234;
            }});
  AnyChannelCall repeated;
  EXPECT_EQ(repeated.StartOn(other.get())->Await(), STATUS_SUCCESS);
  EXPECT_EQ(repeated.controller.ErrorText(), "");
}

TEST_F(SelectiveChannelTest, CodeThatThrowsFailsTheCall) {
  StartServers(2);
  service(0).on_call = FailsWith(STATUS_OVERLOADED);
  const auto channel = Open(
      {uri(0), uri(1)},
      {.in_order = true,
       .try_another = [](const google::protobuf::MethodDescriptor&,
                         int) -> bool { throw std::runtime_error("oops"); }});
  AnyChannelCall call;
  EXPECT_EQ(call.StartOn(channel.get())->Await(), STATUS_FAILED);
  EXPECT_EQ(call.controller.ErrorText(),
            "an exception left try_another: std::runtime_error: oops");
}

// The first one, or one after another has failed.
TEST_F(SelectiveChannelTest, AChannelThatThrowsFailsTheCall) {
  StartServers(1);
  service(0).on_call = FailsWith(STATUS_OVERLOADED);
  for (const bool first : {true, false}) {
    std::vector<std::shared_ptr<google::protobuf::RpcChannel>> channels;
    if (!first) channels.push_back(std::make_shared<RpcChannel>(uri(0)));
    channels.push_back(std::make_shared<ThrowingChannel>());
    SelectiveChannel channel(std::move(channels), {.in_order = true});
    AnyChannelCall call;
    EXPECT_EQ(call.StartOn(&channel)->Await(), STATUS_FAILED);
    EXPECT_EQ(call.controller.ErrorText(),
              "an exception left the start of a call: std::runtime_error: "
              "no start");
  }
}

// The method isn't idempotent.
TEST_F(SelectiveChannelTest, LostCallsAreNotRepeated) {
  StartServers(1);
  RawServer server;
  const auto channel = Open({server.uri(), uri(0)}, {.in_order = true});
  AnyChannelCall call;
  call.StartOn(channel.get());
  auto peer = server.Accept();
  ASSERT_TRUE(peer->ReadRequest());
  peer->Close();
  EXPECT_EQ(call.Await(), STATUS_IO_ERROR);
}

TEST_F(SelectiveChannelTest, FailedChannelsComeLastForAWhile) {
  StartServers(2);
  std::atomic<int> calls{0};
  service(0).on_call = [&](TestCall call) {
    ++calls;
    call.controller->SetFailed(STATUS_OVERLOADED, "busy");
    call.Reply();
  };
  const auto channel = Open({uri(0), uri(1)}, {.in_order = true});
  int before = 0;
  // Each time a second has passed it is tried again.
  for (int i = 0; i != 100; ++i) {
    AnyChannelCall call;
    EXPECT_EQ(call.StartOn(channel.get())->Await(), STATUS_SUCCESS);
    if (i == 0) before = calls;
  }
  EXPECT_EQ(before, 1);
  EXPECT_LT(calls, 50);
}

TEST_F(SelectiveChannelTest, CancellationEndsTheCall) {
  StartServers(2);
  fiber::Event started;
  service(0).on_call = FailsWith(STATUS_OVERLOADED);
  service(1).on_call = [&, silent = Silent()](TestCall call) {
    started.Set();
    silent(call);
  };
  const auto channel = Open({uri(0), uri(1)}, {.in_order = true});
  AnyChannelCall call;
  call.StartOn(channel.get());
  started.Wait();
  call.controller.StartCancel();
  EXPECT_EQ(call.Await(), STATUS_FAILED);
  EXPECT_TRUE(call.controller.IsCanceled());
  AnyChannelCall before;
  before.controller.StartCancel();
  EXPECT_EQ(before.StartOn(channel.get())->Await(), STATUS_FAILED);
  EXPECT_TRUE(before.controller.IsCanceled());
}

// StartCancel() while attempts begin and end.
TEST_F(SelectiveChannelTest, CancellationAtAnyMoment) {
  StartServers(2);
  service(0).on_call = FailsWith(STATUS_OVERLOADED);
  service(1).on_call = FailsWith(STATUS_OVERLOADED);
  const auto channel = Open({uri(0), uri(1)});
  for (int i = 0; i != 200; ++i) {
    AnyChannelCall call;
    fiber::Event ended;
    fiber::Spawn([&] {
      call.controller.StartCancel();
      ended.Set();
    });
    const int code = call.StartOn(channel.get())->Await();
    EXPECT_TRUE(code == STATUS_OVERLOADED || call.controller.IsCanceled())
        << code;
    ended.Wait();
  }
}

TEST_F(SelectiveChannelTest, DeadlineIsThatOfAllAttempts) {
  StartServers(2);
  service(0).on_call = FailsWith(STATUS_OVERLOADED);
  service(1).on_call = Silent();
  const auto channel = Open({uri(0), uri(1)}, {.in_order = true});
  AnyChannelCall call;
  // Enough for the first channel's answer on a busy machine, too.
  call.controller.SetTimeout(milliseconds(1500));
  EXPECT_EQ(call.StartOn(channel.get())->Await(), STATUS_TIMEOUT);
  EXPECT_GE(call.controller.GetElapsedTime(), milliseconds(1500));
}

}  // namespace
}  // namespace flare::rpc::testing
