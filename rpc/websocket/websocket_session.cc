//  [WS1] All state is guarded by lock_, except the decoder, which is the
//        connection's reader's. With lock_ nobody waits, or calls out, except
//        to the connection's output and to output_, which neither block nor
//        call back.
//  [WS2] output_ is used under lock_ only, while it is there. Finish() takes it
//        out on a server, before the request ends; OnEnd() on a client, before
//        its connection goes.
//  [WS3] A fiber that waits has put its event in reader_ or finisher_ under
//        lock_, having seen nothing to do. The one that gives it something to
//        do takes the event out and sets it, all under lock_; so once the
//        waiter has lock_ again, nobody else uses the event.
//  [WS4] The close frame is the last one sent: close_sent_ is set with it, and
//        looked at before any other, under lock_.
//  [WS5] The closures of timers have a reference. The ids are in timer_ and
//        close_timer_; the one that takes an id out, under lock_, gives it
//        back.
//  [WS6] The functions that timers, the end of the connection and the stop of
//        the server call don't throw: for want of memory the connection is
//        closed, and texts are left out.
#include "flare/rpc/websocket/websocket_session.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <new>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/compression.h"
#include "flare/io/secrets.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/websocket/utf8_checker.h"
#include "flare/rpc/websocket/websocket_counters.h"

namespace flare::rpc {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// About the memory of a message beside its bytes.
constexpr std::size_t kPerMessage = 128;

// An unread message of up to this size has memory of its own.
constexpr std::size_t kMaxCopied = std::size_t{1} << 10;

// Memory is counted in units of this.
constexpr std::size_t kUnreadStep = std::size_t{4} << 10;

// A frame is read in pieces of up to this size.
constexpr std::size_t kMaxFramePiece = std::size_t{256} << 10;

// Timers aren't set closer than that.
constexpr std::int64_t kLeastDelayNs = 1'000'000;

std::int64_t After(std::int64_t since_ns, std::chrono::nanoseconds span) {
  return span.count() <= 0 ? kNever : SaturatingAdd(since_ns, ToNs(span));
}

}  // namespace

RefPtr<WebSocketSession> WebSocketSession::Create(Options options) {
  return RefPtr<WebSocketSession>(adopt_ref,
                                  new WebSocketSession(std::move(options)));
}

WebSocketSession::WebSocketSession(Options options)
    : options_(std::move(options)),
      connection_(options_.connection),
      decoder_(/*masked=*/!options_.is_client,
               {.max_message_size = options_.limits.max_message_size,
                .max_fragments = options_.limits.max_fragments,
                .inflates = deflates()}),
      control_guard_(options_.limits.max_control_frames),
      output_(options_.output) {
  connection_->LowerOutputRoom(options_.limits.max_unsent);
}

std::shared_ptr<WebSocketSession> WebSocketSession::Share(
    const RefPtr<WebSocketSession>& session) {
  return {session.Get(), [kept = session](WebSocketSession* self) {
            if (self->is_client()) self->Abandon();
          }};
}

void WebSocketSession::Begin() {
  ScopedLock guard(lock_);
  if (input_over_) return;  // Already.
  begun_ = true;
  WebSocketCounters::Opened(options_.is_client);
  const std::int64_t now_ns = NowNs();
  heard_ns_ = now_ns;
  SetTimer(NextDue(now_ns).at_ns);
}

// --- messages that come ------------------------------------------------------

HttpTunnelReceiver::Input WebSocketSession::OnInput(Buffer& in,
                                                    std::size_t* need,
                                                    std::string* error) {
  while (!deaf_) {
    // relaxed: a hint, see Deliver().
    if (drops_messages_.load(std::memory_order_relaxed)) {
      decoder_.DropMessages();
    }
    switch (decoder_.Next(in)) {
      case WebSocketDecoder::Result::kNeedMore:
        *need = std::min(decoder_.need(), kMaxFramePiece);
        CountPartial();
        return Input::kTaken;
      case WebSocketDecoder::Result::kMessage:
        if (!Deliver({decoder_.TakeMessage(), decoder_.is_text()})) {
          return Input::kHeld;
        }
        break;
      case WebSocketDecoder::Result::kPing:
        if (!AdmitControl(error)) return Input::kBroken;
        Pong();
        break;
      case WebSocketDecoder::Result::kPong:
        if (!AdmitControl(error)) return Input::kBroken;
        break;
      case WebSocketDecoder::Result::kClose:
        TakeClose();
        break;
      case WebSocketDecoder::Result::kBroken:
        return Break(decoder_.fault_code(), decoder_.fault(), error);
    }
  }
  in.Clear();
  return Input::kTaken;
}

