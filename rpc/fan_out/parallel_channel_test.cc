#include "flare/rpc/fan_out/parallel_channel.h"

#include <google/protobuf/message.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "flare/fiber/latch.h"
#include "flare/rpc/testing/foreign_controller.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/servers_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using std::chrono::milliseconds;

class ParallelChannelTest : public ServersTest {
 protected:
  // To all servers.
  std::unique_ptr<ParallelChannel> Open(std::size_t servers,
                                        ParallelChannel::Options options = {}) {
    std::vector<std::shared_ptr<google::protobuf::RpcChannel>> channels;
    for (std::size_t i = 0; i != servers; ++i) {
      channels.push_back(std::make_shared<RpcChannel>(uri(i)));
    }
    return std::make_unique<ParallelChannel>(std::move(channels),
                                             std::move(options));
  }

  static FanOutMerger Concatenate() {
    return [](const FanOutReply& reply, google::protobuf::Message* response) {
      auto* const all = static_cast<TestResponse*>(response);
      all->set_body(all->body() + std::to_string(reply.channel) + "=" +
                    static_cast<const TestResponse&>(reply.message).body() +
                    ";");
      return flare::Status();
    };
  }
};

TEST_F(ParallelChannelTest, MergesTheRepliesOfAll) {
  StartServers(3);
  for (int i = 0; i != 3; ++i)
    service(i).on_call = Says(std::string(1, 'a' + i));
  const auto channel = Open(3, {.merge = Concatenate()});
  AnyChannelCall call;
  EXPECT_EQ(call.StartOn(channel.get())->Await(), STATUS_SUCCESS);
  EXPECT_EQ(call.response.body(), "0=a;1=b;2=c;");
  EXPECT_TRUE(call.on_worker);
  EXPECT_GT(call.controller.GetElapsedTime().count(), 0);
}

// On a plain thread, and on a fiber.
TEST_F(ParallelChannelTest, BlocksWithoutDone) {
  StartServers(2);
  const auto channel = Open(2, {.merge = Concatenate()});
  const auto call = [&] {
    RpcClientController controller;
    const TestRequest request = MakeRequest("x");
    TestResponse response;
    TestService_Stub(channel.get())
        .Call(&controller, &request, &response, nullptr);
    EXPECT_EQ(controller.ErrorText(), "");
    EXPECT_EQ(response.body(), "0=x;1=x;");
  };
  call();
  OnFiber(call);
}

// Others of the call are under way by then.
TEST_F(ParallelChannelTest, APartThatThrowsHasFailed) {
  StartServers(1);
  std::vector<std::shared_ptr<google::protobuf::RpcChannel>> channels;
  channels.push_back(std::make_shared<RpcChannel>(uri(0)));
  channels.push_back(std::make_shared<ThrowingChannel>());
  ParallelChannel all(channels);
  AnyChannelCall call;
  EXPECT_EQ(call.StartOn(&all)->Await(), STATUS_FAILED);
  EXPECT_NE(call.controller.ErrorText().find(
                "an exception left the start of a call: std::runtime_error: "
                "no start"),
            std::string::npos)
      << call.controller.ErrorText();
  ParallelChannel one(channels, {.needed = 1});
  AnyChannelCall other;
  EXPECT_EQ(other.StartOn(&one)->Await(), STATUS_SUCCESS);
}

TEST_F(ParallelChannelTest, MergesAsProtobufDoesByDefault) {
  StartServers(2);
  service(0).on_call = [](TestCall call) {
    call.response->set_number(7);
    call.Reply("zero");
  };
  service(1).on_call = Says("one");
  AnyChannelCall call;
  EXPECT_EQ(call.StartOn(Open(2).get())->Await(), STATUS_SUCCESS);
  EXPECT_EQ(call.response.body(), "one");
  EXPECT_EQ(call.response.number(), 7);
}

