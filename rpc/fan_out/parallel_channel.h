// Calls several channels at once, with the same request, and merges their
// replies into one response:
//
//   flare::ParallelChannel all({north, south, west});   // shared_ptr's
//   SearchService_SyncStub stub(&all);
//   auto reply = stub.Search(request, &controller);     // of all three
//
//   // A quorum: the first two replies of three; the third call is cancelled.
//   flare::ParallelChannel quorum({a, b, c}, {.enough = 2});
//
// See docs/fan_out.md. For parts of a request to different channels there is
// PartitionChannel; for one channel of several, SelectiveChannel.
//
// A controller's timeout, StartCancel(), metadata, attachment, compression and
// balancing key hold for each of the calls. Without a timeout each call has the
// default of its channel. Metadata and attachments of replies are for the
// merger; the caller's controller has none.
//
// The call fails with the code of the first call that failed; the text counts
// the failures. Without channels it is STATUS_NO_PEER. Streaming methods fail
// with STATUS_NOT_SUPPORTED, and so do raw bytes.
#ifndef FLARE_RPC_FAN_OUT_PARALLEL_CHANNEL_H_
#define FLARE_RPC_FAN_OUT_PARALLEL_CHANNEL_H_

#include <google/protobuf/service.h>

#include <memory>
#include <vector>

#include "flare/rpc/fan_out/fan_out_call.h"
#include "flare/rpc/fan_out/fan_out_options.h"

namespace flare {

// CallMethod is thread-safe. A channel may be destroyed while calls that don't
// block are under way.
class ParallelChannel : public google::protobuf::RpcChannel {
 public:
  using Options = FanOutOptions;

  // Channels may be of any class whose calls don't block if they have `done`.
  explicit ParallelChannel(
      std::vector<std::shared_ptr<google::protobuf::RpcChannel>> channels,
      Options options = {});

  // As that of RpcChannel: blocks without `done`; with it, `done` runs once, on
  // a fiber, when all calls have ended. `request` isn't used any more once this
  // has returned.
  void CallMethod(const google::protobuf::MethodDescriptor* method,
                  google::protobuf::RpcController* controller,
                  const google::protobuf::Message* request,
                  google::protobuf::Message* response,
                  google::protobuf::Closure* done) override;

 private:
  const std::shared_ptr<const rpc::FanOutCall::Settings> settings_;
};

}  // namespace flare

#endif  // FLARE_RPC_FAN_OUT_PARALLEL_CHANNEL_H_
