#include "flare/rpc/http_client/http_client_connection.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <new>
#include <string_view>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/runtime.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/http_client/http_body_pieces.h"

namespace flare::rpc {
namespace {

// More of a body than this isn't read ahead of Request::on_body.
constexpr std::size_t kReadAhead = 256 << 10;
// Bodies are read, and made, in pieces of up to this size.
constexpr std::size_t kMaxPiece = 1 << 20;

// More of a body than this doesn't wait here to be sent.
constexpr std::size_t kSendAhead = 256 << 10;

// RFC 9112, 7.1. An empty piece is the last one.
Buffer ChunkOf(Buffer piece) {
  char size[20];
  const char* const end =
      std::to_chars(size, size + sizeof(size), piece.size(), 16).ptr;
  BufferBuilder chunk;
  chunk.Append(std::string_view(size, static_cast<std::size_t>(end - size)),
               "\r\n");
  chunk.Append(std::move(piece));
  chunk.Append("\r\n");
  return chunk.DestructiveGet();
}

io::StreamConnection::Options StreamOptionsOfHttpClient() {
  io::StreamConnection::Options options;
  options.max_input = kMaxPiece + 2 * HttpReplyReader::kMaxHead;
  return options;
}

}  // namespace

// --- the user --------------------------------------------------------------

RefPtr<HttpClientConnection> HttpClientConnection::Make(
    const Endpoint& peer, std::unique_ptr<io::Transport> transport,
    std::weak_ptr<Owner> owner, bool knows_http2) {
  RefPtr<HttpClientConnection> made(
      adopt_ref, new HttpClientConnection(peer, std::move(transport),
                                          std::move(owner), knows_http2));
  made->Ref();  // [HX5]
  ConnectionBorn();
  return made;
}

HttpClientConnection::HttpClientConnection(
    const Endpoint& peer, std::unique_ptr<io::Transport> transport,
    std::weak_ptr<Owner> owner, bool knows_http2)
    : fiber::Timer([](fiber::Timer* timer) {
        static_cast<HttpClientConnection*>(timer)->stream_->Close(
            flare::Status(ETIMEDOUT, "no request for long"));
      }),
      owner_(std::move(owner)),
      tls_(transport != nullptr),
      knows_http2_(knows_http2),
      stream_(io::StreamConnection::Connect(
          peer, fiber::GetCurrentSchedulingGroupIndex(), this,
          StreamOptionsOfHttpClient(), std::move(transport))) {}

flare::Status HttpClientConnection::AwaitConnected(
    const HttpWaitLimit& limit, std::chrono::nanoseconds connect_timeout) {
  const auto now = ReadSteadyClock();
  const bool has_time = limit.at - now > connect_timeout;
  const bool ended = AwaitUntil(
      limit.stop, has_time ? now + connect_timeout : limit.at,
      [this]()
          FLARE_NO_THREAD_SAFETY_ANALYSIS { return connected_ || closed_; });
  if (!ended) {
    const std::string what =
        "connecting to " + stream_->remote_endpoint().ToString();
    Close(has_time && !limit.stop.stop_requested()
              ? flare::Status(
                    ERROR_FAIL_TO_CONNECT_SERVER,
                    what + ": no answer within " +
                        std::to_string(ToNs(connect_timeout) / kNsPerMs) +
                        " ms (connect_timeout)")
              : limit.Exceeded(what));
  }
  ScopedLock guard(lock_);
  return failure_;
}

Expected<HttpResponse, flare::Status> HttpClientConnection::Exchange(
    Request request, const HttpWaitLimit& limit, HttpRequestFate* fate) {
  flare::Status status;
  try {
    status = Carry(&request, limit);
  } catch (...) {  // By on_body, or the source. A text would take memory.
    Close(flare::Status(ERROR_CANCELLED));
    throw;
  }
  if (!status.ok()) Close(status);
  ScopedLock guard(lock_);
  if (status.ok() && done_) {
    HttpResponse response = std::move(response_);
    if (!body_.empty()) response.set_body(std::exchange(body_, Buffer()));
    return response;
  }
  if (status.ok()) status = failure_;
  *fate = {.sent = sent_,
           .replied = replied_,
           .lost = status.code() == ERROR_CONNECTION};
  return status;
}

flare::Status HttpClientConnection::Carry(Request* request,
                                          const HttpWaitLimit& limit) {
  if (!Send(request)) return {};
  if (request->source != nullptr && sent_) {
    flare::Status status = SendBody(*request->source, limit);
    if (!status.ok()) return status;
  }
  return TakePieces(*request, limit);
}

bool HttpClientConnection::Send(Request* request) {
  sent_ = false;
  {
    ScopedLock guard(lock_);
    done_ = reusable_ = replied_ = false;
    if (closed_) return false;
    reader_.Start(request->is_head, request->max_body, request->may_switch);
    response_.clear();
    body_.Clear();
    in_pieces_ = request->on_body != nullptr;
    sending_ = request->source != nullptr;
    busy_ = true;  // [HX1]
  }
  switch (stream_->Write(std::move(request->bytes), io::Flush::kNow)) {
    case io::WriteResult::kOk:
      sent_ = true;
      break;
    case io::WriteResult::kClosed:  // OnClosed() is to come.
      break;
    case io::WriteResult::kOverLimit:
      Close(flare::Status(ERROR_CONNECTION,
                          "the server takes no more of an earlier request"));
      break;
  }
  return true;
}

// A response that comes first ends it; then the connection closes, so that no
// wait for room is left.
flare::Status HttpClientConnection::SendBody(const HttpBodySource& source,
                                             const HttpWaitLimit& limit) {
  const auto end = [this, &limit] {
    bool done = false;
    {
      ScopedLock guard(lock_);
      done = done_;
    }
    return done || !limit.exceeded() ? flare::Status()
                                     : limit.Exceeded("sending the body");
  };
  stream_->LowerOutputRoom(kSendAhead);
  HttpBodyPieces pieces(source);
  for (;;) {
    if (!AwaitRoom(limit) || IsOver(limit)) return end();
    bool last = false;
    auto made = pieces.Next(&last);
    if (IsOver(limit)) return end();
    if (!made) return made.error();
    Buffer piece = *std::move(made);
    if (!source.size) piece = ChunkOf(std::move(piece));
    if (!SendPiece(std::move(piece), last, limit) || last) return end();
  }
}

bool HttpClientConnection::IsOver(const HttpWaitLimit& limit) const {
  ScopedLock guard(lock_);
  return done_ || closed_ || limit.exceeded();
}

bool HttpClientConnection::AwaitRoom(const HttpWaitLimit& limit) {
  return stream_->HasOutputRoom() ||
         stream_->WaitWritable(ToSteadyNs(limit.at), limit.stop) ==
             io::RoomResult::kRoom;
}

bool HttpClientConnection::SendPiece(Buffer piece, bool last,
                                     const HttpWaitLimit& limit) {
  do {
    Buffer part = piece.Cut(std::min(piece.size(), kMaxPiece));
    if (last && piece.empty()) {
      // Before the response to the whole request can come.
      ScopedLock guard(lock_);
      sending_ = false;
    }
    // Now: written by another fiber, it might count as unsent for a moment when
    // the response is there already; see reusable().
    if (stream_->Write(std::move(part), io::Flush::kNow) !=
        io::WriteResult::kOk) {
      return false;
    }
    if (piece.empty()) return true;
  } while (AwaitRoom(limit));
  return false;
}

flare::Status HttpClientConnection::TakePieces(const Request& request,
                                               const HttpWaitLimit& limit) {
  for (;;) {
    const bool woken = AwaitUntil(limit.stop, limit.at,
                                  [this]() FLARE_NO_THREAD_SAFETY_ANALYSIS {
                                    return done_ || closed_ || !pieces_.empty();
                                  });
    if (!woken) return limit.Exceeded("waiting for the response");
    // A server that is faster than on_body doesn't let AwaitUntil() wait.
    const bool over =
        limit.stop.stop_requested() || ReadSteadyClock() >= limit.at;
    Buffer piece;
    bool resume = false;
    {
      ScopedLock guard(lock_);
      piece = std::exchange(pieces_, Buffer());
      if (piece.empty()) return done_ ? flare::Status() : failure_;
      resume = std::exchange(paused_, false);
      if (resume) stream_->ResumeReading();  // [HX4]
    }
    if (over) return limit.Exceeded("within the body");
    // The callbacks change response_ no more: its head has come.
    if (!(*request.on_body)(response_, std::move(piece))) {
      return flare::Status(ERROR_CANCELLED, "on_body wants no more");
    }
  }
}

bool HttpClientConnection::Switch(RefPtr<HttpTunnelReceiver> receiver) {
  ScopedLock guard(lock_);
  if (closed_ || !switched_) return false;
  receiver_ = std::move(receiver);
  reusable_ = speaks_http2_;
  stream_->ResumeReading();  // [HX6]
  return true;
}

bool HttpClientConnection::reusable() const {
  ScopedLock guard(lock_);
  // The server may have answered before it has read all of the request.
  return reusable_ && !closed_ && stream_->BufferedOutput() == 0;
}

bool HttpClientConnection::speaks_http2() const {
  ScopedLock guard(lock_);
  return speaks_http2_;
}

flare::Status HttpClientConnection::failure() const {
  ScopedLock guard(lock_);
  return failure_;
}

bool HttpClientConnection::BeginIdle(std::int64_t until_ns) {
  ScopedLock guard(lock_);
  if (closed_ || !reusable_) return false;
  idle_ = true;
  fiber::ArmTimer(this, until_ns);  // [HX3]
  return true;
}

bool HttpClientConnection::EndIdle() {
  ScopedLock guard(lock_);
  if (closed_ || !reusable_) return false;
  if (!fiber::CancelTimer(this)) return false;  // [HX3]
  idle_ = false;
  return true;
}

void HttpClientConnection::Close(const flare::Status& why) {
  {
    ScopedLock guard(lock_);
    NoteFailure(why);
    reusable_ = false;  // OnClosed() comes later.
  }
  stream_->Close(why);
}

template <class Done>
bool HttpClientConnection::AwaitUntil(const std::stop_token& stop,
                                      std::chrono::steady_clock::time_point at,
                                      Done done) {
  for (;;) {
    fiber::Event changed;
    {
      ScopedLock guard(lock_);
      if (done()) return true;
      waiter_ = &changed;
    }
    if (changed.WaitUntil(stop, at)) continue;
    ScopedLock guard(lock_);
    waiter_ = nullptr;  // [HX2]
    return done();
  }
}

// --- the stream's callbacks --------------------------------------------------

void HttpClientConnection::Notify() {
  if (waiter_ != nullptr) std::exchange(waiter_, nullptr)->Set();  // [HX2]
}

void HttpClientConnection::NoteFailure(const flare::Status& why) {
  if (failure_.ok()) failure_ = why;
}

void HttpClientConnection::OnConnected() {
  ScopedLock guard(lock_);
  connected_ = true;
  speaks_http2_ = knows_http2_ || stream_->alpn() == "h2";
  if (speaks_http2_) {
    switched_ = true;
    stream_->PauseReading();  // [HX6]
  }
  Notify();
}

bool HttpClientConnection::OnData(Buffer& in, std::size_t* need,
                                  std::string* error) {
  {
    ScopedLock guard(lock_);
    if (switched_) [[unlikely]] {
      guard.unlock();
      return TakeOther(in, need, error);
    }
    if (!busy_) {
      *error = "it has sent bytes that no request asked for";
      return false;
    }
    replied_ = true;
  }
  Buffer piece;
  const auto progress =
      reader_.Read(in, &response_, in_pieces_ ? &piece : &body_);
  if (progress == HttpReplyReader::Result::kNeedMore) {
    *need = std::min(reader_.expected(), kMaxPiece);
  }
  const flare::Status published =
      Publish(progress, !in.empty(), std::move(piece));
  if (!published.ok()) *error = published.message();
  return published.ok();
}

bool HttpClientConnection::TakeOther(Buffer& in, std::size_t* need,
                                     std::string* error) {
  RefPtr<HttpTunnelReceiver> receiver;
  {
    ScopedLock guard(lock_);
    receiver = receiver_;
  }
  if (receiver == nullptr) return true;  // It has been paused meanwhile.
  switch (receiver->OnInput(in, need, error)) {
    case HttpTunnelReceiver::Input::kTaken:
      break;
    case HttpTunnelReceiver::Input::kHeld:
      hold_.Pause(stream_.Get());
      break;
    case HttpTunnelReceiver::Input::kBroken:
      in.Clear();  // The receiver has said goodbye, and closes it.
      break;
  }
  return true;
}

flare::Status HttpClientConnection::Publish(HttpReplyReader::Result progress,
                                            bool more_input, Buffer piece) {
  bool through = false;
  {
    ScopedLock guard(lock_);
    if (!piece.empty()) {
      pieces_.Append(std::move(piece));
      compaction_.AfterAppend(&pieces_);
    }
    switch (progress) {
      case HttpReplyReader::Result::kNeedMore:
        if (pieces_.size() > kReadAhead && sending_) {
          // on_body gets them behind the request's body, and the server may
          // wait for us to read.
          NoteFailure(flare::Status(
              ERROR_RESPONSE_TOO_LARGE,
              "much of the response came before the end of body_source"));
          return failure_;
        }
        if (pieces_.size() > kReadAhead && !paused_) {
          paused_ = true;
          stream_->PauseReading();  // [HX4]
        }
        if (!pieces_.empty()) Notify();
        return {};
      case HttpReplyReader::Result::kFailed:
        NoteFailure(reader_.failure());
        return reader_.failure();
      case HttpReplyReader::Result::kDone:
        break;
    }
    // Bytes behind the response would be taken for the next one. Failed: by
    // Close() meanwhile.
    switched_ = reader_.switched() && failure_.ok();
    reusable_ =
        reader_.keeps_alive() && !more_input && !sending_ && failure_.ok();
    through = !reusable_ && !switched_;
    if (switched_) stream_->PauseReading();  // [HX6]
    done_ = true;
    busy_ = false;  // [HX1]
    Notify();
  }
  if (through) {
    stream_->Close(flare::Status(ESHUTDOWN, "no request follows on it"));
  }
  return {};
}

void HttpClientConnection::OnClosed(const flare::Status& why) {
  RefPtr<HttpTunnelReceiver> receiver;
  {
    ScopedLock guard(lock_);
    closed_ = true;
    receiver = std::move(receiver_);  // [HX6]
    // It isn't armed any more when this returns, fired or not [HX3].
    if (idle_) static_cast<void>(fiber::CancelTimer(this));
    idle_ = false;
    // ESHUTDOWN: in good order, with TLS by its own end, too.
    if (busy_ && failure_.ok() && why.code() == ESHUTDOWN &&
        reader_.EndsWithConnection()) {
      done_ = true;
    } else {
      NoteFailure(FailureOf(why));
    }
    busy_ = false;
    Notify();
  }
  if (receiver != nullptr) receiver->OnEnd(why, /*closed=*/true);
  if (const auto owner = owner_.lock()) owner->OnGone(this);
  ConnectionGone();
  Deref();  // [HX5]
}

flare::Status HttpClientConnection::FailureOf(const flare::Status& why) const {
  int code = ERROR_FAIL_TO_CONNECT_SERVER;
  if (connected_) {
    code = ERROR_CONNECTION;
  } else if (tls_ && why.code() == EPROTO) {  // By the transport.
    code = ERROR_SSL;
  }
  try {
    return flare::Status(
        code, (connected_ ? "the connection broke: " : "") + why.message());
  } catch (const std::bad_alloc&) {  // OnClosed() must not throw.
    return flare::Status(code);
  }
}

}  // namespace flare::rpc
