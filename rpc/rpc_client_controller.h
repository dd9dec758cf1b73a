// The caller's side of one call: its options before, its outcome after.
//
//   flare::RpcClientController controller;
//   controller.SetTimeout(std::chrono::milliseconds(100));
//   auto reply = stub.Echo(request, &controller);
//   if (controller.Failed()) {
//     Log(controller.ErrorCode(), controller.ErrorText());
//   }
//   controller.Reset();  // for the next call
//
// Codes (rpc_status.h) of calls that fail without the service's doing:
//   STATUS_TIMEOUT          no reply until the deadline; a reply that comes
//                           later is dropped. The text names the server, if
//                           there was time to choose one, and says so if it was
//                           not sent the request by then
//   STATUS_FAIL_TO_CONNECT  no server could be connected to, or attempts failed
//                           so recently that the next one, at most a second
//                           later, comes after the deadline
//   STATUS_IO_ERROR         the connection broke while the call was under way
//                           (the server may have executed it), or its input was
//                           no reply
//   STATUS_OVERLOADED       too much is queued on the connection already
//   STATUS_NO_PEER          the name resolver knows no server
//   STATUS_INVALID_CHANNEL  the channel is not open
//   STATUS_CHANNEL_SHUTDOWN flare::Start() is ending: connections are closed,
//                           and no new ones made
//   STATUS_INVALID_METHOD_NAME
//                           the protocol can't carry the method's name (http:
//                           over 4 KiB, bolt: over 64 KiB)
//   STATUS_SERIALIZE_REQUEST, STATUS_MALFORMED_DATA
//                           a message lacks required fields or is garbage
//   STATUS_NOT_SUPPORTED    the protocol can't carry an option of the call
//   STATUS_FAILED           with IsCanceled(): StartCancel() was called
//
// Not thread-safe, except for StartCancel().

#ifndef FLARE_RPC_RPC_CLIENT_CONTROLLER_H_
#define FLARE_RPC_RPC_CLIENT_CONTROLLER_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/service.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/base/compression.h"
#include "flare/base/endpoint.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/rpc/compression_algorithm.h"
#include "flare/rpc/metadata.h"

namespace flare {

class GenericStub;

namespace rpc {
class CallStream;
class CancelTarget;
class ClientCall;
class CompositeCall;
class InterceptedClientCall;
class InterceptedStream;
class PolicyCall;
class StreamOpener;
}  // namespace rpc

template <class T>
class AsyncStreamReader;
template <class T>
class AsyncStreamWriter;
template <class T>
class StreamReader;
template <class T>
class StreamWriter;

class RpcClientController final : public google::protobuf::RpcController {
 public:
  RpcClientController() = default;
  ~RpcClientController() override;  // No call may be under way.

  RpcClientController(const RpcClientController&) = delete;
  RpcClientController& operator=(const RpcClientController&) = delete;

  // Puts the controller back to how it was constructed. No call may be under
  // way. Without it, a controller used again keeps the settings of the first
  // call.
  void Reset() override;

  // ------------------------------------------------------------------------
  // Before the call
  // ------------------------------------------------------------------------

  // Sets the time at which the call has to be over, whatever the number of
  // attempts: a point in time of any clock, or a time span that starts with the
  // call. If that is not later than now, the call ends at once with
  // STATUS_TIMEOUT. The default is flare_rpc_client_default_rpc_timeout_ms.
  template <class Clock, class Duration>
  void SetTimeout(std::chrono::time_point<Clock, Duration> deadline) {
    SetDeadline(ToSteadyNs(deadline));
  }
  template <class Rep, class Period>
  void SetTimeout(std::chrono::duration<Rep, Period> span) {
    SetTimeoutSpan(ToNs(span));
  }
  // The deadline; for a time span, where it would be if the call began now.
  std::chrono::steady_clock::time_point GetTimeout() const;

