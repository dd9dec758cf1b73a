#include "flare/rpc/wire/trpc_streams.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/wire/framed_protocol.h"
#include "flare/rpc/wire/framing.h"
#include "flare/rpc/wire/meta_codec.h"
#include "flare/rpc/wire/metadata_fields.h"
#include "flare/rpc/wire/utf8.h"

namespace flare::rpc {
namespace {

// A window that isn't said, or is smaller, is this one; 0: there is none.
constexpr std::uint32_t kDefaultWindow = 65535;
constexpr std::size_t kNoWindow = std::size_t{1} << 31;

// TrpcStreamInitMeta
struct InitMeta {
  bool has_request = false;
  std::string_view caller;
  std::string_view callee;
  std::string_view func;
  MetadataFields metadata;
  bool has_response = false;
  std::int32_t ret = 0;
  std::string_view error_msg;
  std::uint32_t window = 0;
  std::uint32_t content_type = 0;
  std::uint32_t content_encoding = 0;
};
using InitCodec = codec::Message<
    codec::Submessage<
        1, &InitMeta::has_request,
        codec::Message<codec::Field<1, &InitMeta::caller>,
                       codec::Field<2, &InitMeta::callee>,
                       codec::Field<3, &InitMeta::func>,
                       codec::MetadataField<5, &InitMeta::metadata,
                                            MetadataValues::kBytes>>>,
    codec::Submessage<2, &InitMeta::has_response,
                      codec::Message<codec::Field<1, &InitMeta::ret>,
                                     codec::Field<2, &InitMeta::error_msg>>>,
    codec::Field<3, &InitMeta::window>,        //
    codec::Field<4, &InitMeta::content_type>,  //
    codec::Field<5, &InitMeta::content_encoding>>;

// TrpcStreamFeedBackMeta
struct FeedbackMeta {
  std::uint32_t increment = 0;
};
using FeedbackCodec = codec::Message<codec::Field<1, &FeedbackMeta::increment>>;

// TrpcStreamCloseMeta
struct CloseMeta {
  std::int32_t close_type = 0;  // 1: a reset
  std::int32_t ret = 0;
  std::string_view msg;
  MetadataFields metadata;
  std::int32_t func_ret = 0;
};
using CloseCodec = codec::Message<
    codec::Field<1, &CloseMeta::close_type>,
    codec::Field<2, &CloseMeta::ret>,  //
    codec::Field<3, &CloseMeta::msg>,  //
    codec::MetadataField<5, &CloseMeta::metadata, MetadataValues::kBytes>,
    codec::Field<6, &CloseMeta::func_ret>>;

TrpcFrame FrameOf(std::uint8_t type, std::uint32_t id) {
  TrpcFrame frame;
  frame.type = TrpcFrame::kStream;
  frame.stream_type = type;
  frame.stream_id = id;
  return frame;
}

// A frame whose payload is a message of the protocol's own.
template <class Codec, class Meta>
Buffer MetaFrame(TrpcFrame frame, const Meta& meta) {
  frame.size =
      static_cast<std::uint32_t>(TrpcFrame::kHeaderSize + Codec::Size(meta));
  BufferBuilder out;
  AppendHead(
      TrpcFrame::kHeaderSize + Codec::Bound(meta),
      [&](char* at) { return Codec::Encode(meta, PutTrpcHeader(frame, at)); },
      &out);
  return out.DestructiveGet();
}

// The bytes that the peer may be sent, by the window that it says.
std::size_t SendWindow(std::uint32_t window) {
  if (window == 0) return kNoWindow;
  return std::max(window, kDefaultWindow);
}

// The payload of a frame, in one piece.
template <class Codec, class Meta, class Message>
std::string_view DecodePayload(Message* message, Meta* meta) {
  const std::string_view bytes =
      ContiguousPrefix(message->wire, message->wire.size(), &message->scratch);
  return Codec::Decode(bytes.substr(TrpcFrame::kHeaderSize), meta);
}

template <class Message>
Buffer TakePayload(Message* message) {
  message->wire.Skip(TrpcFrame::kHeaderSize);
  return std::move(message->wire);
}

// The common part of both directions.
class TrpcStreamWire : public StreamWire {
 public:
  TrpcStreamWire(std::uint32_t id, StreamTable* table, StreamOutput* output)
      : id_(id), table_(table), output_(output) {}
  ~TrpcStreamWire() override { table_->Remove(id_); }

