// The connection's reader (Cut) and the fibers of calls (Write, GrpcServerWire)
// share one session.
//
// [GS1] session_, all streams, and the order in which output reaches the sink
//       are guarded by lock_: a thread that changes the session flushes it, and
//       hands the bytes to the sink, before it lets go. Nothing under lock_
//       blocks.
// [GS2] Receivers of streams are called without lock_: they take their own, and
//       call the wire, which takes lock_, under it. So the reader puts arriving
//       events into events_, and delivers them when lock_ is free. Only it
//       does: their order is that of the frames.
// [GS3] A stream belongs to the session from OnStream() to OnClosed(), which
//       deletes it. Others know its number, and look it up: a call whose stream
//       is gone is answered in vain.
// [GS4] The session takes whole frames off the input, and pauses behind the one
//       that completes a request. The rest of the input stays for the next Cut.
// [GS5] Bytes that a flush sends are credit for the stream's writer. A flush of
//       the writer's own returns it by TakeCredit(), the reader's by
//       OnCredit().
// [GS6] The writer of a reply of plain HTTP that has no room leaves a waiter
//       with its stream, under lock_. Sent bytes, the stream's end and the
//       connection's take it out under lock_, and wake it, once.
// [GS7] Requests that aren't complete are of this round, or earlier ones, which
//       earlier_ counts. A round ends when there are none of these: so each
//       request has ended in the round behind its own, or the next one doesn't
//       begin. A head whose rest is to come is alone: nothing comes beside it.
// [GS8] Handlers of streaming calls may run on when their streams have closed:
//       orphans_ counts their wires. Streams that are open have a limit, which
//       a client that has them end early, by resets or broken messages, would
//       get around.
#include "flare/rpc/grpc/grpc_server_protocol.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/rpc/grpc/grpc_mapping.h"
#include "flare/rpc/grpc/grpc_server_session.h"
#include "flare/rpc/grpc/grpc_server_wire.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/grpc/http2_site.h"
#include "flare/rpc/http/http_dialect.h"
#include "flare/rpc/http/http_ticket.h"
#include "flare/rpc/http2/field_text.h"
#include "flare/rpc/http2/http2_session.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_wire.h"

