// What the reader of one connection and the wires of its streaming calls share:
// the HTTP/2 session, its streams, and the way to the client. The rules are in
// grpc_server_protocol.cc.
#ifndef FLARE_RPC_GRPC_GRPC_SERVER_SESSION_H_
#define FLARE_RPC_GRPC_GRPC_SERVER_SESSION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
#include "flare/rpc/stream/stream_wire.h"

namespace flare::rpc {

// The stream of one call.
struct GrpcServerStream final : Http2Stream, IntrusiveListNode<> {
  enum class Phase : std::uint8_t {
    kHead,       // Its fields come.
    kUnary,      // Its message comes.
    kStreaming,  // Its messages go to the receiver.
    // Not gRPC's: answered at its end, or before it has filled its window.
    kRefused,
    kAnswered,  // Nothing of the request is wanted any more.
  };

  explicit GrpcServerStream(const Limits& limits)
      : messages(limits.max_packet_size, kServerSizeLimit),
        metadata(limits.metadata) {}

  // The client can read messages that are compressed by it.
  bool Accepts(CompressionAlgorithm algorithm) const {
    return IsCompressed(algorithm) &&
           (acceptable & GrpcCompressions() &
            std::uint64_t{1} << static_cast<int>(algorithm)) != 0;
  }

  static void* operator new(std::size_t) {
    return PoolAllocate<sizeof(GrpcServerStream)>();
  }
  static void operator delete(void* memory) {
    PoolFree<sizeof(GrpcServerStream)>(memory);
  }

  Phase phase = Phase::kHead;
  bool is_post = false;
  bool is_head = false;
  bool has_path = false;
  bool bad_timeout = false;
  bool head_sent = false;
  bool status_sent = false;
  bool ended = false;    // By the peer.
  bool is_call = false;  // Unary, and running.
  std::optional<PayloadFormat> format;
  std::optional<CompressionAlgorithm> encoding = CompressionAlgorithm::kNone;
  std::uint32_t timeout_ms = 0;
  std::uint64_t acceptable = 0;
  std::string method;  // "package.Service.Method"
  GrpcMessageCutter messages;
  GrpcMetadataReader metadata;
  std::unique_ptr<Metadata> request_metadata;  // Of a unary call.
  std::size_t kept = 0;       // Bytes of an incomplete message.
  std::size_t advanced = 0;   // Granted before the receiver did.
  std::size_t ungranted = 0;  // Received.
  std::size_t counted = 0;    // Of a reply that waits: by the server.
  std::size_t credit = 0;     // [GS5]
  RefPtr<StreamReceiver> receiver;
};

// Names and values as Http2Session takes them.
std::vector<Http2Field> GrpcFieldsOf(
    const std::vector<std::pair<std::string, std::string>>& entries);

class GrpcServerSession {
 protected:
  friend class GrpcServerWire;
  using Stream = GrpcServerStream;
  using Phase = GrpcServerStream::Phase;

  explicit GrpcServerSession(StreamOutput* output) : output_(output) {}
  ~GrpcServerSession();

  // Null: it is closed.
  Stream* Find(std::int32_t id) const FLARE_REQUIRES(lock_) {
    return session_ == nullptr ? nullptr
                               : static_cast<Stream*>(session_->Find(id));
  }
  std::vector<RefPtr<StreamReceiver>> Receivers() const FLARE_REQUIRES(lock_);

  // The functions below are for those who have lock_.

  // Bytes of an incomplete message that are kept.
  void SetKept(Stream* stream, std::size_t bytes);
  void Leave(Stream* stream, Phase phase);

  void SendHead(Stream* stream, CompressionAlgorithm compression,
                const std::vector<Http2Field>& metadata);
  // Ends the call, once. Before the head it is all in one block.
  void SendStatus(Stream* stream, int status, std::string_view text,
                  const std::vector<Http2Field>& metadata);
  // False: the connection is closed.
  bool FlushLocked();

  StreamOutput* const output_;
  std::atomic<std::size_t> kept_{0};
  std::atomic<std::size_t> incomplete_{0};  // Unary requests.
  mutable ThreadMutex lock_;
  std::unique_ptr<Http2Session> session_;  // [GS1]
  IntrusiveList<Stream> streams_;
  bool closed_ = false;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_GRPC_GRPC_SERVER_SESSION_H_
