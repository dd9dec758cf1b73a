// Rules:
//  [UC1] The users are the owner (from creation until it has dropped the
//        connection), the stream (until OnClosed has run) and the calls. Each
//        leaves with RemoveUser(), after its last use.
//  [UC2] OnClosed first writes the reason, then tells the owner, so that no new
//        call finds the connection, then closes the table. Calls that came in
//        between are ended by the closing, or refused by Insert(), and find the
//        reason. So every call that Insert() has accepted is ended.
//  [UC3] The timer is armed before others know the connection and cancelled by
//        OnConnected or OnClosed, which wait for its callback. So that has a
//        stream, and the callbacks are the only ones to touch the timer.
//  [UC4] The socket is open from OnConnected until OnClosed has written the
//        reason; so under lock_, while there is none, it may be used.
//  [UC5] When the server takes no more calls the reader stores through_, then
//        looks whether a call or a stream is left. One that ends otherwise than
//        by the reader leaves its table, then looks at through_. These are in
//        one total order (streams: under their table's lock), so that one of
//        the two sees that none is left, and closes the connection.
//  [UC6] A one-way call that waits for the connection to be established is in
//        one_way_, under lock_. The owner calls SetEstablished() before they
//        are taken out; so one that comes later sees that, by lock_.
#include "flare/rpc/client/client_connection.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/object_pool.h"
#include "flare/io/socket_options.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/client/pending_call.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {
namespace {

// A server that acknowledges nothing for so long has vanished. But one that
// takes nothing for so long may just be busy with the calls it has, and the
// kernel doesn't tell these apart. So it is given more where calls are given
// more, as these may keep it busy.
constexpr std::int64_t kPeerTimeoutNs = 10'000'000'000;
// Beyond this the kernel's own limit holds, which is of about that length, and
// only for servers that acknowledge nothing.
constexpr std::int64_t kMaxPeerTimeoutNs = 90 * kPeerTimeoutNs;

// When the kernel asks a server that owes no acknowledgement. Several questions
// fit into the shortest timeout, since one may get lost.
constexpr std::chrono::seconds kAskAfter{5};
constexpr std::chrono::seconds kAskAgainAfter{2};

// Frames of streams, and answers to the server's own, that are queued while the
// output is full: so many small ones, or 64 MiB of large ones. Messages wait
// for room before, or are few. So it is most likely a server that sends and
// doesn't read which makes for that much.
constexpr std::uint32_t kMaxFramesWhileFull = 1 << 20;

// Answers to all frames of one read come as one write. A large message doesn't
// count in full: it may have found room that others took meanwhile.
std::uint32_t FramesOf(std::size_t bytes) {
  constexpr std::size_t kFrame = 64;
  constexpr std::size_t kMost = 256 << 10;
  return static_cast<std::uint32_t>(1 + std::min(bytes, kMost) / kFrame);
}

// When frames that a protocol has put off are sent, if nothing sends them
// before: FloodGuard counts by the second.
constexpr std::chrono::seconds kSendLaterAfter{1};

// Why it is closed if the server takes no more calls on it.
constexpr char kThrough[] = "the server ended it with its last reply";
// Why a server that never answered anything may have closed it.
constexpr char kMaybeTls[] = " (does it expect TLS?)";

io::StreamConnection::Options StreamOptions(std::size_t max_packet_size) {
  io::StreamConnection::Options options;
  // The protocol refuses larger packets by their announced size; this is for
  // those that announce nothing (endless header lines), so it may be generous.
  options.max_input = max_packet_size + 65536;
  // Calls look themselves (ClientCall::Send). Frames of streams have no second
  // chance: a credit or an end that is lost leaves the server waiting.
  // WriteSoon bounds them.
  options.refuse_writes = false;
  return options;
}

}  // namespace

ClientConnection::ClientConnection(std::shared_ptr<ConnectionOwner> owner,
                                   const ConnectionSettings& settings,
                                   std::unique_ptr<ClientProtocol> protocol,
                                   Options options)
    : fiber::Timer(&ClientConnection::OnConnectTimeout),
      kind_(options.kind),
      owner_(std::move(owner)),
      settings_(settings),
      protocol_(std::move(protocol)),
      peer_timeout_ns_(kPeerTimeoutNs),
      stream_(
          io::StreamConnection::Connect(options.peer, options.group, this,
                                        StreamOptions(settings.max_packet_size),
                                        std::move(options.transport))) {
  protocol_->SetOutput(this);
  ConnectionBorn();
}