namespace flare::rpc {
namespace {

std::int32_t StreamOf(const ReplyTicket& ticket) {
  return static_cast<std::int32_t>(ticket.As<HttpTicket>().order);
}

// Names and values as fields. Null: there are none.
std::vector<std::pair<std::string, std::string>> GrpcEntriesOf(
    const Metadata* metadata) {
  std::vector<std::pair<std::string, std::string>> entries;
  if (metadata == nullptr) return entries;
  ForEachGrpcField(*metadata,
                   [&](std::string_view name, std::string_view value) {
                     entries.emplace_back(name, value);
                   });
  return entries;
}

// The size of the entries in memory, as HPACK counts (RFC 7541, 4.1). On the
// wire it may be a byte for each.
std::size_t SizeOf(const Metadata* metadata) {
  return metadata == nullptr ? 0
                             : metadata->byte_size() + 32 * metadata->size();
}

// One less than the calls at which the connection stops reading: it must go on
// to read the client's window updates while each stream's handler waits for
// one.
std::uint32_t MaxStreams(std::size_t max_pipeline) {
  return static_cast<std::uint32_t>(
      std::clamp<std::size_t>(max_pipeline, 2,
                              std::numeric_limits<std::int32_t>::max()) -
      1);
}

// Bytes that no other protocol begins with.
constexpr std::size_t kDistinctive = 4;  // "PRI "

// Answers to requests that aren't gRPC's.
constexpr std::string_view kNotPost =
    "Over HTTP/2 this server speaks gRPC, which needs POST. Plain requests are "
    "served over HTTP/1.1.\n";
constexpr std::string_view kNotGrpc =
    "Over HTTP/2 this server speaks gRPC, whose content-type is "
    "application/grpc. Plain requests are served over HTTP/1.1.\n";

// A longer message is serialised before the connection is locked.
constexpr std::size_t kMaxPlainReply = 1024;

// The head of the reply to a successful call without metadata.
constexpr auto kPlainHead = std::to_array<Http2Field>(
    {{":status", "200"}, {"content-type", kGrpcContentType}});
constexpr auto kPlainEnd = std::to_array<Http2Field>({{"grpc-status", "0"}});

class GrpcServerProtocol final : public ServerProtocol,
                                 public Http2Handler,
                                 public GrpcServerSession {
 public:
  GrpcServerProtocol(const Limits& limits, ReplySink* sink,
                     const HttpUses& uses)
      : ServerProtocol(sink),
        GrpcServerSession(sink),
        limits_(limits),
        most_orphans_(
            std::max<std::size_t>(MaxStreams(limits.max_pipeline), 100)),
        site_(uses, limits, this) {}

  std::string_view name() const override { return "grpc"; }
  ProtocolTraits traits() const override {
    return {.metadata = true,
            .compression = true,
            .compressions = GrpcCompressions(),
            .attachment_compression = false,
            .unpacked_within_packet = true,
            .trailers = true,
            .translates_codes = true,
            .streams_share = true};
  }

  CutResult Cut(Buffer& in, InboundRequest* request, std::size_t* need,
                std::string* error) override;
  ParseResult Parse(InboundRequest* request) const override {
    if (IsDialect(TicketOf(request))) [[unlikely]]
      site_.ReadBody(request);
    return request->reject_status == STATUS_SUCCESS ? ParseResult::kOk
                                                    : ParseResult::kReject;
  }
  void Write(const ReplyTicket& ticket, OutboundResponse&& response) override;
  bool WithinMessage() const override {
    // relaxed, here and below: the reader's own, or a hint.
    return within_frame_ || incomplete_.load(std::memory_order_relaxed) != 0;
  }
  std::size_t KeptOfMessage() const override {
    return kept_.load(std::memory_order_relaxed) + block_kept_;
  }
  bool EarlierMessagesEnded() override;
  bool HasTrailers(const ReplyTicket& ticket) const override {
    const auto& http = ticket.As<HttpTicket>();
    return http.type == kGrpcTicketType || IsDialect(http);
  }
  std::string_view WhyNoReplyStream(const ReplyTicket& ticket) const override {
    const auto& http = ticket.As<HttpTicket>();
    return http.type == kGrpcTicketType
               ? ServerProtocol::WhyNoReplyStream(ticket)
               : site_.WhyNoReplyStream(http);
  }
  std::unique_ptr<StreamWire> OpenReplyStream(
      const ReplyTicket& ticket) override;
  bool AnnounceEnd() override;
  void EndInput() override;
  void OnClosed(const flare::Status& why) override;
  bool CallerLeft(const ReplyTicket& ticket) const override {
    ScopedLock guard(lock_);
    return left_.contains(StreamOf(ticket));
  }

 private:
  struct Event {
    enum class Kind { kMessage, kEnd, kCredit, kReset };
    RefPtr<StreamReceiver> receiver;
    Kind kind;
    Buffer message = {};
    CompressionAlgorithm compression = CompressionAlgorithm::kNone;
    std::size_t credit = 0;
    flare::Status status = {};
  };

  // A path that a client has called, and its method. Many clients call few.
  struct KnownPath {
    std::string path;
    std::string method;
  };
  static constexpr std::size_t kMaxKnownPaths = 64;
  // A longer text isn't kept.
  static constexpr std::size_t kMaxKnownText = 128;

  // Http2Handler; with lock_.
  Http2Stream* OnStream() override;
  bool KeepHead(Http2Stream* stream, std::size_t place) override;
  void OnSameHead(Http2Stream* stream, std::size_t place) override;
  bool OnField(Http2Stream* stream, std::string_view name,
               std::string_view value) override;
  void OnHeaders(Http2Stream* stream, bool trailers, bool end) override;
  void OnData(Http2Stream* stream, Buffer&& bytes) override;
  void OnEnd(Http2Stream* stream) override;
  void OnSent(Http2Stream* stream, std::size_t bytes) override;
  void OnClosed(Http2Stream* stream, Http2Error error, bool by_peer) override;
  void OnPong() override;

  bool FindMethod(std::string_view path, Stream* stream);
  void TakeAcceptEncoding(std::string_view list, Stream* stream);
  // Called for a request whose head has come.
  void Begin(Stream* stream);
  void TakeMessages(Stream* stream);
  void TakeUnary(Stream* stream);
  void Advance(Stream* stream);
  // Answers without a call.
  void Refuse(Stream* stream, int status, std::string_view text);
  void RefuseHttp(Stream* stream);

  static bool IsPlain(const HttpTicket& ticket,
                      const OutboundResponse& response);
  void WritePlain(std::int32_t id, OutboundBody&& body);

  // For plain HTTP.
  void CompleteHttp(Stream* stream);

  // The request is complete, or its stream can be opened.
  void Complete(Stream* stream, Buffer&& body);
  CutResult OpenStream(InboundRequest* request);
  // Else its request isn't complete: a client that is told so may repeat it.
  static bool HasBegun(const Stream& stream) {
    return stream.phase == Phase::kStreaming ||
           stream.phase == Phase::kAnswered;
  }

  void Deliver();
  void CreditWriters() FLARE_REQUIRES(lock_);

  const Limits limits_;
  // As many as streams may be open; some have just been answered, as a rule.
  const std::size_t most_orphans_;
  Http2Site site_;

  // The reader's.
  bool reads_head_ = false;     // It may be one of plain HTTP.
  bool within_frame_ = false;   // The rest of one, or of a head, is to come.
  std::size_t block_kept_ = 0;  // Bytes of that head.
  std::vector<Event> events_;   // [GS2]
  // Running calls have views of methods, so none is removed.
  std::deque<KnownPath> known_paths_;
  const KnownPath* last_path_ = nullptr;
  std::array<GrpcCallHead, Http2Session::kKnownHeads> known_heads_;
  // The list that came last, and its meaning.
  std::string accept_encoding_;
  std::uint64_t acceptable_ = 0;
  std::uint32_t heads_ = 0;     // Which came whole in this round. [GS7]
  bool earlier_block_ = false;  // The round began within a head.
  InboundRequest* request_ = nullptr;
  std::int32_t complete_ = 0;  // The stream of the request above.
  bool opens_stream_ = false;  // ... which is a streaming call.
  bool reading_ = false;       // The reader has lock_.
  bool caller_left_ = false;   // For a call that runs.
  bool end_known_ = false;     // The peer has answered to AnnounceEnd().
  bool over_ = false;

  // Guarded by lock_.
  Http2FixedFields plain_head_{kPlainHead};
  Http2FixedFields plain_end_{kPlainEnd};
  std::vector<std::int32_t> credited_;  // Streams with credit.
  bool announced_ = false;              // See AnnounceEnd().
  // Unary calls that run for nobody.
  std::unordered_set<std::int32_t> left_;
  // Destroyed without lock_, since their destructors may call their wires.
  std::vector<RefPtr<StreamReceiver>> dropped_;
};

// --------------------------------------------------------------------------
// Input
// --------------------------------------------------------------------------

CutResult GrpcServerProtocol::Cut(Buffer& in, InboundRequest* request,
                                  std::size_t* need, std::string* error) {
  if (over_) {
    in.Clear();
    return CutResult::kHandled;
  }
  if (session_ == nullptr) [[unlikely]] {
    char scratch[Http2Session::kPreface.size()];
    const std::string_view start =
        in.Peek(std::min(in.size(), Http2Session::kPreface.size()), scratch);
    if (!Http2Session::kPreface.starts_with(start)) return CutResult::kNotMine;
    if (start.size() < kDistinctive) return CutResult::kUnsure;
    if (start.size() < Http2Session::kPreface.size()) {
      *need = Http2Session::kPreface.size();
      return CutResult::kNeedMore;
    }
  }
  CutResult result = CutResult::kHandled;
  bool caller_left = false;
  bool ends = false;
  std::string_view broken;
  std::vector<RefPtr<StreamReceiver>> dropped;
  {
    ScopedLock guard(lock_);
    reading_ = true;
    request_ = request;
    complete_ = 0;
    bool fine = true;
    if (session_ == nullptr) [[unlikely]] {
      session_ = std::make_unique<Http2Session>(
          Http2Session::Role::kServer,
          Http2Session::Options{
              .max_concurrent_streams = MaxStreams(limits_.max_pipeline),
              .stream_window = StreamWindow::kInitial,
              .max_header_list = limits_.max_head_size +
                                 limits_.metadata.bytes +
                                 32 * limits_.metadata.entries,
          },
          this);
    }
    fine = session_->Receive(&in);  // [GS4]
    const bool rest = fine && complete_ == 0 && !in.empty();
    // More of a frame, or of a head, is to come.
    within_frame_ = rest || session_->within_block();
    block_kept_ = session_->block_size();
    if (rest) {
      *need = session_->need();
      result = CutResult::kNeedMore;
    }
    static_cast<void>(FlushLocked());
    CreditWriters();
    if (!fine || session_->over()) {
      over_ = true;
      within_frame_ = false;
      broken = session_->broken() ? session_->error() : std::string_view();
    }
    reading_ = false;
    request_ = nullptr;
    caller_left = std::exchange(caller_left_, false);
    // relaxed: only the reader ends requests. Else a later Cut() looks again.
    ends = end_known_ && incomplete_.load(std::memory_order_relaxed) == 0;
    dropped.swap(dropped_);
  }
  Deliver();
  if (caller_left) sink()->StopLeftCalls();
  if (ends) sink()->CloseAfterReplies();
  if (complete_ != 0) {
    return opens_stream_ ? OpenStream(request) : CutResult::kMessage;
  }
  if (over_) {
    if (!broken.empty()) {
      error->assign(broken);
      return CutResult::kError;
    }
    in.Clear();
    sink()->CloseAfterReplies();
    return CutResult::kHandled;
  }
  return result;
}

// [GS7]
bool GrpcServerProtocol::EarlierMessagesEnded() {
  ScopedLock guard(lock_);
  const bool within_block = session_ != nullptr && session_->within_block();
  const bool same_block = earlier_block_ && within_block && heads_ == 0;
  if (earlier_ != 0 || same_block) return false;
  // relaxed: writers have lock_.
  earlier_ = incomplete_.load(std::memory_order_relaxed);
  ++round_;
  earlier_block_ = within_block;
  heads_ = 0;
  return true;
}

void GrpcServerProtocol::Deliver() {
  for (Event& event : events_) {
    switch (event.kind) {
      case Event::Kind::kMessage:
        if (IsCompressed(event.compression)) {
          event.receiver->OnCompressed(std::move(event.message),
                                       event.compression,
                                       limits_.max_packet_size);
        } else {
          event.receiver->OnMessage(std::move(event.message), /*last=*/false);
        }
        break;
      case Event::Kind::kEnd:
        event.receiver->OnEnd(flare::Status());
        break;
      case Event::Kind::kCredit:
        event.receiver->OnCredit(event.credit);
        break;
      case Event::Kind::kReset:
        event.receiver->OnReset(event.status);
        break;
    }
  }
  events_.clear();
}

void GrpcServerProtocol::CreditWriters() {
  for (const std::int32_t id : credited_) {
    Stream* const stream = Find(id);
    if (stream == nullptr || stream->receiver == nullptr) continue;
    const std::size_t credit = stream->TakeCredit();
    if (credit == 0) continue;
    events_.push_back({.receiver = stream->receiver,
                       .kind = Event::Kind::kCredit,
                       .credit = credit});
  }
  credited_.clear();
}

Http2Stream* GrpcServerProtocol::OnStream() {
  if (orphans_ >= most_orphans_) [[unlikely]]
    return nullptr;
  auto* const stream = new Stream(limits_);
  reads_head_ = site_.enabled();
  if (reads_head_) site_.Clear();
  streams_.PushBack(stream);
  return stream;
}

// If it is gRPC's, and has a method that is known and no metadata.
bool GrpcServerProtocol::KeepHead(Http2Stream* base, std::size_t place) {
  const auto& stream = *static_cast<Stream*>(base);
  if (!stream.head.is_post || !stream.head.format ||
      !stream.own_method.empty() || !stream.metadata.empty()) {
    return false;
  }
  known_heads_[place] = stream.head;
  return true;
}

void GrpcServerProtocol::OnSameHead(Http2Stream* stream, std::size_t place) {
  static_cast<Stream*>(stream)->head = known_heads_[place];
}

bool GrpcServerProtocol::OnField(Http2Stream* base, std::string_view name,
                                 std::string_view value) {
  auto* const stream = static_cast<Stream*>(base);
  if (stream->phase != Phase::kHead) return true;  // For trailers.
  if (FieldTextIs(name, ":path")) {
    stream->head.has_path = FindMethod(value, stream);
  } else if (FieldTextIs(name, ":method")) {
    stream->head.is_post = FieldTextIs(value, "POST");
    stream->head.is_head = FieldTextIs(value, "HEAD");
  } else if (FieldTextIs(name, "content-type")) {
    if (!std::exchange(stream->head.has_type, true)) {
      stream->head.format = ParseGrpcContentType(value);
      if (stream->head.format && stream->head.is_post) reads_head_ = false;
    } else if (stream->head.format && stream->head.is_post) {
      return false;  // Nothing may make it a plain request any more.
    }
  } else if (FieldTextIs(name, "grpc-timeout")) {
    const std::optional<std::int64_t> ns = ParseGrpcTimeout(value);
    stream->head.bad_timeout = !ns;
    if (ns) {
      stream->head.timeout_ms =
          static_cast<std::uint32_t>(std::clamp<std::int64_t>(
              *ns / kNsPerMs + (*ns % kNsPerMs != 0 ? 1 : 0), 1,
              std::numeric_limits<std::uint32_t>::max()));
    }
  } else if (FieldTextIs(name, "grpc-encoding")) {
    stream->head.encoding = ParseGrpcEncoding(value);
  } else if (FieldTextIs(name, "grpc-accept-encoding")) {
    TakeAcceptEncoding(value, stream);
  } else if (!FieldTextIs(name, "te") && !FieldTextIs(name, "user-agent")) {
    stream->metadata.Add(name, value);
  }
  if (reads_head_) site_.OnField(name, value);
  return true;
}

void GrpcServerProtocol::TakeAcceptEncoding(std::string_view list,
                                            Stream* stream) {
  if (list.size() > kMaxKnownText) [[unlikely]] {
    stream->head.acceptable = ParseGrpcAcceptEncoding(list);
    return;
  }
  if (list != accept_encoding_) {
    acceptable_ = ParseGrpcAcceptEncoding(list);
    accept_encoding_.assign(list);
  }
  stream->head.acceptable = acceptable_;
}

// Sets the stream's method. False: the path names none.
bool GrpcServerProtocol::FindMethod(std::string_view path, Stream* stream) {
  if (last_path_ == nullptr || last_path_->path != path) {
    const auto known =
        std::find_if(known_paths_.begin(), known_paths_.end(),
                     [&](const KnownPath& it) { return it.path == path; });
    if (known != known_paths_.end()) {
      last_path_ = &*known;
    } else if (!MethodOfGrpcPath(path, &stream->own_method)) {
      return false;
    } else if (known_paths_.size() == kMaxKnownPaths ||
               path.size() > kMaxKnownText) {
      stream->head.method = stream->own_method;
      return true;
    } else {
      last_path_ = &known_paths_.emplace_back(
          KnownPath{std::string(path), std::move(stream->own_method)});
    }
  }
  stream->head.method = last_path_->method;
  return true;
}

void GrpcServerProtocol::OnHeaders(Http2Stream* stream, bool trailers,
                                   bool /*end*/) {
  ++heads_;
  if (!trailers) Begin(static_cast<Stream*>(stream));
}

// The session calls back under lock_, by which the site's lock is meant, too.
void GrpcServerProtocol::Begin(Stream* stream) FLARE_NO_THREAD_SAFETY_ANALYSIS {
  if (!stream->head.is_post || !stream->head.format) {
    if (site_.enabled()) return site_.Begin(stream);
    return Take(stream, Phase::kRefused);
  }
  if (!stream->head.has_path) {
    return Refuse(stream, STATUS_METHOD_NOT_FOUND,
                  "the path isn't /package.Service/Method");
  }
  if (!stream->head.encoding) {
    Leave(stream, Phase::kAnswered);
    return SendStatus(stream, StatusFromGrpc(GrpcCode::kUnimplemented),
                      "an unknown grpc-encoding",
                      {{"grpc-accept-encoding", kGrpcAcceptEncoding}});
  }
  if (stream->head.bad_timeout) {
    return Refuse(stream, StatusFromGrpc(GrpcCode::kInternal),
                  "a malformed grpc-timeout");
  }
  if (const std::string error = stream->metadata.Take(&request_->metadata);
      !error.empty()) {
    request_->metadata.reset();
    return Refuse(stream, StatusFromGrpc(GrpcCode::kResourceExhausted), error);
  }
  switch (sink()->KindOfMethod(stream->head.method, /*short_service=*/false)) {
    case MethodKind::kStreaming:
    case MethodKind::kReplyStreaming:
      Leave(stream, Phase::kStreaming);
      opens_stream_ = true;
      return Complete(stream, Buffer());
    case MethodKind::kUnknown:
      // The call fails by that. Its messages needn't come.
      Leave(stream, Phase::kAnswered);
      opens_stream_ = false;
      return Complete(stream, Buffer());
    case MethodKind::kUnary:
      Take(stream, Phase::kUnary);
      // Another request may be complete before this one.
      stream->request_metadata = std::move(request_->metadata);
      stream->metadata_size = SizeOf(stream->request_metadata.get());
      SetKept(stream, stream->metadata_size);
      return;
  }
}

void GrpcServerProtocol::Complete(Stream* stream, Buffer&& body) {
  InboundRequest* const request = request_;
  complete_ = stream->id();
  session_->Pause();
  stream->is_call = !opens_stream_;
  request->ticket.Emplace<HttpTicket>(
      {.order = static_cast<std::uint64_t>(stream->id()),
       .format = *stream->head.format,
       .type = kGrpcTicketType});
  RequestHead& head = request->head;
  head.method = stream->head.method;
  if (stream->head.method.data() == stream->own_method.data()) [[unlikely]] {
    head.method = request->scratch.assign(stream->own_method);
  }
  head.timeout_ms = stream->head.timeout_ms;
  head.acceptable_compressions = stream->head.acceptable;
  head.format = *stream->head.format;
  request->wire_size = body.size() + stream->head.method.size() +
                       SizeOf(request->metadata.get());
  request->body = std::move(body);
}

// Under lock_, as Begin().
void GrpcServerProtocol::CompleteHttp(Stream* stream)
    FLARE_NO_THREAD_SAFETY_ANALYSIS {
  if (!site_.Complete(stream, request_)) return;
  complete_ = stream->id();
  session_->Pause();
  opens_stream_ = false;
  stream->is_call = request_->own == nullptr;
}

// From here on the stream's receiver is told that the caller leaves.
std::unique_ptr<StreamWire> GrpcServerProtocol::OpenReplyStream(
    const ReplyTicket& ticket) {
  {
    ScopedLock guard(lock_);
    left_.erase(StreamOf(ticket));
    if (Stream* const stream = Find(StreamOf(ticket))) stream->is_call = false;
  }
  return site_.OpenReplyStream(ticket.As<HttpTicket>());
}

// Without lock_: the stream that is made calls its wire.
CutResult GrpcServerProtocol::OpenStream(InboundRequest* request) {
  const std::int32_t id = StreamOf(request->ticket);
  request->stream =
      sink()->OpenStream({.format = request->head.format,
                          .timeout_ms = request->head.timeout_ms,
                          .send_window = StreamWindow::kInitial},
                         std::make_unique<GrpcServerWire>(id, this));
  if (request->stream == nullptr) {  // The connection is closed.
    request->Clear();
    return CutResult::kHandled;
  }
  bool ended = false;
  {
    ScopedLock guard(lock_);
    const Stream* const stream = Find(id);
    ended = stream != nullptr && stream->ended;
  }
  if (ended) request->stream->OnEnd(flare::Status());
  return CutResult::kMessage;
}

// Under lock_, as Begin().
void GrpcServerProtocol::OnData(Http2Stream* base, Buffer&& bytes)
    FLARE_NO_THREAD_SAFETY_ANALYSIS {
  auto* const stream = static_cast<Stream*>(base);
  if (stream->phase == Phase::kUnary) {
    SetKept(stream, stream->kept + bytes.size());
    stream->messages.Add(std::move(bytes));
    Advance(stream);
  } else if (stream->phase == Phase::kStreaming) {
    stream->ungranted += bytes.size();
    SetKept(stream, stream->kept + bytes.size());
    stream->messages.Add(std::move(bytes));
    TakeMessages(stream);
  } else if (stream->phase == Phase::kHttp) {
    site_.OnData(stream, std::move(bytes));
  } else if (stream->phase == Phase::kRefused) {
    stream->ungranted += bytes.size();
    if (stream->ungranted > StreamWindow::kInitial / 2) RefuseHttp(stream);
  }
  // Else nobody wants it: it may fill the rest of its window.
}

// Lets the message that has begun come as a whole.
void GrpcServerProtocol::Advance(Stream* stream) {
  const std::size_t missing = stream->messages.missing();
  const std::size_t size = stream->kept - stream->metadata_size + missing;
  if (size > limits_.max_packet_size + kGrpcPrefixSize) {
    return Refuse(
        stream, StatusFromGrpc(GrpcCode::kResourceExhausted),
        "grpc: " + SizeLimitText("message", size - kGrpcPrefixSize,
                                 limits_.max_packet_size, kServerSizeLimit));
  }
  const std::size_t window = session_->Window(*stream);
  // Before it is used up, so that the peer needn't wait.
  const std::size_t soon =
      std::min<std::size_t>(missing, StreamWindow::kInitial) / 2;
  if (missing == 0 || window > soon) return;
  const std::size_t more =
      std::min<std::size_t>(missing, StreamWindow::kMax) - window;
  stream->advanced += more;
  stream->ungranted -= std::min(more, stream->ungranted);
  session_->Grant(stream, more);
}

void GrpcServerProtocol::TakeMessages(Stream* stream) {
  for (;;) {
    GrpcMessage message;
    flare::Status error;
    switch (stream->messages.Next(&message, &error)) {
      case GrpcMessageCutter::Result::kNeedMore:
        CountWaiting(stream);
        return Advance(stream);
      case GrpcMessageCutter::Result::kTooLarge:
      case GrpcMessageCutter::Result::kError:
        break;
      case GrpcMessageCutter::Result::kMessage:
        SetKept(stream, stream->kept - kGrpcPrefixSize - message.body.size());
        error = CheckGrpcCompression(message, stream->head.encoding);
        if (!error.ok()) break;
        events_.push_back({.receiver = stream->receiver,
                           .kind = Event::Kind::kMessage,
                           .message = std::move(message.body),
                           .compression = message.compressed
                                              ? *stream->head.encoding
                                              : CompressionAlgorithm::kNone});
        continue;
    }
    events_.push_back({.receiver = stream->receiver,
                       .kind = Event::Kind::kReset,
                       .status = error});
    stream->receiver = nullptr;
    return Refuse(stream, error.code(), error.message());
  }
}

void GrpcServerProtocol::OnEnd(Http2Stream* base) {
  auto* const stream = static_cast<Stream*>(base);
  stream->ended = true;
  if (stream->phase == Phase::kUnary) return TakeUnary(stream);
  if (stream->phase == Phase::kHttp) return CompleteHttp(stream);
  if (stream->phase == Phase::kRefused) return RefuseHttp(stream);
  if (stream->phase != Phase::kStreaming || stream->receiver == nullptr) return;
  if (!stream->messages.empty()) {
    const flare::Status why(StatusFromGrpc(GrpcCode::kInternal),
                            "grpc: the stream ends within a message");
    events_.push_back({.receiver = std::move(stream->receiver),
                       .kind = Event::Kind::kReset,
                       .status = why});
    return Refuse(stream, why.code(), why.message());
  }
  events_.push_back({.receiver = stream->receiver, .kind = Event::Kind::kEnd});
}

void GrpcServerProtocol::TakeUnary(Stream* stream) {
  GrpcMessage message;
  flare::Status error;
  switch (stream->messages.Next(&message, &error)) {
    case GrpcMessageCutter::Result::kNeedMore:
      error = flare::Status(StatusFromGrpc(GrpcCode::kInternal),
                            "grpc: a unary call without a whole message");
      break;
    case GrpcMessageCutter::Result::kTooLarge:
    case GrpcMessageCutter::Result::kError:
      break;
    case GrpcMessageCutter::Result::kMessage:
      if (!stream->messages.empty()) {
        error = flare::Status(StatusFromGrpc(GrpcCode::kInternal),
                              "grpc: a unary call with several messages");
      } else {
        error = CheckGrpcCompression(message, stream->head.encoding);
      }
      break;
  }
  if (!error.ok()) return Refuse(stream, error.code(), error.message());
  Leave(stream, Phase::kAnswered);
  request_->metadata = std::move(stream->request_metadata);
  if (message.compressed) request_->head.compression = *stream->head.encoding;
  opens_stream_ = false;
  Complete(stream, std::move(message.body));
}

void GrpcServerProtocol::OnSent(Http2Stream* base, std::size_t bytes) {
  auto* const stream = static_cast<Stream*>(base);
  if (stream->counted != 0) [[unlikely]]
    CountWaiting(stream);
  if (stream->receiver == nullptr) return Wake(stream);
  stream->credit += bytes;
  if (reading_) credited_.push_back(stream->id());
}

void GrpcServerProtocol::OnClosed(Http2Stream* base, Http2Error error,
                                  bool by_peer) {
  auto* const stream = static_cast<Stream*>(base);
  const Phase phase = stream->phase;
  Leave(stream, Phase::kAnswered);
  Wake(stream);
  if (stream->counted != 0) sink()->CountHeld(stream->counted, 0);
  const bool streams = phase == Phase::kStreaming || stream->http != nullptr;
  // A reset by the peer ends the call early whatever its code.
  if (streams && reading_ && stream->receiver != nullptr &&
      (by_peer || error != Http2Error::kNoError)) {
    events_.push_back(
        {.receiver = std::move(stream->receiver),
         .kind = Event::Kind::kReset,
         .status = flare::Status(
             STATUS_FAILED, by_peer ? "the caller gave the call up"
                                    : "the caller broke the rules of HTTP/2")});
  }
  if (stream->is_call && !stream->status_sent) {
    left_.insert(stream->id());
    caller_left_ = true;
  }
  if (stream->receiver != nullptr) {
    dropped_.push_back(std::move(stream->receiver));
  }
  if (stream->has_wire) ++orphans_;
  streams_.Remove(stream);
  delete stream;
}

// --------------------------------------------------------------------------
// Output
// --------------------------------------------------------------------------

void GrpcServerProtocol::RefuseHttp(Stream* stream) {
  const std::string_view text = stream->head.is_post ? kNotGrpc : kNotPost;
  Leave(stream, Phase::kAnswered);
  stream->head_sent = true;
  stream->status_sent = true;
  const std::string length = std::to_string(text.size());
  session_->SendHeaders(stream,
                        {{":status", stream->head.is_post ? "415" : "405"},
                         {"content-type", "text/plain"},
                         {"content-length", length}},
                        /*end=*/stream->head.is_head);
  if (stream->head.is_head) return;
  session_->SendData(stream, CreateBufferSlow(text));
  session_->SendEnd(stream);
}

void GrpcServerProtocol::Refuse(Stream* stream, int status,
                                std::string_view text) {
  Leave(stream, Phase::kAnswered);
  SendStatus(stream, status, text, {});
}

// A reply that is like most: short, and nothing but a message. It is written
// under lock_, where the frames are. It excludes bytes, whose owner may be
// called when they are taken.
bool GrpcServerProtocol::IsPlain(const HttpTicket& ticket,
                                 const OutboundResponse& response) {
  return response.status == STATUS_SUCCESS &&
         response.detail != FailureDetail::kExpired &&
         response.body.is_message() && response.body.size() <= kMaxPlainReply &&
         response.metadata == nullptr && response.trailers == nullptr &&
         !IsCompressed(response.compression) &&
         ticket.format == PayloadFormat::kProtobuf;
}

void GrpcServerProtocol::WritePlain(std::int32_t id, OutboundBody&& body) {
  ScopedLock guard(lock_);
  Stream* const stream = Find(id);
  if (stream == nullptr) {  // [GS3]
    left_.erase(id);
    return;
  }
  stream->head_sent = true;
  stream->status_sent = true;
  session_->SendResponse(
      stream, &plain_head_, kGrpcPrefixSize + body.size(),
      [&body](BufferBuilder* out) {
        AppendGrpcMessage(std::move(body), /*compressed=*/false, out);
      },
      &plain_end_);
  FlushReply(id);
}

void GrpcServerProtocol::Write(const ReplyTicket& reply_ticket,
                               OutboundResponse&& response) {
  const auto& ticket = reply_ticket.As<HttpTicket>();
  const std::int32_t id = StreamOf(reply_ticket);
  if (ticket.type != kGrpcTicketType) {
    if (site_.Write(ticket, std::move(response))) return;
    ScopedLock guard(lock_);
    left_.erase(id);
    return;
  }
  if (IsPlain(ticket, response)) [[likely]]
    return WritePlain(id, std::move(response.body));
  int status = response.status;
  std::string_view text = response.description;
  if (response.detail == FailureDetail::kExpired) {
    status = StatusFromGrpc(GrpcCode::kDeadlineExceeded);
    text = "the deadline had passed before the call began";
  }
  Buffer message;
  if (status == STATUS_SUCCESS) {
    if (auto made = MakeGrpcMessage(std::move(response.body),
                                    IsCompressed(response.compression))) {
      message = *std::move(made);
    } else {
      status = STATUS_SERIALIZE_RESPONSE;
      text = "the response exceeds 4 GiB";
    }
  }
  const auto entries = GrpcEntriesOf(response.metadata);
  const auto trailers = GrpcEntriesOf(response.trailers);
  const std::vector<Http2Field> metadata = GrpcFieldsOf(entries);
  ScopedLock guard(lock_);
  Stream* const stream = Find(id);
  if (stream == nullptr) {  // [GS3]
    left_.erase(id);
    return;
  }
  if (status == STATUS_SUCCESS) {
    SendHead(stream, response.compression, metadata);
    session_->SendData(stream, std::move(message));
    SendStatus(stream, status, {}, GrpcFieldsOf(trailers));
  } else {
    SendStatus(stream, status, text, metadata);
  }
  FlushReply(id);
}

// --------------------------------------------------------------------------
// Ends
// --------------------------------------------------------------------------

bool GrpcServerProtocol::AnnounceEnd() {
  ScopedLock guard(lock_);
  if (session_ == nullptr || closed_ || session_->over()) return false;
  if (std::exchange(announced_, true)) return true;
  session_->SendShutdownNotice();
  session_->Ping();
  return FlushLocked();
}

// Calls that the peer began before it knew have begun by now: they are ahead.
// Some of their messages may be on the way.
void GrpcServerProtocol::OnPong() { end_known_ |= announced_; }

void GrpcServerProtocol::EndInput() {
  std::vector<RefPtr<StreamReceiver>> receivers;
  bool broken = false;
  {
    ScopedLock guard(lock_);
    over_ = true;
    input_over_ = true;
    if (session_ == nullptr) return;
    for (Stream& stream : streams_) {
      Wake(&stream);
      if (!HasBegun(stream)) {
        session_->SendReset(&stream, Http2Error::kRefusedStream);
      }
    }
    within_frame_ = false;
    if (!session_->broken()) session_->SendGoAway(Http2Error::kNoError, "");
    static_cast<void>(FlushLocked());
    broken = session_->broken();
    receivers = Receivers();
  }
  const flare::Status why(
      STATUS_IO_ERROR, broken
                           ? "the caller broke the rules of HTTP/2"
                           : "the caller's input ended, or the server stops");
  for (const auto& receiver : receivers) {
    // Nothing is sent any more by a session that is broken.
    if (broken) {
      receiver->OnReset(why);
    } else {
      receiver->OnInputLost(why);
    }
  }
}

void GrpcServerProtocol::OnClosed(const flare::Status& why) {
  std::vector<RefPtr<StreamReceiver>> receivers;
  std::vector<RefPtr<StreamReceiver>> dropped;
  {
    ScopedLock guard(lock_);
    closed_ = true;
    for (Stream& stream : streams_) Wake(&stream);
    receivers = Receivers();
    dropped.swap(dropped_);
  }
  if (receivers.empty()) return;
  const flare::Status reason =
      flare::Status::Lenient(STATUS_IO_ERROR, why.message());
  for (const auto& receiver : receivers) receiver->OnReset(reason);
}

}  // namespace

std::unique_ptr<ServerProtocol> NewGrpcServerProtocol(const Limits& limits,
                                                      ReplySink* sink,
                                                      const HttpUses& uses) {
  return std::make_unique<GrpcServerProtocol>(limits, sink, uses);
}

}  // namespace flare::rpc