TEST_F(ParallelChannelTest, EnoughSuccessesEndTheCall) {
  StartServers(3);
  service(0).on_call = Silent();
  const auto channel = Open(3, {.enough = 2, .merge = Concatenate()});
  AnyChannelCall call;
  EXPECT_EQ(call.StartOn(channel.get())->Await(), STATUS_SUCCESS);
  EXPECT_EQ(call.response.body(), "1=ping;2=ping;");
}

TEST_F(ParallelChannelTest, OneFailureEndsTheCall) {
  StartServers(3);
  service(0).on_call = Silent();
  service(1).on_call = FailsWith(1234, "broken");
  service(2).on_call = Silent();
  AnyChannelCall call;
  EXPECT_EQ(call.StartOn(Open(3).get())->Await(), 1234);
  EXPECT_EQ(call.controller.ErrorText(),
            "1 of 3 calls failed; the first, to channel 1, with [1234] broken");
  EXPECT_EQ(call.response.body(), "");
  EXPECT_FALSE(call.controller.IsCanceled());
}

TEST_F(ParallelChannelTest, IsContentWithFewer) {
  StartServers(3);
  service(0).on_call = FailsWith(1234);
  service(2).on_call = FailsWith(1234);
  const auto channel = Open(3, {.needed = 1, .merge = Concatenate()});
  AnyChannelCall call;
  EXPECT_EQ(call.StartOn(channel.get())->Await(), STATUS_SUCCESS);
  EXPECT_EQ(call.response.body(), "1=ping;");
}

TEST_F(ParallelChannelTest, TooManyFailuresEndTheCall) {
  StartServers(3);
  service(0).on_call = FailsWith(1234);
  service(1).on_call = FailsWith(1235);
  service(2).on_call = Silent();
  const auto channel = Open(3, {.needed = 1, .too_many_failures = 2});
  AnyChannelCall call;
  const int code = call.StartOn(channel.get())->Await();
  EXPECT_TRUE(code == 1234 || code == 1235) << code;
  EXPECT_EQ(call.controller.ErrorText().substr(0, 19), "2 of 3 calls failed");
}

TEST_F(ParallelChannelTest, CancellationReachesAll) {
  StartServers(2);
  fiber::Latch started(2);
  for (int i = 0; i != 2; ++i) {
    service(i).on_call = [&, silent = Silent()](TestCall call) {
      started.count_down();
      silent(call);
    };
  }
  const auto channel = Open(2);
  AnyChannelCall call;
  call.StartOn(channel.get());
  started.wait();
  call.controller.StartCancel();
  EXPECT_EQ(call.Await(), STATUS_FAILED);
  EXPECT_TRUE(call.controller.IsCanceled());
  // The wish lasts.
  AnyChannelCall* const again = &call;
  RpcClientController before;
  before.StartCancel();
  TestResponse response;
  TestService_Stub(channel.get())
      .Call(&before, &again->request, &response, nullptr);
  EXPECT_TRUE(before.IsCanceled());
}

// StartCancel() while calls begin and end.
TEST_F(ParallelChannelTest, CancellationAtAnyMoment) {
  StartServers(2);
  const auto channel = Open(2, {.enough = 1});
  for (int i = 0; i != 200; ++i) {
    AnyChannelCall call;
    fiber::Event ended;
    fiber::Spawn([&] {
      call.controller.StartCancel();
      ended.Set();
    });
    const int code = call.StartOn(channel.get())->Await();
    EXPECT_TRUE(code == STATUS_SUCCESS || call.controller.IsCanceled()) << code;
    ended.Wait();
  }
}

TEST_F(ParallelChannelTest, DeadlineEndsTheCall) {
  StartServers(2);
  service(1).on_call = Silent();
  AnyChannelCall call;
  call.controller.SetTimeout(milliseconds(500));
  EXPECT_EQ(call.StartOn(Open(2).get())->Await(), STATUS_TIMEOUT);
  EXPECT_GE(call.controller.GetElapsedTime(), milliseconds(500));
}