// False: the reader is held, as there is much to be read.
bool WebSocketSession::Deliver(WebSocketMessage message) {
  WebSocketCounters::Read(options_.is_client, message.data.size());
  ScopedLock guard(lock_);
  partial_bytes_ = 0;
  if (discarding_ || input_over_) return true;
  // One that stays doesn't keep a block for a few bytes.
  if (!unread_.empty() && message.data.size() <= kMaxCopied) {
    message.data = MakeForeignBuffer(FlattenSlow(message.data));
  }
  unread_bytes_ += message.data.size() + kPerMessage;
  unread_.push_back(std::move(message));
  CountHeld();
  Notify();
  if (unread_bytes_ <= options_.limits.max_unread || output_ == nullptr) {
    return true;
  }
  holding_ = true;
  output_->HoldInput();
  return false;
}

bool WebSocketSession::AdmitControl(std::string* error) {
  if (control_guard_.Admit(NowNs())) return true;
  Break(kWebSocketPolicy,
        "too many pings and pongs within a second (max_control_frames)", error);
  return false;
}

// While much waits to be sent the answer is put off: to the last ping alone.
void WebSocketSession::Pong() {
  ScopedLock guard(lock_);
  if (connection_->HasOutputRoom()) {
    return SendControl(WebSocketOpcode::kPong, decoder_.control());
  }
  owes_pong_ = true;
  owed_pong_ = decoder_.control();
}

void WebSocketSession::TakeClose() {
  deaf_ = true;
  {
    ScopedLock guard(lock_);
    EndInput(decoder_.close_code(), decoder_.close_reason());
    owes_close_ = !close_sent_ && !lost_;
    // Answers to earlier messages may yet be written.
    if (owes_close_) return SetCloseTimer();
  }
  AfterEnd();
}

HttpTunnelReceiver::Input WebSocketSession::Break(int code,
                                                  std::string_view why,
                                                  std::string* error) {
  deaf_ = true;
  {
    ScopedLock guard(lock_);
    EndInput(code, why, /*broken=*/true);
    SendClose(code, why);
  }
  AfterEnd();
  *error = "WebSocket: " + std::string(why);
  return Input::kBroken;
}

void WebSocketSession::CountPartial() {
  const std::size_t kept = decoder_.kept();
  ScopedLock guard(lock_);
  if (kept == partial_bytes_) return;
  partial_bytes_ = kept;
  CountHeld();
}

std::optional<WebSocketMessage> WebSocketSession::Read(
    std::chrono::steady_clock::time_point at, const std::stop_token& stop) {
  for (bool limited = false;;) {
    fiber::Event event;
    {
      ScopedLock guard(lock_);
      if (!unread_.empty()) return TakeUnread();
      if (discarding_ || input_over_ || limited) break;
      reader_ = &event;
    }
    limited = !event.WaitUntil(stop, at);
    ScopedLock guard(lock_);
    reader_ = nullptr;  // [WS3]
  }
  // Messages before the close frame may have come since a limit was reached.
  AnswerClose(/*all_read=*/true);
  return std::nullopt;
}

WebSocketMessage WebSocketSession::TakeUnread() {
  WebSocketMessage message = std::move(unread_.front());
  unread_.pop_front();
  unread_bytes_ -= message.data.size() + kPerMessage;
  CountHeld();
  if (unread_bytes_ <= options_.limits.max_unread / 2) Release();
  return message;
}

// --- messages that go --------------------------------------------------------

flare::Status WebSocketSession::Write(WebSocketMessage message) {
  if (message.is_text && !IsUtf8(message.data)) {
    return flare::Status(EINVAL, "a text message must be UTF-8");
  }
  const std::size_t size = message.data.size();
  if (flare::Status room = WaitForRoom(); !room.ok()) return room;
  Buffer frame = FrameOfMessage(std::move(message));
  for (;;) {
    {
      ScopedLock guard(lock_);
      if (close_sent_ || lost_) return OverStatus();  // [WS4]
      if (std::exchange(owes_pong_, false)) {
        SendControl(WebSocketOpcode::kPong, owed_pong_);
      }
      switch (connection_->Write(std::move(frame))) {
        case io::WriteResult::kOk:
          WebSocketCounters::Written(options_.is_client, size);
          return {};
        case io::WriteResult::kClosed:
          return OverStatus();
        case io::WriteResult::kOverLimit:
          break;
      }
    }
    if (flare::Status room = WaitForRoom(); !room.ok()) return room;
  }
}

