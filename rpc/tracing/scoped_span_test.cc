// Parts of methods in real calls.
#include "flare/rpc/tracing/scoped_span.h"

#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "flare/base/future.h"
#include "flare/fiber/async.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/future.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/server_fixture.h"
#include "flare/rpc/tracing/tracing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using fiber::testing::Eventually;

using SpanPtr = std::shared_ptr<const SpanData>;

class ScopedSpanTest : public ServerTest {
 protected:
  void TearDown() override {
    channel_.reset();
    ShutdownClientSide();
    ServerTest::TearDown();
    tracing_.reset();
  }

  // Serves a method that runs `body`.
  void Serve(std::function<void()> body, TracingOptions options = {}) {
    auto tracing = Tracing::Install(std::move(options));
    ASSERT_TRUE(tracing) << tracing.error().ToString();
    tracing_ = *std::move(tracing);
    service().on_call = [body = std::move(body)](TestCall call) {
      body();
      FlexibleService::Echo(call);
    };
    StartServer();
    channel_ = std::make_unique<RpcChannel>("flare://" + endpoint().ToString());
  }
  void CallIt() {
    TestedCall call;
    call.Start(channel_.get())->Await();
  }
  // As a method makes it.
  void CallOther() {
    RpcClientController controller;
    TestRequest request;
    TestResponse response;
    TestService_Stub(channel_.get())
        .Other(&controller, &request, &response, nullptr);
    EXPECT_FALSE(controller.Failed()) << controller.ErrorText();
  }

  void Await(std::size_t n) {
    EXPECT_TRUE(Eventually([&] {
      spans_ = tracing_->recent_spans();
      return spans_.size() >= n;
    }));
    EXPECT_EQ(spans_.size(), n);
  }
  SpanPtr Find(SpanKind kind, std::string_view name) {
    for (const SpanPtr& span : spans_) {
      if (span->kind == kind && span->name.ends_with(name)) return span;
    }
    ADD_FAILURE() << "no span of " << name;
    return std::make_shared<const SpanData>();
  }
  SpanPtr FindPart(std::string_view name) {
    return Find(SpanKind::kInternal, name);
  }

  std::unique_ptr<Tracing> tracing_;
  std::unique_ptr<RpcChannel> channel_;
  SpanBatch spans_;
};

void ExpectChild(const SpanPtr& child, const SpanPtr& parent) {
  EXPECT_EQ(child->context.trace_id, parent->context.trace_id);
  EXPECT_EQ(child->parent_id, parent->context.span_id) << child->name;
  EXPECT_FALSE(child->parent_is_remote);
}

TEST_F(ScopedSpanTest, PartsAreChildrenOfTheirScope) {
  Serve([] {
    ScopedSpan outer("outer");
    outer.SetAttribute("size", 42);
    CurrentSpan().AddEvent("first");  // It is the current one.
    {
      ScopedSpan inner("inner");
      CurrentSpan().SetAttribute("inner", true);
      outer.AddEvent("second");
    }
    CurrentSpan().AddEvent("third");
    ScopedSpan sibling("sibling");
  });
  CallIt();
  Await(5);
  const SpanPtr outer = FindPart("outer");
  ExpectChild(outer, Find(SpanKind::kServer, "/Call"));
  ExpectChild(FindPart("inner"), outer);
  ExpectChild(FindPart("sibling"), outer);
  ASSERT_EQ(outer->events.size(), 3u);
  EXPECT_EQ(outer->events[2].name, "third");
  EXPECT_EQ(outer->attributes.at(0).name, "size");
  EXPECT_EQ(FindPart("inner")->attributes.at(0).name, "inner");
  EXPECT_FALSE(outer->failed);
  EXPECT_GE(outer->duration_ns, FindPart("inner")->duration_ns);
  EXPECT_TRUE(outer->peer.empty());
}

TEST_F(ScopedSpanTest, FibersAndCallsInAPartAreItsChildren) {
  Serve([this] {
    ScopedSpan part("part");
    auto one = fiber::Async([&] {
      ScopedSpan mine("one");
      CallOther();
    });
    // At the same time, and none of the other's business.
    auto two = fiber::Async([&] { ScopedSpan mine("two"); });
    fiber::BlockingGet(std::move(one));
    fiber::BlockingGet(std::move(two));
  });
  CallIt();
  Await(7);
  ExpectChild(FindPart("one"), FindPart("part"));
  ExpectChild(FindPart("two"), FindPart("part"));
  ExpectChild(Find(SpanKind::kClient, "/Other"), FindPart("one"));
}