  bool Begin(RefPtr<StreamReceiver> receiver) override {
    return table_->Add(id_, std::move(receiver)) &&
           output_->WriteSoon(MetaFrame<InitCodec>(
               FrameOf(TrpcFrame::kStreamInit, id_), Init()));
  }
  bool has_credits() const override { return true; }
  std::size_t message_cost() const override { return 0; }

  bool SendMessage(OutboundBody&& body, bool last) override {
    if (TooLargeForFrame(body, Buffer())) {
      return SendEnd(flare::Status(STATUS_SERIALIZE_RESPONSE,
                                   "a message is too large for a frame"));
    }
    TrpcFrame frame = FrameOf(TrpcFrame::kStreamData, id_);
    frame.size =
        static_cast<std::uint32_t>(TrpcFrame::kHeaderSize + body.size());
    BufferBuilder out;
    AppendFrame(
        TrpcFrame::kHeaderSize,
        [&](char* at) { return PutTrpcHeader(frame, at); }, std::move(body),
        Buffer(), &out);
    return output_->WriteSoon(out.DestructiveGet()) &&
           (!last || SendEnd(flare::Status()));
  }

  // Once: a message that is too large has ended the stream already.
  bool SendEnd(const flare::Status& status) override {
    if (std::exchange(ended_, true)) return true;
    return SendClose(/*reset=*/false, status);
  }
  void SendReset(const flare::Status& why) override {
    static_cast<void>(SendClose(/*reset=*/true, why));
  }

  void SendCredit(std::size_t bytes) override {
    static_cast<void>(output_->WriteSoon(MetaFrame<FeedbackCodec>(
        FrameOf(TrpcFrame::kStreamFeedback, id_),
        FeedbackMeta{.increment = static_cast<std::uint32_t>(bytes)})));
  }
  void HoldInput() override { output_->HoldInput(); }
  void ReleaseInput() override { output_->ReleaseInput(); }

  // INIT, which would have it before the messages, goes before the method runs,
  // and has no place for a server's.
  bool AddMetadata(MetadataPlace place, const Metadata& metadata) override {
    if (place == MetadataPlace::kInitial) return false;
    metadata_ = std::make_unique<Metadata>(metadata);
    return true;
  }

 protected:
  virtual InitMeta Init() const = 0;

 private:
  bool SendClose(bool reset, const flare::Status& status) {
    return output_->WriteSoon(
        TrpcStreamClose(id_, 0, reset, StatusToTrpc(status.code()),
                        status.message(), metadata_.get()));
  }

  const std::uint32_t id_;
  StreamTable* const table_;
  StreamOutput* const output_;
  bool ended_ = false;
  std::unique_ptr<Metadata> metadata_;  // For CLOSE; null: none.
};

class TrpcServerStreamWire final : public TrpcStreamWire {
 public:
  TrpcServerStreamWire(std::uint32_t id, std::uint32_t content_type,
                       StreamTable* table, StreamOutput* output)
      : TrpcStreamWire(id, table, output), content_type_(content_type) {}

 private:
  InitMeta Init() const override {
    InitMeta init;
    init.has_response = true;
    init.window = StreamWindow::kInitial;
    init.content_type = content_type_;
    return init;
  }

