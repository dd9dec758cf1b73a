#include "flare/rpc/http_client/http2_client_connection.h"

#include <algorithm>
#include <new>
#include <stop_token>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/string.h"
#include "flare/fiber/event.h"
#include "flare/io/stream_connection.h"
#include "flare/rpc/http_client/http_body_pieces.h"
#include "flare/rpc/http_client/http_reply_reader.h"
#include "flare/rpc/http_client_options.h"

namespace flare::rpc {
namespace {

// A body goes to the session in parts of up to this size, the next one when
// less than that waits for the windows of the server.
constexpr std::size_t kBodyPart = 64 << 10;
// More than this of all requests doesn't wait here for the socket.
constexpr std::size_t kSendAheadOfAll = 1 << 20;

// So much of a response isn't read ahead of Request::on_body.
constexpr std::uint32_t kResponseWindow = 1 << 20;
// A timeout while nothing has come for so long speaks against the server.
constexpr std::int64_t kSilenceNs = 1'000'000'000;

// Windows are granted anew in such pieces.
constexpr std::size_t kWindowPiece = kResponseWindow / 4;

constexpr std::size_t kMaxGoAwayText = 200;

constexpr char kResponseUnreadable[] = "the response can't be read: ";

Http2Session::Options OptionsOfHttp2Client() {
  Http2Session::Options options;
  options.stream_window = kResponseWindow;
  options.max_header_list = HttpReplyReader::kMaxHead;
  return options;
}

std::string ErrorText(Http2Error error) {
  return "HTTP/2 error " + std::to_string(static_cast<std::uint32_t>(error));
}

}  // namespace

struct Http2ClientConnection::Stream : Http2Stream, IntrusiveListNode<> {
  explicit Stream(const HttpClientConnection::Request& its_request)
      : request(its_request) {}

  bool over() const { return done || !failure.ok(); }

  const HttpClientConnection::Request& request;
  fiber::Event* waiter = nullptr;  // [H2C4]
  // Ends a wait of the upload for the socket. Under lock_.
  std::stop_source* room = nullptr;
  bool in_session = false;  // [H2C3]
  bool sending = false;     // The body isn't all in the session.
  bool source_begun = false;
  bool sent = false;
  bool lost = false;
  bool timed_out = false;
  std::int64_t opened_ns = 0;

  // The head that comes.
  int status = 0;
  std::size_t fields = 0;
  std::string lines;
  std::uint64_t length = 0;