ClientConnection::~ClientConnection() {
  if (incoming_ != nullptr) {
    incoming_->Clear();
    ObjectPool<InboundResponse>::Put(incoming_);
  }
}

void ClientConnection::SetStart(std::int64_t at_ns) {
  // [UC3]
  fiber::ArmTimer(this, SaturatingAdd(at_ns, ToNs(settings().connect_timeout)));
}

flare::Status ClientConnection::LastFailure() const {
  return owner_->LastFailure();
}

void ClientConnection::ReturnToOwner(bool keep) { owner_->Return(this, keep); }

void ClientConnection::OnConnectTimeout(fiber::Timer* timer) {
  auto* const self = static_cast<ClientConnection*>(timer);
  self->stream_->Close(flare::Status(
      ETIMEDOUT,
      "connect to " + self->peer().ToString() + ": no answer within " +
          std::to_string(ToNs(self->settings().connect_timeout) / kNsPerMs) +
          " ms"));
}

void ClientConnection::Close(const flare::Status& why) {
  {
    ScopedLock guard(lock_);
    if (close_reason_.ok()) close_reason_ = why;
  }
  stream_->Close(why);
}

flare::Status ClientConnection::close_reason() const {
  ScopedLock guard(lock_);
  return close_reason_;
}

bool ClientConnection::WriteSoon(Buffer&& bytes) {
  // relaxed, all: a count on its own, which need not be exact.
  if (!OutputIsFull()) [[likely]] {
    if (frames_while_full_.load(std::memory_order_relaxed) != 0) {
      frames_while_full_.store(0, std::memory_order_relaxed);
    }
  } else if (frames_while_full_.fetch_add(FramesOf(bytes.size()),
                                          std::memory_order_relaxed) >=
             kMaxFramesWhileFull) {
    stream_->Close(flare::Status(
        ENOBUFS, "much is to be sent, and the server takes none of it"));
    return false;
  }
  return stream_->Write(std::move(bytes)) == io::WriteResult::kOk;
}

// The timer is a user. Without memory for it the protocol asks again with its
// next call or input. The delayed frames may end the last calls [UC5]. No
// exception may leave a timer's callback.
void ClientConnection::SendLater() {
  struct Leave {
    void operator()(ClientConnection* user) const { user->RemoveUser(); }
  };
  // relaxed, both: the protocol has a lock of its own.
  if (sends_later_.exchange(true, std::memory_order_relaxed)) return;
  AddUser();
  std::unique_ptr<ClientConnection, Leave> user(this);
  try {
    fiber::SetDetachedTimer(std::chrono::steady_clock::now() + kSendLaterAfter,
                            [user = std::move(user)] {
                              user->sends_later_.store(
                                  false, std::memory_order_relaxed);
                              try {
                                user->protocol_->SendDelayed();
                                user->CloseIfThrough();
                              } catch (const std::bad_alloc&) {
                                user->Close(flare::Status(STATUS_IO_ERROR));
                              }
                            });
  } catch (const std::bad_alloc&) {
    sends_later_.store(false, std::memory_order_relaxed);
  }
}

void ClientConnection::OnConnected() {
  if (!fiber::CancelTimer(this)) return;  // [UC3] Too late: it is closing.
  connected_ = true;
  io::SetKeepAlive(stream_->fd(), kAskAfter, kAskAgainAfter);
  {
    ScopedLock guard(lock_);
    has_socket_ = true;
    ApplyPeerTimeout();
  }
  owner_->OnConnected(this);
  std::vector<std::uint32_t> one_way;
  {
    ScopedLock guard(lock_);
    one_way.swap(one_way_);  // [UC6]
  }
  for (const std::uint32_t id : one_way) {
    if (PendingCall* const call = calls_.Take(id)) call->OnSent();
  }
}

void ClientConnection::EndOneWay(std::uint32_t id) {
  {
    ScopedLock guard(lock_);
    if (!established()) return one_way_.push_back(id);  // [UC6]
  }
  if (PendingCall* const call = calls_.Take(id)) call->OnSent();
}

