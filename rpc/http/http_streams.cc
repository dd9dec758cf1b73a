#include "flare/rpc/http/http_streams.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "flare/base/string.h"
#include "flare/rpc/http/http_call.h"
#include "flare/rpc/http/http_cors.h"
#include "flare/rpc/http/http_dialect.h"
#include "flare/rpc/http/http_replies.h"
#include "flare/rpc/http/http_writer.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {
namespace {

// A field of type varint and number 19000, which is 0.
constexpr std::string_view kEmptyMessage("\xc0\xa3\x09\0", 4);

// The published peers' names of the status codes from 0 on.
constexpr std::array<std::string_view, 18> kNames = {"success",
                                                     "ChannelShutdown",
                                                     "FailToConnect",
                                                     "Timeout",
                                                     "SerializeRequestError",
                                                     "ParseRequestError",
                                                     "SerializeResponseError",
                                                     "ParseResponseError",
                                                     "InvalidMethodName",
                                                     "ServiceNotFound",
                                                     "MethodNotFound",
                                                     "ServerOverload",
                                                     "InvalidTransferMode",
                                                     "ErrorFromUserFeedback",
                                                     "OutOfService",
                                                     "ErrorGetRoute",
                                                     "GetRouteEmpty",
                                                     "GetRouteAllDisabled"};
static_assert(kNames[STATUS_GET_ROUTE_ALL_DISABLED] == "GetRouteAllDisabled");

std::string_view NameOfStatus(int code) {
  if (code >= 0 && static_cast<std::size_t>(code) < kNames.size()) {
    return kNames[code];
  }
  if (code == STATUS_FAILED) return "Unknown";
  return code == STATUS_FROM_USER ? "UserError" : "<Unknown>";
}

int StatusOfName(std::string_view name) {
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  if (found != kNames.end()) return static_cast<int>(found - kNames.begin());
  return name == "Unknown" ? STATUS_FAILED : STATUS_FROM_USER;
}

Buffer FormatStreamEnd(const flare::Status& status) {
  BufferBuilder out;
  out.Append("0\r\n");
  out.Append(StreamEndFields(status));
  out.Append("\r\n");
  return out.DestructiveGet();
}

Buffer FormatMessage(PayloadFormat format, OutboundBody&& message) {
  BufferBuilder bytes;
  if (format != PayloadFormat::kProtobuf) {
    std::move(message).AppendTo(&bytes);
    bytes.Append("\n");
  } else if (message.size() == 0) {
    bytes.Append(kEmptyMessage);
  } else {
    std::move(message).AppendTo(&bytes);
  }
  return FormatChunk(bytes.DestructiveGet());
}

class HttpServerStreamWire final : public StreamWire {
 public:
  HttpServerStreamWire(const HttpTicket& ticket, const HttpUses& uses,
                       StreamTable* table, OrderedReplies* replies,
                       ReplySink* sink)
      : ticket_(ticket),
        cors_(uses.cors),
        dialect_(IsDialect(ticket) ? uses.dialect : nullptr),
        table_(table),
        replies_(replies),
        sink_(sink) {}
  // A reply that breaks off must not be taken for a whole one.
  ~HttpServerStreamWire() override {
    table_->Remove(ticket_.order);
    if (ended_) return;
    sink_->Abort(
        flare::Status::Lenient(STATUS_IO_ERROR, "a stream was given up"));
    replies_->EndParts(ticket_.order, /*close=*/true);
  }

  bool Begin(RefPtr<StreamReceiver> receiver) override {
    return table_->Add(ticket_.order, std::move(receiver));
  }

  bool SendMessage(OutboundBody&& body, bool last) override {
    Buffer message;
    if (dialect_ == nullptr) {
      message = FormatMessage(ticket_.format, std::move(body));
    } else {
      message = dialect_->FormatStreamMessage(ticket_, std::move(body));
      if (message.empty()) {
        return SendEnd(flare::Status(STATUS_SERIALIZE_RESPONSE,
                                     "a message of the stream exceeds 4 GiB"));
      }
      message = FormatChunk(std::move(message));
    }
    Buffer bytes = Head();
    bytes.Append(std::move(message));
    if (last) return SendLast(std::move(bytes), flare::Status());
    return replies_->SendPart(std::move(bytes));
  }

