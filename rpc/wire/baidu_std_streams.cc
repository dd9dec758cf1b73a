#include "flare/rpc/wire/baidu_std_streams.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/wire/baidu_std_frame.h"
#include "flare/rpc/wire/framed_protocol.h"
#include "flare/rpc/wire/framing.h"
#include "flare/rpc/wire/meta_codec.h"
#include "flare/rpc/wire/metadata_fields.h"
#include "flare/rpc/wire/stop_notice.h"

namespace flare::rpc {
namespace {

// Bytes that a brpc peer, which states no window, may have unread.
constexpr std::size_t kBrpcSendWindow = StreamWindow::kMax;
// How much brpc sends unread is its user's choice: 2 MiB and a message, if that
// makes none. Beyond this the connection is held.
constexpr std::size_t kBrpcUnread = 4 << 20;
// More credit than a stream uses: its writer looks again.
constexpr std::size_t kMuchCredit = std::size_t{1} << 31;

// StreamFrameMeta
struct FrameMeta {
  enum Type : std::uint32_t { kRst = 1, kClose, kData, kFeedback };

  std::uint64_t id = 0;  // The receiver's.
  std::uint64_t source_id = 0;
  std::uint32_t type = 0;
  bool has_continuation = false;
  bool has_feedback = false;
  std::uint64_t consumed = 0;  // Bytes in feedback, since the stream began.
  bool half = false;           // Ours, of kClose: the sender reads on.
};
using FrameCodec = codec::Message<
    codec::Field<1, &FrameMeta::id, codec::kAlways>,
    codec::Field<2, &FrameMeta::source_id>,  //
    codec::Field<3, &FrameMeta::type>,       //
    codec::Field<4, &FrameMeta::has_continuation>,
    codec::Submessage<5, &FrameMeta::has_feedback,
                      codec::Message<codec::Field<1, &FrameMeta::consumed>>>,
    codec::Field<1000, &FrameMeta::half>>;

Buffer StreamFrame(const FrameMeta& meta, OutboundBody&& body = {}) {
  const std::size_t meta_size = FrameCodec::Size(meta);
  BufferBuilder out;
  AppendFrame(
      BaiduStdFrame::kHeaderSize + meta_size,
      [&, size = meta_size + body.size()](char* at) {
        return FrameCodec::Encode(
            meta, PutBaiduStdHeader(BaiduStdFrame::kStreamMagic, meta_size,
                                    size, at));
      },
      std::move(body), Buffer(), &out);
  return out.DestructiveGet();
}

Buffer CallFrame(const BaiduStdMeta& meta, OutboundBody&& body = {}) {
  BufferBuilder out;
  AppendBaiduStd(meta, std::move(body), Buffer(), &out);
  return out.DestructiveGet();
}

// The settings of our end.
void PutSettings(std::uint64_t id, BaiduStdMeta* meta) {
  meta->has_stream_settings = true;
  meta->stream_id = id;
  meta->stream_needs_feedback = true;
  meta->stream_writable = true;
  meta->stream_window = StreamWindow::kInitial;
}

// For a frame of a stream that isn't there. As in brpc: a reply to FEEDBACK
// could overtake messages that the receiver has yet to read, and one to an end
// is of no use.
void RefuseFrame(const FrameMeta& meta, StreamOutput* output) {
  if (meta.type != FrameMeta::kData || meta.source_id == 0) return;
  static_cast<void>(output->WriteSoon(
      StreamFrame({.id = meta.source_id, .type = FrameMeta::kRst})));
}

// One end of a stream: shared by the connection's reader and the call's wire.
class BaiduStdStream final : public StreamReceiver {
 public:
  BaiduStdStream(std::uint64_t id, bool is_server, const Limits& limits,
                 StreamOutput* output)
      : id_(id),
        is_server_(is_server),
        max_message_(limits.max_packet_size),
        max_unpacked_(limits.max_decompressed_size),
        metadata_limits_(limits.metadata),
        output_(output) {}

  std::uint64_t id() const { return id_; }
  StreamOutput* output() const { return output_; }
  // Before it is in a table.
  void SetCall(RefPtr<StreamReceiver> call) { call_ = std::move(call); }

  // --- of the call's wire ---