flare::Status WebSocketSession::WaitForRoom() {
  if (connection_->HasOutputRoom()) [[likely]]
    return {};
  const std::int64_t patience_ns =
      std::max<std::int64_t>(ToNs(options_.limits.write_timeout), 1);
  connection_->PeerTakesOutput(0);  // The look that later ones compare with.
  while (!connection_->HasOutputRoom()) {
    switch (connection_->WaitWritable(SaturatingAdd(NowNs(), patience_ns))) {
      case io::RoomResult::kRoom:
        break;
      case io::RoomResult::kTimedOut:
        if (connection_->HasOutputRoom() ||
            connection_->PeerTakesOutput(patience_ns)) {
          break;  // If slowly.
        }
        connection_->Reset(flare::Status::Lenient(
            ETIMEDOUT, "the peer takes no messages (write_timeout)"));
        return flare::Status(STATUS_TIMEOUT,
                             "the peer takes no messages (write_timeout)");
      case io::RoomResult::kClosed: {
        ScopedLock guard(lock_);
        return OverStatus();
      }
    }
  }
  return {};
}

Buffer WebSocketSession::FrameOfMessage(WebSocketMessage message) const {
  const WebSocketOpcode opcode =
      message.is_text ? WebSocketOpcode::kText : WebSocketOpcode::kBinary;
  if (deflates() && message.data.size() >= options_.compress_from) {
    auto deflated = DeflateMessage(message.data, options_.window_bits);
    // Else, or without memory for it, as it is.
    if (deflated && deflated->size() < message.data.size()) {
      return FrameOf(opcode, *std::move(deflated), /*deflated=*/true);
    }
  }
  return FrameOf(opcode, std::move(message.data));
}

Buffer WebSocketSession::FrameOf(WebSocketOpcode opcode, Buffer payload,
                                 bool deflated) const {
  if (!options_.is_client) {
    return MakeWebSocketFrame(opcode, std::move(payload), nullptr, deflated);
  }
  WebSocketMask mask;
  io::FillRandom(mask.data(), mask.size());
  return MakeWebSocketFrame(opcode, std::move(payload), &mask, deflated);
}

void WebSocketSession::SendControl(WebSocketOpcode opcode,
                                   std::string_view payload) {
  if (close_sent_ || lost_) return;  // [WS4]
  try {
    static_cast<void>(
        connection_->Write(FrameOf(opcode, CreateBufferSlow(payload))));
  } catch (const std::bad_alloc&) {
    connection_->Close(flare::Status(ENOMEM));  // [WS6]
  }
}

void WebSocketSession::SendClose(int code, std::string_view reason) {
  if (close_sent_ || lost_) return;
  close_sent_ = true;  // [WS4]
  try {
    static_cast<void>(connection_->Write(FrameOf(
        WebSocketOpcode::kClose, MakeWebSocketClosePayload(code, reason))));
    if (!input_over_) {
      close_since_ns_ = NowNs();
      close_watch_.Begin(close_since_ns_);
      SetCloseTimer();
    }
  } catch (const std::bad_alloc&) {
    connection_->Close(flare::Status(ENOMEM));  // [WS6]
  }
}

flare::Status WebSocketSession::OverStatus() const {
  return flare::Status(STATUS_IO_ERROR, close_code_ == 0
                                            ? "the WebSocket is closing"
                                            : "the WebSocket is closed: " +
                                                  std::to_string(close_code_) +
                                                  " " + close_reason_);
}

// --- ends --------------------------------------------------------------------

flare::Status WebSocketSession::Close(int code, std::string_view reason) {
  if (!MaySendWebSocketCode(code)) {
    return flare::Status(
        EINVAL, "a WebSocket can't be closed by code " + std::to_string(code));
  }
  if (reason.size() > kMaxWebSocketControl - 2 || !IsUtf8(reason)) {
    return flare::Status(EINVAL,
                         "the reason of a close frame must be UTF-8, of at "
                         "most 123 bytes");
  }
  bool answers = false;
  {
    ScopedLock guard(lock_);
    answers = std::exchange(owes_close_, false);
    SendClose(code, reason);
  }
  if (answers) AfterEnd();
  return {};
}