  int interim = 0;
  bool replied = false;
  bool has_head = false;  // From here on the response is the requester's.
  HttpResponse response;
  Buffer body;  // For on_body: the part that it hasn't got.
  std::size_t received = 0;
  std::size_t owed = 0;  // The received part of the window.
  PacedCompaction compaction;
  bool done = false;
  flare::Status failure;
  bool unprocessed = false;
  bool needs_http1 = false;
};

struct Http2ClientConnection::Upload {
  Buffer rest;  // The latest piece without its sent parts.
  bool last = true;
  std::optional<HttpBodyPieces> pieces = {};
};

RefPtr<Http2ClientConnection> Http2ClientConnection::Begin(
    const RefPtr<HttpClientConnection>& connection) {
  const RefPtr<Http2ClientConnection> made(
      adopt_ref, new Http2ClientConnection(connection));
  connection->stream()->LowerOutputRoom(kSendAheadOfAll);
  return connection->Switch(made) ? made : nullptr;
}

Http2ClientConnection::Http2ClientConnection(
    RefPtr<HttpClientConnection> connection)
    : connection_(std::move(connection)),
      session_(Http2Session::Role::kClient, OptionsOfHttp2Client(), this) {}

std::optional<std::size_t> Http2ClientConnection::max_requests() const {
  ScopedLock guard(lock_);
  if (ended_ || going_away_) return std::nullopt;
  return silent_ ? 0 : session_.peer_max_streams();
}

// --- the requester ----------------------------------------------------------

Expected<HttpResponse, flare::Status> Http2ClientConnection::Exchange(
    HttpClientConnection::Request request, const HttpWaitLimit& limit,
    HttpRequestFate* fate) {
  Http2Request head(std::move(request.bytes), request.scheme);
  Stream stream(request);
  flare::Status status;
  try {
    if (limit.exceeded()) {
      status = limit.Exceeded("before it was sent");
    } else if (Open(&stream, &head)) {
      status = Carry(&stream, std::move(head.body), limit);
    } else {
      stream.unprocessed = true;
      ScopedLock guard(lock_);
      status = FailureOf(Http2Error::kRefusedStream, /*by_peer=*/false);
    }
  } catch (...) {  // By on_body or the source, or without memory.
    Leave(&stream);
    throw;
  }
  Leave(&stream);
  if (!status.ok()) {
    *fate = {.sent = stream.sent,
             .source_begun = stream.source_begun,
             .replied = stream.replied,
             .lost = stream.lost,
             .unprocessed = stream.unprocessed,
             .needs_http1 = stream.needs_http1};
    return status;
  }
  if (!stream.body.empty()) stream.response.set_body(std::move(stream.body));
  return std::move(stream.response);
}

bool Http2ClientConnection::Open(Stream* stream, Http2Request* head) {
  const auto fields = head->fields();
  const bool has_source = stream->request.source != nullptr;
  const bool short_body = !has_source && head->body.size() <= kBodyPart;
  const bool end = short_body && head->body.empty();
  ScopedLock guard(lock_);
  if (ended_ || going_away_) return false;
  if (!session_.Open(stream, fields, end)) {
    going_away_ = true;
    session_.SendGoAway(Http2Error::kNoError, "");
    Flush();
    return false;
  }
  stream->in_session = true;  // [H2C3]
  streams_.PushBack(stream);
  stream->opened_ns = NowNs();
  stream->sending = !short_body;
  if (short_body && !end) {
    session_.SendData(stream, std::move(head->body), /*end=*/true);
  }
  Flush();
  return true;
}

flare::Status Http2ClientConnection::Carry(Stream* stream, Buffer body,
                                           const HttpWaitLimit& limit) {
  const HttpClientConnection::Request& request = stream->request;
  Upload upload{.rest = std::move(body)};
  if (request.source != nullptr) upload.pieces.emplace(*request.source);
  for (;;) {
    Buffer piece;
    const char* waited_for = "waiting for the response";
    const bool woken = AwaitEvent(stream, limit);
    {
      ScopedLock guard(lock_);
      if (request.on_body != nullptr) piece = std::exchange(stream->body, {});
      if (piece.empty()) {
        if (stream->done) return {};
        if (!stream->failure.ok()) return stream->failure;
        if (ended_) {
          stream->lost = end_.code() == ERROR_CONNECTION;
          return end_;
        }
      }
      stream->timed_out = !woken && !limit.stop.stop_requested();
      if (stream->waits_to_open()) {
        waited_for = "waiting for other requests over its connection";
      } else if (stream->sending) {
        waited_for = "sending the body";
      } else if (!piece.empty()) {
        waited_for = "within the body";
      }
    }
    // A fast server doesn't let AwaitEvent() wait.
    if (!woken || limit.exceeded()) return limit.Exceeded(waited_for);
    if (piece.empty()) {
      flare::Status sent = SendPart(stream, &upload, limit);
      if (!sent.ok()) return sent;
      continue;
    }
    const std::size_t size = piece.size();
    if (!(*request.on_body)(stream->response, std::move(piece))) {
      return flare::Status(ERROR_CANCELLED, "on_body wants no more");
    }
    Grant(stream, size);
  }
}

// More than room to send.
bool Http2ClientConnection::HasNews(const Stream& stream) const {
  return stream.over() || ended_ ||
         (stream.request.on_body != nullptr && !stream.body.empty());
}

bool Http2ClientConnection::HasEvent(const Stream& stream) const {
  return HasNews(stream) || (stream.sending && !stream.waits_to_open() &&
                             stream.queued() < kBodyPart);
}

// False: none has come in time.
bool Http2ClientConnection::AwaitEvent(Stream* stream,
                                       const HttpWaitLimit& limit) {
  for (;;) {
    fiber::Event changed;
    {
      ScopedLock guard(lock_);
      if (HasEvent(*stream)) return true;
      stream->waiter = &changed;
    }
    if (changed.WaitUntil(limit.stop, limit.at)) continue;
    ScopedLock guard(lock_);
    stream->waiter = nullptr;  // [H2C4]
    return HasEvent(*stream);
  }
}

// Waits until the socket takes more. False: Carry() has to look first, as the
// time is over, the connection is, or something came.
bool Http2ClientConnection::AwaitRoom(Stream* stream,
                                      const HttpWaitLimit& limit) {
  io::StreamConnection& socket = *connection_->stream();
  if (socket.HasOutputRoom()) return true;
  std::stop_source enough;
  const std::stop_callback relay(limit.stop, [&] { enough.request_stop(); });
  {
    ScopedLock guard(lock_);
    if (HasNews(*stream)) return false;
    stream->room = &enough;
  }
  const auto result =
      socket.WaitWritable(ToSteadyNs(limit.at), enough.get_token());
  ScopedLock guard(lock_);
  stream->room = nullptr;
  if (result == io::RoomResult::kClosed) {
    stream->sending = false;  // The end is to come.
  }
  return result == io::RoomResult::kRoom;
}

flare::Status Http2ClientConnection::SendPart(Stream* stream, Upload* upload,
                                              const HttpWaitLimit& limit) {
  if (!AwaitRoom(stream, limit)) return {};
  if (upload->pieces && upload->rest.empty()) {
    stream->source_begun = true;
    auto made = upload->pieces->Next(&upload->last);
    ScopedLock guard(lock_);
    if (stream->over() || ended_) return {};  // The rest doesn't matter.
    if (!made) return made.error();
    upload->rest = *std::move(made);
  }
  Buffer part = upload->rest.Cut(std::min(upload->rest.size(), kBodyPart));
  ScopedLock guard(lock_);
  if (ended_ || !stream->in_session) return {};
  stream->sending = !upload->last || !upload->rest.empty();
  session_.SendData(stream, std::move(part), /*end=*/!stream->sending);
  Flush();
  return {};
}

void Http2ClientConnection::Grant(Stream* stream, std::size_t bytes) {
  ScopedLock guard(lock_);
  if (ended_ || !stream->in_session) return;
  session_.Grant(stream, bytes);
  Flush();
}

// Behind this the session doesn't know the stream [H2C3].
void Http2ClientConnection::Leave(Stream* stream) noexcept {
  ScopedLock guard(lock_);
  stream->sent = stream->opened_ns != 0 && !stream->waits_to_open();
  if (stream->in_session && !ended_) {
    try {
      if (stream->timed_out && !silent_ && stream->sent &&
          connection_->stream()->last_received_ns() < stream->opened_ns &&
          NowNs() - stream->opened_ns >= kSilenceNs) {
        silent_ = true;
        session_.Ping();
      }
      session_.SendReset(stream, Http2Error::kCancel);
    } catch (const std::bad_alloc&) {  // The session has failed.
    }
  }
  Flush();
  if (stream->linked()) streams_.Remove(stream);
}

// --- the session's events ---------------------------------------------------

void Http2ClientConnection::Notify(Stream* stream) {
  if (stream->waiter != nullptr) {
    std::exchange(stream->waiter, nullptr)->Set();  // [H2C4]
  }
  if (stream->room != nullptr) stream->room->request_stop();
}

void Http2ClientConnection::Fail(Stream* stream, flare::Status why) {
  stream->failure = std::move(why);
  Notify(stream);
  session_.SendReset(stream, Http2Error::kCancel);
}

bool Http2ClientConnection::OnField(Http2Stream* base, std::string_view name,
                                    std::string_view value) {
  auto* const stream = static_cast<Stream*>(base);
  if (stream->over() || stream->has_head) return true;  // Trailers.
  stream->replied = true;
  if (name == ":status") {
    stream->status = TryParse<int>(value).value_or(0);
    return true;
  }
  if (++stream->fields > HttpReplyReader::kMaxFields) {
    stream->failure =
        flare::Status(ERROR_PARSE_RESPONSE, std::string(kResponseUnreadable) +
                                                "it has more than 256 fields");
    return false;
  }
  if (name == "content-length") {
    stream->length = TryParse<std::uint64_t>(value).value_or(0);
  }
  stream->lines.append(name).append(": ").append(value).append("\r\n");
  return true;
}

void Http2ClientConnection::OnHeaders(Http2Stream* base, bool trailers,
                                      bool /*end*/) {
  auto* const stream = static_cast<Stream*>(base);
  if (stream->over() || trailers) return;
  const std::string lines = std::exchange(stream->lines, {});
  const std::uint64_t length = std::exchange(stream->length, 0);
  stream->fields = 0;
  if (stream->status < 200) {
    if (++stream->interim <= HttpReplyReader::kMaxInterim) return;
    return Fail(stream, flare::Status(ERROR_PARSE_RESPONSE,
                                      std::string(kResponseUnreadable) +
                                          "interim responses without end"));
  }
  const auto status = static_cast<HttpStatus>(stream->status);
  stream->response.set_status(status);
  stream->response.set_version(HttpVersion::kHttp2);
  stream->response.headers()->AssignLines(lines);
  stream->has_head = true;
  const bool has_body = !stream->request.is_head &&
                        status != HttpStatus::NoContent &&
                        status != HttpStatus::NotModified;
  if (has_body && length > stream->request.max_body) {
    Fail(stream, HttpBodyTooLarge(stream->request.max_body));
  }
}

void Http2ClientConnection::OnOpened(Http2Stream* base) {
  auto* const stream = static_cast<Stream*>(base);
  stream->opened_ns = NowNs();
  if (stream->sending) Notify(stream);
}

void Http2ClientConnection::OnData(Http2Stream* base, Buffer&& bytes) {
  auto* const stream = static_cast<Stream*>(base);
  if (stream->over()) return;
  const std::size_t size = bytes.size();
  stream->received += size;
  if (stream->received > stream->request.max_body) {
    return Fail(stream, HttpBodyTooLarge(stream->request.max_body));
  }
  stream->body.Append(std::move(bytes));
  stream->compaction.AfterAppend(&stream->body);
  if (stream->request.on_body != nullptr) return Notify(stream);
  stream->owed += size;
  if (stream->owed >= kWindowPiece) {
    session_.Grant(stream, std::exchange(stream->owed, 0));
  }
}

void Http2ClientConnection::OnEnd(Http2Stream* base) {
  auto* const stream = static_cast<Stream*>(base);
  stream->done = stream->failure.ok();
  Notify(stream);
}

void Http2ClientConnection::OnSent(Http2Stream* base, std::size_t /*bytes*/) {
  auto* const stream = static_cast<Stream*>(base);
  if (stream->sending) Notify(stream);
}

void Http2ClientConnection::OnClosed(Http2Stream* base, Http2Error error,
                                     bool by_peer) {
  auto* const stream = static_cast<Stream*>(base);
  stream->in_session = false;
  if (!stream->over()) {
    // A server that has answered has processed it, whatever it says.
    stream->unprocessed =
        error == Http2Error::kRefusedStream && !stream->replied;
    stream->needs_http1 =
        by_peer && error == Http2Error::kHttp11Required && !stream->replied;
    stream->failure = FailureOf(error, by_peer);
  }
  Notify(stream);
}

// The end of a stream, by either side.
flare::Status Http2ClientConnection::FailureOf(Http2Error error,
                                               bool by_peer) const {
  if (error == Http2Error::kRefusedStream && by_peer) {
    return flare::Status(ERROR_CONNECTION, "the server refuses the request");
  }
  if (error == Http2Error::kRefusedStream) {
    return flare::Status(ERROR_CONNECTION,
                         "the server takes no further requests over this "
                         "connection" +
                             goaway_);
  }
  if (by_peer) {
    return flare::Status(
        ERROR_CONNECTION,
        "the server has reset the stream of the request: " + ErrorText(error));
  }
  return flare::Status(
      ERROR_PARSE_RESPONSE,
      kResponseUnreadable +
          std::string(error == Http2Error::kEnhanceYourCalm
                          ? "its head is larger than 64 KiB"
                          : "it breaks the rules of HTTP/2, or is of another "
                            "size than it has announced"));
}

void Http2ClientConnection::OnGoAway(std::int32_t /*last_id*/, Http2Error error,
                                     std::string_view text) {
  going_away_ = true;
  if (error == Http2Error::kNoError) return;
  goaway_ = ": " + ErrorText(error);
  if (!text.empty()) goaway_ += ", " + OneLine(text.substr(0, kMaxGoAwayText));
}

// --- the connection ---------------------------------------------------------

HttpTunnelReceiver::Input Http2ClientConnection::OnInput(
    Buffer& in, std::size_t* need, std::string* /*error*/) {
  ScopedLock guard(lock_);
  if (!ended_) {
    silent_ = false;
    static_cast<void>(session_.Receive(&in));  // Flush() sees its end.
    *need = session_.need();
    Flush();
  }
  if (ended_) in.Clear();
  return Input::kTaken;
}

void Http2ClientConnection::OnEnd(const flare::Status& /*why*/,
                                  bool /*closed*/) {
  const flare::Status why = connection_->failure();
  ScopedLock guard(lock_);
  End(why);
}

void Http2ClientConnection::Flush() noexcept {
  if (ended_) return;
  try {
    Buffer out = session_.Flush();
    // kClosed: OnEnd() is to come.
    if (!out.empty() && connection_->stream()->Write(std::move(out)) ==
                            io::WriteResult::kOverLimit) {
      const auto why = flare::Status::Lenient(
          ERROR_CONNECTION, "the server takes no more of earlier requests");
      connection_->Close(why);
      return End(why);
    }
  } catch (const std::bad_alloc&) {  // Frames are lost.
    connection_->Close(flare::Status(ERROR_CONNECTION));
    return End(flare::Status(ERROR_CONNECTION));
  }
  if (!session_.over()) return;
  // No copy, for which there may be no memory.
  const std::string_view text =
      session_.broken()
          ? std::string_view(session_.error())
          : std::string_view("the server has ended the HTTP/2 session");
  const flare::Status why = flare::Status::Lenient(
      session_.broken() && !session_.failed() ? ERROR_PARSE_RESPONSE
                                              : ERROR_CONNECTION,
      text);
  End(why);
  if (session_.failed()) {
    connection_->Close(why);
  } else {
    connection_->stream()->CloseAfterFlush(why);
  }
}

void Http2ClientConnection::End(const flare::Status& why) noexcept {
  if (std::exchange(ended_, true)) return;
  end_ = why;
  for (Stream& stream : streams_) {
    if (stream.in_session && !stream.over()) {
      stream.unprocessed = stream.waits_to_open();
    }
    Notify(&stream);
  }
}

}  // namespace flare::rpc
