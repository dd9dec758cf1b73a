// The server's side of one call: attachments, metadata, deadline and peer
// beside the request, and the outcome.
//
//   void Echo(const EchoRequest& request, EchoResponse* response,
//             flare::RpcServerController* controller) override {
//     if (request.body().empty()) return controller->SetFailed(1001, "empty");
//     response->set_body(request.body());
//     controller->SetResponseAttachment(controller->GetRequestAttachment());
//   }
//
// Lives until the call's `done` closure has run (for synchronous services:
// until the method returns). An asynchronous method runs that exactly once, on
// any thread: without it the call never ends, and a second time the process
// dies, or, where the next call has taken the first one's place, that is ended
// in place of it. Not thread-safe. Only WriteResponseImmediately() and running
// `done` block. May be created on its own to test a service; it then answers as
// for a call without deadline and attachment.
#ifndef FLARE_RPC_RPC_SERVER_CONTROLLER_H_
#define FLARE_RPC_RPC_SERVER_CONTROLLER_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/service.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/base/endpoint.h"
#include "flare/base/ref_ptr.h"
#include "flare/io/tls_options.h"
#include "flare/rpc/compression_algorithm.h"
#include "flare/rpc/message_observer.h"
#include "flare/rpc/metadata.h"

namespace flare {

class InterceptedCall;

namespace rpc {
class CallStream;
class GenericAdapter;
class InterceptedHttpHandler;
class LocalCall;
class ServedCall;
class ServerCall;
}  // namespace rpc

template <class T>
class AsyncStreamReader;
template <class T>
class AsyncStreamWriter;
template <class T>
class StreamReader;
template <class T>
class StreamWriter;

class RpcServerController final : public google::protobuf::RpcController {
 public:
  RpcServerController() = default;
  RpcServerController(const RpcServerController&) = delete;
  RpcServerController& operator=(const RpcServerController&) = delete;

  // Makes the call fail: with STATUS_FAILED (99), or with a code of your own,
  // which should be greater than rpc::STATUS_RESERVED_MAX (1000) and is not 0.
  // Over baidu-std avoid 1001, 1002, 1011, 2003 and 2004, with which brpc's
  // servers refuse calls: callers may send them again. Response and attachment
  // are still sent if the protocol has a place for them, which only flare has.
  // The reason is a text for people: callers get up to 32 KiB of it, over HTTP
  // 4096 bytes, in which control characters have become blanks. Elsewhere '?'
  // replaces bytes that aren't UTF-8.
  void SetFailed(const std::string& reason) override;
  void SetFailed(int code, std::string reason = "");

  bool Failed() const override { return error_code_ != 0; }
  int ErrorCode() const { return error_code_; }
  std::string ErrorText() const override { return error_text_; }

  // Sends the response as it is now, while the method goes on (say, to update a
  // cache). From then on neither response, attachment nor outcome may be
  // changed. Has no effect a second time. Blocks the fiber, but no plain
  // thread, while much output waits for the peer
  // (Server::Options::max_output_per_connection), or, where replies are sent in
  // order and many wait for an earlier one, for its turn (a second or so). So
  // does running `done`, if this wasn't called.
  void WriteResponseImmediately();

  // When the caller stops waiting; empty if it didn't say.
  std::optional<std::chrono::steady_clock::time_point> GetTimeout() const;

  // --- Compression ---

  // Returns the algorithms that the caller can read; only kNone if it didn't
  // say.
  CompressionAlgorithmSet GetAcceptableCompressionAlgorithms() const;
  // The best of these: zstd, lz4-frame, gzip, snappy, none, in this order.
  CompressionAlgorithm GetPreferredCompressionAlgorithm() const;
  // Returns whether the request came compressed. For a stream see
  // StreamReader::compressed().
  bool IsRequestCompressed() const { return request_compressed_; }
  // For the response and its attachment. Ignored if the protocol or the caller
  // doesn't support it. In a streaming call it applies to the messages, and
  // must be set before the first one; over gRPC only
  // (StreamWriter::SetCompressed()).
  void SetCompressionAlgorithm(CompressionAlgorithm algorithm) {
    compression_ = algorithm;
  }
  CompressionAlgorithm GetCompressionAlgorithm() const { return compression_; }