TEST_F(ScopedSpanTest, AnUnfinishedCallKeepsItsPart) {
  TestedCall other;
  Serve([&] {
    ScopedSpan part("part");
    other.Start(channel_.get());  // Its `done` comes when the part is over.
  });
  service().on_other = nullptr;
  bool nested = false;
  const auto body = std::move(service().on_call);
  service().on_call = [&](TestCall call) {
    if (std::exchange(nested, true)) return FlexibleService::Echo(call);
    body(call);
  };
  CallIt();
  EXPECT_EQ(other.Await(), 0);
  Await(5);
  std::size_t children = 0;
  for (const SpanPtr& span : spans_) {
    if (span->kind == SpanKind::kClient && span->parent_id != 0) {
      ExpectChild(span, FindPart("part"));
      ++children;
    }
  }
  EXPECT_EQ(children, 1u);
}

TEST_F(ScopedSpanTest, PartsFailByWordOrByAnException) {
  Serve([] {
    {
      ScopedSpan part("by word");
      part.SetFailed("first");
      part.SetFailed("no picture");
    }
    try {
      ScopedSpan part("by exception");
      throw std::runtime_error("oh");
    } catch (const std::runtime_error&) {
      ScopedSpan part("in time");
    }
  });
  CallIt();
  Await(5);
  EXPECT_EQ(FindPart("by word")->error, "no picture");
  EXPECT_TRUE(FindPart("by word")->failed);
  EXPECT_EQ(FindPart("by exception")->error, "an exception ended it");
  EXPECT_TRUE(FindPart("by exception")->failed);
  EXPECT_FALSE(FindPart("in time")->failed);
  EXPECT_FALSE(Find(SpanKind::kServer, "/Call")->failed);
}

TEST_F(ScopedSpanTest, NoneInTracesThatAreNotSampled) {
  bool same = false;
  Serve(
      [&] {
        fiber::ExecutionContext* const context =
            fiber::ExecutionContext::Current();
        const std::string id = CurrentSpan().trace_id();
        ScopedSpan part("part");
        part.SetAttribute("a", 1);
        part.SetFailed("b");
        EXPECT_FALSE(part.recording());
        // Neither a context nor anything else is made.
        same = fiber::ExecutionContext::Current() == context &&
               part.trace_id() == id && id.size() == 32;
      },
      {.sample_ratio = 0});
  CallIt();
  EXPECT_TRUE(same);
  EXPECT_TRUE(tracing_->recent_spans().empty());
}

TEST_F(ScopedSpanTest, NoneInCallsThatAreNotTraced) {
  std::string id = "unset";
  Serve([&] { id = ScopedSpan("part").trace_id(); },
        {.excluded = {"flare.rpc.testing."}});
  CallIt();
  EXPECT_EQ(id, "");
  EXPECT_TRUE(tracing_->recent_spans().empty());
}

TEST_F(ScopedSpanTest, JobsOutsideOfCallsBeginTraces) {
  Serve([] {});
  OnFiber([&] {
    ScopedSpan job("job");
    CallOther();
    EXPECT_NE(fiber::ExecutionContext::Current(), nullptr);
  });
  OnFiber([] { EXPECT_EQ(fiber::ExecutionContext::Current(), nullptr); });
  Await(3);
  EXPECT_EQ(FindPart("job")->parent_id, 0u);
  ExpectChild(Find(SpanKind::kClient, "/Other"), FindPart("job"));
}

// They would overwrite the context of the code that runs there.
TEST_F(ScopedSpanTest, EndsElsewhereAreFatal) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Serve([] {});
  std::unique_ptr<ScopedSpan> part;
  std::promise<void> begun;
  std::promise<void> go;
  std::thread owner([&] {
    part = std::make_unique<ScopedSpan>("part");
    begun.set_value();
    go.get_future().wait();
    part.reset();
  });
  begun.get_future().wait();
  EXPECT_DEATH(part.reset(), "a ScopedSpan ends in another fiber");
  go.set_value();
  owner.join();
}

TEST_F(ScopedSpanTest, EndsInTheWrongOrderAreFatal) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Serve([] {});
  auto first = std::make_unique<ScopedSpan>("first");
  auto second = std::make_unique<ScopedSpan>("second");
  EXPECT_DEATH(first.reset(), "before another one that began later");
  second.reset();
}

TEST_F(ScopedSpanTest, NoneInContextsOfTheProgramsOwn) {
  Serve([] {});
  fiber::ExecutionContext::Create()->Execute([] {
    ScopedSpan part("part");
    EXPECT_FALSE(part.recording());
  });
}

TEST_F(ScopedSpanTest, NoneWithoutTracing) {
  ScopedSpan part("part");
  part.SetAttribute("a", 1);
  part.SetFailed("b");
  EXPECT_FALSE(part.recording());
  EXPECT_EQ(part.trace_id(), "");
}

}  // namespace
}  // namespace flare::rpc::testing
