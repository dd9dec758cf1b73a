// One wire format as a client sees it: a client connection owns one
// ClientProtocol object, writes requests with it and cuts responses off its
// input.
#ifndef FLARE_RPC_CLIENT_PROTOCOL_H_
#define FLARE_RPC_CLIENT_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/outbound_body.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_wire.h"

namespace flare::rpc {

// A call. Views need not outlive Write.
struct OutboundRequest {
  std::uint64_t correlation_id = 0;  // never 0
  std::string_view method;           // "package.Service.Method"
  std::uint32_t timeout_ms = 0;      // 0: not sent
  CompressionAlgorithm compression = CompressionAlgorithm::kNone;
  bool attachment_compressed = false;
  bool one_way = false;  // Only if ProtocolTraits::one_way; no reply comes.
  OutboundBody body;     // in the protocol's format, and compressed
  Buffer attachment;
  const Metadata* metadata = nullptr;  // null: none
};

// One response, from Cut until it is handed to its call. Pooled by the client.
struct InboundResponse {
  InboundResponse() = default;
  InboundResponse(const InboundResponse&) = delete;
  InboundResponse& operator=(const InboundResponse&) = delete;

  void Clear();

  std::uint64_t correlation_id = 0;  // this and all below: valid after Parse
  int status = STATUS_SUCCESS;
  // Points into memory held by this object.
  std::string_view description;
  CompressionAlgorithm compression = CompressionAlgorithm::kNone;
  bool attachment_compressed = false;
  // The peer will close the connection after this response: send no more.
  bool last_on_connection = false;
  // No reply, but a message of the protocol's own, such as a heartbeat. `body`,
  // if not empty, is the whole answer to be sent. The id is 0.
  bool is_notice = false;
  // `status` isn't the server's, but says why the reply can't be read.
  bool unreadable = false;
  // It is unreadable for the client's limit alone: the server has answered.
  bool oversized = false;
  // The server has told that it didn't look at the request, which another
  // connection may serve. `status` is a failure.
  bool unprocessed = false;
  Buffer body;  // as received; a message only if status is 0, or
                // ProtocolTraits::failures_have_messages
  Buffer attachment;
  std::unique_ptr<Metadata> metadata;  // null: none; of failures, too
  std::size_t wire_size = 0;           // valid after Cut

  // For the protocol's own use.
  Buffer wire;
  std::string scratch;
  std::uint32_t meta_size = 0;
  std::uint32_t body_size = 0;
};

// A streaming call that is to begin.
struct ClientStreamOpening {
  std::string_view method;       // "package.Service.Method"
  std::uint32_t timeout_ms = 0;  // 0: not sent
  bool client_streams = false;   // Else there is one request.
  // The connection carries other calls, too.
  bool shared = false;
  // Null: none. Only if ProtocolTraits::metadata; not used after OpenStream().
  const Metadata* metadata = nullptr;
};

// One connection's view of one protocol on the calling side.
class ClientProtocol {
 public:
  virtual ~ClientProtocol() = default;

  virtual std::string_view name() const = 0;
  virtual ProtocolTraits traits() const = 0;
  virtual PayloadFormat format() const = 0;

  // Where the connection takes bytes. Once, before all else; not on objects
  // that are asked for the three above alone.
  virtual void SetOutput(StreamOutput* /*output*/) {}

  // Appends the request to *out, or nothing, if it went to the output itself
  // because its place among others matters. Fails, having appended nothing,
  // with STATUS_INVALID_METHOD_NAME, STATUS_NOT_SUPPORTED (attachment,
  // metadata) or STATUS_SERIALIZE_REQUEST (a part over 4 GiB); or with
  // STATUS_FAIL_TO_CONNECT: the server takes no further calls on this
  // connection, `request` is as it was, and another connection may serve.
  // Thread-safe, doesn't block.
  virtual flare::Status Write(OutboundRequest&& request,
                              BufferBuilder* out) const = 0;

  // As ServerProtocol::Cut; never returns kUnsure or kNotMine. Messages of
  // streams go to their receivers.
  virtual CutResult Cut(Buffer& in, InboundResponse* response,
                        std::size_t* need, std::string* error) = 0;

  // After Cut has left no input: more is to come of a message whose beginning
  // was taken off it.
  virtual bool WithinMessage() const { return false; }

  // As ServerProtocol::Parse.
  virtual ParseResult Parse(InboundResponse* response) const = 0;

  // Asks the server for a sign of life, which comes as input. False: the
  // protocol has no such question. Any thread; doesn't block.
  virtual bool Ping() { return false; }

  // Nobody waits any more for the reply to a request that Write() has taken.
  // Any thread; doesn't block.
  virtual void Abandon(std::uint64_t /*correlation_id*/) {}

  // Sends frames that were put off, as StreamOutput::SendLater() has asked for.
  // Any thread; doesn't block.
  virtual void SendDelayed() {}

  // Whether the protocol has streaming calls.
  virtual bool has_streams() const { return false; }
  // The peer has shown that its streams may share connections with other calls.
  // Until then each needs one of its own. Any thread.
  virtual bool streams_can_share() const { return false; }
  // Some have begun and aren't over. Any thread.
  virtual bool HasOpenStreams() const { return false; }
  // A stream, which is known to the protocol from StreamWire::Begin() on; its
  // messages come inside Cut(). Null: the protocol has none. Any thread;
  // doesn't block.
  virtual std::unique_ptr<StreamWire> OpenStream(
      const ClientStreamOpening& /*opening*/, StreamOutput* /*output*/) {
    return nullptr;
  }
  // The connection is closed: streams end. Called once, by the reader, as the
  // last thing.
  virtual void OnClosed(const flare::Status& /*why*/) {}
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_PROTOCOL_H_