  // --- Attachments: bytes beside the message, never copied ---

  const Buffer& GetRequestAttachment() const { return request_attachment_; }
  // Left out, with a line in the log, where the protocol can't carry it (HTTP,
  // Bolt).
  void SetResponseAttachment(Buffer attachment) {
    response_attachment_ = std::move(attachment);
    has_bytes_ = true;
  }
  const Buffer& GetResponseAttachment() const { return response_attachment_; }
  // The response's attachment has already been compressed with the algorithm
  // given to SetCompressionAlgorithm.
  void SetResponseAttachmentPrecompressed(bool precompressed) {
    attachment_precompressed_ = precompressed;
  }
  bool GetResponseAttachmentPrecompressed() const {
    return attachment_precompressed_;
  }

  // For interceptors: the request of a call that a GenericService gets
  // (generic_service.h). Empty behind it, and for other calls.
  const Buffer& GetRequestRawBytes() const;
  // Sends these bytes in place of the serialised response message.
  void SetResponseRawBytes(Buffer bytes) {
    raw_bytes_ = std::move(bytes);
    has_raw_bytes_ = true;
    has_bytes_ = true;
  }
  // Empty if there are none. Behind WriteResponseImmediately() interceptors
  // still find them, as they do the attachment.
  const Buffer& GetResponseRawBytes() const { return raw_bytes_; }
  // Whether raw bytes, maybe none, are sent in place of the message.
  bool HasResponseRawBytes() const { return has_raw_bytes_; }
  // The message is sent after all.
  void ClearResponseRawBytes() {
    raw_bytes_.Clear();
    has_raw_bytes_ = false;
  }

  // --- Metadata: names and values beside the message (metadata.h) ---

  // Returns the metadata that the caller has sent, as far as its protocol says;
  // baidu-std's log_id, too, as "log-id". Names that protocols use themselves
  // aren't among it.
  const Metadata& GetRequestMetadata() const;
  // Adds an entry that goes with the response, also if the call fails. In a
  // streaming call it goes with the first message, or with the end if that
  // message has been written (docs/metadata.md). Returns false, and logs a
  // line, for an entry that Metadata::Add() refuses. A protocol that can't
  // carry metadata drops all of it, with a line in the log.
  bool AddResponseMetadata(std::string_view name, std::string_view value);
  // ... to be read and changed.
  Metadata* MutableResponseMetadata();
  // Adds an entry that goes behind the response, with the status: over gRPC as
  // trailing metadata. Other protocols, and calls that fail, have one place for
  // both kinds, where these entries follow the others. Metadata's limits hold
  // for both together: further entries are left out, with a line in the log.
  bool AddResponseTrailer(std::string_view name, std::string_view value);

  // --- Streams: of streaming methods ---

  // The client's messages and those for the client (stream_reader.h,
  // stream_writer.h). SyncX and AsyncX of generated code hand them to the
  // method as arguments; the stock X calls these, each at most once. They may
  // outlive the call. For unary calls, and outside of a server, they have no
  // stream.
  template <class T>
  StreamReader<T> GetStreamReader() {
    return StreamReader<T>(stream());
  }
  template <class T>
  StreamWriter<T> GetStreamWriter() {
    return StreamWriter<T>(stream());
  }
  template <class T>
  AsyncStreamReader<T> GetAsyncStreamReader() {
    return AsyncStreamReader<T>(stream());
  }
  template <class T>
  AsyncStreamWriter<T> GetAsyncStreamWriter() {
    return AsyncStreamWriter<T>(stream());
  }
  // The stream that these are made of; null for unary calls.
  RefPtr<rpc::CallStream> stream() const;

  // --- About the call ---