TEST_F(ParallelChannelTest, CallsOutliveTheChannel) {
  StartServers(2);
  fiber::Event go;
  service(0).on_call = FlexibleService::EchoAfter(&go);
  auto channel = Open(2);
  AnyChannelCall call;
  call.StartOn(channel.get());
  channel.reset();
  go.Set();
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
}

TEST_F(ParallelChannelTest, MergersMayFail) {
  StartServers(1);
  const auto failing =
      Open(1, {.merge = [](const FanOutReply&, google::protobuf::Message*) {
             return flare::Status(1300, "they differ");
           }});
  AnyChannelCall call;
  EXPECT_EQ(call.StartOn(failing.get())->Await(), 1300);
  EXPECT_EQ(call.controller.ErrorText(), "they differ");
  const auto throwing =
      Open(1, {.merge = [](const FanOutReply&, google::protobuf::Message*)
                   -> flare::Status { throw std::runtime_error("oops"); }});
  AnyChannelCall other;
  EXPECT_EQ(other.StartOn(throwing.get())->Await(), STATUS_FAILED);
  EXPECT_EQ(
      other.controller.ErrorText(),
      "an exception left the merger of replies: std::runtime_error: oops");
}

TEST_F(ParallelChannelTest, WishesHoldForEachCall) {
  StartServers(2);
  for (int i = 0; i != 2; ++i) {
    service(i).on_call = [](TestCall call) {
      EXPECT_EQ(call.controller->GetRequestMetadata().Get("x-who"), "me");
      call.controller->SetResponseAttachment(
          call.controller->GetRequestAttachment());
      call.Reply("ok");
    };
  }
  std::string attachments;
  const auto channel = Open(
      2, {.merge = [&](const FanOutReply& reply, google::protobuf::Message*) {
        attachments += FlattenSlow(reply.controller.GetResponseAttachment());
        EXPECT_FALSE(reply.controller.GetRemotePeer().empty());
        return flare::Status();
      }});
  AnyChannelCall call;
  call.controller.AddMetadata("x-who", "me");
  call.controller.SetRequestAttachment(CreateBufferSlow("bytes,"));
  EXPECT_EQ(call.StartOn(channel.get())->Await(), STATUS_SUCCESS)
      << call.controller.ErrorText();
  EXPECT_EQ(attachments, "bytes,bytes,");
}

TEST_F(ParallelChannelTest, ChannelsMayBeNested) {
  StartServers(2);
  std::vector<std::shared_ptr<google::protobuf::RpcChannel>> pair;
  pair.push_back(Open(2, {.merge = Concatenate()}));
  pair.push_back(Open(1, {.merge = Concatenate()}));
  ParallelChannel channel(std::move(pair), {.merge = Concatenate()});
  AnyChannelCall call;
  EXPECT_EQ(call.StartOn(&channel)->Await(), STATUS_SUCCESS);
  EXPECT_EQ(call.response.body(), "0=0=ping;1=ping;;1=0=ping;;");
}

TEST_F(ParallelChannelTest, RefusesWhatCanNotBe) {
  StartServers(1);
  AnyChannelCall nobody;
  EXPECT_EQ(nobody.StartOn(Open(0).get())->Await(), STATUS_NO_PEER);
  EXPECT_EQ(nobody.controller.ErrorText(), "there are no channels to call");
  EXPECT_TRUE(nobody.on_worker);
  AnyChannelCall raw;
  raw.controller.SetAcceptResponseRawBytes(true);
  EXPECT_EQ(raw.StartOn(Open(1).get())->Await(), STATUS_NOT_SUPPORTED);
  ForeignController foreign;
  const TestRequest request;
  TestResponse response;
  TestService_Stub(Open(0).get()).Call(&foreign, &request, &response, nullptr);
  EXPECT_EQ(foreign.ErrorText(), "there are no channels to call");
  // Without a controller nobody is told, and nothing breaks.
  TestService_Stub(Open(0).get()).Call(nullptr, &request, &response, nullptr);
}

}  // namespace
}  // namespace flare::rpc::testing
