#include "flare/rpc/grpc/grpc_client_session.h"

#include <algorithm>
#include <utility>

#include "flare/base/clock.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/http/http_text.h"
#include "flare/rpc/http2/field_text.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {

namespace {

// The window of a unary call is granted anew in such pieces.
constexpr std::size_t kGrantPiece = 32 << 10;

// Servers take more of them for an attack: a thousand, say.
constexpr int kMaxResetsPerSecond = 500;

// More than any server has reason for.
constexpr int kMaxServerFrames = 1'000'000;

constexpr std::string_view kUserAgent = "flare";

}  // namespace

struct GrpcClientSession::Call : Http2Stream, IntrusiveListNode<> {
  Call(const Limits& limits, std::uint64_t id)
      : correlation_id(id),
        cutter(limits.max_packet_size, kClientSizeLimit),
        metadata(limits.metadata) {}

  bool streams() const { return correlation_id == 0; }

  static void* operator new(std::size_t) {
    return PoolAllocate<sizeof(Call)>();
  }
  static void operator delete(void* memory) { PoolFree<sizeof(Call)>(memory); }

  // A unary call's; 0: it streams.
  const std::uint64_t correlation_id;
  RefPtr<StreamReceiver> receiver;
  // Its user. [GC4]
  bool in_session = false;
  bool has_wire = false;
  bool ended = false;  // The outcome is known, or nobody wants it.
  bool output_ended = false;
  bool has_timeout = false;  // A unary call's.

  // The response.
  int http_status = 0;
  bool has_status = false;
  std::string grpc_status;
  std::string grpc_message;
  std::string exact_status;
  bool is_grpc = false;      // By its content-type.
  std::string content_type;  // Another one.
  std::optional<CompressionAlgorithm> encoding = CompressionAlgorithm::kNone;
  GrpcMessageCutter cutter;
  GrpcMetadataReader metadata;
  std::unique_ptr<Metadata> taken_metadata;  // A unary call's.
  bool has_reply = false;
  GrpcMessage reply;

  // Bytes that the server may send: taken and not granted anew yet, or granted
  // before they were taken.
  std::size_t owed = 0;
  std::size_t borrowed = 0;
  std::size_t credit = 0;  // For a stream's writer. [GC5]
};

// The reader's event for a stream.
struct GrpcClientSession::Event {
  enum class Kind {
    kMessage,
    kMetadata,
    kEnd,
    kReset,
    kReply,
    kUnreadable,  // A reply, whose `status` is our own,
    kOversized,   // ... as it is beyond our limit.
    kNotice
  };

  Kind kind = Kind::kMessage;
  RefPtr<StreamReceiver> receiver = nullptr;
  Buffer message = {};
  flare::Status status = {};
  std::unique_ptr<Metadata> metadata = nullptr;
  CompressionAlgorithm compression = CompressionAlgorithm::kNone;
  std::uint64_t correlation_id = 0;  // A reply's.
  bool unprocessed = false;          // ... and an end's.
};

Http2Session::Options GrpcClientSession::SessionOptions() {
  Http2Session::Options options;
  options.stream_window = StreamWindow::kInitial;
  options.max_control_frames_per_second = kMaxServerFrames;
  options.max_resets_per_second = kMaxServerFrames;
  return options;
}

GrpcClientSession::GrpcClientSession(const Limits& limits,
                                     std::string_view host,
                                     StreamOutput* output)
    : limits_(limits),
      authority_(HttpHostOf(host)),
      output_(output),
      session_(Http2Session::Role::kClient, SessionOptions(), this),
      resets_(kMaxResetsPerSecond) {}

GrpcClientSession::~GrpcClientSession() {
  ScopedLock guard(lock_);
  while (!calls_.empty()) Delete(&*calls_.begin());
}

void GrpcClientSession::Delete(Call* call) {
  calls_.Remove(call);
  delete call;
}

// --------------------------------------------------------------------------
// Output
// --------------------------------------------------------------------------

bool GrpcClientSession::FindPath(std::string_view method) {
  if (method == method_ && !method.empty()) [[likely]]
    return true;
  plain_head_.reset();
  method_.clear();
  if (!GrpcPathOf(method, &path_)) return false;
  method_.assign(method);
  return true;
}