// Once the messages before the peer's close frame have been read.
void WebSocketSession::AnswerClose(bool all_read) {
  {
    ScopedLock guard(lock_);
    if (all_read && !unread_.empty()) return;
    if (!std::exchange(owes_close_, false)) return;
    SendClose(close_code_, "");
  }
  AfterEnd();
}

void WebSocketSession::EndInput(int code, std::string_view reason,
                                bool broken) {
  if (std::exchange(input_over_, true)) return;
  if (begun_) {
    WebSocketCounters::Closed(options_.is_client, broken,
                              code == kWebSocketLost);
  }
  close_code_ = code;
  partial_bytes_ = 0;
  CountHeld();
  Notify();
  try {
    close_reason_ = reason;
  } catch (const std::bad_alloc&) {  // [WS6]
  }
}

void WebSocketSession::OnEnd(const flare::Status& why, bool closed) {
  {
    ScopedLock guard(lock_);
    // Behind its close frame the peer may end its direction, and is answered.
    lost_ = lost_ || closed || !input_over_;
    EndInput(kWebSocketLost, why.message());
    if (options_.is_client) output_ = nullptr;  // [WS2]
    if (!lost_) return;
  }
  StopTimers();
}

void WebSocketSession::OnServerStops() {
  ScopedLock guard(lock_);
  SendClose(kWebSocketGoingAway, "the server stops");
}

void WebSocketSession::Finish(int code) {
  AnswerClose(/*all_read=*/false);
  {
    ScopedLock guard(lock_);
    DropUnread();
    SendClose(code, "");
  }
  // At the latest the close frame's timer ends that.
  for (;;) {
    fiber::Event event;
    {
      ScopedLock guard(lock_);
      if (input_over_) {
        output_ = nullptr;  // [WS2]
        break;
      }
      finisher_ = &event;
    }
    event.Wait();
  }
  StopTimers();
}

void WebSocketSession::Abandon() {
  AnswerClose(/*all_read=*/false);
  {
    ScopedLock guard(lock_);
    DropUnread();
    SendClose(kWebSocketGoingAway, "");
  }
  StopTimers();
  connection_->CloseAfterFlush();
}

void WebSocketSession::AfterEnd() {
  StopTimers();
  if (options_.is_client) connection_->CloseAfterFlush();
}

void WebSocketSession::DropUnread() {
  discarding_ = true;
  // relaxed: a hint, that messages needn't be decompressed any more.
  drops_messages_.store(true, std::memory_order_relaxed);
  unread_.clear();
  unread_bytes_ = 0;
  CountHeld();
  Release();
  Notify();
}

void WebSocketSession::Release() {
  if (!std::exchange(holding_, false) || output_ == nullptr) return;
  // It was us who didn't let the peer be heard.
  heard_ns_ = NowNs();
  output_->ReleaseInput();
}

void WebSocketSession::CountHeld() {
  if (output_ == nullptr) return;
  const std::size_t held =
      (unread_bytes_ + partial_bytes_) / kUnreadStep * kUnreadStep;
  if (held != counted_) {
    output_->CountHeld(std::exchange(counted_, held), held);
  }
}

void WebSocketSession::Notify() {
  if (reader_ != nullptr) std::exchange(reader_, nullptr)->Set();  // [WS3]
  if (input_over_ && finisher_ != nullptr) {
    std::exchange(finisher_, nullptr)->Set();
  }
}

bool WebSocketSession::closed() const {
  ScopedLock guard(lock_);
  return input_over_;
}

int WebSocketSession::close_code() const {
  ScopedLock guard(lock_);
  return close_code_;
}

std::string WebSocketSession::close_reason() const {
  ScopedLock guard(lock_);
  return close_reason_;
}

// --- time --------------------------------------------------------------------

