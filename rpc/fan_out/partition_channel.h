// A service whose data is divided among several channels, the partitions. A
// call goes to those that have a part of its request, and their replies become
// one response:
//
//   // message GetRequest { repeated string keys = 1; }
//   flare::PartitionChannel shards({shard0, shard1, shard2},
//                                  flare::PartitionByField("keys"));
//   KvService_SyncStub stub(&shards);
//   auto reply = stub.Get(request, &controller);
//
// Each partition gets the keys whose hash leads to it; those without any aren't
// called. See docs/fan_out.md. Deadlines, cancellation and failures are as with
// ParallelChannel.
#ifndef FLARE_RPC_FAN_OUT_PARTITION_CHANNEL_H_
#define FLARE_RPC_FAN_OUT_PARTITION_CHANNEL_H_

#include <google/protobuf/message.h>
#include <google/protobuf/service.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/status.h"
#include "flare/rpc/fan_out/fan_out_call.h"
#include "flare/rpc/fan_out/fan_out_options.h"

namespace flare {

// Divides `request`: (*parts)[n] is the request to partition n, which isn't
// called if that stays null. `parts` has an element for each partition. A
// failure is that of the call. Runs on the caller's fiber, for many calls at
// the same time.
using Partitioner = std::function<Status(
    const google::protobuf::Message& request,
    std::vector<std::unique_ptr<google::protobuf::Message>>* parts)>;

// By the hash of a field. A repeated field's elements go each to its partition,
// together with all other fields; of another field the whole request goes to
// one partition. For fields that are strings, bytes, integers, enums or bool;
// with others, or a request without such a field, calls fail with
// STATUS_NOT_SUPPORTED.
Partitioner PartitionByField(std::string field);
// The whole request goes to the partition of its key.
Partitioner PartitionByKey(
    std::function<std::string(const google::protobuf::Message& request)> key);
// The partition of a key: the same in each process and version.
std::size_t PartitionOf(std::string_view key, std::size_t partitions);

// CallMethod is thread-safe. A channel may be destroyed while calls that don't
// block are under way.
class PartitionChannel : public google::protobuf::RpcChannel {
 public:
  using Options = FanOutOptions;

  // Partition n is the n-th channel.
  PartitionChannel(
      std::vector<std::shared_ptr<google::protobuf::RpcChannel>> partitions,
      Partitioner partitioner, Options options = {});

  // As that of ParallelChannel.
  void CallMethod(const google::protobuf::MethodDescriptor* method,
                  google::protobuf::RpcController* controller,
                  const google::protobuf::Message* request,
                  google::protobuf::Message* response,
                  google::protobuf::Closure* done) override;

 private:
  const std::shared_ptr<const rpc::FanOutCall::Settings> settings_;
  const Partitioner partitioner_;
};

}  // namespace flare

#endif  // FLARE_RPC_FAN_OUT_PARTITION_CHANNEL_H_
