#include "flare/rpc/wire/flare_streams.h"

#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/clock.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/wire/flare_frame.h"
#include "flare/rpc/wire/framing.h"
#include "flare/rpc/wire/metadata_fields.h"
#include "flare/rpc/wire/rpc_meta.h"
#include "flare/rpc/wire/utf8.h"

namespace flare::rpc {
namespace {

constexpr std::size_t kMostBody = std::numeric_limits<std::uint32_t>::max();

// Ids of unary calls have 32 bits, those of streams beside them more. One that
// has a connection of its own may as well have a small one, as published peers
// expect.
constexpr std::uint64_t kFirstSharedId = std::uint64_t{1} << 32;

Buffer Frame(const RpcMeta& meta, OutboundBody&& body) {
  BufferBuilder out;
  AppendFlare(meta, std::move(body), Buffer(), &out);
  return out.DestructiveGet();
}

// The body of a frame, of which header and meta stay in *wire.
Buffer TakeBody(std::uint32_t meta_size, Buffer* wire) {
  Buffer head = wire->Cut(FlareFrame::kHeaderSize + meta_size);
  return std::exchange(*wire, std::move(head));
}

bool Ends(const RpcMeta& meta) { return (meta.flags & kFlagEndOfStream) != 0; }
bool HasPayload(const RpcMeta& meta) {
  return (meta.flags & kFlagNoPayload) == 0;
}

flare::Status TooLarge() {
  return flare::Status(STATUS_MALFORMED_DATA,
                       "a message of the stream is too large");
}

// The common part of both directions.
class FlareStreamWire : public StreamWire {
 public:
  FlareStreamWire(std::uint64_t id, StreamTable* table, StreamOutput* output)
      : id_(id), table_(table), output_(output) {}
  ~FlareStreamWire() override { table_->Remove(id_); }

  bool Begin(RefPtr<StreamReceiver> receiver) override {
    return table_->Add(id_, std::move(receiver));
  }
  void HoldInput() override { output_->HoldInput(); }
  void ReleaseInput() override { output_->ReleaseInput(); }

 protected:
  RpcMeta NewMeta() const {
    RpcMeta meta;
    meta.correlation_id = id_;
    meta.method_type = kMethodTypeStream;
    return meta;
  }
  // Flags of the next packet.
  std::uint64_t Flags(bool last, bool has_payload) {
    std::uint64_t flags = 0;
    if (!std::exchange(begun_, true)) flags |= kFlagStartOfStream;
    if (last) flags |= kFlagEndOfStream;
    if (!has_payload) flags |= kFlagNoPayload;
    return flags;
  }
  bool begun() const { return begun_; }
  bool shared() const { return id_ >= kFirstSharedId; }
  bool Send(const RpcMeta& meta, OutboundBody&& body) {
    return output_->WriteSoon(Frame(meta, std::move(body)));
  }
  // With the metadata that is to go along.
  bool SendNext(RpcMeta* meta, OutboundBody&& body) {
    const auto metadata = std::move(metadata_);
    meta->metadata.written = metadata.get();
    return Send(*meta, std::move(body));
  }
  void Enclose(const Metadata& metadata) {
    if (metadata_ == nullptr) {
      metadata_ = std::make_unique<Metadata>(metadata);
      return;
    }
    for (const auto [name, value] : metadata) {
      metadata_->AddReceived(name, value);
    }
  }

 private:
  const std::uint64_t id_;
  StreamTable* const table_;
  StreamOutput* const output_;
  bool begun_ = false;
  std::unique_ptr<Metadata> metadata_;  // For the next packet; null: none.
};

// --- the server's ----------------------------------------------------------

class FlareServerStreamWire final : public FlareStreamWire {
 public:
  FlareServerStreamWire(const RpcMeta& begin, StreamTable* table,
                        StreamOutput* output)
      : FlareStreamWire(begin.correlation_id, table, output),
        hello_(begin.hello),
        has_credits_(begin.window != 0) {}

  // On a connection of its own the caller writes until it knows the window, of
  // which it is told at once.
  bool Begin(RefPtr<StreamReceiver> receiver) override {
    if (!FlareStreamWire::Begin(std::move(receiver))) return false;
    if (shared() || !hello_ || !has_credits_) return true;
    RpcMeta meta = NewReplyMeta();
    meta.flags = kFlagNoPayload;
    told_ = true;
    return Send(meta, Buffer());
  }