WebSocketSession::Due WebSocketSession::NextDue(std::int64_t now_ns) const {
  const WebSocketLimits& limits = options_.limits;
  // While it is held the peer can't be heard.
  const std::int64_t heard_ns =
      holding_ ? now_ns : std::max(heard_ns_, connection_->last_received_ns());
  const std::int64_t end_ns = After(heard_ns, limits.idle_timeout);
  const std::int64_t ping_ns =
      After(std::max(heard_ns, pinged_ns_), limits.ping_interval);
  return {.at_ns = std::min(end_ns, ping_ns), .ping = ping_ns < end_ns};
}

void WebSocketSession::OnTimer() {
  // One that takes our messages, if slowly, is there, whether or not it says
  // anything.
  const auto look = connection_->LookAtOutput();
  fiber::TimerId mine = 0;
  bool give_up = false;
  {
    ScopedLock guard(lock_);
    if (timers_over_ || input_over_) return;
    mine = std::exchange(timer_, 0);  // [WS5]
    const std::int64_t now_ns = NowNs();
    heard_ns_ = std::max(heard_ns_, output_watch_.TakenSince(look, now_ns));
    const Due due = NextDue(now_ns);
    give_up = due.at_ns <= now_ns && !due.ping;
    if (due.at_ns <= now_ns && due.ping) {
      pinged_ns_ = now_ns;
      if (connection_->HasOutputRoom()) {
        SendControl(WebSocketOpcode::kPing, "");
      }
    }
    if (std::exchange(owes_pong_, false)) {
      SendControl(WebSocketOpcode::kPong, owed_pong_);
    }
    try {
      if (!give_up) SetTimer(NextDue(now_ns).at_ns);
    } catch (const std::bad_alloc&) {
      connection_->Close(flare::Status(ENOMEM));  // [WS6]
    }
  }
  fiber::KillTimer(mine);
  if (give_up) {
    connection_->Close(flare::Status::Lenient(
        ETIMEDOUT, "nothing came from the peer for long (idle_timeout)"));
  }
}

void WebSocketSession::SetTimer(std::int64_t at_ns) {
  if (timers_over_ || at_ns == kNever) return;
  at_ns = std::max(at_ns, NowNs() + kLeastDelayNs);
  timer_ = fiber::SetTimer(
      ToTimePoint(at_ns),
      [self = RefPtr<WebSocketSession>(ref_ptr, this)] { self->OnTimer(); });
}

// Our close frame: the peer may have more time. Its own: nobody has read up to
// it for long.
void WebSocketSession::OnCloseTimer() {
  if (closed()) return AnswerClose(/*all_read=*/false);
  const auto look = connection_->LookAtOutput();
  fiber::TimerId mine = 0;
  bool give_up = false;
  try {
    ScopedLock guard(lock_);
    mine = std::exchange(close_timer_, 0);  // [WS5]
    const std::int64_t now_ns = NowNs();
    close_since_ns_ =
        std::max(close_since_ns_, close_watch_.TakenSince(look, now_ns));
    give_up = SaturatingAdd(close_since_ns_,
                            ToNs(options_.limits.close_timeout)) <= now_ns;
    if (!give_up) SetCloseTimer();
  } catch (const std::bad_alloc&) {
    connection_->Close(flare::Status(ENOMEM));  // [WS6]
  }
  if (mine != 0) fiber::KillTimer(mine);
  if (give_up) {
    connection_->Close(flare::Status::Lenient(
        ETIMEDOUT, "the peer doesn't answer a close frame (close_timeout)"));
  }
}

void WebSocketSession::SetCloseTimer() {
  if (timers_over_ || close_timer_ != 0) return;
  // Looks at an answer that is awaited come more often, so that its time is
  // known well.
  const std::int64_t patience_ns =
      std::max(ToNs(options_.limits.close_timeout) / (input_over_ ? 1 : 10),
               kLeastDelayNs);
  close_timer_ =
      fiber::SetTimer(ToTimePoint(SaturatingAdd(NowNs(), patience_ns)),
                      [self = RefPtr<WebSocketSession>(ref_ptr, this)] {
                        self->OnCloseTimer();
                      });
}

void WebSocketSession::StopTimers() {
  fiber::TimerId timer = 0;
  fiber::TimerId close_timer = 0;
  {
    ScopedLock guard(lock_);
    timers_over_ = true;
    timer = std::exchange(timer_, 0);
    close_timer = std::exchange(close_timer_, 0);
  }
  if (timer != 0) fiber::KillTimer(timer);  // [WS5]
  if (close_timer != 0) fiber::KillTimer(close_timer);
}

}  // namespace flare::rpc
