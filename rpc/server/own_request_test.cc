// Requests that serve themselves, of a protocol that a user might write: each
// letter is one.
#include "flare/rpc/own_request.h"

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/fiber/event.h"
#include "flare/fiber/runtime.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

struct LetterTicket {
  char letter = 0;
};

// State that tests look at, and decisions that they make.
struct Stage {
  fiber::Event entered, go;
  std::atomic<int> recycled{0};
};
std::atomic<Stage*> stage{nullptr};

class LetterRequest final : public OwnRequest {
 public:
  LetterRequest(char letter, ReplySink* sink) : letter_(letter), sink_(sink) {}

  // 'w' waits; all answer in capitals.
  void Serve(OwnRequestHost* host) override {
    EXPECT_TRUE(fiber::IsFiberWorker());
    EXPECT_EQ(host->ticket().As<LetterTicket>().letter, letter_);
    EXPECT_GE(host->dispatched_ns(), host->received_ns());
    if (letter_ == 'w') {
      stage.load()->entered.Set();
      stage.load()->go.Wait();
    }
    host->WaitToReply(1);
    host->LeaveLimits();
    const char reply = static_cast<char>(letter_ - 'a' + 'A');
    sink_->Write(CreateBufferSlow(std::string(1, reply)));
  }
  void Refuse(std::string_view text, OwnRequestHost*) override {
    sink_->Write(CreateBufferSlow("(" + std::string(text) + ")"));
  }
  bool IsExempt() const override { return letter_ == 'e'; }
  void Recycle() override {
    ++stage.load()->recycled;
    delete this;
  }

 private:
  const char letter_;
  ReplySink* const sink_;
};

class LetterProtocol final : public ServerProtocol {
 public:
  explicit LetterProtocol(ReplySink* sink) : ServerProtocol(sink) {}

  std::string_view name() const override { return "letters"; }
  ProtocolTraits traits() const override { return {}; }
  CutResult Cut(Buffer& in, InboundRequest* request, std::size_t*,
                std::string*) override {
    const char letter = in.FirstContiguous()[0];
    if (letter == '?') {  // A question that nobody else need know of.
      in.Skip(1);
      sink()->Write(CreateBufferSlow("!"));
      return CutResult::kHandled;
    }
    if (letter < 'a' || letter > 'z') return CutResult::kNotMine;
    in.Skip(1);
    request->ticket.Emplace<LetterTicket>().letter = letter;
    request->own.reset(new LetterRequest(letter, sink()));
    return CutResult::kMessage;
  }
  ParseResult Parse(InboundRequest*) const override { return ParseResult::kOk; }
  void Write(const ReplyTicket&, OutboundResponse&&) override {
    ADD_FAILURE() << "no request is a call";
  }
};

class OwnRequestTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    stage = &stage_;
    RegisterServerProtocol("letters", [](const Limits&, ReplySink* sink) {
      return std::make_unique<LetterProtocol>(sink);
    });
  }

  Stage stage_;
};

TEST_F(OwnRequestTest, ServesItselfAmongCalls) {
  StartServer({"letters", "flare"});
  RawClient client(endpoint());
  client.Send("a");
  EXPECT_EQ(client.ReadExactly(1), "A");
  client.Call(1, kCall, MakeRequest("call"));
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "call");
  client.Send("w");
  stage_.entered.Wait();
  client.Call(2, kCall, MakeRequest("meanwhile"));
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "meanwhile");
  stage_.go.Set();
  EXPECT_EQ(client.ReadExactly(1), "W");
  client.Close();
  StopServer();
  EXPECT_EQ(stage_.recycled, 2);
  EXPECT_EQ(server().statistics().calls, 4u);
  EXPECT_EQ(server().statistics().calls_failed, 0u);
}

TEST_F(OwnRequestTest, WhatIsHandledInTheReaderIsNoRequest) {
  StartServer({"flare", "letters"});
  RawClient client(endpoint());
  client.Send("?" + client.Encode(1, kCall, MakeRequest("call")) + "?");
  client.Shutdown();
  // The second answer may come before the reply.
  const std::string all = client.ReadAll();
  EXPECT_EQ(all[0], '!');
  EXPECT_NE(all.find('!', 1), std::string::npos);
  EXPECT_NE(all.find("call"), std::string::npos);
  StopServer();
  EXPECT_EQ(server().statistics().calls, 1u);
}

TEST_F(OwnRequestTest, CountsUnderTheLimitsOfCalls) {
  server_options().max_concurrent_requests = 1;
  StartServer({"letters"});
  RawClient client(endpoint());
  client.Send("w");
  stage_.entered.Wait();
  client.Send("a");
  EXPECT_EQ(client.ReadUntil(")"), "(Server overloaded.)");
  client.Send("e");
  EXPECT_EQ(client.ReadExactly(1), "E");
  stage_.go.Set();
  EXPECT_EQ(client.ReadExactly(1), "W");
  client.Send("a");
  EXPECT_EQ(client.ReadExactly(1), "A");
  client.Close();
  StopServer();
  EXPECT_EQ(stage_.recycled, 4);
  EXPECT_EQ(server().statistics().calls_overloaded, 1u);
}

}  // namespace
}  // namespace flare::rpc::testing
