// Recorders without memory: calls are answered as without a recorder, and those
// that can't be recorded are counted.
#include "flare/base/sanitizer.h"

#if !defined(FLARE_ASAN) && !defined(FLARE_TSAN)

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "flare/base/testing/replaced_new.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/extension.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/recording/call_recorder.h"
#include "flare/rpc/recording/recording_counters.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace {

constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
// There is no memory for so many bytes at once. relaxed: it orders nothing.
std::atomic<std::size_t> too_large{kNever};

void SetTooLarge(std::size_t bytes) {
  too_large.store(bytes, std::memory_order_relaxed);
}

}  // namespace

void flare::testing::OnAllocation(std::size_t bytes) {
  if (bytes >= too_large.load(std::memory_order_relaxed))
    throw std::bad_alloc();
}

namespace flare::rpc::testing {
namespace {

constexpr std::size_t kBody = 300'000;
constexpr std::size_t kTooLarge = kBody - 1000;

// Outside of the recorder.
class Outermost final : public ServerInterceptor {
 public:
  void Intercept(InterceptedCall&, ServerNext& next) override {
    struct Back {
      ~Back() { SetTooLarge(kNever); }
    } back;
    if (fail_requests) SetTooLarge(kTooLarge);
    next.Run();
  }

  bool fail_requests = false;
};

class RecordingNoMemoryTest : public ServerTest {
 protected:
  RecordingNoMemoryTest() {
    std::string folder =
        std::filesystem::temp_directory_path() / "recorder_XXXXXX";
    folder_ = mkdtemp(folder.data());
  }
  ~RecordingNoMemoryTest() override { std::filesystem::remove_all(folder_); }

  void SetUp() override {
    ServerTest::SetUp();
    auto recorder =
        CallRecorder::Install({.folder = folder_,
                               .replies = true,
                               .write_interval = std::chrono::hours(1)});
    ASSERT_TRUE(recorder) << recorder.error();
    recorder_ = *std::move(recorder);
    StartServer({"flare"});
    channel_ = std::make_unique<RpcChannel>("flare://" + endpoint().ToString());
  }
  void TearDown() override {
    channel_.reset();
    ShutdownClientSide();
    recorder_.reset();  // In the runtime.
    ServerTest::TearDown();
  }

  int Call(const std::string& body) {
    TestedCall call;
    call.request.set_body(body);
    return call.Start(channel_.get())->Await();
  }
  std::uint64_t queue_full() { return recorder_->statistics().queue_full; }

  std::string folder_;
  const std::shared_ptr<Outermost> outermost_ = std::make_shared<Outermost>();
  const InstalledExtension installed_{{.server_interceptor = outermost_}};
  std::unique_ptr<CallRecorder> recorder_;
  std::unique_ptr<RpcChannel> channel_;
};

TEST_F(RecordingNoMemoryTest, MethodsRunWithoutMemoryForTheirRequests) {
  outermost_->fail_requests = true;
  service().on_call = [](TestCall call) { call.Reply("pong"); };
  EXPECT_EQ(Call(std::string(kBody, 'x')), 0);
  EXPECT_EQ(queue_full(), 1u);
}

TEST_F(RecordingNoMemoryTest, RepliesAreSentWithoutMemoryForTheirRecords) {
  service().on_call = [](TestCall call) {
    call.response->set_body(std::string(kBody, 'x'));
    SetTooLarge(kTooLarge);  // Up to the end of the interceptors.
    call.done->Run();
  };
  EXPECT_EQ(Call("ping"), 0);
  EXPECT_EQ(queue_full(), 1u);
}

TEST_F(RecordingNoMemoryTest, CallsThatCannotBeWrittenAreCounted) {
  const RecordingCounters& counters = *RecordingCounters::Get();
  const std::uint64_t recorded = counters.recorded->Value();
  const std::uint64_t not_written = counters.not_written->Value();
  service().on_call = [](TestCall call) { call.Reply("pong"); };
  EXPECT_EQ(Call("small"), 0);
  EXPECT_EQ(Call(std::string(kBody, 'x')), 0);
  EXPECT_EQ(Call("small"), 0);
  SetTooLarge(kTooLarge);
  recorder_.reset();
  SetTooLarge(kNever);
  EXPECT_EQ(counters.recorded->Value() - recorded, 2u);
  EXPECT_EQ(counters.not_written->Value() - not_written, 1u);
}

}  // namespace
}  // namespace flare::rpc::testing

#endif  // sanitizers bring their own operators