  bool has_credits() const override { return has_credits_; }
  bool holds_input() const override { return !has_credits_ || !shared(); }

  bool AddMetadata(MetadataPlace, const Metadata& metadata) override {
    Enclose(metadata);
    return true;
  }

  bool SendMessage(OutboundBody&& body, bool last) override {
    if (body.size() > kMostBody) {
      return SendEnd(flare::Status(STATUS_SERIALIZE_RESPONSE,
                                   "a message of the stream exceeds 4 GiB"));
    }
    RpcMeta meta = NewReplyMeta();
    meta.flags = Flags(last, /*has_payload=*/true);
    return SendNext(&meta, std::move(body));
  }

  // Once: a message that is too large has ended the stream already.
  bool SendEnd(const flare::Status& status) override {
    if (std::exchange(ended_, true)) return true;
    RpcMeta meta = NewReplyMeta();
    meta.flags = Flags(/*last=*/true, /*has_payload=*/false);
    meta.status = status.code();
    std::string scratch;
    meta.description =
        AsUtf8(CutUtf8(status.message(), kMaxErrorText), &scratch);
    return SendNext(&meta, Buffer());
  }

  void SendReset(const flare::Status& why) override {
    static_cast<void>(SendEnd(why));
  }

  void SendCredit(std::size_t bytes) override {
    if (!has_credits_) return;
    RpcMeta meta = NewMeta();
    meta.has_response = true;
    meta.flags = kFlagNoPayload;
    meta.credit = static_cast<std::uint32_t>(bytes);
    static_cast<void>(Send(meta, Buffer()));
  }

 private:
  RpcMeta NewReplyMeta() const {
    RpcMeta meta = NewMeta();
    meta.has_response = true;
    if (!begun() && !told_) {
      meta.hello = hello_;
      if (has_credits_) meta.window = StreamWindow::kInitial;
    }
    return meta;
  }

  const bool hello_;
  const bool has_credits_;
  bool ended_ = false;
  bool told_ = false;  // The peer knows the window, before the first packet.
};

// --- the client's ----------------------------------------------------------

class FlareClientStreamWire final : public FlareStreamWire {
 public:
  FlareClientStreamWire(std::uint64_t id, const ClientStreamOpening& opening,
                        StreamTable* table, StreamOutput* output)
      : FlareStreamWire(id, table, output),
        method_(opening.method),
        timeout_ms_(opening.timeout_ms) {
    if (opening.metadata != nullptr) Enclose(*opening.metadata);
  }

  bool begins_silently() const override { return true; }
  // Else OnWindow() may come.
  bool has_credits() const override { return shared(); }

  bool SendMessage(OutboundBody&& body, bool last) override {
    RpcMeta meta = NewRequestMeta();
    meta.flags = Flags(last, /*has_payload=*/true);
    return SendNext(&meta, std::move(body));
  }

  bool SendEnd(const flare::Status&) override {
    RpcMeta meta = NewRequestMeta();
    meta.flags = Flags(/*last=*/true, /*has_payload=*/false);
    return SendNext(&meta, Buffer());
  }

  void SendReset(const flare::Status& why) override {
    // Else it is the connection's end that says so. The peer knows nothing of a
    // stream that hasn't begun.
    if (!shared() || !begun()) return;
    RpcMeta meta = NewRequestMeta();
    meta.flags = Flags(/*last=*/true, /*has_payload=*/false);
    meta.reset = why.code();
    static_cast<void>(Send(meta, Buffer()));
  }

  void SendCredit(std::size_t bytes) override {
    RpcMeta meta = NewRequestMeta();
    meta.flags = kFlagNoPayload;
    meta.credit = static_cast<std::uint32_t>(bytes);
    static_cast<void>(Send(meta, Buffer()));
  }

 private:
  RpcMeta NewRequestMeta() const {
    RpcMeta meta = NewMeta();
    meta.has_request = true;
    meta.method_name = method_;
    meta.timeout = timeout_ms_;
    if (!begun()) {
      meta.hello = true;
      meta.window = StreamWindow::kInitial;
    }
    return meta;
  }

