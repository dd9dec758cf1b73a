// State that the reader of a connection shares with the wires of its streaming
// calls: the HTTP/2 session, its streams, and the way to the client. The rules
// are in grpc_server_protocol.cc.
#ifndef FLARE_RPC_GRPC_GRPC_SERVER_SESSION_H_
#define FLARE_RPC_GRPC_GRPC_SERVER_SESSION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/base/intrusive_list.h"
#include "flare/base/object_pool.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/rpc/grpc/grpc_mapping.h"
#include "flare/rpc/http2/http2_session.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server_protocol.h"
#include "flare/rpc/stream_wire.h"

namespace flare::rpc {

// HttpTicket::type of gRPC's calls, which have `order`, the number of their
// stream, and `format` besides. In others `order` is that number, too.
inline constexpr std::uint8_t kGrpcTicketType = 0;

// A request of plain HTTP, and its reply.
struct Http2Exchange {
  std::string head;  // In the text of HTTP/1.1.
  Buffer body;
  PacedCompaction compaction;
  std::size_t skipped = 0;            // Bytes of a body that is too large.
  bool too_large = false;             // Refused when all of it has come.
  ReplyTurnWaiter* waiter = nullptr;  // For room to send a piece. [GS6]
  bool base64 = false;                // The reply is a stream in base64.

  // So many bytes of messages are in these bytes of a stream.
  static std::size_t CreditOf(std::size_t bytes, bool base64) {
    return base64 ? bytes / 4 * 3 : bytes;
  }
};

// The head of a call, without metadata.
struct GrpcCallHead {
  bool is_post = false;
  bool is_head = false;
  bool has_path = false;
  bool has_type = false;
  bool bad_timeout = false;
  std::optional<PayloadFormat> format;  // gRPC's.
  std::optional<CompressionAlgorithm> encoding = CompressionAlgorithm::kNone;
  std::uint32_t timeout_ms = 0;
  std::uint64_t acceptable = 0;
  // "package.Service.Method", in the connection's memory of methods, or in
  // GrpcServerStream::own_method.
  std::string_view method;
};

// The stream of one call.
struct GrpcServerStream final : Http2Stream, IntrusiveListNode<> {
  enum class Phase : std::uint8_t {
    kHead,       // Its fields come.
    kUnary,      // Its message comes.
    kStreaming,  // Its messages go to the receiver.
    kHttp,       // Another protocol's: its body comes.
    // Nor is HTTP served: answered at its end, or before it has filled its
    // window.
    kRefused,
    kAnswered,  // Nothing of the request is wanted any more.
  };

  explicit GrpcServerStream(const Limits& limits)
      : messages(limits.max_packet_size, kServerSizeLimit),
        metadata(limits.metadata) {}

  // The client can read messages that are compressed by it.
  bool Accepts(CompressionAlgorithm algorithm) const {
    return IsCompressed(algorithm) &&
           (head.acceptable & GrpcCompressions() &
            std::uint64_t{1} << static_cast<int>(algorithm)) != 0;
  }

  // The bytes that have left since the last call. [GS5]
  std::size_t TakeCredit() {
    if (http == nullptr || !http->base64) return std::exchange(credit, 0);
    const std::size_t taken = Http2Exchange::CreditOf(credit, true);
    credit %= 4;
    return taken;
  }

  static void* operator new(std::size_t) {
    return PoolAllocate<sizeof(GrpcServerStream)>();
  }
  static void operator delete(void* memory) {
    PoolFree<sizeof(GrpcServerStream)>(memory);
  }