void GrpcClientSession::FindPlainHead(std::uint32_t timeout_ms,
                                      std::string_view encoding) {
  if (plain_head_ && timeout_ms == plain_timeout_ms_ &&
      encoding == plain_encoding_) [[likely]] {
    return;
  }
  plain_head_.reset();
  plain_timeout_ms_ = timeout_ms;
  plain_encoding_ = encoding;
  plain_timeout_ = timeout_ms != 0 ? GrpcTimeout(timeout_ms) : std::string();
  FillHead(path_, encoding, plain_timeout_, &plain_fields_);
  plain_head_.emplace(plain_fields_);
}

// Empty texts: there are none.
void GrpcClientSession::FillHead(std::string_view path,
                                 std::string_view encoding,
                                 std::string_view timeout,
                                 std::vector<Http2Field>* fields) const {
  fields->clear();
  fields->push_back({":method", "POST"});
  fields->push_back({":scheme", "http"});
  fields->push_back({":path", path});
  fields->push_back({":authority", authority_});
  fields->push_back({"te", "trailers"});
  fields->push_back({"content-type", kGrpcContentType});
  fields->push_back({"user-agent", kUserAgent});
  fields->push_back({"grpc-accept-encoding", kGrpcAcceptEncoding});
  if (!encoding.empty()) fields->push_back({"grpc-encoding", encoding});
  if (!timeout.empty()) fields->push_back({"grpc-timeout", timeout});
}

bool GrpcClientSession::OpenUnary(Call* call, const OutboundRequest& request,
                                  BufferBuilder* scratch) {
  const std::string_view encoding = IsCompressed(request.compression)
                                        ? GrpcEncodingOf(request.compression)
                                        : std::string_view();
  if (request.metadata != nullptr) [[unlikely]] {
    return Open(call, path_, request.timeout_ms, encoding, request.metadata,
                scratch);
  }
  FindPlainHead(request.timeout_ms, encoding);
  session_.WriteBy(scratch);
  if (!session_.Open(call, &*plain_head_, /*end=*/false)) return false;
  call->in_session = true;
  calls_.PushBack(call);
  return true;
}

bool GrpcClientSession::Open(Call* call, std::string_view path,
                             std::uint32_t timeout_ms,
                             std::string_view encoding,
                             const Metadata* metadata, BufferBuilder* scratch) {
  std::string timeout;
  if (timeout_ms != 0) timeout = GrpcTimeout(timeout_ms);
  std::vector<std::string> texts;  // Texts of binary values.
  FillHead(path, encoding, timeout, &fields_);
  if (metadata != nullptr) [[unlikely]] {
    texts.reserve(metadata->size());
    for (const Metadata::Entry entry : *metadata) {
      std::string scratch;
      texts.emplace_back(GrpcFieldValue(entry, &scratch));
      fields_.push_back({entry.name, texts.back(),
                         IsSecretField(entry.name) ? HpackIndexing::kNever
                                                   : HpackIndexing::kAdd});
    }
  }
  // From here on the session sees to a lack of memory itself.
  if (scratch != nullptr) session_.WriteBy(scratch);
  if (!session_.Open(call, fields_, /*end=*/false)) return false;
  call->in_session = true;
  calls_.PushBack(call);
  return true;
}

GrpcClientSession::Sent GrpcClientSession::Send(const OutboundRequest& request,
                                                Buffer* message,
                                                BufferBuilder* scratch) {
  auto call = std::make_unique<Call>(limits_, request.correlation_id);
  std::vector<Credit> credits;
  Sent sent = Sent::kRefused;
  {
    ScopedLock guard(lock_);
    sent = SendLocked(std::move(call), request, message, scratch);
    if (!credited_.empty()) [[unlikely]]
      credits = TakeCredits();
  }
  TellCredits(credits);
  return sent;
}