  const std::string method_;
  const std::uint32_t timeout_ms_;
};

}  // namespace

CutResult FlareServerStreams::Take(const RpcMeta& meta, bool too_large,
                                   InboundRequest* request,
                                   std::string* error) {
  RefPtr<StreamReceiver> stream = table_.Find(meta.correlation_id);
  CutResult result = CutResult::kHandled;
  if (stream == nullptr) {
    if ((meta.flags & kFlagStartOfStream) == 0) {
      // The call has ended, or was refused.
      if (opened_) {
        if (!late_.Admit(NowNs(), &table_)) {
          *error = "flare: packets without end of streams that have ended";
          return CutResult::kError;
        }
        request->Clear();
        return CutResult::kHandled;
      }
      request->reject_status = STATUS_MALFORMED_DATA;
      request->reject_reason = "a stream that doesn't begin with its start";
      return CutResult::kMessage;
    }
    opened_ = true;
    // Parse() finds its faults, if any; its messages are passed over then.
    result = CutResult::kMessage;
    if (too_large) return result;
    if (table_.size() >= kMaxStreams) {
      request->reject_status = STATUS_OVERLOADED;
      request->reject_reason = "too many streams are open on this connection";
      return result;
    }
    stream = sink_->OpenStream(
        {.timeout_ms = meta.timeout, .send_window = meta.window},
        std::make_unique<FlareServerStreamWire>(meta, &table_, sink_));
    if (stream == nullptr) return result;
    request->stream = stream;
  } else if (too_large) {
    stream->OnReset(TooLarge());
  }
  if (meta.reset != 0) {
    stream->OnReset(flare::Status(meta.reset, "the caller gave the call up"));
  } else if (meta.credit != 0) {
    stream->OnCredit(meta.credit);
  } else if (!too_large) {
    Buffer body = TakeBody(request->meta_size, &request->wire);
    if (HasPayload(meta)) {
      stream->OnMessage(std::move(body), Ends(meta));
    } else if (Ends(meta)) {
      stream->OnEnd(flare::Status());
    }
  }
  if (result == CutResult::kHandled) request->Clear();
  return result;
}

std::unique_ptr<StreamWire> FlareClientStreams::Open(
    const ClientStreamOpening& opening, StreamOutput* output) {
  // relaxed: a number.
  const std::uint64_t id =
      opening.shared
          ? kFirstSharedId + opened_.fetch_add(1, std::memory_order_relaxed)
          : 1;
  return std::make_unique<FlareClientStreamWire>(id, opening, &table_, output);
}

// How much the server takes before it grants more.
void FlareClientStreams::TakeWindow(const RpcMeta& meta,
                                    StreamReceiver* stream) {
  if (meta.window == 0) return;
  if (meta.correlation_id < kFirstSharedId) {
    stream->OnWindow(meta.window);
  } else if ((meta.flags & kFlagStartOfStream) != 0 &&
             meta.window > StreamWindow::kInitial) {
    // The rest was assumed from the start.
    stream->OnCredit(meta.window - StreamWindow::kInitial);
  }
}

bool FlareClientStreams::Take(const RpcMeta& meta, bool too_large,
                              InboundResponse* response) {
  // relaxed: see can_share().
  if (meta.hello && !can_share()) [[unlikely]] {
    can_share_.store(true, std::memory_order_relaxed);
  }
  const RefPtr<StreamReceiver> stream = table_.Find(meta.correlation_id);
  if (stream == nullptr) {
    // Maybe in answer to a call of one message. Too many late ones count as
    // replies that nobody asked for.
    if (meta.correlation_id < kFirstSharedId ||
        !late_.Admit(NowNs(), &table_)) {
      return false;
    }
    response->Clear();
    return true;
  }
  TakeWindow(meta, stream.Get());
  if (meta.metadata.count.entries != 0) {
    std::unique_ptr<Metadata> metadata;
    const std::string why =
        TakeMetadata(meta.metadata, metadata_limits_, &metadata);
    if (!why.empty()) {
      stream->OnReset(flare::Status(STATUS_MALFORMED_DATA, why));
    } else if (metadata != nullptr) {
      stream->OnMetadata(std::move(metadata));
    }
  }
  if (too_large) {
    stream->OnTooLarge(TooLarge());
  } else if (meta.credit != 0) {
    stream->OnCredit(meta.credit);
  } else if (meta.status != 0) {
    stream->OnEnd(flare::Status(meta.status, std::string(meta.description)));
  } else if (HasPayload(meta)) {
    stream->OnMessage(TakeBody(response->meta_size, &response->wire),
                      Ends(meta));
  } else if (Ends(meta)) {
    stream->OnEnd(flare::Status());
  }
  response->Clear();
  return true;
}

}  // namespace flare::rpc
