// Replies that are streams of messages, over HTTP/1.1: one chunk for each
// message, and behind them fields that say how the call ended.
//
//   HTTP/1.1 200 OK
//   Content-Type: application/x-protobuf
//   Rpc-SeqNo: 1
//   Transfer-Encoding: chunked
//   Trailer: Rpc-Error-Code
//
//   <size in hex>CRLF<message>CRLF       ... for each message
//   0CRLF
//   Rpc-Error-Code: success              or the name of a status
//   Rpc-Error-Reason: text               of failures
//   Rpc-Error-Number: 1001               of failures: our extension
//
// A call that fails before its first message is answered with the numeric
// Rpc-Error-Code in the head. Messages in text and JSON end with a line feed,
// which their readers pass over. An empty message has no bytes, and a chunk
// must have some: it goes out as one field, of a number that protobuf keeps for
// itself, which readers drop as unknown.
//
// HTTP/2 has no chunks: there a binary message, also an empty one, has its size
// in front, as a varint (protobuf's delimited form), which the type says by
// "; encoding=delimited", and the last fields are trailers.
//
// A server sends such a reply in its turn among the connection's others; a
// client reads it on a connection of its own. Requests are single messages.
#ifndef FLARE_RPC_HTTP_HTTP_STREAMS_H_
#define FLARE_RPC_HTTP_HTTP_STREAMS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/status.h"
#include "flare/rpc/client_protocol.h"
#include "flare/rpc/http/http_parser.h"
#include "flare/rpc/http/http_protocol.h"
#include "flare/rpc/http/http_ticket.h"
#include "flare/rpc/http/ordered_replies.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/stream_table.h"
#include "flare/rpc/stream_wire.h"

namespace flare::rpc {

// The fields that say how a stream's call ended, each a line with its CRLF.
std::string StreamEndFields(const flare::Status& status);

// The streams of a server's connection that has had a call of a streaming
// method. Thread-safe; nothing blocks.
class HttpServerStreams {
 public:
  // All of these must outlive this object.
  HttpServerStreams(const HttpUses* uses, OrderedReplies* replies,
                    ReplySink* sink)
      : uses_(uses), replies_(replies), sink_(sink) {}

  // Sends the reply of `ticket`, whose turn it must be.
  std::unique_ptr<StreamWire> Open(const HttpTicket& ticket);

  void Close(const flare::Status& why) { table_.Close(why); }

 private:
  const HttpUses* const uses_;
  OrderedReplies* const replies_;
  ReplySink* const sink_;
  StreamTable table_;
};

// The streams of a client's connection. Take() is the reader's; the rest is
// thread-safe. Nothing blocks.
class HttpClientStreams {
 public:
  explicit HttpClientStreams(const Limits& limits) : limits_(limits) {}

  // `protocol` writes the request, and must outlive the stream.
  std::unique_ptr<StreamWire> Open(const ClientStreamOpening& opening,
                                   const ClientProtocol* protocol,
                                   StreamOutput* output);

  // The connection belongs to a stream, and Take() cuts its input.
  bool opened() const {
    // relaxed: set before the request left whose reply is looked at.
    return opened_.load(std::memory_order_relaxed);
  }
  // As ClientProtocol::Cut(). kHandled: a message, or the end, was taken.
  CutResult Take(Buffer& in, std::size_t* need, std::string* error);
  // Within a reply.
  bool WithinMessage() const { return chunk_left_ != 0; }

  void Close(const flare::Status& why) { table_.Close(why); }

 private:
  static constexpr std::uint64_t kId = 0;  // There is one stream.

  enum class State : std::uint8_t { kHead, kSize, kChunk, kTrailer, kOver };

  CutResult TakeHead(Buffer& in, std::string* error);
  CutResult TakeSize(Buffer& in, std::string* error);
  CutResult TakeChunk(Buffer& in, std::size_t* need, std::string* error);
  CutResult TakeTrailer(Buffer& in, std::string* error);
  // Takes the line that `in` begins with, with its CRLF. False: it isn't
  // complete; too long if *too_long.
  bool TakeLine(Buffer& in, bool* too_long);
  CutResult End(const flare::Status& status);

  const Limits limits_;
  StreamTable table_;
  std::atomic<bool> opened_{false};
  // The reader's.
  State state_ = State::kHead;
  std::size_t scanned_ = 0;     // See FindHeadEnd().
  std::size_t chunk_left_ = 0;  // The rest of a message that hasn't all come.
  std::string line_;
  std::string trailer_;
  std::string scratch_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_STREAMS_H_