GrpcClientSession::Sent GrpcClientSession::SendLocked(
    std::unique_ptr<Call> call, const OutboundRequest& request, Buffer* message,
    BufferBuilder* scratch) {
  if (!FindPath(request.method)) return Sent::kBadMethod;
  if (closed_) return Sent::kRefused;
  // Until the call is the session's it has a place without it: there may be no
  // memory for the next steps.
  if (!unwanted_.empty()) [[unlikely]]
    ResetUnwanted();
  Call*& place = unary_[request.correlation_id];
  if (going_away_ || !OpenUnary(call.get(), request, scratch)) {
    unary_.erase(request.correlation_id);
    static_cast<void>(Flush());
    return Sent::kRefused;
  }
  place = call.release();  // [GC4]
  place->output_ended = true;
  place->has_timeout = request.timeout_ms != 0;
  session_.SendData(place, std::move(*message), /*end=*/true);
  static_cast<void>(Flush());
  return Sent::kYes;
}

void GrpcClientSession::Ping() {
  ScopedLock guard(lock_);
  if (closed_) return;
  session_.Ping();
  static_cast<void>(Flush());
}

void GrpcClientSession::Abandon(std::uint64_t correlation_id) {
  std::vector<Credit> credits;
  {
    ScopedLock guard(lock_);
    AbandonLocked(correlation_id);
    static_cast<void>(Flush());
    credits = TakeCredits();
  }
  TellCredits(credits);
}

void GrpcClientSession::AbandonLocked(std::uint64_t correlation_id) {
  const auto found = unary_.find(correlation_id);
  if (found == unary_.end()) return;
  Call* const call = found->second;
  unary_.erase(found);  // [GC6]
  if (call == nullptr) return;
  call->ended = true;
  // If it must wait the reply may come first. The server knows when the time is
  // over, unless it wasn't told, or hasn't all of the request.
  if (call->has_timeout && call->queued() == 0 && !call->waits_to_open()) {
    unwanted_.push_back(call->id());
    ResetUnwanted();
  } else {
    session_.SendReset(call, Http2Error::kCancel);
  }
}

// As many as may be reset now.
void GrpcClientSession::ResetUnwanted() {
  const std::int64_t now = NowNs();
  auto next = unwanted_.begin();
  for (; next != unwanted_.end(); ++next) {
    Http2Stream* const stream = session_.Find(*next);
    if (stream == nullptr) continue;  // The reply has come.
    if (!resets_.Admit(now)) break;
    session_.SendReset(stream, Http2Error::kCancel);
  }
  unwanted_.erase(unwanted_.begin(), next);
  if (!unwanted_.empty()) output_->SendLater();
}

void GrpcClientSession::SendDelayed() {
  std::vector<Credit> credits;
  {
    ScopedLock guard(lock_);
    if (closed_) return;
    ResetUnwanted();
    static_cast<void>(Flush());
    credits = TakeCredits();
  }
  TellCredits(credits);
}

GrpcClientSession::Call* GrpcClientSession::StreamBegin(
    const StreamHead& head, RefPtr<StreamReceiver> receiver) {
  auto call = std::make_unique<Call>(limits_, 0);
  call->receiver = std::move(receiver);
  call->has_wire = true;
  ScopedLock guard(lock_);
  if (closed_ || going_away_ ||
      !Open(call.get(), head.path, head.timeout_ms, head.encoding,
            head.metadata.empty() ? nullptr : &head.metadata,
            /*scratch=*/nullptr)) {
    return nullptr;
  }
  Call* const begun = call.release();  // [GC4]
  static_cast<void>(Flush());
  return begun;
}

bool GrpcClientSession::StreamSend(Call* call, Buffer&& bytes, bool last,
                                   std::size_t* credit) {
  ScopedLock guard(lock_);
  if (closed_) return false;
  if (!call->in_session || call->output_ended) return true;  // It is over.
  call->output_ended = last;
  writing_ = call;
  session_.SendData(call, std::move(bytes), last);
  const bool sent = Flush();
  writing_ = nullptr;
  *credit += std::exchange(call->credit, 0);
  return sent;
}

void GrpcClientSession::StreamReset(Call* call) {
  ScopedLock guard(lock_);
  call->ended = true;
  call->output_ended = true;
  if (closed_ || !call->in_session) return;
  session_.SendReset(call, Http2Error::kCancel);
  static_cast<void>(Flush());
}