  BaiduStdPeer peer() const {
    ScopedLock guard(lock_);
    return peer_;
  }
  // The peer has closed its end, which takes nothing any more.
  bool peer_left() const {
    ScopedLock guard(lock_);
    return peer_left_;
  }
  bool Send(FrameMeta meta, OutboundBody&& body = {}) {
    meta.id = peer().id;
    // As brpc has it.
    if (meta.type != FrameMeta::kRst) meta.source_id = id_;
    return output_->WriteSoon(StreamFrame(meta, std::move(body)));
  }
  // For a client, also before the server's settings are known: the call is
  // given up.
  void SendReset() {
    {
      ScopedLock guard(lock_);
      if (!peer_.known) {
        resets_early_ = true;
        return;
      }
    }
    static_cast<void>(Send({.type = FrameMeta::kRst}));
  }
  // ... or sends no more messages.
  bool SendLast() {
    {
      ScopedLock guard(lock_);
      if (!peer_.known) {
        ends_early_ = true;
        return true;
      }
    }
    return Send({.type = FrameMeta::kClose, .half = peer().ours()});
  }

  // --- of the connection's reader ---

  // The settings of the other end.
  void Connect(const BaiduStdPeer& peer) {
    bool ends = false;
    bool resets = false;
    {
      ScopedLock guard(lock_);
      peer_ = peer;
      ends = ends_early_;
      resets = resets_early_;
    }
    if (resets) {
      SendReset();
    } else if (ends) {
      SendLast();
    }
  }

  // For a server: its caller sends no messages.
  void EndRequests() {
    requests_over_ = true;
    OnEnd(flare::Status());
  }

  // The message of a request or a reply.
  void TakeFirst(Buffer&& message, CompressionAlgorithm compression) {
    if (IsCompressed(compression)) {
      OnCompressed(std::move(message), compression, max_unpacked_);
    } else {
      OnMessage(std::move(message), /*last=*/false);
    }
  }

  // A frame, with its payload unless it was too large.
  void Take(const FrameMeta& meta, bool too_large, Buffer&& payload) {
    switch (meta.type) {
      case FrameMeta::kData:
        return TakeData(meta, too_large, std::move(payload));
      case FrameMeta::kFeedback:
        if (meta.consumed <= consumed_) return;
        return OnCredit(meta.consumed -
                        std::exchange(consumed_, meta.consumed));
      case FrameMeta::kClose:
        if (too_large) return Break("the end of the stream is too large", meta);
        if (within_message_) return Break("an end within a message", meta);
        return is_server_ ? TakeCallersClose(meta.half)
                          : TakeServersClose(std::move(payload));
      case FrameMeta::kRst:
        return OnReset(
            is_server_
                ? flare::Status(STATUS_FAILED, "the caller gave the call up")
                : flare::Status(STATUS_IO_ERROR,
                                "the server gave the call up"));
      default:
        return Break("a frame of an unknown type", meta);
    }
  }

  // The peer broke the rules by `frame`, and is told that the call is over.
  void Break(std::string why, const FrameMeta& frame) {
    TellReset(frame);
    OnReset(flare::Status(STATUS_MALFORMED_DATA, std::move(why)));
  }

  void TellReset(const FrameMeta& frame) {
    if (peer().known) {
      static_cast<void>(Send({.type = FrameMeta::kRst}));
    } else if (frame.source_id != 0) {
      static_cast<void>(output_->WriteSoon(
          StreamFrame({.id = frame.source_id, .type = FrameMeta::kRst})));
    }
  }

  // --- StreamReceiver ---

  void OnMessage(Buffer&& message, bool last) override {
    call_->OnMessage(std::move(message), last);
  }
  void OnCompressed(Buffer&& message, CompressionAlgorithm algorithm,
                    std::size_t max_size) override {
    call_->OnCompressed(std::move(message), algorithm, max_size);
  }
  void OnPart(Buffer&& part) override { call_->OnPart(std::move(part)); }
  void OnEnd(const flare::Status& status) override { call_->OnEnd(status); }
  void OnCredit(std::size_t bytes) override { call_->OnCredit(bytes); }
  void OnMetadata(std::unique_ptr<Metadata> metadata) override {
    call_->OnMetadata(std::move(metadata));
  }
  void OnReset(const flare::Status& why) override { call_->OnReset(why); }
  void OnTooLarge(const flare::Status& why) override { call_->OnTooLarge(why); }
  void Drop() override { call_->Drop(); }
  void OnInputLost(const flare::Status& why) override {
    call_->OnInputLost(why);
  }

