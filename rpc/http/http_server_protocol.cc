#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "flare/base/string.h"
#include "flare/rpc/http/chunked_decoder.h"
#include "flare/rpc/http/http_call.h"
#include "flare/rpc/http/http_coding.h"
#include "flare/rpc/http/http_dialect.h"
#include "flare/rpc/http/http_head_memo.h"
#include "flare/rpc/http/http_metadata.h"
#include "flare/rpc/http/http_own_request.h"
#include "flare/rpc/http/http_parser.h"
#include "flare/rpc/http/http_protocol.h"
#include "flare/rpc/http/http_recognition.h"
#include "flare/rpc/http/http_replies.h"
#include "flare/rpc/http/http_requests.h"
#include "flare/rpc/http/http_streams.h"
#include "flare/rpc/http/http_text.h"
#include "flare/rpc/http/http_ticket.h"
#include "flare/rpc/http/http_tunnel.h"
#include "flare/rpc/http/http_writer.h"
#include "flare/rpc/http/ordered_replies.h"

namespace flare::rpc {

namespace {

// Bytes of empty lines between two requests.
constexpr std::size_t kMaxEmptyBytes = 1024;

Buffer FormatAnyRefusal(const HttpTicket& ticket,
                        const OutboundResponse& response) {
  return ticket.http2 ? FormatHttp2Refusal(response.description)
                      : FormatRefusal(ticket, response);
}

class HttpServerProtocol final : public ServerProtocol,
                                 private HttpReplySender {
 public:
  HttpServerProtocol(const HttpUses& uses, const Limits& limits,
                     ReplySink* sink)
      : ServerProtocol(sink),
        uses_(uses),
        limits_(limits),
        replies_(limits.max_pipeline, limits.max_reorder_bytes, sink) {}
  // relaxed: nobody else knows of it any more.
  ~HttpServerProtocol() override {
    delete tunnel_.load(std::memory_order_relaxed);
  }

  std::string_view name() const override { return "http"; }
  ProtocolTraits traits() const override {
    return {.metadata = true,
            .compression = true,
            .compressions = HttpCodings::kKnown,
            .attachment_compression = false,
            .unpacked_within_packet = true};
  }

  CutResult Cut(Buffer& in, InboundRequest* request, std::size_t* need,
                std::string* error) override;
  bool WithinMessage() const override {
    if (within_ == Within::kNothing && skip_ == 0) return false;
    return within_ == Within::kTunnel || (!stopped_ && !replies_.closing());
  }
  void GiveUp() override { replies_.GiveUp(); }
  std::size_t KeptOfMessage() const override {
    return chunked_head_.size() + chunked_body_.size();
  }
  // Cut has done it all: there is hardly anything to it.
  ParseResult Parse(InboundRequest* request) const override {
    if (IsDialect(TicketOf(request))) [[unlikely]]
      ReadDialect(request);
    return request->reject_status == STATUS_SUCCESS ? ParseResult::kOk
                                                    : ParseResult::kReject;
  }
  void Write(const ReplyTicket& ticket, OutboundResponse&& response) override;
  bool AnnounceEnd() override { return StopTunnel(); }
  bool EndWithNextReply() override {
    if (StopTunnel()) return true;
    // seq_cst: behind the store of lingers_ in ServerConnection; pairs with the
    // store in Finish [SN2].
    if (!spoken_.load(std::memory_order_seq_cst)) return false;
    replies_.ExpectEnd();
    return true;
  }
  void EndInput() override {
    replies_.EndInput();
    if (HttpTunnel* const tunnel = this->tunnel()) {
      tunnel->End(flare::Status::Lenient(ECONNRESET, "the end of its input"),
                  /*closed=*/false);
    }
  }
  void OnClosed(const flare::Status& why) override {
    if (streams_ != nullptr) streams_->Close(why);
    if (HttpTunnel* const tunnel = this->tunnel())
      tunnel->End(why, /*closed=*/true);
  }
  ReplyTurn AskToReply(const ReplyTicket& reply_ticket,
                       ReplyTurnWaiter* waiter) override {
    const auto& ticket = reply_ticket.As<HttpTicket>();
    // A handler of HTTP has returned, and holds nothing any more.
    return ticket.ordered
               ? replies_.AskToSend(ticket.order, waiter, !ticket.is_call)
               : ReplyTurn::kNow;
  }
  bool StopWaitingToReply(const ReplyTicket& ticket) override {
    return replies_.StopWaiting(ticket.As<HttpTicket>().order);
  }
  std::string_view WhyNoReplyStream(const ReplyTicket& ticket) const override {
    const auto& http = ticket.As<HttpTicket>();
    if (http.http_10) return "streams its replies, which needs HTTP/1.1";
    return IsDialect(http) ? uses_.dialect->WhyNoStream(http) : "";
  }
  bool HasTrailers(const ReplyTicket& ticket) const override {
    return IsDialect(ticket.As<HttpTicket>());
  }
  ReplyTurn AskToStream(const ReplyTicket& ticket,
                        ReplyTurnWaiter* waiter) override {
    return replies_.AskForTurn(ticket.As<HttpTicket>().order, waiter);
  }
  std::unique_ptr<StreamWire> OpenReplyStream(
      const ReplyTicket& ticket) override {
    return streams_->Open(ticket.As<HttpTicket>());
  }

 private:
  // HttpReplySender.
  void WriteHttp(const HttpTicket& ticket, HttpResponse&& response) override;
  ReplyTurn BeginHttp(HttpVersion version, const HttpResponse& head,
                      HttpTicket* ticket, ReplyTurnWaiter* waiter) override;
  bool WriteHttpPiece(const HttpTicket& ticket, Buffer&& piece) override;
  void EndHttp(const HttpTicket& ticket) override;
  HttpTunnel* tunnel() override {
    // seq_cst: at a stop behind the store of lingers_ in ServerConnection;
    // pairs with the store in MakeTunnel [SN2].
    return tunnel_.load(std::memory_order_seq_cst);
  }
  ReplyTurn BeginTunnel(const HttpTicket& ticket, const HttpHeaders& fields,
                        ReplyTurnWaiter* waiter) override;

  // Tunnels.
  [[gnu::noinline]] void MakeTunnel(const InboundRequest& request);
  [[gnu::noinline]] CutResult CutTunnel(Buffer& in, std::size_t* need,
                                        std::string* error);
  bool StopTunnel() {
    HttpTunnel* const tunnel = this->tunnel();
    return tunnel != nullptr && tunnel->Stop();
  }

  // Heads. kMessage without stopped_: *head is read, into *parsed or by the
  // memo, and head_size_ is known.
  CutResult ReadHead(Buffer& in, InboundRequest* request,
                     std::optional<HttpHead>* parsed, const HttpHead** head);
  CutResult ReadUnusualHead(Buffer& in, InboundRequest* request,
                            std::optional<HttpHead>* parsed,
                            const HttpHead** head);
  CutResult FindHead(Buffer& in, InboundRequest* request);

  // For calls.
  void FillMetadata(const HttpHead& head, InboundRequest* request) const;
  void ReadDialect(InboundRequest* request) const;

  // Bodies.
  CutResult CutChunked(Buffer& in, InboundRequest* request);
  void ContinueIfExpected(const HttpHead& head, const InboundRequest& request);

  // The end of a message: the next one begins.
  CutResult Finish(Buffer&& body, InboundRequest* request);
  bool spoken() const {
    // relaxed: the reader's own.
    return spoken_.load(std::memory_order_relaxed);
  }
  // Gives the request its place among the replies.
  CutResult Admit(InboundRequest* request);
  CutResult AdmitInOrder(InboundRequest* request);
  void PrepareForStream(InboundRequest* request);

  // `request` has its ticket if the request's sender is known.
  CutResult RefuseAndStop(const HttpFault& fault, Buffer& in,
                          InboundRequest* request);
  CutResult RefuseSize(Buffer& in, InboundRequest* request);
  // Refuses a request that is too large, whose body is known to end: the
  // connection goes on behind it.
  CutResult RefuseAndSkip(std::size_t body_size, Buffer& in,
                          InboundRequest* request);
  std::string SizeText() const {
    return "the message has more than " +
           std::to_string(limits_.max_packet_size) + " bytes (" +
           std::string(kServerSizeLimit) + ")";
  }
  // Skips the received part of a refused body. False: there is no more input.
  bool SkipRest(Buffer& in);
  // For requests whose head is no good.
  CutResult RefuseHead(const HttpFault& fault, Buffer& in,
                       InboundRequest* request);

  void Send(const HttpTicket& ticket, Buffer&& bytes);

  const HttpUses uses_;
  const Limits limits_;
  OrderedReplies replies_;
  // From the first call of a streaming method on.
  std::unique_ptr<HttpServerStreams> streams_;

  // The next members belong to the reader.
  std::string single_;  // the latest unary method called
  HttpHeadMemo heads_{PeekRequestHead};
  // There was a message before. Written by the reader.
  std::atomic<bool> spoken_{false};
  bool stopped_ = false;         // input is no longer read
  std::size_t empty_lines_ = 0;  // bytes of them before the message at hand
  std::size_t scanned_ = 0;      // see FindHeadEnd
  std::size_t head_size_ = 0;    // of the message at hand; 0: not known yet
  std::size_t total_size_ = 0;   // ... with its body, if not chunked
  std::size_t skip_ = 0;         // bytes still to come of a refused body
  // A part of it was taken off the input: of a chunked body, or of a message in
  // another protocol.
  enum class Within : std::uint8_t { kNothing, kChunks, kTunnel };
  Within within_ = Within::kNothing;
  bool continued_ = false;  // 100 Continue was sent
  Buffer chunked_head_;
  Buffer chunked_body_;
  ChunkedDecoder chunks_;

  // Made by the reader, for a request that asks for it. Owned.
  std::atomic<HttpTunnel*> tunnel_{nullptr};
};

// --- heads and bodies ------------------------------------------------------

CutResult HttpServerProtocol::Cut(Buffer& in, InboundRequest* request,
                                  std::size_t* need, std::string* error) {
  *need = 0;
  if (stopped_ || replies_.closing()) return CutTunnel(in, need, error);
  if (skip_ != 0) [[unlikely]]
    return SkipRest(in) ? CutResult::kHandled : CutResult::kNeedMore;
  if (within_ != Within::kNothing) return CutChunked(in, request);
  if (head_size_ != 0 && in.size() < total_size_) {
    *need = total_size_;
    return CutResult::kNeedMore;
  }
  // After a wait for the body the head is read once more: cheaper than keeping
  // the outcome in each connection.
  std::optional<HttpHead> parsed;
  const HttpHead* read = nullptr;
  if (CutResult result = ReadHead(in, request, &parsed, &read);
      result != CutResult::kMessage || stopped_) {
    return result;
  }
  const HttpHead& head = *read;
  FillHttpTicket(uses_, head, &request->ticket.Emplace<HttpTicket>());
  const std::uint64_t announced = head.content_length.value.value_or(0);
  if (announced > limits_.max_packet_size ||
      head_size_ + announced > limits_.max_packet_size) {
    if (TicketOf(request).is_call) {
      ReadHttpFormat(uses_, head, &TicketOf(request));
    }
    // A caller that asks first may leave the body out when it is told.
    return announced <= limits_.max_skipped && !head.chunked &&
                   !head.expect_continue
               ? RefuseAndSkip(announced, in, request)
               : RefuseSize(in, request);
  }
  if (head.chunked) {
    ContinueIfExpected(head, *request);
    chunked_head_ = in.Cut(head_size_);
    chunks_.Start(limits_.max_packet_size - head_size_, limits_.max_head_size);
    within_ = Within::kChunks;
    return CutChunked(in, request);
  }
  const auto body_size = static_cast<std::size_t>(announced);
  total_size_ = head_size_ + body_size;
  if (in.size() < total_size_) {
    ContinueIfExpected(head, *request);
    *need = total_size_;
    return CutResult::kNeedMore;
  }
  FillHttpRequest(uses_, head, this, request);
  if (head.has_others && TicketOf(request).is_call) [[unlikely]]
    FillMetadata(head, request);
  in.Skip(head_size_);
  return Finish(in.Cut(body_size), request);
}

CutResult HttpServerProtocol::ReadHead(Buffer& in, InboundRequest* request,
                                       std::optional<HttpHead>* parsed,
                                       const HttpHead** head) {
  // As a rule it has come in one piece, and is in order.
  if (scanned_ == 0) {
    const auto found = heads_.Peek(in.FirstContiguous(), limits_.max_head_size,
                                   limits_.max_head_fields, parsed);
    // An unknown method may be another protocol's.
    if (found && found.head->method != HttpMethod::Unspecified) {
      *head = found.head;
      head_size_ = found.size;
      return CutResult::kMessage;
    }
  }
  return ReadUnusualHead(in, request, parsed, head);
}

[[gnu::noinline]] CutResult HttpServerProtocol::ReadUnusualHead(
    Buffer& in, InboundRequest* request, std::optional<HttpHead>* parsed,
    const HttpHead** head) {
  if (head_size_ == 0) {
    if (CutResult result = FindHead(in, request);
        result != CutResult::kMessage || stopped_) {
      return result;
    }
  }
  *head = &parsed->emplace();
  const HttpFault fault =
      ParseRequestHead(ContiguousPrefix(in, head_size_, &request->scratch),
                       limits_.max_head_fields, &**parsed);
  return fault ? RefuseHead(fault, in, request) : CutResult::kMessage;
}

// kMessage without stopped_: head_size_ is known.
CutResult HttpServerProtocol::FindHead(Buffer& in, InboundRequest* request) {
  if (scanned_ == 0) {
    const std::size_t before = in.size();
    const CutResult result = FindHttpRequest(in, spoken());
    const std::size_t taken = before - in.size();
    if (taken != 0 && (empty_lines_ += taken) > kMaxEmptyBytes) [[unlikely]] {
      return RefuseHead({400, "too many empty lines before a request"}, in,
                        request);
    }
    if (result != CutResult::kMessage) {
      // Other protocols may know the input behind the empty lines.
      return taken != 0 && !in.empty() ? CutResult::kHandled : result;
    }
  }
  switch (FindHeadEnd(in, limits_.max_head_size, &scanned_, &head_size_)) {
    case HeadEnd::kFound:
      return CutResult::kMessage;
    case HeadEnd::kIncomplete:
      return CutResult::kNeedMore;
    case HeadEnd::kTooLarge:
      return RefuseHead(scanned_ == 0
                            ? HttpFault{414, "the request line is too long"}
                            : HttpFault{431, "the request head is too large"},
                        in, request);
    case HeadEnd::kBareLf:
      break;
  }
  return RefuseHead({400, "a line ends without CR"}, in, request);
}

void HttpServerProtocol::FillMetadata(const HttpHead& head,
                                      InboundRequest* request) const {
  if (request->reject_status != STATUS_SUCCESS) return;
  const std::string why =
      ReadMetadata(head.fields, limits_.metadata, &request->metadata);
  if (!why.empty()) RefuseHttpRequest(431, why, request);
}

[[gnu::noinline]] void HttpServerProtocol::ReadDialect(
    InboundRequest* request) const {
  if (request->reject_status != STATUS_SUCCESS) return;
  uses_.dialect->ReadBody(limits_, request);
}

CutResult HttpServerProtocol::CutChunked(Buffer& in, InboundRequest* request) {
  const ChunkedDecoder::Result result = chunks_.Feed(in, &chunked_body_);
  if (result == ChunkedDecoder::Result::kNeedMore) {
    request->Clear();
    return CutResult::kNeedMore;
  }
  HttpHead head;
  // It was accepted before, so it is now.
  static_cast<void>(ParseRequestHead(
      ContiguousPrefix(chunked_head_, head_size_, &request->scratch),
      limits_.max_head_fields, &head));
  FillHttpTicket(uses_, head, &request->ticket.Emplace<HttpTicket>());
  Buffer body = std::exchange(chunked_body_, Buffer());
  if (result == ChunkedDecoder::Result::kDone) {
    FillHttpRequest(uses_, head, this, request);
    if (TicketOf(request).is_call) FillMetadata(head, request);
  } else if (TicketOf(request).is_call) {
    ReadHttpFormat(uses_, head, &TicketOf(request));
  }
  chunked_head_.Clear();
  switch (result) {
    case ChunkedDecoder::Result::kTooLarge:
      return RefuseSize(in, request);
    case ChunkedDecoder::Result::kError:
      return RefuseAndStop({400, "malformed chunked body"}, in, request);
    default:
      total_size_ = head_size_ + body.size();
      return Finish(std::move(body), request);
  }
}

void HttpServerProtocol::ContinueIfExpected(const HttpHead& head,
                                            const InboundRequest& request) {
  if (!head.expect_continue || head.minor_version == 0 || continued_) return;
  continued_ = true;
  Buffer bytes = CreateBufferSlow("HTTP/1.1 100 Continue\r\n\r\n");
  if (request.ticket.As<HttpTicket>().ordered) {
    replies_.SendInterim(std::move(bytes));
  } else if (const auto place = replies_.EnterUnordered()) {
    if (*place == OrderedReplies::kClosed) return;
    replies_.Send(*place, std::move(bytes), /*close=*/false);
  } else {
    replies_.SendUnordered(std::move(bytes), /*close=*/false);
  }
}

CutResult HttpServerProtocol::Finish(Buffer&& body, InboundRequest* request) {
  if (request->own != nullptr) {
    HttpOf(*request).request().set_body(std::move(body));
  } else {
    request->body = std::move(body);
  }
  request->wire_size = total_size_;
  // seq_cst: before the reader looks at lingers_; pairs with the load in
  // EndWithNextReply [SN2]. Once, since it costs something.
  if (!spoken()) spoken_.store(true, std::memory_order_seq_cst);
  scanned_ = head_size_ = total_size_ = empty_lines_ = 0;
  within_ = Within::kNothing;
  continued_ = false;
  if (TicketOf(request).close) MakeTunnel(*request);
  return Admit(request);
}

CutResult HttpServerProtocol::Admit(InboundRequest* request) {
  HttpTicket& ticket = TicketOf(request);
  if (uses_.streams && ticket.is_call) [[unlikely]]
    PrepareForStream(request);
  if (!ticket.ordered) {
    if (const auto place = replies_.EnterUnordered()) [[unlikely]] {
      if (*place == OrderedReplies::kClosed) return CutResult::kNeedMore;
      ticket.ordered = true;
      ticket.order = *place;
    }
    return CutResult::kMessage;
  }
  return AdmitInOrder(request);
}

// Kept out of line: replies that need no place need no frame for it.
[[gnu::noinline]] CutResult HttpServerProtocol::AdmitInOrder(
    InboundRequest* request) {
  HttpTicket& ticket = TicketOf(request);
  if (auto place = replies_.Enter(/*forced=*/ticket.close)) {
    ticket.order = *place;
  } else if (replies_.closing()) [[unlikely]] {
    // The reply before it has just said that it is the last.
    return CutResult::kNeedMore;
  } else {
    RefuseHttpRequest(503,
                      "too many requests wait for an answer on this connection",
                      request);
    stopped_ = ticket.close = true;
    const auto last = replies_.Enter(/*forced=*/true);
    if (!last) return CutResult::kNeedMore;  // It has said so by now.
    ticket.order = *last;
  }
  return CutResult::kMessage;
}

// Replies in parts need a place, whatever their Rpc-SeqNo.
void HttpServerProtocol::PrepareForStream(InboundRequest* request) {
  if (request->reject_status != STATUS_SUCCESS ||
      request->head.method == single_) {
    return;
  }
  const MethodKind kind =
      sink()->KindOfMethod(request->head.method, /*short_service=*/false);
  if (kind == MethodKind::kUnary) single_ = request->head.method;
  if (kind == MethodKind::kUnary || kind == MethodKind::kUnknown) return;
  TicketOf(request).ordered = true;
  if (streams_ == nullptr) {
    streams_ = std::make_unique<HttpServerStreams>(&uses_, &replies_, sink());
  }
}

// --- tunnels ---------------------------------------------------------------

// Called with the last request of a connection: whether it is the last because
// it asks for another protocol.
void HttpServerProtocol::MakeTunnel(const InboundRequest& request) {
  stopped_ = true;
  if (request.own == nullptr) return;
  const HttpHeaders& fields = *HttpOf(request).request().headers();
  bool asks = false;
  for (const std::string_view list : fields.TryGetMultiple("Upgrade")) {
    asks = asks || HasListMember(list, "websocket");
  }
  if (!asks) return;
  // seq_cst: before the reader looks at lingers_; pairs with the load in
  // tunnel() [SN2].
  tunnel_.store(new HttpTunnel(sink(), request.own.get()),
                std::memory_order_seq_cst);
}

// Whatever follows the last request: it is for the tunnel, or is dropped.
CutResult HttpServerProtocol::CutTunnel(Buffer& in, std::size_t* need,
                                        std::string* error) {
  HttpTunnel* const tunnel = this->tunnel();
  if (tunnel == nullptr) {
    in.Clear();
    return CutResult::kNeedMore;
  }
  const std::size_t before = in.size();
  const HttpTunnelReceiver::Input result = tunnel->Take(in, need, error);
  within_ = tunnel->WithinMessage() ? Within::kTunnel : Within::kNothing;
  switch (result) {
    case HttpTunnelReceiver::Input::kBroken:
      return CutResult::kError;
    case HttpTunnelReceiver::Input::kHeld:
      return CutResult::kHandled;
    case HttpTunnelReceiver::Input::kTaken:
      break;
  }
  return in.size() == before || within_ == Within::kTunnel
             ? CutResult::kNeedMore
             : CutResult::kHandled;
}

ReplyTurn HttpServerProtocol::BeginTunnel(const HttpTicket& ticket,
                                          const HttpHeaders& fields,
                                          ReplyTurnWaiter* waiter) {
  const ReplyTurn turn = replies_.AskForTurn(ticket.order, waiter);
  if (turn == ReplyTurn::kNow) {
    BufferBuilder head;
    AppendStatusLine(static_cast<int>(HttpStatus::SwitchingProtocols), &head);
    head.Append(fields.lines(), "\r\n");
    replies_.SendPart(head.DestructiveGet());
  }
  return turn;
}

// --- refusals and replies --------------------------------------------------

CutResult HttpServerProtocol::RefuseAndStop(const HttpFault& fault, Buffer& in,
                                            InboundRequest* request) {
  TicketOf(request).close = true;
  RefuseHttpRequest(fault.status, fault.text, request);
  stopped_ = true;
  in.Clear();
  return Admit(request);
}

CutResult HttpServerProtocol::RefuseSize(Buffer& in, InboundRequest* request) {
  const std::string text = SizeText();
  return RefuseAndStop({413, text}, in, request);
}

CutResult HttpServerProtocol::RefuseAndSkip(std::size_t body_size, Buffer& in,
                                            InboundRequest* request) {
  in.Skip(head_size_);
  skip_ = body_size;
  SkipRest(in);
  RefuseHttpRequest(413, SizeText(), request);
  total_size_ = head_size_;
  return Finish(Buffer(), request);
}

bool HttpServerProtocol::SkipRest(Buffer& in) {
  const std::size_t n = std::min(skip_, in.size());
  in.Skip(n);
  skip_ -= n;
  return !in.empty();
}

CutResult HttpServerProtocol::RefuseHead(const HttpFault& fault, Buffer& in,
                                         InboundRequest* request) {
  HttpTicket& ticket = request->ticket.Emplace<HttpTicket>();
  ticket.is_call = false;
  ticket.has_correlation_id = false;
  ticket.ordered = true;
  ticket.head_only = BeginsWithHead(in);
  ticket.http2 = !spoken() && BeginsWithHttp2(in);
  return RefuseAndStop(fault, in, request);
}

void HttpServerProtocol::Write(const ReplyTicket& reply_ticket,
                               OutboundResponse&& response) {
  const auto& ticket = reply_ticket.As<HttpTicket>();
  Buffer bytes;
  if (IsDialect(ticket)) [[unlikely]] {
    bytes = uses_.dialect->FormatReply(ticket, std::move(response));
  } else {
    bytes = ticket.http_status != 0
                ? FormatAnyRefusal(ticket, response)
                : FormatCallReply(ticket, std::move(response));
  }
  if (ticket.cors != 0) [[unlikely]] {
    bytes = InsertFields(uses_.cors->FieldsFor(ticket.cors), std::move(bytes));
  }
  Send(ticket, std::move(bytes));
}

void HttpServerProtocol::WriteHttp(const HttpTicket& request,
                                   HttpResponse&& response) {
  HttpTicket ticket = request;
  Buffer bytes = FormatHandlerReply(&ticket, std::move(response));
  Send(ticket, std::move(bytes));
}

ReplyTurn HttpServerProtocol::BeginHttp(HttpVersion version,
                                        const HttpResponse& head,
                                        HttpTicket* ticket,
                                        ReplyTurnWaiter* waiter) {
  const ReplyTurn turn = replies_.AskForTurn(ticket->order, waiter);
  if (turn == ReplyTurn::kNow) {
    if (replies_.IsLast(ticket->order)) ticket->close = true;
    replies_.SendPart(FormatHandlerHead(version, head, ticket));
  }
  return turn;
}

bool HttpServerProtocol::WriteHttpPiece(const HttpTicket& ticket,
                                        Buffer&& piece) {
  // An empty chunk would be the last one.
  if (piece.empty()) return replies_.SendPart(Buffer());
  return replies_.SendPart(ticket.chunked ? FormatChunk(std::move(piece))
                                          : std::move(piece));
}

void HttpServerProtocol::EndHttp(const HttpTicket& ticket) {
  if (ticket.chunked && !ticket.head_only) {
    replies_.SendPart(FormatLastChunk());
  }
  replies_.EndParts(ticket.order, ticket.close);
}

void HttpServerProtocol::Send(const HttpTicket& ticket, Buffer&& bytes) {
  if (ticket.ordered) {
    replies_.Send(ticket.order, std::move(bytes), ticket.close);
  } else {
    replies_.SendUnordered(std::move(bytes), ticket.close);
  }
}

}  // namespace

std::unique_ptr<ServerProtocol> NewHttpServerProtocol(const HttpUses& uses,
                                                      const Limits& limits,
                                                      ReplySink* sink) {
  return std::make_unique<HttpServerProtocol>(uses, limits, sink);
}

}  // namespace flare::rpc