  bool SendEnd(const flare::Status& status) override {
    if (ended_) return true;
    if (begun_ || status.ok() || dialect_ != nullptr) {
      return SendLast(Head(), status);
    }
    NoteClose();
    return Send(WithCors(FormatStreamFailure(ticket_, status, metadata_)));
  }
  void SendReset(const flare::Status& why) override {
    static_cast<void>(SendEnd(why));
  }

  // TCP holds back who is too fast; nothing comes from the client.
  bool has_credits() const override { return false; }
  void SendCredit(std::size_t) override {}
  void HoldInput() override {}
  void ReleaseInput() override {}

  bool AddMetadata(MetadataPlace place, const Metadata& metadata) override {
    if (dialect_ == nullptr) {
      // A failure has it, before the first message. It may come as both.
      const auto challenge = metadata.Get("www-authenticate");
      if (challenge && metadata_.empty()) {
        metadata_.AddReceived("www-authenticate", *challenge);
      }
      return false;
    }
    (place == MetadataPlace::kInitial ? metadata_ : trailers_) = metadata;
    return true;
  }

 private:
  // Empty once it was sent.
  Buffer Head() {
    if (std::exchange(begun_, true)) return Buffer();
    NoteClose();
    return WithCors(dialect_ != nullptr
                        ? dialect_->FormatStreamHead(ticket_, metadata_)
                        : FormatStreamHead(ticket_));
  }
  void NoteClose() {
    if (replies_->IsLast(ticket_.order)) ticket_.close = true;
  }
  Buffer WithCors(Buffer&& bytes) const {
    if (ticket_.cors == 0) return std::move(bytes);
    return InsertFields(cors_->FieldsFor(ticket_.cors), std::move(bytes));
  }

  bool SendLast(Buffer&& bytes, const flare::Status& status) {
    if (dialect_ == nullptr) {
      bytes.Append(FormatStreamEnd(status));
    } else {
      bytes.Append(
          FormatChunk(dialect_->FormatStreamEnd(ticket_, status, trailers_)));
      bytes.Append(FormatLastChunk());
    }
    return Send(std::move(bytes));
  }
  bool Send(Buffer&& bytes) {
    ended_ = true;
    const bool sent = replies_->SendPart(std::move(bytes));
    replies_->EndParts(ticket_.order, ticket_.close);
    return sent;
  }

  HttpTicket ticket_;
  const HttpCors* const cors_;
  const HttpDialect* const dialect_;  // Null: none.
  Metadata metadata_;
  Metadata trailers_;
  StreamTable* const table_;
  OrderedReplies* const replies_;
  ReplySink* const sink_;
  bool begun_ = false;
  bool ended_ = false;
};

class HttpClientStreamWire final : public StreamWire {
 public:
  HttpClientStreamWire(const ClientStreamOpening& opening, std::uint64_t id,
                       StreamTable* table, const ClientProtocol* protocol,
                       StreamOutput* output)
      : method_(opening.method),
        timeout_ms_(opening.timeout_ms),
        metadata_(opening.metadata == nullptr ? Metadata() : *opening.metadata),
        id_(id),
        table_(table),
        protocol_(protocol),
        output_(output) {}
  ~HttpClientStreamWire() override { table_->Remove(id_); }

  bool Begin(RefPtr<StreamReceiver> receiver) override {
    return table_->Add(id_, std::move(receiver));
  }

  // The request, which is the only one.
  bool SendMessage(OutboundBody&& body, bool) override {
    OutboundRequest request;
    request.correlation_id = 1;
    request.method = method_;
    request.timeout_ms = timeout_ms_;
    if (!metadata_.empty()) request.metadata = &metadata_;
    request.body = std::move(body);
    BufferBuilder out;
    return protocol_->Write(std::move(request), &out).ok() &&
           output_->WriteSoon(out.DestructiveGet());
  }
  bool SendEnd(const flare::Status&) override { return true; }
  // The end of the connection, which follows, says so.
  void SendReset(const flare::Status&) override {}

