#include "example/rpc/call_loop.h"

#include <algorithm>
#include <atomic>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/base/clock.h"
#include "flare/rpc/rpc_status.h"
#include "glog/logging.h"

namespace example {
namespace {

using protobuf_echo::EchoRequest;
using protobuf_echo::EchoResponse;
using protobuf_echo::EchoService_Stub;
using protobuf_echo::RelayRequest;
using protobuf_echo::RelayResponse;
using protobuf_echo::RelayService_Stub;

constexpr std::int64_t kMillisecond = 1'000'000;

// A call that fails faster than this has not been to the server: without a
// pause, a server that is away would make the loops spin.
constexpr std::int64_t kInstantly = kMillisecond;
constexpr std::int64_t kShortestPause = kMillisecond;
constexpr std::int64_t kLongestPause = 10 * kMillisecond;

// A loop that waits looks this often whether the run is over.
constexpr std::int64_t kLongestWait = 50 * kMillisecond;

class EchoLoop final : public CallLoop {
 public:
  template <class... Args>
  EchoLoop(flare::RpcChannel* channel, const LoadOptions& options,
           const Args&... args)
      : CallLoop(options, args...), stub_(channel) {
    request_.set_body(options.body);
  }

 private:
  void Call(flare::RpcClientController* controller,
            google::protobuf::Closure* done) override {
    stub_.Echo(controller, &request_, &response_, done);
  }
  const std::string& reply_body() const override { return response_.body(); }

  EchoService_Stub stub_;
  EchoRequest request_;
  EchoResponse response_;
};

class RelayLoop final : public CallLoop {
 public:
  template <class... Args>
  RelayLoop(flare::RpcChannel* channel, const LoadOptions& options,
            const Args&... args)
      : CallLoop(options, args...), stub_(channel) {
    request_.set_body(options.body);
  }

 private:
  void Call(flare::RpcClientController* controller,
            google::protobuf::Closure* done) override {
    stub_.Relay(controller, &request_, &response_, done);
  }
  const std::string& reply_body() const override { return response_.body(); }

  RelayService_Stub stub_;
  RelayRequest request_;
  RelayResponse response_;
};

// Says why calls fail, at most once per second.
void LogFailure(int status, const std::string& reason, std::int64_t now_ns) {
  constexpr std::int64_t kInterval = 1000 * kMillisecond;
  static std::atomic<std::int64_t> next_ns{0};
  // relaxed: it only decides who logs.
  std::int64_t next = next_ns.load(std::memory_order_relaxed);
  if (now_ns < next ||
      !next_ns.compare_exchange_strong(next, now_ns + kInterval,
                                       std::memory_order_relaxed)) {
    return;
  }
  LOG(WARNING) << "Call failed with status " << status << " ("
               << flare::rpc::StatusName(status) << "): " << reason;
}

}  // namespace

std::unique_ptr<CallLoop> CallLoop::Create(
    const LoadOptions& options, std::size_t group, flare::RpcChannel* channel,
    Schedule* schedule, CallRecorder* recorder, LoopCount* running) {
  if (options.relay_stub) {
    return std::make_unique<RelayLoop>(channel, options, group, schedule,
                                       recorder, running);
  }
  return std::make_unique<EchoLoop>(channel, options, group, schedule, recorder,
                                    running);
}

CallLoop::CallLoop(const LoadOptions& options, std::size_t group,
                   Schedule* schedule, CallRecorder* recorder,
                   LoopCount* running)
    : options_(options),
      group_(group),
      schedule_(schedule),
      recorder_(recorder),
      running_(running) {
  Task::run = [](Task* self) { static_cast<CallLoop*>(self)->Resume(); };
  set_callback([](Timer* self) {
    auto* const loop = static_cast<CallLoop*>(self);
    flare::fiber::SubmitTo(loop->group_, loop);
  });
  // The controller keeps these from call to call.
  controller_.SetTimeout(options.timeout);
  controller_.SetCompressionAlgorithm(options.compression);
  controller_.SetRequestAttachment(options.attachment);
}

void CallLoop::Start() { flare::fiber::SubmitTo(group_, this); }

void CallLoop::Resume() {
  const std::int64_t now = flare::NowNs();
  if (due_ns_ == 0) {
    Continue(now);
  } else {
    WaitOrSend(now);
  }
}

void CallLoop::Run() {
  const std::int64_t now = flare::NowNs();
  if (controller_.Failed()) [[unlikely]] {
    NoteFailure(controller_.ErrorCode(), controller_.ErrorText(), now);
  } else if (options_.verify && !ReplyIsEcho()) [[unlikely]] {
    NoteFailure(flare::rpc::STATUS_MALFORMED_DATA,
                "The reply differs from what was sent.", now);
  } else {
    // max: clocks of two threads may differ by a microsecond.
    recorder_->Succeeded(std::max<std::int64_t>(now - due_ns_, 0));
    pause_ns_ = 0;
  }
  Continue(now);
}

void CallLoop::Continue(std::int64_t now_ns) {
  const auto due = schedule_->Next(now_ns);
  if (!due) return running_->OneEnded();
  due_ns_ = *due;
  WaitOrSend(now_ns);
}

void CallLoop::WaitOrSend(std::int64_t now_ns) {
  const std::int64_t send_at = std::max(due_ns_, pause_until_ns_);
  if (send_at > now_ns) {
    if (schedule_->stopped()) return running_->OneEnded();
    return flare::fiber::ArmTimer(this,
                                  std::min(send_at, now_ns + kLongestWait));
  }
  sent_ns_ = now_ns;
  if (!schedule_->paced()) due_ns_ = now_ns;
  Call(&controller_, this);
}

void CallLoop::NoteFailure(int status, const std::string& reason,
                           std::int64_t now_ns) {
  recorder_->Failed(status);
  LogFailure(status, reason, now_ns);
  // A service that fails its calls on purpose is called on at full speed.
  const bool from_user = status > flare::rpc::STATUS_RESERVED_MAX;
  if (!from_user && now_ns - sent_ns_ < kInstantly) {
    pause_ns_ = std::clamp(2 * pause_ns_, kShortestPause, kLongestPause);
    pause_until_ns_ = now_ns + pause_ns_;
  } else {
    pause_ns_ = 0;
  }
}

bool CallLoop::ReplyIsEcho() const {
  return reply_body() == options_.body &&
         flare::FlattenSlow(controller_.GetResponseAttachment()) ==
             flare::FlattenSlow(options_.attachment);
}

}  // namespace example