void GrpcClientSession::StreamCredit(Call* call, std::size_t bytes) {
  ScopedLock guard(lock_);
  if (closed_ || !call->in_session || call->ended) return;
  const std::size_t granted = std::min(bytes, call->borrowed);
  call->borrowed -= granted;
  session_.Grant(call, bytes - granted);
  static_cast<void>(Flush());
}

void GrpcClientSession::StreamDrop(Call* call) {
  RefPtr<StreamReceiver> dropped;  // Its destructor runs without the lock.
  std::vector<Credit> credits;
  {
    ScopedLock guard(lock_);
    dropped = std::move(call->receiver);
    call->has_wire = false;
    call->ended = true;
    if (!call->in_session) {
      Delete(call);
    } else if (!closed_ && !call->output_ended) {
      // The server has answered before it had all: the rest isn't wanted.
      call->output_ended = true;
      session_.SendReset(call, Http2Error::kCancel);
      static_cast<void>(Flush());
    }
    credits = TakeCredits();  // Includes those of StreamReset() before.
  }
  TellCredits(credits);
}

bool GrpcClientSession::Flush() {
  Buffer out = session_.Flush();
  if (closed_) return false;
  if (session_.failed()) [[unlikely]] {
    output_->Abort(flare::Status::Lenient(STATUS_IO_ERROR, session_.error()));
    return false;
  }
  return out.empty() || output_->WriteSoon(std::move(out));
}

std::vector<GrpcClientSession::Credit> GrpcClientSession::TakeCredits() {
  std::vector<Credit> credits;
  for (const std::int32_t id : credited_) {
    auto* const call = static_cast<Call*>(session_.Find(id));
    if (call == nullptr || call->receiver == nullptr || call->credit == 0) {
      continue;
    }
    credits.push_back(
        {.receiver = call->receiver, .bytes = std::exchange(call->credit, 0)});
  }
  credited_.clear();
  return credits;
}

void GrpcClientSession::TellCredits(const std::vector<Credit>& credits) {
  for (const Credit& credit : credits) {
    credit.receiver->OnCredit(credit.bytes);
  }
}

// --------------------------------------------------------------------------
// What comes
// --------------------------------------------------------------------------

bool GrpcClientSession::OnField(Http2Stream* stream, std::string_view name,
                                std::string_view value) {
  Call* const call = static_cast<Call*>(stream);
  if (call->ended) return true;
  if (name == ":status") {
    call->http_status = 0;
    for (const char c : value) {
      call->http_status = call->http_status * 10 + (c - '0');
    }
  } else if (name == "grpc-status") {
    call->has_status = true;
    call->grpc_status.assign(value);
  } else if (name == "grpc-message") {
    call->grpc_message.assign(value);
  } else if (name == kGrpcExactStatusField) {
    call->exact_status.assign(value);
  } else if (name == "content-type") {
    call->is_grpc = IsGrpcContentType(value);
    if (!call->is_grpc) call->content_type.assign(value);
  } else if (name == "grpc-encoding") {
    call->encoding = ParseGrpcEncoding(value);
  } else {
    call->metadata.Add(name, value);
  }
  return true;
}

void GrpcClientSession::OnHeaders(Http2Stream* stream, bool /*trailers*/,
                                  bool end) {
  Call* const call = static_cast<Call*>(stream);
  if (call->ended || end) return;
  if (call->streams()) TakeMetadata(call);
}

// A unary call has one place for initial and trailing metadata.
void GrpcClientSession::TakeMetadata(Call* call) {
  std::unique_ptr<Metadata> metadata;
  if (std::string why = call->metadata.Take(&metadata); !why.empty()) {
    return FailAndReset(call, flare::Status(STATUS_MALFORMED_DATA, why));
  }
  if (metadata == nullptr) return;
  if (call->streams()) {
    events_.push_back({.kind = Event::Kind::kMetadata,
                       .receiver = call->receiver,
                       .metadata = std::move(metadata)});
  } else {
    call->taken_metadata = std::move(metadata);
  }
}

