// One wire format as a server sees it.
//
// A server connection owns one ServerProtocol object per enabled protocol
// (see protocol_registry.h) and does, in its reading task:
//
//   switch (protocol->Cut(in, request, &need, &error)) { ... }
//
// and then, in a task of each request's own:
//
//   if (protocol->Parse(request) == ParseResult::kOk) { ...serve...
//     protocol->Write(request->ticket, std::move(response)); }
//
// Which protocol speaks on a connection is found by trying them in the order
// of `AddProtocol`: the first answer that is neither kNotMine nor kUnsure
// decides. All kNotMine: close the connection. Some kUnsure and the rest
// kNotMine: wait for more bytes. The protocol that took the last bytes is tried
// first; if it says kNotMine the others are tried again.
#ifndef FLARE_RPC_SERVER_PROTOCOL_H_
#define FLARE_RPC_SERVER_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/outbound_body.h"
#include "flare/rpc/own_request.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_wire.h"

namespace flare::rpc {

struct RequestHead {
  // "package.Service.Method". Points into memory held by the InboundRequest, up
  // to when its body is cleared or taken away.
  std::string_view method;
  std::uint32_t timeout_ms = 0;  // relative to arrival; 0: none given
  // `method` may lack the package, as the names that some brpc clients send.
  bool short_service = false;
  // The compression of the body, and of the attachment if
  // `attachment_compressed`.
  CompressionAlgorithm compression = CompressionAlgorithm::kNone;
  bool attachment_compressed = false;
  // Bit n: the caller understands CompressionAlgorithm n. 0: not said.
  std::uint64_t acceptable_compressions = 0;
  // The compression that a large reply may have though the service doesn't ask
  // for it; kNone: it may not.
  CompressionAlgorithm unasked_compression = CompressionAlgorithm::kNone;
  // The format of the request's message, and of the reply's.
  PayloadFormat format = PayloadFormat::kProtobuf;
  // The reply repeats parts of the request, which is kept until then.
  bool reply_needs_request = false;
};

// Holds a protocol's record of a request, to write its reply: a small struct of
// its own, into which nobody else looks.
//
//   struct LineTicket { std::uint64_t id = 0; };
//   request->ticket.Emplace<LineTicket>().id = 7;  // in Cut or Parse
//   Send(ticket.As<LineTicket>().id, ...);         // in Write
//
// A plain value, copied into the call if the request is recycled earlier.
// Objects that it points to must outlive the reply; memory of the request does
// with RequestHead::reply_needs_request.
class ReplyTicket {
 public:
  static constexpr std::size_t kSize = 32;

  // Replaces the struct that was there.
  template <class T>
  T& Emplace(const T& value = T()) {
    Check<T>();
    return *::new (bytes_) T(value);
  }
  // Returns the struct that was put there last: undefined for another T, and
  // for none.
  template <class T>
  T& As() {
    Check<T>();
    return *std::launder(reinterpret_cast<T*>(bytes_));
  }
  template <class T>
  const T& As() const {
    Check<T>();
    return *std::launder(reinterpret_cast<const T*>(bytes_));
  }

 private:
  template <class T>
  static constexpr void Check() {
    static_assert(sizeof(T) <= kSize && alignof(T) <= alignof(std::uint64_t),
                  "too large for a ReplyTicket");
    static_assert(
        std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>,
        "tickets are copied as bytes");
  }

  alignas(std::uint64_t) unsigned char bytes_[kSize] = {};
};

// One request, from Cut until its service is called, or until its reply where
// that needs its content. Pooled by the server: Clear() keeps the capacity of
// the parts, up to kMaxKeptBytes (base/string.h) each. Neither copied nor
// moved, because `head` may point into `scratch`.
struct InboundRequest {
  InboundRequest() = default;
  InboundRequest(const InboundRequest&) = delete;
  InboundRequest& operator=(const InboundRequest&) = delete;

  void Clear();

  // Set: a request that is no call. It is in there, in place of `head` and
  // `body`, and answers itself.
  OwnRequestPtr own;
  RequestHead head;   // valid after Parse
  Buffer body;        // as received: maybe compressed; valid after Parse
  Buffer attachment;  // likewise
  std::unique_ptr<Metadata> metadata;  // null: none; valid after Parse
  ReplyTicket ticket;
  // Set (not STATUS_SUCCESS) if the request is refused by the protocol.
  int reject_status = STATUS_SUCCESS;
  std::string reject_reason;
  // Bytes that the message took on the wire; valid after Cut. They count in the
  // server's memory for requests.
  std::size_t wire_size = 0;
  // The stream of a streaming call. It has the call's messages, the first one
  // included.
  RefPtr<StreamReceiver> stream;

