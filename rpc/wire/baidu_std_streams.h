// Streaming calls over `baidu-std`, both sides: the streams of brpc ("streaming
// RPC"). A call opens one by stream settings in its request, and the server
// accepts it by settings in its reply. From then on frames with the magic
// "STRM" carry messages (DATA), the number of bytes read (FEEDBACK) and the end
// (CLOSE, RST) in both directions, each addressed by the receiver's number.
//
//   - The reply that accepts a stream is the payload of its first DATA frame.
//     The client sends no messages before it has come.
//   - A request or a reply that isn't empty is the first message of its
//     direction. Our own servers accept with an empty reply; our own clients
//     send an empty request for methods with streams of requests.
//   - brpc knows neither half-closed streams nor a status behind the messages.
//     Peers of this library know each other by a field of their own in the
//     settings, which is the window that they take, too. Between these a CLOSE
//     of the client ends its direction alone (StreamFrameMeta 1000), and one of
//     the server carries the meta of a response with status and metadata.
//   - To brpc a CLOSE says that its sender neither reads nor writes any more.
//     Our client that closes its writer sends it, and reads on until the
//     server's CLOSE. Our method finds the end of its requests, and its writes
//     fail from then on.
//
// One object per connection. Take...() and Begin() are the reader's; the rest
// is thread-safe. Nothing blocks.
#ifndef FLARE_RPC_WIRE_BAIDU_STD_STREAMS_H_
#define FLARE_RPC_WIRE_BAIDU_STD_STREAMS_H_

#include <atomic>
#include <cstddef>
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
#include "flare/rpc/wire/baidu_std_meta.h"
#include "flare/rpc/wire/late_frames.h"

namespace flare::rpc {

// The other end of a stream, as its settings describe it.
struct BaiduStdPeer {
  bool known = false;  // There were settings.
  std::uint64_t id = 0;
  bool needs_feedback = false;
  bool writable = false;
  std::uint32_t window = 0;  // 0: it isn't of this library

  static BaiduStdPeer From(const BaiduStdMeta& meta) {
    return {.known = meta.has_stream_settings,
            .id = meta.stream_id,
            .needs_feedback = meta.stream_needs_feedback,
            .writable = meta.stream_writable,
            .window = meta.stream_window};
  }
  bool ours() const { return window != 0; }
  // The bytes that it may be sent before it acknowledges any.
  std::size_t send_window() const;
};

class BaiduStdServerStreams {
 public:
  // As many at a time on one connection: more are refused.
  static constexpr std::size_t kMaxStreams = 100'000;

  BaiduStdServerStreams(const Limits& limits, ReplySink* sink)
      : limits_(limits), sink_(sink) {}

  // A request with settings, parsed. Takes its message, and leaves a stream in
  // it, or the cause of its refusal.
  void Begin(const BaiduStdPeer& peer, std::uint64_t correlation_id,
             InboundRequest* request);

  // A frame of a stream, which is in request->wire. kHandled, with the request
  // cleared, or kError.
  CutResult Take(InboundRequest* request, std::string* error);

  void EndInput(std::string_view why) { table_.EndInput(why); }
  void Close(const flare::Status& why) { table_.Close(why); }

 private:
  const Limits limits_;
  ReplySink* const sink_;
  StreamTable table_;
  LateFrames late_;
  std::uint64_t opened_ = 0;
};

class BaiduStdClientStreams {
 public:
  explicit BaiduStdClientStreams(const Limits& limits) : limits_(limits) {}

  void SetOutput(StreamOutput* output) { output_ = output; }

  std::unique_ptr<StreamWire> Open(const ClientStreamOpening& opening,
                                   StreamOutput* output);

  // Some were, on this connection.
  bool opened() const {
    // relaxed: a stream was opened before a frame of it could come.
    return opened_.load(std::memory_order_relaxed) != 0;
  }
  bool HasOpen() const { return table_.size() != 0; }

  // Whether a response with that id answers a call that opened a stream.
  static bool IsReply(std::uint64_t correlation_id) {
    return correlation_id >= kFirstId;
  }

  // A frame of a stream, which is in response->wire. kReply: it had the reply
  // of stream *id, which has taken its place.
  enum class Taken { kHandled, kReply, kError };
  Taken TakeFrame(InboundResponse* response, std::uint64_t* id,
                  std::string* error);

  // The reply of that stream's call, parsed, maybe in vain.
  void TakeReply(std::uint64_t id, const BaiduStdPeer& peer,
                 InboundResponse* response);

  void Close(const flare::Status& why) { table_.Close(why); }

 private:
  // Ids of other calls have 32 bits. That of a stream's call is its number,
  // too.
  static constexpr std::uint64_t kFirstId = std::uint64_t{1} << 32;

  const Limits limits_;
  StreamOutput* output_ = nullptr;
  StreamTable table_;
  LateFrames late_;
  std::atomic<std::uint32_t> opened_{0};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_BAIDU_STD_STREAMS_H_
