// Streaming calls over `flare`, both sides: frames whose meta has the
// method_type STREAM.
//
// As published, a stream has a connection of its own, of which TCP holds back a
// sender that is too fast. Between two peers of this library, which tell each
// other by `hello`, streams share the connections of other calls, and each has
// a window of its own (rpc_meta.h).
//
// One object per connection. Take() is the reader's; the rest is thread-safe.
// Nothing blocks.
#ifndef FLARE_RPC_WIRE_FLARE_STREAMS_H_
#define FLARE_RPC_WIRE_FLARE_STREAMS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "flare/base/status.h"
#include "flare/rpc/client_protocol.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server_protocol.h"
#include "flare/rpc/stream_table.h"
#include "flare/rpc/stream_wire.h"
#include "flare/rpc/wire/late_frames.h"

namespace flare::rpc {

struct RpcMeta;

class FlareServerStreams {
 public:
  // As many at a time on one connection: more are refused.
  static constexpr std::size_t kMaxStreams = 100'000;

  explicit FlareServerStreams(ReplySink* sink) : sink_(sink) {}

  // A frame of a stream, all of which is in request->wire unless it was too
  // large. kMessage: it begins a call, whose stream is in the request.
  // kHandled: it belongs to one, and the request is cleared. kError: too many
  // belong to none.
  CutResult Take(const RpcMeta& meta, bool too_large, InboundRequest* request,
                 std::string* error);

  void EndInput(std::string_view why) { table_.EndInput(why); }
  void Close(const flare::Status& why) { table_.Close(why); }

 private:
  ReplySink* const sink_;
  bool opened_ = false;  // The reader's: some stream began.
  StreamTable table_;
  LateFrames late_;
};

class FlareClientStreams {
 public:
  explicit FlareClientStreams(const MetadataLimits& metadata)
      : metadata_limits_(metadata) {}

  std::unique_ptr<StreamWire> Open(const ClientStreamOpening& opening,
                                   StreamOutput* output);

  // A frame of a stream, all of which is in response->wire unless it was too
  // large. True: it belongs to a known or an ended stream, and is cleared.
  // False: it belongs to none, or too many have ended.
  [[nodiscard]] bool Take(const RpcMeta& meta, bool too_large,
                          InboundResponse* response);

  void Close(const flare::Status& why) { table_.Close(why); }

  bool HasOpen() const { return table_.size() != 0; }

  // The peer has said so.
  bool can_share() const {
    // relaxed: a fact that doesn't change.
    return can_share_.load(std::memory_order_relaxed);
  }

 private:
  static void TakeWindow(const RpcMeta& meta, StreamReceiver* stream);

  const MetadataLimits metadata_limits_;
  StreamTable table_;
  LateFrames late_;
  std::atomic<std::uint64_t> opened_{0};
  std::atomic<bool> can_share_{false};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_FLARE_STREAMS_H_