 private:
  void TakeData(const FrameMeta& meta, bool too_large, Buffer&& payload) {
    if (too_large || parts_size_ + payload.size() > max_message_) {
      TellReset(meta);
      return OnTooLarge(flare::Status(STATUS_MALFORMED_DATA,
                                      "a message of the stream is too large"));
    }
    within_message_ = meta.has_continuation;
    if (within_message_) {
      parts_size_ += payload.size();
      return OnPart(std::move(payload));
    }
    parts_size_ = 0;
    OnMessage(std::move(payload), /*last=*/false);
  }

  void TakeCallersClose(bool half) {
    if (half) return OnEnd(flare::Status());
    {
      ScopedLock guard(lock_);
      peer_left_ = true;
    }
    if (requests_over_) {
      return OnReset(
          flare::Status(STATUS_FAILED, "the caller closed the stream"));
    }
    OnEnd(flare::Status());
    OnCredit(kMuchCredit);  // A waiting writer finds that it can't write.
  }

  void TakeServersClose(Buffer&& payload) {
    BaiduStdMeta meta;
    std::string scratch;
    const std::string_view error = DecodeBaiduStdMeta(
        ContiguousPrefix(payload, payload.size(), &scratch), &meta);
    if (!error.empty()) {
      return OnReset(flare::Status(STATUS_MALFORMED_DATA, std::string(error)));
    }
    std::unique_ptr<Metadata> metadata;
    if (meta.metadata.count.entries != 0) {
      const std::string why =
          TakeMetadata(meta.metadata, metadata_limits_, &metadata);
      if (!why.empty()) {
        return OnReset(flare::Status(STATUS_MALFORMED_DATA, why));
      }
      if (metadata != nullptr) OnMetadata(std::move(metadata));
    }
    const int status = BaiduStdOutcome(meta);
    OnEnd(status == STATUS_SUCCESS
              ? flare::Status()
              : flare::Status(status, std::string(meta.error_text)));
  }

  const std::uint64_t id_;
  const bool is_server_;
  const std::size_t max_message_;
  const std::size_t max_unpacked_;
  const MetadataLimits metadata_limits_;
  StreamOutput* const output_;
  RefPtr<StreamReceiver> call_;  // Constant once this is in a table.

  // For the reader alone. Its rest is to come.
  bool within_message_ = false;  // Its rest is to come.
  std::size_t parts_size_ = 0;   // The parts' sizes of that message.
  std::uint64_t consumed_ = 0;
  bool requests_over_ = false;

  mutable Spinlock lock_;
  BaiduStdPeer peer_ FLARE_GUARDED_BY(lock_);
  bool peer_left_ FLARE_GUARDED_BY(lock_) = false;
  bool ends_early_ FLARE_GUARDED_BY(lock_) = false;
  bool resets_early_ FLARE_GUARDED_BY(lock_) = false;
};

// The common part of both directions.
class BaiduStdStreamWire : public StreamWire {
 public:
  BaiduStdStreamWire(RefPtr<BaiduStdStream> stream, StreamTable* table)
      : stream_(std::move(stream)), table_(table) {}
  ~BaiduStdStreamWire() override { table_->Remove(stream_->id()); }

  bool Begin(RefPtr<StreamReceiver> receiver) override {
    stream_->SetCall(std::move(receiver));
    return table_->Add(stream_->id(), stream_);
  }

  bool has_credits() const override { return true; }
  bool holds_input() const override { return true; }
  // brpc counts bytes of messages alone.
  std::size_t message_cost() const override { return 0; }
  std::size_t unread_allowance() const override {
    const BaiduStdPeer peer = stream_->peer();
    return peer.known && !peer.ours() ? kBrpcUnread : 0;
  }
  bool grants_when_drained() const override {
    const BaiduStdPeer peer = stream_->peer();
    return peer.needs_feedback && !peer.ours();
  }