void ClientConnection::RaisePeerTimeout(std::int64_t wait_ns) {
  const std::int64_t timeout =
      wait_ns < kMaxPeerTimeoutNs
          ? (wait_ns / kPeerTimeoutNs + 1) * kPeerTimeoutNs
          : std::numeric_limits<std::int64_t>::max();
  ScopedLock guard(lock_);
  // relaxed, both: written under lock_.
  if (timeout <= peer_timeout_ns_.load(std::memory_order_relaxed)) return;
  peer_timeout_ns_.store(timeout, std::memory_order_relaxed);
  ApplyPeerTimeout();
}

void ClientConnection::ApplyPeerTimeout() {
  if (!has_socket_ || !close_reason_.ok()) return;  // [UC4]
  // relaxed: written under lock_.
  const std::int64_t timeout = peer_timeout_ns_.load(std::memory_order_relaxed);
  const bool limited = timeout <= kMaxPeerTimeoutNs;
  io::SetTcpUserTimeout(stream_->fd(),
                        limited ? static_cast<int>(timeout / kNsPerMs) : 0);
}

bool ClientConnection::OnData(Buffer& in, std::size_t* need,
                              std::string* error) {
  fiber::TaskList ready;
  bool ok;
  try {
    ok = TakeReplies(in, need, error, &ready);
  } catch (const std::bad_alloc&) {
    fiber::SubmitAll(std::move(ready));  // These have ended.
    throw;                               // The stream closes.
  }
  fiber::SubmitAll(std::move(ready));
  // Others may have been answered before the server decided so, in whatever
  // order: their replies, or the end, are awaited.
  if (ok && last_reply_ && HasNoCalls()) {
    *error = kThrough;
    return false;
  }
  return ok;
}

// Takes all complete replies off `in`. False: they are garbage from here on.
bool ClientConnection::TakeReplies(Buffer& in, std::size_t* need,
                                   std::string* error, fiber::TaskList* ready) {
  const std::int64_t now = NowNs();
  for (bool began = false;; began = true) {
    if (hold_.held()) [[unlikely]] {
      // It isn't the server that makes it wait.
      NoteIncomplete(/*within=*/false, /*begins=*/began, now);
      hold_.Pause(stream_.Get());
      return true;
    }
    if (incoming_ == nullptr) incoming_ = ObjectPool<InboundResponse>::Get();
    switch (protocol_->Cut(in, incoming_, need, error)) {
      case CutResult::kMessage:
        break;
      case CutResult::kHandled:
        OnHandled();
        continue;
      case CutResult::kNeedMore:
      case CutResult::kUnsure:
        NoteIncomplete(
            /*within=*/!in.empty() || (!began && protocol_->WithinMessage()),
            /*begins=*/began, now);
        return true;
      case CutResult::kNotMine:
      case CutResult::kError:
        return false;
    }
    const ParseResult parsed = protocol_->Parse(incoming_);
    if (parsed != ParseResult::kOk) [[unlikely]] {
      if (parsed == ParseResult::kClose) {
        error->assign(incoming_->description);
        return false;
      }
      incoming_->unreadable = true;
    }
    if (!Dispatch(now, error, ready)) return false;
  }
}

void ClientConnection::NoteIncomplete(bool within, bool begins,
                                      std::int64_t now_ns) {
  // relaxed, both: there is one writer, and readers want no more than a time.
  const std::int64_t before = message_began_ns_.load(std::memory_order_relaxed);
  if (within ? !begins && before != 0 : before == 0) return;
  message_began_ns_.store(within ? now_ns : 0, std::memory_order_relaxed);
}

void ClientConnection::OnTimeout(std::int64_t sent_ns) {
  // relaxed: see NoteIncomplete.
  const std::int64_t began = message_began_ns_.load(std::memory_order_relaxed);
  if (began == 0 || began > sent_ns) return;
  owner_->Retire(this);
  if (!calls_.Empty()) return;  // Others wait for it, too.
  stream_->Close(flare::Status(EPROTO, "it is stuck within a message"));
}

void ClientConnection::KeepAlive(std::int64_t now_ns) {
  const std::int64_t patience = ToNs(settings().keep_alive);
  if (asked_at_ns_ > stream_->last_received_ns()) {
    if (now_ns - asked_at_ns_ < patience) return;
    return stream_->Close(flare::Status(
        ETIMEDOUT, "keep-alive: nothing has come for " +
                       std::to_string(patience / kNsPerMs) +
                       " ms since the server was asked whether it is there"));
  }
  asked_at_ns_ = 0;
  if (now_ns - last_activity_ns() < patience) return;
  if (protocol_->Ping()) asked_at_ns_ = now_ns;
}