  // Empty outside of a server.
  const Endpoint& GetRemotePeer() const;
  // Returns the identity of the caller, by the certificate that it has shown.
  // Null: it has shown none, its connection is plain, or this is outside of a
  // server. Look at `verified` where a server requests certificates without
  // requiring them. Lives as long as the call.
  const PeerIdentity* peer_identity() const;
  // Returns the identity of the caller, as an interceptor has found out
  // (access_control.h). Empty: none has.
  const std::string& caller() const;
  void SetCaller(std::string caller) {
    ForMetadata().caller = std::move(caller);
  }
  // Since the request was received; 0 outside of a server.
  std::chrono::nanoseconds GetElapsedTime() const;
  // When the request was read off the socket, taken up by its fiber, parsed.
  // The second is later by the time for which the call has waited for its peer
  // to take output.
  std::chrono::steady_clock::time_point GetTimestampReceived() const;
  std::chrono::steady_clock::time_point GetTimestampDispatched() const;
  std::chrono::steady_clock::time_point GetTimestampParsed() const;

  // As new.
  void Reset() override;

  // --- Cancellation (docs/cancellation.md) ---

  // Whether a reply is of no use any more, as far as is known: the caller's
  // connection is closed, or its input has ended (which isn't noticed while the
  // server doesn't read from it), the caller's timeout has passed, or the
  // server doesn't wait for running calls any longer. Cheap enough for a loop.
  bool IsCanceled() const override;
  // Returns a token that stops when IsCanceled() becomes true: for waits that
  // take a token. It is the same as ExecutionContext::Current()->stop_token()
  // in the method. Its callbacks must not block. Never stops outside of a
  // server.
  std::stop_token GetStopToken() const;
  // Runs `callback` once: on a fiber of its own when the call is cancelled, or
  // behind the reply, before `done` returns; at once if it is cancelled
  // already, and outside of a server.
  void NotifyOnCancel(google::protobuf::Closure* callback) override;
  // For clients; does nothing.
  void StartCancel() override {}

 private:
  friend class InterceptedCall;
  friend class rpc::GenericAdapter;
  friend class rpc::InterceptedHttpHandler;
  friend class rpc::LocalCall;
  friend class rpc::ServerCall;

  struct CallMetadata {
    Metadata request;
    Metadata response;
    Metadata trailing;
    std::string caller;
    // For a GenericService; else both are empty.
    std::string generic_method;
    Buffer generic_request;
  };
  // The name of the method that the call is for, which `method` describes.
  std::string_view NameOf(
      const google::protobuf::MethodDescriptor& method) const {
    return metadata_ != nullptr && !metadata_->generic_method.empty()
               ? std::string_view(metadata_->generic_method)
               : method.full_name();
  }
  CallMetadata& ForMetadata();  // To write to.
  void ObserveMessages(MessageObserver observer);

  rpc::ServedCall* call_ = nullptr;  // Null outside of a server.
  int error_code_ = 0;
  bool request_compressed_ = false;
  bool attachment_precompressed_ = false;
  bool has_bytes_ = false;  // A buffer or metadata below was filled in.
  bool has_raw_bytes_ = false;
  CompressionAlgorithm compression_ = CompressionAlgorithm::kNone;
  std::uint64_t acceptable_compressions_ = 0;
  // NowNs() times; 0: none.
  std::int64_t deadline_ns_ = 0;
  std::int64_t received_ns_ = 0;
  std::int64_t dispatched_ns_ = 0;
  std::int64_t parsed_ns_ = 0;
  const Endpoint* remote_peer_ = nullptr;  // The connection's.
  // Set for a handler's request; calls ask their connection.
  const PeerIdentity* http_peer_ = nullptr;

  // Few calls use the members from here on; the others don't touch them.
  std::string error_text_;  // Empty unless error_code_ is set.
  Buffer request_attachment_;
  Buffer response_attachment_;
  Buffer raw_bytes_;  // If has_raw_bytes_, even if it is empty.
  std::unique_ptr<CallMetadata> metadata_;  // Null: none.
};

}  // namespace flare

#endif  // FLARE_RPC_RPC_SERVER_CONTROLLER_H_