void GrpcClientSession::OnData(Http2Stream* stream, Buffer&& bytes) {
  Call* const call = static_cast<Call*>(stream);
  if (!call->streams()) {
    call->owed += bytes.size();
    if (call->owed >= kGrantPiece) {
      // A late reply that needs more is never read: it would wait for ever.
      if (call->ended) return session_.SendReset(call, Http2Error::kCancel);
      session_.Grant(call, std::exchange(call->owed, 0));
    }
  }
  if (call->ended) return;
  call->cutter.Add(std::move(bytes));
  TakeMessages(call);
}

void GrpcClientSession::TakeMessages(Call* call) {
  for (;;) {
    GrpcMessage message;
    flare::Status error;
    switch (call->cutter.Next(&message, &error)) {
      case GrpcMessageCutter::Result::kMessage:
        if (!TakeMessage(call, std::move(message))) return;
        break;
      case GrpcMessageCutter::Result::kNeedMore:
        if (call->streams()) GrantForMessage(call);
        return;
      case GrpcMessageCutter::Result::kTooLarge:
        // The method has run, so not as one that the server refuses.
        return FailAndReset(
            call, flare::Status(STATUS_MALFORMED_DATA, error.message()),
            Reply::kOversized);
      case GrpcMessageCutter::Result::kError:
        return FailAndReset(call, std::move(error));
    }
  }
}

// False: the call has failed.
bool GrpcClientSession::TakeMessage(Call* call, GrpcMessage&& message) {
  if (!call->streams()) {
    if (call->has_reply) {
      FailAndReset(call,
                   flare::Status(StatusFromGrpc(GrpcCode::kInternal),
                                 "grpc: several messages in response to a "
                                 "single call"));
      return false;
    }
    call->has_reply = true;
    call->reply = std::move(message);
    return true;
  }
  if (flare::Status status = CheckGrpcCompression(message, call->encoding);
      !status.ok()) {
    FailAndReset(call, std::move(status));
    return false;
  }
  events_.push_back({.kind = Event::Kind::kMessage,
                     .receiver = call->receiver,
                     .message = std::move(message.body),
                     .compression = message.compressed
                                        ? *call->encoding
                                        : CompressionAlgorithm::kNone});
  return true;
}

// A message that is larger than the window is taken nevertheless: nothing of it
// is read, and granted anew, before it is complete.
void GrpcClientSession::GrantForMessage(Call* call) {
  const std::size_t missing = call->cutter.missing();
  const std::size_t window = session_.Window(*call);
  if (missing <= window) return;
  call->borrowed += missing - window;
  session_.Grant(call, missing - window);
}

void GrpcClientSession::OnEnd(Http2Stream* stream) {
  Call* const call = static_cast<Call*>(stream);
  if (!call->ended) TakeMetadata(call);
  if (!call->ended) End(call, OutcomeOf(*call));
  if (call->queued() == 0) return;
  call->output_ended = true;
  answered_.push_back(call->id());
}

// Data that still waits for a window isn't wanted any more. Mostly the server
// has reset them itself, right behind its answers.
void GrpcClientSession::ResetAnswered() {
  for (const std::int32_t id : answered_) {
    Http2Stream* const stream = session_.Find(id);
    if (stream != nullptr) session_.SendReset(stream, Http2Error::kCancel);
  }
  answered_.clear();
}

flare::Status GrpcClientSession::OutcomeOf(const Call& call) {
  if (call.has_status) {
    const int status = StatusOfGrpcFields(call.grpc_status, call.exact_status);
    if (status != STATUS_SUCCESS) {
      return flare::Status::Lenient(status,
                                    DecodeGrpcMessage(call.grpc_message));
    }
    if (!call.cutter.empty()) {
      return flare::Status(StatusFromGrpc(GrpcCode::kInternal),
                           "grpc: the response ends within a message");
    }
    if (!call.streams() && !call.has_reply) {
      return flare::Status(StatusFromGrpc(GrpcCode::kInternal),
                           "grpc: a response without a message");
    }
    return {};
  }
  const std::string status = std::to_string(call.http_status);
  if (call.http_status != 200) {
    return flare::Status(StatusFromGrpc(GrpcFromHttpStatus(call.http_status)),
                         "HTTP status " + status + " without grpc-status");
  }
  if (!call.is_grpc) {
    return flare::Status(STATUS_FAILED,
                         "a response that isn't gRPC's: its content-type is "
                         "\"" +
                             call.content_type + "\"");
  }
  return flare::Status(StatusFromGrpc(GrpcCode::kInternal),
                       "grpc: the response ends without grpc-status");
}

