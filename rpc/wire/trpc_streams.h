// Streaming calls over `trpc`, both sides. A stream has a number of its own, so
// it shares its connection with other calls, and windows in both directions:
// INIT tells how many bytes of messages its sender takes, FEEDBACK how many
// more. CLOSE ends a direction, or the call with its outcome.
//
// One object per connection. Take() is the reader's; the rest is thread-safe.
// Nothing blocks.
#ifndef FLARE_RPC_WIRE_TRPC_STREAMS_H_
#define FLARE_RPC_WIRE_TRPC_STREAMS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "flare/base/status.h"
#include "flare/rpc/client_protocol.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server_protocol.h"
#include "flare/rpc/stream_table.h"
#include "flare/rpc/stream_wire.h"
#include "flare/rpc/wire/late_frames.h"
#include "flare/rpc/wire/trpc_frame.h"

namespace flare::rpc {

// The last frame of a stream, which says how it ended. `metadata` may be null.
Buffer TrpcStreamClose(std::uint32_t id, std::uint8_t version, bool reset,
                       TrpcCodes codes, std::string_view text,
                       const Metadata* metadata = nullptr);

class TrpcServerStreams {
 public:
  // As many at a time on one connection: more are refused.
  static constexpr std::size_t kMaxStreams = 100'000;

  TrpcServerStreams(const MetadataLimits& metadata, ReplySink* sink)
      : metadata_limits_(metadata), sink_(sink) {}

  // A frame of a stream, all of which is in request->wire unless it was too
  // large. kMessage: it begins a call, whose head and stream are in the
  // request, or, if it has no stream, must be refused. kHandled: it belongs to
  // one, and the request is cleared.
  CutResult Take(std::uint8_t stream_type, std::uint32_t id,
                 InboundRequest* request);

  void EndInput(std::string_view why) { table_.EndInput(why); }
  void Close(const flare::Status& why) { table_.Close(why); }

 private:
  void Begin(std::uint32_t id, InboundRequest* request);

  const MetadataLimits metadata_limits_;
  ReplySink* const sink_;
  StreamTable table_;
};

class TrpcClientStreams {
 public:
  explicit TrpcClientStreams(const MetadataLimits& metadata)
      : metadata_limits_(metadata) {}

  std::unique_ptr<StreamWire> Open(const ClientStreamOpening& opening,
                                   StreamOutput* output);

  // A frame of a stream; clears the response. False: of none that there was, or
  // of too many that are over.
  [[nodiscard]] bool Take(std::uint8_t stream_type, std::uint32_t id,
                          InboundResponse* response);

  void Close(const flare::Status& why) { table_.Close(why); }

 private:
  // Numbers below belong to the protocol.
  static constexpr std::uint32_t kFirstId = 100;

  const MetadataLimits metadata_limits_;
  StreamTable table_;
  LateFrames late_;
  std::atomic<std::uint32_t> opened_{0};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_TRPC_STREAMS_H_
