#include "flare/rpc/recording/call_recorder.h"

#include <google/protobuf/message.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <new>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/base/random.h"
#include "flare/base/string.h"
#include "flare/fiber/runtime.h"
#include "flare/rpc/admission/token_bucket.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/recording/recorded_call.h"
#include "flare/rpc/recording/recording_counters.h"
#include "flare/rpc/recording/recording_queue.h"
#include "flare/rpc/rpc_server_controller.h"

namespace flare {
namespace {

// Two would record each call twice.
std::atomic<bool> recorder_installed{false};

bool IsFraction(double fraction) {  // NaN is none.
  return fraction >= 0 && fraction <= 1;
}

Status CheckOptions(const CallRecorderOptions& options) {
  const auto wrong = [](const char* option, const char* rule) {
    return Status(EINVAL, std::string("CallRecorderOptions::") + option +
                              " must be " + rule);
  };
  if (options.folder.empty()) return wrong("folder", "given");
  if (!IsFraction(options.fraction)) return wrong("fraction", "from 0 to 1");
  if (options.bytes_per_file < 1) return wrong("bytes_per_file", "positive");
  if (options.max_files < 1) return wrong("max_files", "positive");
  if (options.max_queue_bytes < 1) return wrong("max_queue_bytes", "positive");
  for (const auto& [name, rate] :
       {std::pair("max_calls_per_second", options.max_calls_per_second),
        std::pair("max_bytes_per_second", options.max_bytes_per_second)}) {
    // The bucket counts in nanoseconds.
    if (rate != 0 && !(rate >= 0.001 && rate <= 1e15)) {
      return wrong(name, "0, or at least 0.001");
    }
  }
  if (options.write_interval.count() < 1) {
    return wrong("write_interval", "positive");
  }
  return {};
}

bool BeginsWithOne(std::string_view name,
                   const std::vector<std::string>& beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](const std::string& beginning) {
                       return name.starts_with(beginning);
                     });
}

// Names of metadata are lower case.
CallRecorderOptions WithLowerNames(CallRecorderOptions options) {
  for (std::string& name : options.secret_metadata) name = ToLower(name);
  return options;
}

std::string BytesOf(const google::protobuf::Message& message) {
  std::string bytes;
  // Those without a required field, too.
  message.AppendPartialToString(&bytes);
  return bytes;
}

std::int64_t UnixTimeOf(std::chrono::steady_clock::time_point time) {
  const auto unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  return unix_ns.count() - (NowNs() - ToSteadyNs(time));
}

}  // namespace

class CallRecorder::Interceptor final : public ServerInterceptor {
 public:
  Interceptor(CallRecorderOptions options, const RecordingCounters& counters)
      : options_(WithLowerNames(std::move(options))),
        counters_(counters),
        calls_(options_.max_calls_per_second),
        bytes_(options_.max_bytes_per_second),
        queue_({.files = {.folder = options_.folder,
                          .bytes_per_file = options_.bytes_per_file,
                          .max_files = options_.max_files},
                .max_bytes = options_.max_queue_bytes,
                .interval = options_.write_interval},
               counters) {
    SetFraction(options_.fraction);
  }

  void Intercept(InterceptedCall& call, ServerNext& next) override {
    const double fraction = this->fraction();
    if (fraction <= 0 || !Wants(call)) return next.Run();
    if (!Draw(fraction, &call)) return next.Run();
    if (!calls_.Admits(1)) {
      counters_.over_limit->Add();
      return next.Run();
    }
    Record(fraction, call, next);
  }

  Status Start() { return queue_.Start(); }
  // Calls that are served now are dropped at their ends, and counted.
  void Close() {
    // relaxed, here and below: a number that orders nothing else.
    fraction_.store(kClosed, std::memory_order_relaxed);
    queue_.Close();
  }

  void SetFraction(double fraction) {
    double now = this->fraction();
    while (now != kClosed && !fraction_.compare_exchange_weak(
                                 now, fraction, std::memory_order_relaxed)) {
    }
  }
  double fraction() const { return fraction_.load(std::memory_order_relaxed); }