void ClientConnection::CloseIfThrough() {
  // seq_cst: behind the store in CallTable::TakeFrom; pairs with the store in
  // Dispatch [UC5].
  if (!through_.load(std::memory_order_seq_cst) || !HasNoCalls()) return;
  stream_->Close(flare::Status::Lenient(EPROTO, kThrough));
}

void ClientConnection::Retire() { owner_->Retire(this); }

// A message of a stream.
void ClientConnection::OnHandled() {
  if (!proven_) {
    proven_ = true;
    owner_->OnProven();
  }
  if (!streams_can_share_ && protocol_->streams_can_share()) {
    streams_can_share_ = true;
    owner_->OnStreamsCanShare();
  }
}

// Gives the received response to the call that waits for it. False: the server
// sends unsolicited input without end.
bool ClientConnection::Dispatch(std::int64_t now_ns, std::string* error,
                                fiber::TaskList* ready) {
  if (incoming_->last_on_connection && !last_reply_) {
    last_reply_ = true;
    owner_->Retire(this);
    // After that: calls that are refused find another connection.
    calls_.StopInserting();
    // seq_cst: before the loads in HasNoCalls() [UC5].
    through_.store(true, std::memory_order_seq_cst);
  }
  if (!proven_ && !incoming_->is_notice) {
    proven_ = true;
    owner_->OnProven();
  }
  replies_ += incoming_->is_notice ? 0 : 1;
  PendingCall* const call = calls_.Take(incoming_->correlation_id);
  if (call != nullptr) {
    call->OnReply(std::exchange(incoming_, nullptr), now_ns, ready);
    return true;
  }
  if (!incoming_->is_notice) {
    CountClientEvent(ClientEvent::kLateReply);
    // There are late replies to calls that nobody waits for any more. More
    // replies than calls there needn't be.
    const auto beyond =
        static_cast<std::int32_t>(replies_ - calls_.ids_given());
    if (beyond > 0 && !unasked_.Admit(now_ns)) {
      *error = "replies without end that nobody asked for";
      return false;
    }
  } else if (!incoming_->body.empty() && !OutputIsFull()) {
    // If it is full the server doesn't read, nor will it miss this.
    static_cast<void>(Send(std::move(incoming_->body)));
  }
  incoming_->Clear();
  return true;
}

void ClientConnection::OnClosed(const flare::Status& why) {
  // relaxed: a hint. Each of the calls that end below would look at all slots
  // whether it is the last one.
  through_.store(false, std::memory_order_relaxed);
  if (!connected_) fiber::CancelTimer(this);  // [UC3]
  const flare::Status reason = DecideCloseReason(why);
  owner_->OnClosed(this, proven_ ? nullptr : &reason);  // [UC2]
  protocol_->OnClosed(reason);
  fiber::TaskList ready;
  calls_.Close(
      [&](PendingCall* call) { call->OnConnectionLost(reason, &ready); });
  fiber::SubmitAll(std::move(ready));
  ConnectionGone();
  RemoveUser();  // [UC1]
}

// Sets close_reason_, if Close() hasn't, and counts the end; returns it.
flare::Status ClientConnection::DecideCloseReason(const flare::Status& why) {
  // ESHUTDOWN: in good order, but without a word.
  const bool maybe_tls = connected_ && why.code() == ESHUTDOWN &&
                         settings().tls == nullptr && !owner_->proven();
  ScopedLock guard(lock_);
  if (!close_reason_.ok()) return close_reason_;  // It was our own Close().
  CountClientEvent(connected_ ? ClientEvent::kBroken : ClientEvent::kFailed);
  const int code = connected_ ? STATUS_IO_ERROR : STATUS_FAIL_TO_CONNECT;
  close_reason_ = flare::Status(code);
  if (why.code() == ENOMEM && why.message().empty()) return close_reason_;
  try {
    close_reason_ =
        flare::Status(code, connected_ ? "connection to " + peer().ToString() +
                                             " broke: " + why.message() +
                                             (maybe_tls ? kMaybeTls : "")
                                       : why.message());
  } catch (const std::bad_alloc&) {  // Without a text.
  }
  return close_reason_;
}

}  // namespace flare::rpc