  void SendCredit(std::size_t bytes) override {
    consumed_ += bytes;
    // brpc takes FEEDBACK that it hasn't asked for for a bug of its own.
    if (!stream_->peer().needs_feedback) return;
    static_cast<void>(stream_->Send({.type = FrameMeta::kFeedback,
                                     .has_feedback = true,
                                     .consumed = consumed_}));
  }
  void HoldInput() override { stream_->output()->HoldInput(); }
  void ReleaseInput() override { stream_->output()->ReleaseInput(); }

 protected:
  BaiduStdStream* stream() const { return stream_.Get(); }
  bool SendData(OutboundBody&& body) {
    return stream_->Send({.type = FrameMeta::kData}, std::move(body));
  }

 private:
  const RefPtr<BaiduStdStream> stream_;
  StreamTable* const table_;
  std::uint64_t consumed_ = 0;
};

// --- the server's ----------------------------------------------------------

class BaiduStdServerStreamWire final : public BaiduStdStreamWire {
 public:
  BaiduStdServerStreamWire(RefPtr<BaiduStdStream> stream,
                           std::uint64_t correlation_id, PayloadFormat format,
                           StreamTable* table)
      : BaiduStdStreamWire(std::move(stream), table),
        correlation_id_(correlation_id),
        format_(format) {}

  void Accept() override {
    accepted_ = true;
    BaiduStdMeta meta = NewReply();
    meta.has_response = true;
    PutSettings(stream()->id(), &meta);
    static_cast<void>(SendData(CallFrame(meta)));
  }

  bool SendMessage(OutboundBody&& body, bool last) override {
    if (ended_ || stream()->peer_left()) return false;
    if (!stream()->peer().writable) {
      SendEnd(flare::Status(STATUS_NOT_SUPPORTED,
                            "the caller's stream takes no messages"));
      return false;
    }
    if (TooLargeForFrame(body, Buffer())) {
      SendEnd(flare::Status(STATUS_SERIALIZE_RESPONSE,
                            "a message is too large for a frame"));
      return false;
    }
    return SendData(std::move(body)) && (!last || SendEnd(flare::Status()));
  }

  bool SendEnd(const flare::Status& status) override {
    if (std::exchange(ended_, true) || stream()->peer_left()) return false;
    if (!accepted_) {
      return stream()->output()->WriteSoon(CallFrame(Outcome(status, nullptr)));
    }
    if (!stream()->peer().ours()) {
      return stream()->Send({.type = FrameMeta::kClose});
    }
    const BaiduStdMeta meta = Outcome(status, metadata_.get());
    std::string bytes(BaiduStdMetaSize(meta), '\0');
    EncodeBaiduStdMeta(meta, bytes.data());
    return stream()->Send({.type = FrameMeta::kClose}, CreateBufferSlow(bytes));
  }
  void SendReset(const flare::Status& why) override {
    static_cast<void>(SendEnd(why));
  }

  // The reply goes before the method runs. brpc has no place for any.
  bool AddMetadata(MetadataPlace place, const Metadata& metadata) override {
    if (place == MetadataPlace::kInitial || !stream()->peer().ours()) {
      return false;
    }
    metadata_ = std::make_unique<Metadata>(metadata);
    return true;
  }

 private:
  BaiduStdMeta NewReply() const {
    BaiduStdMeta meta;
    meta.correlation_id = correlation_id_;
    meta.content_type = kBaiduStdFormats.NumberOf(format_);
    return meta;
  }

  BaiduStdMeta Outcome(const flare::Status& status, const Metadata* metadata) {
    BaiduStdMeta meta = NewReply();
    SetBaiduStdOutcome(status.code(), FailureDetail::kNone, status.message(),
                       &scratch_, &meta);
    meta.metadata.written = metadata;
    return meta;
  }

  const std::uint64_t correlation_id_;
  const PayloadFormat format_;
  bool accepted_ = false;
  bool ended_ = false;
  std::unique_ptr<Metadata> metadata_;  // For CLOSE; null: none.
  std::string scratch_;
};

// --- the client's ----------------------------------------------------------

class BaiduStdClientStreamWire final : public BaiduStdStreamWire {
 public:
  BaiduStdClientStreamWire(RefPtr<BaiduStdStream> stream,
                           const ClientStreamOpening& opening,
                           StreamTable* table)
      : BaiduStdStreamWire(std::move(stream), table),
        method_(opening.method),
        timeout_ms_(opening.timeout_ms),
        client_streams_(opening.client_streams),
        metadata_(opening.metadata != nullptr ? *opening.metadata
                                              : Metadata()) {}