 private:
  static constexpr double kClosed = -1;  // As a fraction.

  // So many units in a second, and as many at once; one of more units is let
  // through when a second has passed without any.
  class RateGate {
   public:
    explicit RateGate(double per_second) : per_second_(per_second) {}

    bool Admits(double units) {
      if (per_second_ == 0) return true;
      // 30 years are as good as for ever, and don't overflow.
      const double ns = std::clamp(units * 1e9 / per_second_, 1.0, 1e18);
      const rpc::TokenRate rate{
          .interval_ns = static_cast<std::int64_t>(ns),
          .depth_ns = static_cast<std::int64_t>(std::max(ns, 1e9))};
      return bucket_.Take(rate, NowNs()) == 0;
    }

   private:
    const double per_second_;  // 0: no limit.
    rpc::TokenBucket bucket_;
  };

  bool Wants(const InterceptedCall& call) const {
    const google::protobuf::MethodDescriptor* const method = call.descriptor();
    if (method == nullptr) return false;  // A request for a handler.
    const std::string_view name = call.method();
    if (!options_.methods.empty() && !BeginsWithOne(name, options_.methods)) {
      return false;
    }
    if (BeginsWithOne(name, options_.excluded)) return false;
    if (!method->client_streaming() && !method->server_streaming()) return true;
    counters_.streaming->Add();
    return false;
  }

  static bool Draw(double fraction, const InterceptedCall* call) {
    if (fraction == 1) return true;
    // Draws from the upper 53 bits, which a double holds.
    const std::uint64_t random =
        MixBits(ReadTsc() ^ MixBits(reinterpret_cast<std::uintptr_t>(call)));
    return static_cast<double>(random >> 11) * 0x1p-53 < fraction;
  }

  void Record(double fraction, InterceptedCall& call, ServerNext& next) {
    // Before the method, which may take the message's fields.
    const RpcServerController& controller = call.controller();
    const std::size_t bytes = sizeof(RecordedCall) + call.method().size() +
                              call.request()->ByteSizeLong() +
                              controller.GetRequestRawBytes().ByteSize() +
                              controller.GetRequestAttachment().ByteSize() +
                              controller.GetRequestMetadata().byte_size();
    RecordingQueue::Place place = queue_.Take(bytes);
    if (!place) {
      counters_.queue_full->Add();
      return next.Run();
    }
    std::optional<RecordedCall> recorded = TryRequestOf(call);
    if (!recorded) {
      place = RecordingQueue::Place();
      counters_.queue_full->Add();
      return next.Run();
    }
    recorded->fraction = fraction;
    next.Run();
    try {
      NoteReply(call, &*recorded);
      Finish(*std::move(recorded), bytes, std::move(place));
    } catch (const std::bad_alloc&) {  // The call has its reply all the same.
      counters_.queue_full->Add();
    }
  }

  // `place` is of so many bytes.
  void Finish(RecordedCall recorded, std::size_t bytes,
              RecordingQueue::Place place) {
    const std::size_t size = recorded.ByteSize();
    if (size > bytes && !place.Grow(size - bytes)) {
      return counters_.queue_full->Add();
    }
    if (!bytes_.Admits(static_cast<double>(size))) {
      return counters_.over_limit->Add();
    }
    queue_.Add(std::move(recorded), std::move(place));
  }

  // Empty: there is no memory for it, and the method runs unrecorded.
  std::optional<RecordedCall> TryRequestOf(const InterceptedCall& call) const {
    try {
      return RequestOf(call);
    } catch (const std::bad_alloc&) {
      return std::nullopt;
    }
  }

