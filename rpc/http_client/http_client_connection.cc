#include "flare/rpc/http_client/http_client_connection.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/runtime.h"
#include "flare/rpc/client/client_side.h"

namespace flare::rpc {
namespace {

// More of a body than this isn't read ahead of Request::on_body.
constexpr std::size_t kReadAhead = 256 << 10;
// A body is read in pieces of up to this size.
constexpr std::size_t kMaxPiece = 1 << 20;

io::StreamConnection::Options StreamOptionsOfHttpClient() {
  io::StreamConnection::Options options;
  options.max_input = kMaxPiece + 2 * HttpReplyReader::kMaxHead;
  return options;
}

}  // namespace

// --- the user --------------------------------------------------------------

RefPtr<HttpClientConnection> HttpClientConnection::Make(
    const Endpoint& peer, std::unique_ptr<io::Transport> transport,
    std::weak_ptr<Owner> owner) {
  RefPtr<HttpClientConnection> made(
      adopt_ref,
      new HttpClientConnection(peer, std::move(transport), std::move(owner)));
  made->Ref();  // [HX5]
  ConnectionBorn();
  return made;
}

HttpClientConnection::HttpClientConnection(
    const Endpoint& peer, std::unique_ptr<io::Transport> transport,
    std::weak_ptr<Owner> owner)
    : fiber::Timer([](fiber::Timer* timer) {
        static_cast<HttpClientConnection*>(timer)->stream_->Close(
            flare::Status(ETIMEDOUT, "no request for long"));
      }),
      owner_(std::move(owner)),
      tls_(transport != nullptr),
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
    Request request, const HttpWaitLimit& limit) {
  try {
    if (Send(&request)) {
      if (flare::Status status = TakePieces(request, limit); !status.ok()) {
        Close(status);
        return status;
      }
    }
  } catch (...) {  // By on_body. A text would take memory.
    Close(flare::Status(ERROR_CANCELLED));
    throw;
  }
  ScopedLock guard(lock_);
  if (!done_) return failure_;
  HttpResponse response = std::move(response_);
  if (!body_.empty()) response.set_body(std::exchange(body_, Buffer()));
  return response;
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
  stream_->ResumeReading();  // [HX6]
  return true;
}

bool HttpClientConnection::reusable() const {
  ScopedLock guard(lock_);
  // The server may have answered before it has read all of the request.
  return reusable_ && !closed_ && stream_->BufferedOutput() == 0;
}

bool HttpClientConnection::replied() const {
  ScopedLock guard(lock_);
  return replied_;
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
  if (progress == HttpReplyReader::Result::kFailed) {
    *error = reader_.failure().message();
  } else if (progress == HttpReplyReader::Result::kNeedMore) {
    *need = std::min(reader_.expected(), kMaxPiece);
  }
  if (Publish(progress, !in.empty(), std::move(piece))) return true;
  return progress != HttpReplyReader::Result::kFailed;
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

bool HttpClientConnection::Publish(HttpReplyReader::Result progress,
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
        if (pieces_.size() > kReadAhead && !paused_) {
          paused_ = true;
          stream_->PauseReading();  // [HX4]
        }
        if (!pieces_.empty()) Notify();
        return true;
      case HttpReplyReader::Result::kFailed:
        NoteFailure(reader_.failure());
        return false;
      case HttpReplyReader::Result::kDone:
        break;
    }
    // Bytes behind the response would be taken for the next one. Failed: by
    // Close() meanwhile.
    switched_ = reader_.switched() && failure_.ok();
    reusable_ = reader_.keeps_alive() && !more_input && failure_.ok();
    through = !reusable_ && !switched_;
    if (switched_) stream_->PauseReading();  // [HX6]
    done_ = true;
    busy_ = false;  // [HX1]
    Notify();
  }
  if (through) {
    stream_->Close(flare::Status(ESHUTDOWN, "no request follows on it"));
  }
  return true;
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