  // Attempts in all; 1 (the default) means no retry, 0 is taken as 1. After a
  // failure that another server may not have, the call goes to the next server
  // at once: after any code but success, STATUS_TIMEOUT, STATUS_FAILED,
  // STATUS_CHANNEL_SHUTDOWN (except a server's), a service's own
  // (STATUS_FROM_USER, those beyond STATUS_RESERVED_MAX, negative ones; over
  // baidu-std except those with which brpc's servers refuse calls), and those
  // that say that the call itself is at fault (STATUS_SERIALIZE_REQUEST,
  // STATUS_INVALID_METHOD_NAME, STATUS_NOT_SUPPORTED, STATUS_INVALID_CHANNEL).
  // So a server that answers STATUS_MALFORMED_DATA or STATUS_PARSE_REQUEST is
  // followed by another one. A request that could not be sent, because no
  // connection could be made, goes to the other servers before it counts as an
  // attempt. If the channel has no other server, the next attempt goes to the
  // same one, at once as well: a RetryPolicy makes pauses. The timeout covers
  // all attempts together: a server that doesn't answer uses it up, and no
  // attempt follows.
  //
  // STATUS_IO_ERROR is repeated, too: calls that were on their way to a server
  // when it stopped, and were not run, fail with it, but so do those that one
  // was running when it died. So more than 1 is for methods that may run twice.
  void SetMaxRetries(std::size_t attempts) { max_attempts_ = attempts; }
  std::size_t GetMaxRetries() const { return max_attempts_; }

  // Says how a call goes on while no server can be connected to. After a
  // failure the next attempt is due 20 ms to a second later; calls that come
  // before wait for it, if that is within their timeouts. False (the default):
  // if it fails, too, the call fails with STATUS_FAIL_TO_CONNECT. True: the
  // call goes on waiting for further attempts until its timeout, and then fails
  // with STATUS_TIMEOUT; these are no attempts in the sense of SetMaxRetries(),
  // as nothing was sent. Other failures aren't waited for, not even that no
  // server is known (STATUS_NO_PEER). Has precedence over the channel's
  // RpcChannel::Options::wait_for_ready.
  void SetWaitForReady(bool wait) {
    wait_for_ready_ = wait;
    wait_for_ready_set_ = true;
  }
  bool GetWaitForReady() const { return wait_for_ready_; }

  // Whether the call belongs to the one in whose execution context it is made
  // (fiber/execution_context.h), as those that a server's method makes do: it
  // takes no longer than the time that one has left, and is cancelled when that
  // one is (docs/cancellation.md). True is the default.
  // RpcChannel::Options::inherits_context says it for all calls of a channel,
  // --flare_rpc_propagate_deadline for all of the program: false by any of the
  // three holds.
  void SetInheritsContext(bool inherits) { inherits_context_ = inherits; }
  bool GetInheritsContext() const { return inherits_context_; }

  // Sets the compression of the request and its attachment; left out, with a
  // line in the log, if the protocol can't say it. It also holds for a stream's
  // messages over gRPC; elsewhere these go as they are.
  void SetCompressionAlgorithm(CompressionAlgorithm algorithm) {
    compression_ = algorithm;
  }
  CompressionAlgorithm GetCompressionAlgorithm() const { return compression_; }

  // Bytes sent along with the request, without a copy: of a string by
  // MakeForeignBuffer() or CreateBufferSlow() (buffer.h).
  void SetRequestAttachment(Buffer attachment) {
    if (bytes_ == nullptr && attachment.empty()) return;
    ForBytes().request_attachment = std::move(attachment);
  }
  const Buffer& GetRequestAttachment() const {
    return bytes().request_attachment;
  }

  // Calls with the same key go to the same server where the channel's load
  // balancer is "chash" (load_balancer.h). Until Reset().
  void SetBalancingKey(std::string_view key);
  // A hash of it; nullptr: there is none.
  const std::uint64_t* balancing_key() const {
    return bytes_ != nullptr && bytes_->has_balancing_key
               ? &bytes_->balancing_key
               : nullptr;
  }

  // Sends an entry along with the request (metadata.h). An entry that
  // Metadata::Add() refuses fails the call with STATUS_NOT_SUPPORTED and its
  // text, and so does metadata over a protocol that can't carry it.
  void AddMetadata(std::string_view name, std::string_view value);
  // ... to be read and changed. Used for all attempts and for later calls,
  // until Reset().
  Metadata* MutableMetadata() { return &ForBytes().request_metadata; }

  // Sends these bytes instead of the serialised request, which is ignored and
  // may be null.
  void SetRequestRawBytes(Buffer bytes) {
    ForBytes().request_raw_bytes = std::move(bytes);
    has_request_raw_bytes_ = true;
  }
  const Buffer& GetRequestRawBytes() const { return bytes().request_raw_bytes; }
  // The message is sent after all.
  void ClearRequestRawBytes() {
    if (!std::exchange(has_request_raw_bytes_, false)) return;
    ForBytes().request_raw_bytes.Clear();
  }