  bool has_credits() const override { return false; }
  void SendCredit(std::size_t) override {}
  void HoldInput() override { output_->HoldInput(); }
  void ReleaseInput() override { output_->ReleaseInput(); }

 private:
  const std::string method_;
  const std::uint32_t timeout_ms_;
  const Metadata metadata_;
  const std::uint64_t id_;
  StreamTable* const table_;
  const ClientProtocol* const protocol_;
  StreamOutput* const output_;
};

flare::Status StatusOfTrailer(std::string_view lines) {
  HttpHeaders fields;
  fields.AssignLines(lines);
  const auto name = fields.TryGet("Rpc-Error-Code");
  if (!name) {
    return flare::Status(STATUS_MALFORMED_DATA,
                         "a stream whose end doesn't say how it went");
  }
  if (*name == kNames[STATUS_SUCCESS]) return flare::Status();
  int code = StatusOfName(*name);
  if (const auto number = fields.TryGet("Rpc-Error-Number")) {
    code = TryParse<int>(*number).value_or(code);
  }
  if (code == STATUS_SUCCESS) code = STATUS_FROM_USER;
  const auto reason = fields.TryGet("Rpc-Error-Reason");
  return flare::Status(code, std::string(reason ? *reason : *name));
}

// How a call ended whose reply is no stream.
flare::Status StatusOfHead(const HttpHead& head) {
  const auto code = TryParse<int>(head.rpc_error_code);
  if (code && *code != STATUS_SUCCESS) {
    return flare::Status(*code, std::string(head.rpc_error_reason));
  }
  return flare::Status(STATUS_MALFORMED_DATA,
                       "HTTP status " + std::to_string(head.status) +
                           " instead of a stream of messages");
}

CutResult Fail(std::string_view text, std::string* error) {
  error->assign("http: ").append(text);
  return CutResult::kError;
}

}  // namespace

std::string StreamEndFields(const flare::Status& status) {
  BufferBuilder out;
  out.Append("Rpc-Error-Code: ");
  out.Append(NameOfStatus(status.code()));
  if (!status.ok()) {
    if (!status.message().empty()) {
      out.Append("\r\nRpc-Error-Reason: ");
      AppendFieldText(status.message(), &out);
    }
    out.Append("\r\nRpc-Error-Number: ");
    AppendDecimal(status.code(), &out);
  }
  out.Append("\r\n");
  return FlattenSlow(out.DestructiveGet());
}

std::unique_ptr<StreamWire> HttpServerStreams::Open(const HttpTicket& ticket) {
  return std::make_unique<HttpServerStreamWire>(ticket, *uses_, &table_,
                                                replies_, sink_);
}

std::unique_ptr<StreamWire> HttpClientStreams::Open(
    const ClientStreamOpening& opening, const ClientProtocol* protocol,
    StreamOutput* output) {
  // relaxed: see opened().
  opened_.store(true, std::memory_order_relaxed);
  return std::make_unique<HttpClientStreamWire>(opening, kId, &table_, protocol,
                                                output);
}

CutResult HttpClientStreams::Take(Buffer& in, std::size_t* need,
                                  std::string* error) {
  *need = 0;
  for (;;) {
    CutResult result = CutResult::kNeedMore;
    switch (state_) {
      case State::kHead:
        result = TakeHead(in, error);
        break;
      case State::kSize:
        result = TakeSize(in, error);
        break;
      case State::kChunk:
        return TakeChunk(in, need, error);
      case State::kTrailer:
        result = TakeTrailer(in, error);
        break;
      case State::kOver:
        in.Clear();
        return CutResult::kNeedMore;
    }
    // kMessage: goes on with the next state.
    if (result != CutResult::kMessage) return result;
  }
}