void GrpcClientSession::FailAndReset(Call* call, flare::Status why,
                                     Reply reply) {
  call->output_ended = true;
  End(call, std::move(why), reply);
  session_.SendReset(call, Http2Error::kCancel);
}

void GrpcClientSession::End(Call* call, flare::Status status, Reply reply) {
  if (std::exchange(call->ended, true)) return;
  if (call->streams()) {
    events_.push_back({.kind = Event::Kind::kEnd,
                       .receiver = call->receiver,
                       .status = std::move(status)});
    return;
  }
  unary_.erase(call->correlation_id);  // [GC6]
  Event event{.kind = reply == Reply::kReadable     ? Event::Kind::kReply
                      : reply == Reply::kUnreadable ? Event::Kind::kUnreadable
                                                    : Event::Kind::kOversized,
              .status = std::move(status),
              .metadata = std::move(call->taken_metadata),
              .correlation_id = call->correlation_id};
  if (event.status.ok()) {
    event.message = std::move(call->reply.body);
    if (call->reply.compressed) {
      if (!call->encoding || !IsCompressed(*call->encoding)) {
        event.kind = Event::Kind::kUnreadable;
        event.status = flare::Status(StatusFromGrpc(GrpcCode::kInternal),
                                     "grpc: a message that is compressed by "
                                     "no known grpc-encoding");
        event.message.Clear();
      } else {
        event.compression = *call->encoding;
      }
    }
  }
  events_.push_back(std::move(event));
}

// A server that has answered has processed it, whatever it says.
void GrpcClientSession::EndUnprocessed(Call* call, std::string why) {
  if (call->ended) return;
  const bool answered = call->http_status != 0;
  End(call, flare::Status::Lenient(STATUS_OUT_OF_SERVICE, why));
  events_.back().unprocessed = !answered;
}

void GrpcClientSession::OnSent(Http2Stream* stream, std::size_t bytes) {
  Call* const call = static_cast<Call*>(stream);
  if (!call->streams()) return;
  if (call != writing_ && call->credit == 0) credited_.push_back(call->id());
  call->credit += bytes;
}

void GrpcClientSession::OnClosed(Http2Stream* stream, Http2Error error,
                                 bool by_peer) {
  Call* const call = static_cast<Call*>(stream);
  if (!call->ended) {
    const GrpcCode code = GrpcFromHttp2Error(static_cast<std::uint32_t>(error));
    std::string why = std::string(by_peer ? "the server has reset the stream: "
                                          : "the stream has ended: ") +
                      "HTTP/2 error " +
                      std::to_string(static_cast<std::uint32_t>(error));
    if (by_peer && error == Http2Error::kRefusedStream) {
      EndUnprocessed(call, std::move(why));
    } else {
      End(call, flare::Status(StatusFromGrpc(code), std::move(why)));
    }
  }
  call->in_session = false;
  call->output_ended = true;
  if (!call->has_wire) Delete(call);  // [GC4]
}

void GrpcClientSession::OnGoAway(std::int32_t last_id, Http2Error error,
                                 std::string_view text) {
  if (!std::exchange(going_away_, true)) {
    events_.push_back({.kind = Event::Kind::kNotice});
  }
  for (Call& call : calls_) {
    if (!call.in_session || call.ended) continue;
    if (call.id() <= last_id && !call.waits_to_open()) continue;
    std::string why = "the server takes no further calls on this connection";
    if (error != Http2Error::kNoError) {
      why.append(" (HTTP/2 error ")
          .append(std::to_string(static_cast<std::uint32_t>(error)))
          .append(text.empty() ? "" : ", ")
          .append(text.substr(0, 200))
          .append(")");
    }
    call.output_ended = true;
    EndUnprocessed(&call, std::move(why));
  }
}