  // Makes the call one-way, over trpc and bolt: the server runs the method and
  // sends no reply. The call ends with success once its request was handed to a
  // connection that is established; nobody is told whether the server got it,
  // and ran it. The response stays as it is. Other protocols, streaming calls,
  // and channels that don't share connections (ConnectionKind) fail with
  // STATUS_NOT_SUPPORTED.
  void SetOneWay(bool one_way) {
    if (bytes_ == nullptr && !one_way) return;
    ForBytes().one_way = one_way;
  }
  bool GetOneWay() const { return bytes_ != nullptr && bytes_->one_way; }

  // Leaves the response message, which may be null, alone and hands out its
  // bytes, decompressed, in GetResponseRawBytes().
  void SetAcceptResponseRawBytes(bool raw) { accept_raw_response_ = raw; }
  bool GetAcceptResponseRawBytes() const { return accept_raw_response_; }

  // ------------------------------------------------------------------------
  // While the call is under way
  // ------------------------------------------------------------------------

  // Ends the call, if it has not ended yet, with STATUS_FAILED. The server is
  // told where the protocol can (docs/cancellation.md). Any thread; doesn't
  // block. Before the call: it ends at once. The wish lasts until Reset().
  void StartCancel() override;

  // Messages of a streaming call that the stock X_Stub has begun
  // (stream_reader.h, stream_writer.h); X_SyncStub and X_AsyncStub of generated
  // code return them themselves. Each at most once. After other calls they have
  // no stream. A stream whose reader nobody has taken is cancelled by Reset().
  template <class T>
  StreamReader<T> GetStreamReader() {
    return StreamReader<T>(TakeStreamForReader(),
                           bytes().stream_has_one_message);
  }
  template <class T>
  StreamWriter<T> GetStreamWriter() {
    return StreamWriter<T>(stream());
  }
  template <class T>
  AsyncStreamReader<T> GetAsyncStreamReader() {
    return AsyncStreamReader<T>(TakeStreamForReader(),
                                bytes().stream_has_one_message);
  }
  template <class T>
  AsyncStreamWriter<T> GetAsyncStreamWriter() {
    return AsyncStreamWriter<T>(stream());
  }
  // The stream behind these; null for other calls. Set by stubs. `only_one`:
  // the service doesn't stream.
  RefPtr<rpc::CallStream> stream() const;
  void SetStream(RefPtr<rpc::CallStream> stream, bool only_one);

  // ------------------------------------------------------------------------
  // After the call
  // ------------------------------------------------------------------------

  // Over flare a service may send its response and attachment with a failure,
  // too: they are there, if they can be read. Else the response is untouched or
  // empty.
  bool Failed() const override { return error_code_ != 0; }
  int ErrorCode() const { return error_code_; }
  std::string ErrorText() const override { return bytes().error_text; }
  // Did the call end by StartCancel()?
  bool IsCanceled() const override { return canceled_; }

  // Returns the metadata that the server has sent beside its reply, also to a
  // call that failed, unless it failed on the caller's side. For a streaming
  // call: the metadata that had come when the last read returned; all of it,
  // once one has returned no message.
  const Metadata& GetResponseMetadata() const;

  const Buffer& GetResponseAttachment() const {
    return bytes().response_attachment;
  }
  // The buffer is there until Reset().
  Buffer* MutableResponseAttachment() {
    return &ForBytes().response_attachment;
  }
  const Buffer& GetResponseRawBytes() const {
    return bytes().response_raw_bytes;
  }

  // The server of the last attempt; empty if none was chosen. A streaming call
  // that a server didn't look at (docs/resilience.md), and that began again,
  // has the server of its first begin.
  const Endpoint& GetRemotePeer() const { return remote_peer_; }

  // From the start of the call to its end; up to now while it is under way, 0
  // before it.
  std::chrono::nanoseconds GetElapsedTime() const;
  // When the (last) request was handed to the connection, the reply was read,
  // and its body was parsed. The epoch if it did not come to that.
  std::chrono::steady_clock::time_point GetTimestampSent() const;
  std::chrono::steady_clock::time_point GetTimestampReceived() const;
  std::chrono::steady_clock::time_point GetTimestampParsed() const;

  // Makes this a failed call; for code in place of a stub.
  void SetFailed(const std::string& reason) override;
  void SetFailed(int code, std::string reason);

  // Belongs to the server's side of a call: terminates the process with a
  // message.
  void NotifyOnCancel(google::protobuf::Closure* callback) override;

 private:
  friend class rpc::ClientCall;
  friend class rpc::CompositeCall;
  friend class rpc::InterceptedClientCall;
  friend class rpc::InterceptedStream;
  friend class rpc::PolicyCall;
  friend class rpc::StreamOpener;
  friend class GenericStub;
  friend class RpcChannel;