  const std::uint32_t content_type_;
};

class TrpcClientStreamWire final : public TrpcStreamWire {
 public:
  TrpcClientStreamWire(std::uint32_t id, const MethodName& name,
                       const Metadata* metadata, StreamTable* table,
                       StreamOutput* output)
      : TrpcStreamWire(id, table, output),
        callee_(name.service),
        metadata_(metadata != nullptr ? *metadata : Metadata()) {
    func_.append("/").append(name.service).append("/").append(name.method);
  }

 private:
  InitMeta Init() const override {
    InitMeta init;
    init.has_request = true;
    init.callee = callee_;
    init.func = func_;
    init.metadata.written = &metadata_;
    init.window = StreamWindow::kInitial;
    return init;
  }

  const std::string callee_;
  std::string func_;  // Constant.
  const Metadata metadata_;
};

}  // namespace

Buffer TrpcStreamClose(std::uint32_t id, std::uint8_t version, bool reset,
                       TrpcCodes codes, std::string_view text,
                       const Metadata* metadata) {
  std::string scratch;
  TrpcFrame frame = FrameOf(TrpcFrame::kStreamClose, id);
  frame.version = version;
  CloseMeta close{.close_type = reset ? 1 : 0,
                  .ret = codes.ret,
                  .msg = AsUtf8(CutUtf8(text, kMaxErrorText), &scratch),
                  .metadata = {},
                  .func_ret = codes.func_ret};
  close.metadata.written = metadata;
  return MetaFrame<CloseCodec>(frame, close);
}

CutResult TrpcServerStreams::Take(std::uint8_t stream_type, std::uint32_t id,
                                  InboundRequest* request) {
  const RefPtr<StreamReceiver> stream = table_.Find(id);
  if (stream == nullptr) {
    if (stream_type == TrpcFrame::kStreamInit) Begin(id, request);
    return CutResult::kMessage;
  }
  const bool too_large = request->wire.size() != request->wire_size;
  FeedbackMeta feedback;
  CloseMeta close;
  if (too_large) {
    stream->OnReset(flare::Status(STATUS_MALFORMED_DATA,
                                  "a message of the stream is too large"));
  } else if (stream_type == TrpcFrame::kStreamData) {
    stream->OnMessage(TakePayload(request), /*last=*/false);
  } else if (stream_type == TrpcFrame::kStreamFeedback) {
    if (DecodePayload<FeedbackCodec>(request, &feedback).empty()) {
      stream->OnCredit(feedback.increment);
    }
  } else if (stream_type == TrpcFrame::kStreamClose) {
    static_cast<void>(DecodePayload<CloseCodec>(request, &close));
    if (close.close_type == 0) {
      stream->OnEnd(flare::Status());
    } else {
      const int status =
          StatusFromTrpc({.ret = close.ret, .func_ret = close.func_ret});
      stream->OnReset(
          flare::Status(status != STATUS_SUCCESS ? status : STATUS_FAILED,
                        "the caller gave the call up"));
    }
  }
  request->Clear();
  return CutResult::kHandled;
}

// Without a stream in it the request is refused.
void TrpcServerStreams::Begin(std::uint32_t id, InboundRequest* request) {
  if (request->wire.size() != request->wire_size) return;  // It is too large.
  InitMeta init;
  std::string text;
  const auto refuse = [&](int status, std::string_view why) {
    request->reject_status = status;
    request->reject_reason.assign(why);
  };
  // For the name, which is shorter than the payload.
  request->scratch.reserve(2 * request->wire.size());
  const std::string_view error = DecodePayload<InitCodec>(request, &init);
  if (!error.empty()) return refuse(STATUS_MALFORMED_DATA, error);
  const std::size_t slash = init.func.rfind('/');
  if (init.func.empty() || init.func[0] != '/' || slash == 0) {
    return refuse(STATUS_METHOD_NOT_FOUND,
                  "func isn't /package.Service/Method");
  }
  const auto format = kTrpcFormats.Find(init.content_type);
  if (!format || init.content_encoding != 0) {
    return refuse(STATUS_NOT_SUPPORTED,
                  "streams are of protobuf or JSON, and not compressed");
  }
  if (table_.size() >= kMaxStreams) {
    return refuse(STATUS_OVERLOADED,
                  "too many streams are open on this connection");
  }
  if (init.metadata.count.entries != 0) {
    const std::string why =
        TakeMetadata(init.metadata, metadata_limits_, &request->metadata);
    if (!why.empty()) return refuse(STATUS_MALFORMED_DATA, why);
  }
  RequestHead* const head = &request->head;
  head->method = JoinMethodName(init.func.substr(1, slash - 1),
                                init.func.substr(slash + 1), &request->scratch);
  head->format = *format;
  request->stream = sink_->OpenStream(
      {.format = *format, .send_window = SendWindow(init.window)},
      std::make_unique<TrpcServerStreamWire>(id, init.content_type, &table_,
                                             sink_));
  if (request->stream != nullptr) {
    request->reject_status = STATUS_SUCCESS;
    request->reject_reason.clear();
  }
}

std::unique_ptr<StreamWire> TrpcClientStreams::Open(
    const ClientStreamOpening& opening, StreamOutput* output) {
  const MethodName name(opening.method);
  // relaxed: a number. Comes around after four billions, which aren't open.
  const std::uint32_t id =
      kFirstId +
      opened_.fetch_add(1, std::memory_order_relaxed) % (0xffffffff - kFirstId);
  return std::make_unique<TrpcClientStreamWire>(id, name, opening.metadata,
                                                &table_, output);
}

bool TrpcClientStreams::Take(std::uint8_t stream_type, std::uint32_t id,
                             InboundResponse* response) {
  const RefPtr<StreamReceiver> stream = table_.Find(id);
  const bool too_large = response->wire.size() != response->wire_size;
  InitMeta init;
  FeedbackMeta feedback;
  CloseMeta close;
  if (stream == nullptr) {
    response->Clear();
    // relaxed: a stream was opened before a frame of it could come.
    return opened_.load(std::memory_order_relaxed) != 0 &&
           late_.Admit(NowNs(), &table_);
  }
  if (too_large) {
    stream->OnTooLarge(flare::Status(STATUS_MALFORMED_DATA,
                                     "a message of the stream is too large"));
  } else if (stream_type == TrpcFrame::kStreamData) {
    stream->OnMessage(TakePayload(response), /*last=*/false);
  } else if (stream_type == TrpcFrame::kStreamFeedback) {
    if (DecodePayload<FeedbackCodec>(response, &feedback).empty()) {
      stream->OnCredit(feedback.increment);
    }
  } else if (stream_type == TrpcFrame::kStreamInit) {
    static_cast<void>(DecodePayload<InitCodec>(response, &init));
    if (init.ret != 0) {
      stream->OnEnd(flare::Status(StatusFromTrpc({.ret = init.ret}),
                                  std::string(init.error_msg)));
    } else {
      // The default was granted from the start.
      stream->OnCredit(SendWindow(init.window) - kDefaultWindow);
    }
  } else if (stream_type == TrpcFrame::kStreamClose) {
    static_cast<void>(DecodePayload<CloseCodec>(response, &close));
    std::unique_ptr<Metadata> metadata;
    if (close.metadata.count.entries != 0 &&
        TakeMetadata(close.metadata, metadata_limits_, &metadata).empty() &&
        metadata != nullptr) {
      stream->OnMetadata(std::move(metadata));
    }
    const int status =
        StatusFromTrpc({.ret = close.ret, .func_ret = close.func_ret});
    if (status != STATUS_SUCCESS) {
      stream->OnEnd(flare::Status(status, std::string(close.msg)));
    } else if (close.close_type == 0) {
      stream->OnEnd(flare::Status());
    } else {
      stream->OnReset(
          flare::Status(STATUS_IO_ERROR, "the server gave the call up"));
    }
  }
  response->Clear();
  return true;
}

}  // namespace flare::rpc