// --------------------------------------------------------------------------
// The reader
// --------------------------------------------------------------------------

bool GrpcClientSession::Read(Buffer& in, std::size_t* need,
                             std::string* error) {
  bool ok = true;
  std::vector<Credit> credits;
  {
    ScopedLock guard(lock_);
    ok = session_.Receive(&in);
    if (!answered_.empty()) [[unlikely]]
      ResetAnswered();
    if (!unwanted_.empty()) [[unlikely]]
      ResetUnwanted();
    *need = session_.need();
    static_cast<void>(Flush());
    // The server's input may be broken in a way that ends the session with the
    // words just sent.
    ok = ok && !session_.over();
    if (!ok) {
      *error = session_.error().empty()
                   ? "the server has ended the HTTP/2 session"
                   : session_.error();
    }
    telling_.swap(events_);
    credits = TakeCredits();
  }
  for (Event& event : telling_) {
    if (event.kind == Event::Kind::kReply ||
        event.kind == Event::Kind::kUnreadable ||
        event.kind == Event::Kind::kOversized ||
        event.kind == Event::Kind::kNotice) {
      replies_.push_back(std::move(event));
    } else {
      Tell(std::move(event));
    }
  }
  telling_.clear();
  TellCredits(credits);
  return ok;
}

void GrpcClientSession::Tell(Event&& event) const {
  StreamReceiver* const receiver = event.receiver.Get();
  switch (event.kind) {
    case Event::Kind::kMessage:
      if (IsCompressed(event.compression)) {
        return receiver->OnCompressed(std::move(event.message),
                                      event.compression,
                                      limits_.max_decompressed_size);
      }
      return receiver->OnMessage(std::move(event.message), /*last=*/false);
    case Event::Kind::kMetadata:
      return receiver->OnMetadata(std::move(event.metadata));
    case Event::Kind::kEnd:
      if (event.unprocessed && receiver->OnUnprocessed()) return;
      return receiver->OnEnd(event.status);
    case Event::Kind::kReset:
      return receiver->OnReset(event.status);
    case Event::Kind::kReply:
    case Event::Kind::kUnreadable:
    case Event::Kind::kOversized:
    case Event::Kind::kNotice:
      return;
  }
}

bool GrpcClientSession::TakeReply(InboundResponse* response) {
  if (next_reply_ == replies_.size()) return false;
  Event event = std::move(replies_[next_reply_]);
  if (++next_reply_ == replies_.size()) {
    replies_.clear();
    next_reply_ = 0;
  }
  if (event.kind != Event::Kind::kReply) [[unlikely]] {
    response->is_notice = event.kind == Event::Kind::kNotice;
    response->last_on_connection = response->is_notice;
    if (response->is_notice) return true;
    response->unreadable = true;
    response->oversized = event.kind == Event::Kind::kOversized;
  }
  response->correlation_id = event.correlation_id;
  response->unprocessed = event.unprocessed;
  response->status = event.status.code();
  response->scratch.assign(event.status.message());
  response->description = response->scratch;
  response->compression = event.compression;
  response->wire_size = event.message.size();
  response->body = std::move(event.message);
  response->metadata = std::move(event.metadata);
  return true;
}

bool GrpcClientSession::HasCalls() const {
  ScopedLock guard(lock_);
  return !calls_.empty();
}

void GrpcClientSession::Close(const flare::Status& why) {
  std::vector<RefPtr<StreamReceiver>> receivers;
  {
    ScopedLock guard(lock_);
    closed_ = true;
    unary_.clear();
    for (Call& call : calls_) {
      if (call.receiver != nullptr) receivers.push_back(call.receiver);
    }
  }
  const flare::Status reason =
      flare::Status::Lenient(STATUS_IO_ERROR, why.message());
  // On a connection that wasn't made nothing was sent.
  const bool unprocessed = why.code() == STATUS_FAIL_TO_CONNECT;
  for (const auto& receiver : receivers) {
    if (!unprocessed || !receiver->OnUnprocessed()) receiver->OnReset(reason);
  }
}

}  // namespace flare::rpc