  RecordedCall RequestOf(const InterceptedCall& call) const {
    const RpcServerController& controller = call.controller();
    RecordedCall recorded;
    recorded.received_unix_ns = UnixTimeOf(call.received_at());
    recorded.method = call.method();
    // A GenericService's call has an empty message.
    recorded.request = controller.GetRequestRawBytes().empty()
                           ? BytesOf(*call.request())
                           : FlattenSlow(controller.GetRequestRawBytes());
    recorded.attachment = FlattenSlow(controller.GetRequestAttachment());
    for (const auto& [name, value] : controller.GetRequestMetadata()) {
      const auto& secrets = options_.secret_metadata;
      if (std::find(secrets.begin(), secrets.end(), name) != secrets.end()) {
        recorded.left_out.emplace_back(name);
      } else {
        recorded.metadata.push_back({std::string(name), std::string(value)});
      }
    }
    if (const auto deadline = call.deadline()) {
      recorded.timeout_ns = std::max<std::int64_t>(
          ToSteadyNs(*deadline) - ToSteadyNs(call.received_at()), 1);
    }
    recorded.peer = call.peer().ToString();
    return recorded;
  }

  void NoteReply(const InterceptedCall& call, RecordedCall* recorded) const {
    const RpcServerController& controller = call.controller();
    recorded->latency_ns = call.elapsed().count();
    recorded->status = call.status();
    if (call.failed()) {
      recorded->error = controller.ErrorText();
    } else if (options_.replies) {
      recorded->reply.emplace();
      recorded->reply->message =
          controller.HasResponseRawBytes()
              ? FlattenSlow(controller.GetResponseRawBytes())
              : BytesOf(*call.response());
      recorded->reply->attachment =
          FlattenSlow(controller.GetResponseAttachment());
    }
  }

  const CallRecorderOptions options_;
  const RecordingCounters& counters_;
  std::atomic<double> fraction_{0};
  RateGate calls_;
  RateGate bytes_;
  RecordingQueue queue_;
};

struct CallRecorder::Turn {
  explicit Turn(const RecordingCounters& all) : counters(all), before(Read()) {}
  // relaxed: see Install().
  ~Turn() { recorder_installed.store(false, std::memory_order_relaxed); }

  Statistics Read() const {
    return {.recorded = counters.recorded->Value(),
            .recorded_bytes = counters.bytes->Value(),
            .over_limit = counters.over_limit->Value(),
            .queue_full = counters.queue_full->Value(),
            .not_written = counters.not_written->Value(),
            .streaming = counters.streaming->Value()};
  }

  const RecordingCounters& counters;
  const Statistics before;  // Counts of earlier recorders.
};

Expected<std::unique_ptr<CallRecorder>, Status> CallRecorder::Install(
    CallRecorderOptions options) {
  if (Status status = CheckOptions(options); !status.ok()) return status;
  if (!fiber::IsRuntimeRunning()) {
    return Status(EINVAL,
                  "the fiber runtime isn't running: use flare::Start()");
  }
  const auto& counters = RecordingCounters::Get();
  if (!counters) return counters.error();
  // relaxed: nothing but the flag is shared.
  if (recorder_installed.exchange(true, std::memory_order_relaxed)) {
    return Status(EBUSY, "there is a recorder of calls already");
  }
  auto turn = std::make_unique<Turn>(*counters);
  auto interceptor =
      std::make_shared<Interceptor>(std::move(options), *counters);
  if (Status begun = interceptor->Start(); !begun.ok()) return begun;
  return std::unique_ptr<CallRecorder>(
      new CallRecorder(std::move(turn), std::move(interceptor)));
}

CallRecorder::CallRecorder(std::unique_ptr<Turn> turn,
                           std::shared_ptr<Interceptor> interceptor)
    : turn_(std::move(turn)),
      interceptor_(std::move(interceptor)),
      extension_({.server_interceptor = interceptor_}) {}

CallRecorder::~CallRecorder() { Close(); }

void CallRecorder::Close() { interceptor_->Close(); }

bool CallRecorder::SetFraction(double fraction) {
  if (!IsFraction(fraction)) return false;
  interceptor_->SetFraction(fraction);
  return true;
}

CallRecorder::Statistics CallRecorder::statistics() const {
  const Statistics& before = turn_->before;
  Statistics now = turn_->Read();
  now.recorded -= before.recorded;
  now.recorded_bytes -= before.recorded_bytes;
  now.over_limit -= before.over_limit;
  now.queue_full -= before.queue_full;
  now.not_written -= before.not_written;
  now.streaming -= before.streaming;
  return now;
}

}  // namespace flare