  Phase phase = Phase::kHead;
  bool head_sent = false;
  bool status_sent = false;
  bool ended = false;       // By the peer.
  bool is_call = false;     // Unary, and running.
  bool has_wire = false;    // A GrpcServerWire.
  std::uint32_t round = 0;  // In which the request began. [GS7]
  GrpcCallHead head;
  std::string own_method;  // See GrpcCallHead::method.
  GrpcMessageCutter messages;
  GrpcMetadataReader metadata;
  std::unique_ptr<Metadata> request_metadata;  // A unary call's.
  std::size_t metadata_size = 0;               // Their size in kept.
  std::size_t kept = 0;       // Bytes of an incomplete request.
  std::size_t advanced = 0;   // Granted before the receiver did.
  std::size_t ungranted = 0;  // Received.
  std::size_t counted = 0;    // See GrpcServerSession::CountWaiting().
  std::size_t credit = 0;     // [GS5]
  RefPtr<StreamReceiver> receiver;
  std::unique_ptr<Http2Exchange> http;  // For plain HTTP.
};

// Names and values as Http2Session takes them. They are others for each call,
// so no table should have them.
std::vector<Http2Field> GrpcFieldsOf(
    const std::vector<std::pair<std::string, std::string>>& entries);

class GrpcServerSession {
 protected:
  friend class GrpcServerWire;
  friend class Http2ReplyWire;
  friend class Http2Site;
  using Stream = GrpcServerStream;
  using Phase = GrpcServerStream::Phase;

  explicit GrpcServerSession(ReplySink* output) : output_(output) {}
  ~GrpcServerSession();

  // Null: it is closed.
  Stream* Find(std::int32_t id) const FLARE_REQUIRES(lock_) {
    return session_ == nullptr ? nullptr
                               : static_cast<Stream*>(session_->Find(id));
  }
  std::vector<RefPtr<StreamReceiver>> Receivers() const FLARE_REQUIRES(lock_);

  // The functions below are for those who have lock_.

  // Bytes of an incomplete request, or message, that are kept.
  void SetKept(Stream* stream, std::size_t bytes);
  // The request of a stream begins, whose end is waited for; or is over.
  void Take(Stream* stream, Phase phase);
  void Leave(Stream* stream, Phase phase);

  void SendHead(Stream* stream, CompressionAlgorithm compression,
                const std::vector<Http2Field>& metadata);
  // Ends the call, once. Before the head it is all in one block.
  void SendStatus(Stream* stream, int status, std::string_view text,
                  const std::vector<Http2Field>& metadata);
  // For plain HTTP: a whole reply, in the form of HTTP/1.1.
  void SendHttp(Stream* stream, Buffer&& http1);
  // `fields` and those of metadata. The span is valid until the next call.
  std::span<const Http2Field> Join(std::span<const Http2Field> fields,
                                   const std::vector<Http2Field>& metadata);
  // False: the connection is closed.
  bool FlushLocked();
  // Flushes for a reply: at once, if it is the only one. Counts its bytes that
  // wait for the peer's windows.
  bool FlushReply(std::int32_t id) FLARE_REQUIRES(lock_);
  // Tells the server how many bytes of a stream wait: for the peer's windows,
  // or for the rest of a streaming call's message, which may never come.
  void CountWaiting(Stream* stream) {
    const std::size_t waiting =
        stream->queued() +
        (stream->phase == Phase::kStreaming ? stream->kept : 0);
    if (waiting == stream->counted) [[likely]]
      return;
    output_->CountHeld(std::exchange(stream->counted, waiting), waiting);
  }
  // For destructors: without memory the connection ends.
  void Reset(Stream* stream, Http2Error error) noexcept;
  // Tells the writer of a stream's reply, if one waits, to ask again. [GS6]
  static void Wake(Stream* stream);

  ReplySink* const output_;
  std::atomic<std::size_t> incomplete_{0};  // Unary requests.
  std::atomic<std::size_t> kept_{0};        // Their bytes.
  std::size_t earlier_ = 0;                 // Those before these. [GS7]
  std::uint32_t round_ = 0;
  std::size_t orphans_ = 0;  // [GS8]
  mutable ThreadMutex lock_;
  std::unique_ptr<Http2Session> session_;  // [GS1]
  std::vector<Http2Field> joined_;         // See Join().
  IntrusiveList<Stream> streams_;
  bool closed_ = false;
  bool input_over_ = false;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_GRPC_GRPC_SERVER_SESSION_H_