  void SetDeadline(std::int64_t steady_ns);
  void SetTimeoutSpan(std::int64_t ns);
  // On the clock of NowNs(); nullopt: none was set.
  std::optional<std::int64_t> DeadlineFrom(std::int64_t now_ns) const;

  // Makes an attempt, or a call that is made of others, known to StartCancel();
  // false if that was called already. EndAttempt() waits (a few instructions)
  // until a StartCancel() that found it has let go of it.
  [[nodiscard]] bool BeginAttempt(rpc::CancelTarget* target);
  void EndAttempt(rpc::CancelTarget* target);
  void ClearOutcome();

  // For streaming calls: StartCancel() ends `stream`, which has begun, from
  // here on, until the next call or Reset(). The others are for the reader.
  void BindStream(RefPtr<rpc::CallStream> stream);
  void UnbindStream();
  void TakeStreamNews(std::unique_ptr<Metadata> metadata,
                      const flare::Status& failure);
  void AddStreamMetadata(std::unique_ptr<Metadata> metadata);
  // For GenericStub: makes the next call one of `method` with these bytes, and
  // takes the response's bytes.
  void BeginGeneric(std::string_view method, Buffer request);
  Buffer EndGeneric();
  // The name of the method that the call is for, which `method` describes.
  std::string_view NameOf(
      const google::protobuf::MethodDescriptor& method) const;
  // Takes the settings of `other` that concern streaming calls.
  void TakeWishesOf(const RpcClientController& other);

  enum class TimeoutKind : std::uint8_t { kDefault, kSpan, kDeadline };

  // Data that few calls have. Beside the controller, so that those of the
  // others, which mostly lie on the stacks of fibers that wait, are small.
  struct Bytes {
    std::string error_text;
    Buffer request_attachment;
    Buffer request_raw_bytes;
    Buffer response_attachment;
    Buffer response_raw_bytes;
    Metadata request_metadata;
    Metadata sent_metadata;  // ... with the channel's credential, if it has one
    std::string metadata_error;  // Of AddMetadata(); empty: none.
    std::string generic_method;  // For a GenericStub's call; else empty.
    std::unique_ptr<Metadata> response_metadata;  // Null: none.
    RefPtr<rpc::CallStream> stream;
    RefPtr<rpc::CallStream> cancelable_stream;  // In cancelable_, or was there.
    std::uint64_t balancing_key = 0;
    bool has_balancing_key = false;
    bool one_way = false;
    bool stream_has_one_message = false;
    bool stream_has_reader = false;

    Bytes();
    ~Bytes();
    void Clear();
    void ClearOutcome();
  };
  const Bytes& bytes() const;
  Bytes& ForBytes();  // To write to.
  void DropBytes();
  RefPtr<rpc::CallStream> TakeStreamForReader();

  TimeoutKind timeout_kind_ = TimeoutKind::kDefault;
  CompressionAlgorithm compression_ = CompressionAlgorithm::kNone;
  bool has_request_raw_bytes_ = false;
  bool accept_raw_response_ : 1 = false;
  bool wait_for_ready_ : 1 = false;
  bool wait_for_ready_set_ : 1 = false;
  bool inherits_context_ : 1 = true;
  // The deadline is that of an attempt, before that of the call.
  bool ends_early_ : 1 = false;
  bool canceled_ = false;
  std::atomic<bool> cancel_requested_{false};
  int error_code_ = 0;
  std::int64_t timeout_ns_ = 0;  // A span or a deadline.
  std::size_t max_attempts_ = 1;

  // The thing that StartCancel() would end, or null; Busy() while one does so.
  std::atomic<rpc::CancelTarget*> cancelable_{nullptr};
  // Where the last call went; only compared, never followed. A controller used
  // again prefers that connection, so that replies that came in with one read
  // lead to requests that leave with one write.
  const void* last_connection_ = nullptr;

  // On the clock of NowNs().
  std::int64_t started_ns_ = 0;
  std::int64_t sent_ns_ = 0;
  std::int64_t received_ns_ = 0;
  std::int64_t parsed_ns_ = 0;
  std::int64_t ended_ns_ = 0;

  Bytes* bytes_ = nullptr;  // Pooled; null: all of it is empty.
  Endpoint remote_peer_;
};

}  // namespace flare

#endif  // FLARE_RPC_RPC_CLIENT_CONTROLLER_H_