  // For the protocol's own use.
  Buffer wire;
  std::string scratch;
  std::uint32_t meta_size = 0;
  std::uint32_t body_size = 0;

 private:
  void ClearRare();
};

// Failures that some protocols tell apart within one status.
enum class FailureDetail : std::uint8_t {
  kNone,
  kExpired,    // The caller's timeout was over before the call began.
  kNoService,  // For an unknown method: the server lacks its service, too.
  kStopping,   // The server stops, and begins no further call.
  kMediaType,  // The method's messages stream, and this form of call has none.
  kUnreadRequest,  // The request is at fault: it can't be read.
};

// A reply to a call. `description` need not outlive Write.
struct OutboundResponse {
  int status = STATUS_SUCCESS;
  std::string_view description;  // error text; may hold any bytes
  FailureDetail detail = FailureDetail::kNone;
  CompressionAlgorithm compression = CompressionAlgorithm::kNone;
  bool attachment_compressed = false;
  OutboundBody body;  // in RequestHead::format, and compressed
  Buffer attachment;
  const Metadata* metadata = nullptr;  // null: none; need not outlive Write
  // null: none; need not outlive Write. For a call that succeeds, over
  // protocols that have trailers.
  const Metadata* trailers = nullptr;
};

// A server's knowledge of a method, by its name.
enum class MethodKind : std::uint8_t {
  kUnknown,
  kUnary,
  kStreaming,       // The client streams, too.
  kReplyStreaming,  // The server alone.
};

// A streaming call that a peer has begun.
struct StreamOpening {
  PayloadFormat format = PayloadFormat::kProtobuf;
  std::uint32_t timeout_ms = 0;  // 0: none given
  std::size_t send_window = 0;   // See StreamReceiver::OnCredit.
};

// Where a ServerProtocol puts replies: implemented by the server connection.
// All functions may be called from any thread, never block and never call
// back into the protocol.
class ReplySink : public StreamOutput {
 public:
  virtual ~ReplySink() = default;
  // By Cut(): the value of InboundRequest::stream, which gets the messages of
  // the call. Null: this server has no streams.
  virtual RefPtr<StreamReceiver> OpenStream(
      const StreamOpening& /*opening*/, std::unique_ptr<StreamWire> /*wire*/) {
    return nullptr;
  }
  // For protocols whose requests don't say it: by Cut(), whether the method of
  // that name ("package.Service.Method") has streams. `short_service`: see
  // RequestHead.
  virtual MethodKind KindOfMethod(std::string_view /*name*/,
                                  bool /*short_service*/) {
    return MethodKind::kUnknown;
  }
  // By Cut(): some callers have left (ServerProtocol::CallerLeft), whose calls
  // are to stop.
  virtual void StopLeftCalls() {}
  bool WriteSoon(Buffer&& bytes) override { return Write(std::move(bytes)); }
  void HoldInput() override {}
  void ReleaseInput() override {}
  // Queues bytes behind those of earlier calls. False: already closed.
  virtual bool Write(Buffer&& bytes) = 0;
  // Reads no more, and closes once everything queued is sent, and the replies
  // to requests that were read in other protocols.
  virtual void CloseAfterReplies() = 0;
  // Much is held back for an earlier reply, or no longer is: calls that can
  // wait ask for their turn before they make a reply
  // (ServerProtocol::AskToReply). Must not block.
  virtual void SetMuchHeld(bool /*much*/) {}
};

// Whether a reply may be made, or begin in pieces. kLater: its waiter is told
// when it's worth asking again. kNever: nothing is sent on this connection any
// more.
enum class ReplyTurn { kNow, kLater, kNever };

class ReplyTurnWaiter {
 public:
  // Called once for each kLater, from any thread; must not block or call back.
  // May come before the function that returned kLater has returned.
  virtual void OnTurn() = 0;

 protected:
  ~ReplyTurnWaiter() = default;
};

// One connection's view of one protocol. Must outlive the replies of all
// requests it cut.
class ServerProtocol {
 public:
  virtual ~ServerProtocol() = default;

  virtual std::string_view name() const = 0;
  virtual ProtocolTraits traits() const = 0;