CutResult HttpClientStreams::TakeHead(Buffer& in, std::string* error) {
  std::size_t size = 0;
  switch (FindHeadEnd(in, limits_.max_head_size, &scanned_, &size)) {
    case HeadEnd::kFound:
      break;
    case HeadEnd::kIncomplete:
      return CutResult::kNeedMore;
    case HeadEnd::kTooLarge:
      return Fail("the head of a response is too large", error);
    case HeadEnd::kBareLf:
      return Fail("a line of a response's head ends without CR", error);
  }
  HttpHead head;
  if (const HttpFault fault =
          ParseResponseHead(ContiguousPrefix(in, size, &scratch_),
                            limits_.max_head_fields, &head)) {
    return Fail(fault.text, error);
  }
  scanned_ = 0;
  // An interim response announces the one that follows.
  const bool interim = head.status < 200 && head.status != 101;
  const bool streams =
      head.status == 200 && head.chunked && head.rpc_error_code.empty();
  const flare::Status status =
      interim || streams ? flare::Status() : StatusOfHead(head);
  in.Skip(size);
  if (interim) return CutResult::kMessage;
  if (!streams) return End(status);
  state_ = State::kSize;
  return CutResult::kMessage;
}

bool HttpClientStreams::TakeLine(Buffer& in, bool* too_long) {
  *too_long = false;
  std::size_t size = 0;
  char before = 0;
  for (std::string_view slice : in) {
    for (const char c : slice) {
      if (++size > limits_.max_head_size) {
        *too_long = true;
        return false;
      }
      if (before == '\r' && c == '\n') {
        line_.resize(size);
        in.CopyTo(line_.data(), size, 0);
        in.Skip(size);
        return true;
      }
      before = c;
    }
  }
  return false;
}

CutResult HttpClientStreams::TakeSize(Buffer& in, std::string* error) {
  bool too_long = false;
  if (!TakeLine(in, &too_long)) {
    return too_long ? Fail("the line of a chunk's size is too long", error)
                    : CutResult::kNeedMore;
  }
  std::size_t size = 0;
  const char* const end = line_.data() + line_.size() - 2;
  const auto [at, failure] = std::from_chars(line_.data(), end, size, 16);
  if (failure != std::errc() ||
      (at != end && *at != ';' && *at != ' ' && *at != '\t')) {
    return Fail("a malformed size of a chunk", error);
  }
  // With its CRLF it must fit into the input.
  if (size > limits_.max_packet_size - 2) {
    return Fail(SizeLimitText("message", size, limits_.max_packet_size,
                              kClientSizeLimit),
                error);
  }
  chunk_left_ = size == 0 ? 0 : size + 2;
  state_ = size == 0 ? State::kTrailer : State::kChunk;
  return CutResult::kMessage;
}

CutResult HttpClientStreams::TakeChunk(Buffer& in, std::size_t* need,
                                       std::string* error) {
  if (in.size() < chunk_left_) {
    *need = chunk_left_;
    return CutResult::kNeedMore;
  }
  Buffer message = in.Cut(chunk_left_ - 2);
  char end[2];
  in.CopyTo(end, 2, 0);
  if (std::string_view(end, 2) != "\r\n") {
    return Fail("a chunk doesn't end where its size says", error);
  }
  in.Skip(2);
  chunk_left_ = 0;
  state_ = State::kSize;
  if (message.size() == kEmptyMessage.size() &&
      FlattenSlow(message) == kEmptyMessage) {
    message.Clear();
  }
  if (const auto stream = table_.Find(kId)) {
    stream->OnMessage(std::move(message), /*last=*/false);
  }
  return CutResult::kHandled;
}

CutResult HttpClientStreams::TakeTrailer(Buffer& in, std::string* error) {
  for (;;) {
    bool too_long = false;
    if (!TakeLine(in, &too_long)) {
      return too_long ? Fail("a trailer is too large", error)
                      : CutResult::kNeedMore;
    }
    if (line_.size() == 2) return End(StatusOfTrailer(trailer_));
    if (line_.find(':') == line_.npos) return Fail("a bad trailer", error);
    trailer_.append(line_);
    if (trailer_.size() > limits_.max_head_size) {
      return Fail("a trailer is too large", error);
    }
  }
}

CutResult HttpClientStreams::End(const flare::Status& status) {
  state_ = State::kOver;
  if (const auto stream = table_.Find(kId)) stream->OnEnd(status);
  return CutResult::kHandled;
}

}  // namespace flare::rpc