  bool Begin(RefPtr<StreamReceiver> receiver) override {
    return BaiduStdStreamWire::Begin(std::move(receiver)) &&
           (!client_streams_ || SendRequest({}));
  }
  // With a single request nothing is sent before that.
  bool begins_silently() const override { return !client_streams_; }
  // Messages need the server's number. A single request doesn't.
  std::size_t send_window() const override { return client_streams_ ? 0 : 1; }

  bool SendMessage(OutboundBody&& body, bool last) override {
    if (!client_streams_) return SendRequest(std::move(body));
    // Messages from the server may still be read.
    if (!stream()->peer().writable || TooLargeForFrame(body, Buffer())) {
      return false;
    }
    return SendData(std::move(body)) && (!last || stream()->SendLast());
  }
  bool SendEnd(const flare::Status&) override {
    return !client_streams_ || stream()->SendLast();
  }
  void SendReset(const flare::Status&) override {
    // If the reply finds no stream, the server is told by that.
    stream()->SendReset();
  }

 private:
  bool SendRequest(OutboundBody&& body) {
    const MethodName name(method_);
    BaiduStdMeta meta;
    meta.has_request = true;
    meta.service_name = name.service;
    meta.method_name = name.method;
    constexpr std::uint32_t kMaxTimeout = 0x7fffffff;
    meta.timeout_ms =
        static_cast<std::int32_t>(std::min(timeout_ms_, kMaxTimeout));
    meta.correlation_id = stream()->id();
    meta.metadata.written = &metadata_;
    meta.notice = kStopNotice;
    PutSettings(stream()->id(), &meta);
    return stream()->output()->WriteSoon(CallFrame(meta, std::move(body)));
  }