  // Takes at most one message off `in` into *request, which must be cleared.
  // Called by one task at a time (the connection's reader); never blocks. After
  // kHandled *request is cleared, too: the bytes were no request, or belong to
  // an earlier one. On kNeedMore *need is the number of bytes `in` must have in
  // all for the message to be complete, or 0 if that isn't known; the object
  // keeps its own state, so *request may be another one next time. On kError
  // *error is set.
  virtual CutResult Cut(Buffer& in, InboundRequest* request, std::size_t* need,
                        std::string* error) = 0;

  // Completes *request. Thread-safe: for several requests at once and
  // concurrently with Cut. Doesn't block.
  virtual ParseResult Parse(InboundRequest* request) const = 0;

  // Returns whether to make the reply now, or later because many bytes of
  // earlier replies are held back (ReplySink::SetMuchHeld). Thread-safe,
  // doesn't block.
  virtual ReplyTurn AskToReply(const ReplyTicket& /*ticket*/,
                               ReplyTurnWaiter* /*waiter*/) {
    return ReplyTurn::kNow;
  }
  // The caller has waited for long after AskToReply said kLater, and makes the
  // reply now. False: the waiter is being told.
  virtual bool StopWaitingToReply(const ReplyTicket& /*ticket*/) {
    return false;
  }

  // Sends the reply of a call. Each request that was cut is answered exactly
  // once, by this or, if it has one, by its OwnRequest, unless the connection
  // is closed (replies that leave in order would wait for it forever).
  // Thread-safe, doesn't block.
  virtual void Write(const ReplyTicket& ticket,
                     OutboundResponse&& response) = 0;

  // For a single request whose method streams its replies: returns why this
  // protocol can't carry them, as the rest of a sentence that begins with the
  // method's name; empty if it can. Then AskToStream() is called until it
  // doesn't return kLater. After kNow, OpenReplyStream() is called once, and
  // its result sends the reply; after kNever, Write() does. Thread-safe; none
  // blocks.
  virtual std::string_view WhyNoReplyStream(
      const ReplyTicket& /*ticket*/) const {
    return "is a streaming method: it can't be called with a single message.";
  }
  virtual ReplyTurn AskToStream(const ReplyTicket& /*ticket*/,
                                ReplyTurnWaiter* /*waiter*/) {
    return ReplyTurn::kNow;
  }
  virtual std::unique_ptr<StreamWire> OpenReplyStream(
      const ReplyTicket& /*ticket*/) {
    return nullptr;
  }

  // Whether the reply to this request has a place for metadata behind its
  // message. Thread-safe, doesn't block.
  virtual bool HasTrailers(const ReplyTicket& /*ticket*/) const {
    return traits().trailers;
  }

  // The caller doesn't wait for the reply any more, though the connection goes
  // on. Thread-safe, doesn't block.
  virtual bool CallerLeft(const ReplyTicket& /*ticket*/) const { return false; }

  // Returns whether the next input belongs to a message of which a part was
  // taken off the input before. As Cut, by the reader.
  virtual bool WithinMessage() const { return false; }

  // For protocols whose messages arrive interleaved: returns whether all
  // messages that had begun when this last returned true have ended. By the
  // reader.
  virtual bool EarlierMessagesEnded() { return true; }

  // Bytes of it that were taken off the input by then, and are kept. By the
  // reader.
  virtual std::size_t KeptOfMessage() const { return 0; }

  // The server stops: the peer is told, so that it begins no further calls
  // here. True: it will say when it knows, upon which the protocol calls
  // CloseAfterReplies(); until then requests come as before. False: there is no
  // way to tell it. Any thread; doesn't block.
  virtual bool AnnounceEnd() { return false; }

  // The server stops, and only a reply can tell the peer: the last reply that
  // is due, or one to the next requests, says so, and the connection closes
  // after it. False: the peer hasn't spoken this protocol, or the protocol
  // can't say it. Any thread; doesn't block.
  virtual bool EndWithNextReply() { return false; }

  // Called in place of further Cuts: the connection closes behind the replies
  // to the requests that were cut, the last of which may say so. Doesn't block.
  virtual void EndInput() {}

  // The connection is closed: its streams end. Called once, by the reader, as
  // the last thing; calls may still be running.
  virtual void OnClosed(const flare::Status& /*why*/) {}

  // A reply isn't made, and the connection is closed or being closed: those
  // that wait for their turn behind it are told kNever. Neither blocks nor
  // throws.
  virtual void GiveUp() {}

  // Answers a request for which Parse returned kReject.
  void WriteRejection(const InboundRequest& request);

 protected:
  explicit ServerProtocol(ReplySink* sink) : sink_(sink) {}
  ReplySink* sink() const { return sink_; }

 private:
  ReplySink* const sink_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_PROTOCOL_H_
