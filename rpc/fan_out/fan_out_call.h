// One call to several channels at once, from CallMethod to its end: the common
// part of ParallelChannel and PartitionChannel.
#ifndef FLARE_RPC_FAN_OUT_FAN_OUT_CALL_H_
#define FLARE_RPC_FAN_OUT_FAN_OUT_CALL_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/service.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/rpc/cancel_target.h"
#include "flare/rpc/client/composite_call.h"
#include "flare/rpc/fan_out/fan_out_options.h"
#include "flare/rpc/rpc_client_controller.h"

namespace flare::rpc {

class FanOutCall final : private CancelTarget {
 public:
  using Channels = std::vector<std::shared_ptr<google::protobuf::RpcChannel>>;

  // Shared by all calls of a channel, and kept by those under way.
  struct Settings {
    Channels channels;
    FanOutOptions options;
  };
  // The request for a channel: `own`, or the caller's request if that is null.
  struct Part {
    std::size_t channel = 0;
    std::unique_ptr<google::protobuf::Message> own;
  };
  // Fills in the parts; runs once, before any call.
  using Divide = std::function<flare::Status(
      const google::protobuf::Message& request, std::vector<Part>* parts)>;

  struct Arguments {
    const google::protobuf::MethodDescriptor* method = nullptr;
    google::protobuf::RpcController* controller = nullptr;
    const google::protobuf::Message* request = nullptr;
    google::protobuf::Message* response = nullptr;
    google::protobuf::Closure* done = nullptr;
  };
  // Everything that CallMethod does.
  static void Run(std::shared_ptr<const Settings> settings,
                  const Divide& divide, const Arguments& arguments);

 private:
  // A call to one channel.
  struct PartCall final : google::protobuf::Closure {
    void Run() override { owner->OnPartEnd(this); }

    FanOutCall* owner = nullptr;
    Part part;
    RpcClientController controller;
    std::unique_ptr<google::protobuf::Message> response;
    bool counted = false;  // Among the successes. Guarded by owner->lock_.
  };
  enum class Verdict { kOpen, kEnough, kTooManyFailed };

  FanOutCall(std::shared_ptr<const Settings> settings,
             const Arguments& arguments);
  ~FanOutCall() = default;

  void Prepare(const Divide& divide);
  void SetLimits();
  void Start(const google::protobuf::Message& request);
  void OnPartEnd(PartCall* part);
  void Judge(PartCall* part) FLARE_REQUIRES(lock_);
  void CancelParts();
  void Cancel() override;
  [[nodiscard]] bool LetGo();
  void Finish();
  void Merge();
  void Fail();
  void HandOver();

  const std::shared_ptr<const Settings> settings_;
  Arguments arguments_;
  CompositeCall call_;
  flare::Status refusal_;  // Nothing was called.
  std::vector<std::unique_ptr<PartCall>> parts_;
  std::size_t enough_ = 0;    // Successes that end the call.
  std::size_t needed_ = 0;    // Successes without which it fails.
  std::size_t too_many_ = 0;  // Failures that end it.
  fiber::Event ended_;        // For callers that block.

  Spinlock lock_;
  std::size_t left_ FLARE_GUARDED_BY(lock_) = 1;  // Parts, and their starter.
  std::size_t successes_ FLARE_GUARDED_BY(lock_) = 0;
  std::size_t failures_ FLARE_GUARDED_BY(lock_) = 0;
  PartCall* first_failure_ FLARE_GUARDED_BY(lock_) = nullptr;
  Verdict verdict_ FLARE_GUARDED_BY(lock_) = Verdict::kOpen;
  bool cancelled_ FLARE_GUARDED_BY(lock_) = false;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_FAN_OUT_FAN_OUT_CALL_H_