  const std::string method_;
  const std::uint32_t timeout_ms_;
  const bool client_streams_;
  const Metadata metadata_;
};

// The frame's meta; false, with *error, if it is malformed.
template <class Message>
bool DecodeFrame(Message* message, FrameMeta* meta, std::string* error) {
  const std::string_view fault =
      FrameCodec::Decode(MetaOf<BaiduStdFrame>(message), meta);
  if (fault.empty()) return true;
  error->assign("a malformed meta of a stream's frame: ").append(fault);
  return false;
}

template <class Message>
Buffer TakeBaiduStdPayload(Message* message) {
  message->wire.Skip(BaiduStdFrame::kHeaderSize + message->meta_size);
  return std::move(message->wire);
}

constexpr std::string_view kTooManyLate =
    "frames without end of streams that have ended";

}  // namespace

std::size_t BaiduStdPeer::send_window() const {
  return ours() ? window : kBrpcSendWindow;
}

void BaiduStdServerStreams::Begin(const BaiduStdPeer& peer,
                                  std::uint64_t correlation_id,
                                  InboundRequest* request) {
  const auto refuse = [&](int status, std::string_view why) {
    request->reject_status = status;
    request->reject_reason.assign(why);
  };
  if (table_.size() >= kMaxStreams) {
    return refuse(STATUS_OVERLOADED,
                  "too many streams are open on this connection");
  }
  RequestHead& head = request->head;
  const MethodKind kind = sink_->KindOfMethod(head.method, head.short_service);
  auto stream = MakeRefCounted<BaiduStdStream>(++opened_, /*is_server=*/true,
                                               limits_, sink_);
  stream->Connect(peer);
  request->stream =
      sink_->OpenStream({.format = head.format,
                         .timeout_ms = head.timeout_ms,
                         .send_window = peer.send_window()},
                        std::make_unique<BaiduStdServerStreamWire>(
                            stream, correlation_id, head.format, &table_));
  if (request->stream == nullptr) {
    return refuse(STATUS_NOT_SUPPORTED, "this server has no streams");
  }
  const CompressionAlgorithm compression =
      std::exchange(head.compression, CompressionAlgorithm::kNone);
  const bool single = kind == MethodKind::kReplyStreaming;
  if (single || (kind == MethodKind::kStreaming && !request->body.empty())) {
    stream->TakeFirst(std::move(request->body), compression);
  }
  if (single) stream->EndRequests();
  request->body.Clear();
}

CutResult BaiduStdServerStreams::Take(InboundRequest* request,
                                      std::string* error) {
  FrameMeta meta;
  if (!DecodeFrame(request, &meta, error)) return CutResult::kError;
  if (const RefPtr<StreamReceiver> stream = table_.Find(meta.id)) {
    const bool too_large = request->wire.size() != request->wire_size;
    static_cast<BaiduStdStream*>(stream.Get())
        ->Take(meta, too_large, TakeBaiduStdPayload(request));
  } else if (late_.Admit(NowNs(), &table_)) {
    RefuseFrame(meta, sink_);
  } else {
    error->assign("baidu-std: ").append(kTooManyLate);
    return CutResult::kError;
  }
  request->Clear();
  return CutResult::kHandled;
}

std::unique_ptr<StreamWire> BaiduStdClientStreams::Open(
    const ClientStreamOpening& opening, StreamOutput* output) {
  // relaxed: a number.
  const std::uint64_t id =
      kFirstId + opened_.fetch_add(1, std::memory_order_relaxed);
  return std::make_unique<BaiduStdClientStreamWire>(
      MakeRefCounted<BaiduStdStream>(id, /*is_server=*/false, limits_, output),
      opening, &table_);
}

BaiduStdClientStreams::Taken BaiduStdClientStreams::TakeFrame(
    InboundResponse* response, std::uint64_t* id, std::string* error) {
  FrameMeta meta;
  if (!DecodeFrame(response, &meta, error)) return Taken::kError;
  const bool too_large = response->wire.size() != response->wire_size;
  const RefPtr<StreamReceiver> found = table_.Find(meta.id);
  if (found == nullptr) {
    if (!late_.Admit(NowNs(), &table_)) {
      error->assign(kTooManyLate);
      return Taken::kError;
    }
    RefuseFrame(meta, output_);
    return Taken::kHandled;
  }
  auto* const stream = static_cast<BaiduStdStream*>(found.Get());
  if (stream->peer().known || meta.type != FrameMeta::kData || too_large) {
    stream->Take(meta, too_large, TakeBaiduStdPayload(response));
    return Taken::kHandled;
  }
  // The reply must be all of it.
  Buffer payload = TakeBaiduStdPayload(response);
  BaiduStdFrame frame;
  char scratch[BaiduStdFrame::kHeaderSize];
  std::size_t need = 0;
  const CutResult read = frame.Read(
      payload.Peek(std::min(payload.size(), sizeof(scratch)), scratch), &need,
      error);
  if (read != CutResult::kMessage || frame.is_stream ||
      frame.total() != payload.size()) {
    error->clear();
    RefuseFrame(meta, output_);
    stream->OnReset(
        flare::Status(STATUS_MALFORMED_DATA,
                      "a message of a stream before the call's reply"));
    return Taken::kHandled;
  }
  *id = meta.id;
  response->wire = std::move(payload);
  response->wire_size = frame.total();
  response->meta_size = frame.meta_size;
  return Taken::kReply;
}

void BaiduStdClientStreams::TakeReply(std::uint64_t id,
                                      const BaiduStdPeer& peer,
                                      InboundResponse* response) {
  const RefPtr<StreamReceiver> found = table_.Find(id);
  if (found == nullptr) {
    if (peer.known) {
      RefuseFrame({.source_id = peer.id, .type = FrameMeta::kData}, output_);
    }
    return;
  }
  auto* const stream = static_cast<BaiduStdStream*>(found.Get());
  if (stream->peer().known) return stream->Break("a second reply", {});
  if (peer.known) stream->Connect(peer);
  if (response->status != STATUS_SUCCESS) {
    if (peer.known) stream->Send({.type = FrameMeta::kRst});
    return stream->OnEnd(
        flare::Status(response->status, std::string(response->description)));
  }
  if (!peer.known) {
    return stream->OnEnd(flare::Status(
        STATUS_NOT_SUPPORTED, "the server didn't accept the call's stream"));
  }
  if (response->metadata != nullptr) {
    stream->OnMetadata(std::move(response->metadata));
  }
  stream->OnCredit(peer.send_window());
  if (!response->body.empty()) {
    stream->TakeFirst(std::move(response->body), response->compression);
  }
}

}  // namespace flare::rpc
