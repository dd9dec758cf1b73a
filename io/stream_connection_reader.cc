// The reader's role of a StreamConnection: connect, read, deliver, finish. See
// readiness.cc for how the role is taken and left, stream_connection.cc for the
// life cycle [SC...].
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <new>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/read_space.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/long_task.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/epoll_poller.h"
#include "flare/io/socket_calls.h"
#include "flare/io/socket_options.h"
#include "flare/io/stream_connection.h"

namespace flare::io {
namespace {

// Read budget of one run, before others get their turn: other connections, and
// the calls that it has cut.
constexpr std::size_t kReadBudget = 256 * 1024;
// Read budget of one run while the group serves a single connection: its first
// replies are to leave soon, or client and server alternate, each waiting for
// all that the other has. At least this many bytes, or this many messages as
// large as the one that is incomplete
// (docs/decisions/0032-one-connection-alone.md).
constexpr std::size_t kBudgetOfOne = 16 * 1024;
constexpr std::size_t kMessagesOfOne = 4;

// A transport has taken at most so much off the socket without having told us.
constexpr std::size_t kHeldByTransport = 32 * 1024;

// Is the socket beyond both reading and writing? Asked of the kernel, since an
// event that says so may still be on its way.
bool HasHungUp(int fd) {
  pollfd state{.fd = fd, .events = 0, .revents = 0};
  return ::poll(&state, 1, 0) == 1 &&
         (state.revents & (POLLHUP | POLLERR)) != 0;
}

// Bytes that a read would get now; 0 also if that can't be told.
std::size_t UnreadBytes(int fd) {
  int bytes = 0;
  return ::ioctl(fd, FIONREAD, &bytes) == 0 && bytes > 0
             ? static_cast<std::size_t>(bytes)
             : 0;
}

}  // namespace

// Without memory, ours or the handler's, the connection ends. That is looked at
// here, around all that is read, so that nothing else has to.
void StreamConnection::RunReader() {
  for (;;) {
    try {
      if (ReadInTurn()) return;
    } catch (const std::bad_alloc&) {
      // Still the reader, which reads no more.
      refused_ = true;
      Close(Status(ENOMEM));
    }
  }
}

// True: the role is left, or goes on in another task.
bool StreamConnection::ReadInTurn() {
  std::size_t taken = 0;
  std::size_t message = 0;  // The largest that was incomplete.
  for (;;) {
    switch (reader_.Begin()) {
      case Readiness::Turn::kLeft:
        return true;
      case Readiness::Turn::kStopped:
        FinishReading();
        return true;
      case Readiness::Turn::kBroken:
        CloseByPeer(/*gone=*/true);
        continue;
      case Readiness::Turn::kRead:
        break;
    }
    // After a Close() somewhere below, Finish() refuses and Begin() says so; or
    // will do, if it was somebody else's that hasn't come to that yet.
    if (refused_) {
      if (reader_.Finish()) return true;
      continue;
    }
    if (DeliverLeft()) continue;
    std::size_t bytes = 0;
    // acquire: pairs with the release in EndInput; before the read, so that it
    // gets all that had arrived when that was called.
    const bool last = end_asked_.load(std::memory_order_acquire);
    const Opening opening = FinishConnecting();
    if (opening == Opening::kAwaitsTurn) return true;
    // So that no read follows for an edge whose cause the first one will see.
    if (opening == Opening::kDoneNow) continue;
    const bool drained = opening == Opening::kWaiting ||
                         ReadOnce(&bytes) == ReadOutcome::kDrained;
    if (last && !drained) NoteLeftToEnd(bytes);
    // relaxed: as in PauseReading. The rest of the turn comes after the pause.
    if (refused_ || left_over_.load(std::memory_order_relaxed)) continue;
    if (last && !end_told_ && (drained || *left_to_end_ == 0)) TellEndOfInput();
    if (drained && reader_.Finish()) return true;
    taken += bytes;
    message = std::max(message, need_);
    if (taken >= kBudgetOfOne && taken >= ReadBudget(message)) {
      fiber::Submit(&read_task_);  // Still the reader.
      return true;
    }
  }
}

// After EndInput(), and after a read of `bytes` off the socket that has left
// some.
void StreamConnection::NoteLeftToEnd(std::size_t bytes) {
  if (left_to_end_) {
    *left_to_end_ -= std::min(*left_to_end_, bytes);
  } else {
    left_to_end_ =
        UnreadBytes(fd()) + (transport_ != nullptr ? kHeldByTransport : 0);
  }
}

std::size_t StreamConnection::ReadBudget(std::size_t message) const {
  if (!EpollPoller::OfGroup(group_)->serves_one()) return kReadBudget;
  return std::clamp(kMessagesOfOne * message, kBudgetOfOne, kReadBudget);
}

// After a pause: gives OnData the bytes it left. True: it has had something,
// and may have paused again, or closed.
bool StreamConnection::DeliverLeft() {
  // relaxed, all: see PauseReading.
  if (!left_over_.load(std::memory_order_relaxed)) [[likely]]
    return false;
  left_over_.store(false, std::memory_order_relaxed);
  if (input_.empty()) return false;
  Deliver();
  return true;
}

StreamConnection::Opening StreamConnection::FinishConnecting() {
  // relaxed: only this role changes it once it has run.
  if (!opening_.load(std::memory_order_relaxed)) return Opening::kDone;
  if (!accepted_ && !connected_ && !FinishTcpConnecting()) {
    return Opening::kWaiting;
  }
  if (transport_ != nullptr) {
    if (const Opening o = ShakeHands(); o != Opening::kDone) return o;
  }
  if (!accepted_) handler_->OnConnected();
  OpenOutput();
  return Opening::kDoneNow;
}

// kDone: the transport is ready for data.
StreamConnection::Opening StreamConnection::ShakeHands() {
  const bool takes_turns = handshake_ != nullptr && handshake_->all != nullptr;
  if (takes_turns && !handshake_->has_turn) {
    handshake_->has_turn = true;  // When this or another task has the role.
    if (!handshake_->all->BeginStep(handshake_.get()) ||
        fiber::SubmitLast(&read_task_)) {
      return Opening::kAwaitsTurn;  // Another task may have the role already.
    }
  }
  Transport::Progress progress = transport_->Handshake();
  // The last edge may be behind us: read on until the end.
  if (progress == Transport::Progress::kWaiting && reader_.hang_up()) {
    progress = transport_->Handshake();
  }
  if (takes_turns) {
    handshake_->has_turn = false;
    handshake_->all->EndStep();
  }
  if (progress == Transport::Progress::kWaiting) return Opening::kWaiting;
  EndHandshake();
  if (progress == Transport::Progress::kDone) return Opening::kDone;
  const Status why = transport_->failure();
  Close(Status(why.code(), (accepted_ ? "handshake with " : "connect to ") +
                               remote_.ToString() + ": " + why.message()));
  return Opening::kWaiting;
}

bool StreamConnection::FinishTcpConnecting() {
  const int error = TakeSocketError(fd());
  if (error != 0) {
    Close(StatusFromErrno(error, "connect to " + remote_.ToString()));
    return false;
  }
  // In place of remote_, which may be the wildcard address.
  const Endpoint peer = GetRemoteEndpoint(fd());
  if (peer.empty()) return false;  // Still in progress.
  connected_ = true;
  if (peer.family() != AF_UNIX && GetLocalEndpoint(fd()) == peer) {
    // Connecting to a free port from which the kernel picks our own end: two
    // halves of one socket shake hands. Nobody listens there.
    Close(StatusFromErrno(ECONNREFUSED, "connect to " + remote_.ToString()));
    return false;
  }
  SetTcpNoDelay(fd());
  return true;
}

StreamConnection::ReadOutcome StreamConnection::ReadOnce(std::size_t* bytes) {
  // relaxed: written by this role only.
  if (input_ended_.load(std::memory_order_relaxed)) return HandleEndOfInput();
  bool filled;
  {
    ReadSpace space(need_ > input_.size() ? need_ - input_.size() : 0);
    const ssize_t n =
        transport_ == nullptr
            ? ReceivePieces(fd(), space.iovecs(), space.iovec_count())
            : transport_->Receive(space.iovecs(), space.iovec_count());
    if (transport_ != nullptr) *bytes = transport_->taken();
    if (n == 0) return HandleEndOfInput();
    if (n < 0) {
      // In place of `errno`: the handler may have moved this loop to another
      // thread.
      const int error = fiber::GetLastError();
      if (error == EINTR) return ReadOutcome::kMore;
      if (error != EAGAIN && transport_ != nullptr) {
        const Status why = transport_->failure();
        Close(Status(why.code(),
                     "read from " + remote_.ToString() + ": " + why.message()));
        return ReadOutcome::kDrained;
      }
      if (error != EAGAIN) {
        Close(StatusFromErrno(error, "read from " + remote_.ToString()));
        return ReadOutcome::kDrained;
      }
      // Sending has failed, and all that the peer had sent before is read
      // [SC7].
      const int ended = output_ended_.load(std::memory_order_seq_cst);
      if (ended > 0) CloseEnded(ended);
      return ReadOutcome::kDrained;
    }
    const auto received = static_cast<std::size_t>(n);
    if (transport_ == nullptr) *bytes = received;
    filled = received == space.capacity();
    input_.Append(space.Commit(received));
  }
  // relaxed: a timestamp on its own.
  last_received_ns_.store(NowNs(), std::memory_order_relaxed);
  Deliver();
  // A short read has emptied the socket: later input makes a new edge. If the
  // peer has hung up its last edge may be behind us already: read on until the
  // end.
  return filled || reader_.hang_up() ||
                 (transport_ != nullptr && transport_->HasMore())
             ? ReadOutcome::kMore
             : ReadOutcome::kDrained;
}

void StreamConnection::Deliver() {
  std::string error;
  need_ = 0;
  if (!handler_->OnData(input_, &need_, &error)) {
    refused_ = true;
    Close(Status(EPROTO, "bad input from " + remote_.ToString() + ": " +
                             (error.empty() ? "not understood" : error)));
    return;
  }
  // relaxed: see PauseReading. The rest may be any number of messages.
  if (left_over_.load(std::memory_order_relaxed)) return;
  const std::size_t wanted = std::max(need_, input_.size());
  if (wanted > options_.max_input) {
    Close(Status(EMSGSIZE, "a message from " + remote_.ToString() +
                               " is too large: more than " +
                               std::to_string(options_.max_input) + " bytes (" +
                               std::to_string(wanted) + ")"));
    return;
  }
  if (!input_.empty()) compaction_.AfterAppend(&input_);
}

StreamConnection::ReadOutcome StreamConnection::HandleEndOfInput() {
  // seq_cst, both: pair with EndOutput [SC7]. relaxed: written here only.
  const bool first = !input_ended_.load(std::memory_order_relaxed);
  input_ended_.store(true, std::memory_order_seq_cst);
  int ended = output_ended_.load(std::memory_order_seq_cst);
  bool gone = false;
  if (ended < 0) {
    // Asked before output_ended_ is, again: if our own end has made the socket
    // hang up, that was set first.
    gone = HasHungUp(fd());
    ended = output_ended_.load(std::memory_order_seq_cst);
  }
  if (ended >= 0) {
    CloseEnded(ended);
    return ReadOutcome::kDrained;
  }
  // relaxed: a look; a later step ends the output.
  const bool flushing = output_refused_.load(std::memory_order_relaxed);
  if (!gone && (!first || flushing || end_told_)) return ReadOutcome::kDrained;
  if (!gone && handler_->OnEndOfInput()) return ReadOutcome::kDrained;
  CloseByPeer(gone);
  return ReadOutcome::kDrained;
}

void StreamConnection::CloseByPeer(bool gone) {
  const std::string peer = remote_.ToString();
  int error = gone ? TakeSocketError(fd()) : 0;
  if (gone && error == 0 && remote_.family() != AF_UNIX) {
    // Ours had not ended: it was a reset, which the flusher has been told of.
    error = ECONNRESET;
  }
  if (error != 0) {
    Close(StatusFromErrno(error, "connection to " + peer));
  } else if (!accepted_ && transport_ != nullptr && transport_->cut_short()) {
    Close(Status(ECONNRESET,
                 "the peer " + peer +
                     " ended the connection without TLS's close_notify: its "
                     "data may be cut short"));
  } else if (!input_.empty()) {
    Close(Status(ECONNRESET, "the peer " + peer +
                                 " closed the connection in the middle of a "
                                 "message, after " +
                                 std::to_string(input_.size()) + " bytes"));
  } else {
    Close(Status(ESHUTDOWN, "the peer " + peer + " closed the connection"));
  }
}

// All that had arrived when EndInput() was called has been delivered.
void StreamConnection::TellEndOfInput() {
  end_told_ = true;
  input_.Clear();
  // relaxed: as in FinishConnecting.
  if (transport_ != nullptr && opening_.load(std::memory_order_relaxed)) {
    Close(Status(ECANCELED, "closed within its handshake"));
    return;
  }
  // relaxed, both: as in HandleEndOfInput, which may have told it already.
  if (input_ended_.load(std::memory_order_relaxed) ||
      output_refused_.load(std::memory_order_relaxed)) {
    return;
  }
  if (handler_->OnEndOfInput()) return;
  Close(Status(ECANCELED, "closed: no more input is wanted"));
}

// The reader's last act [SC4].
void StreamConnection::FinishReading() noexcept {
  Status why;
  bool lingering;
  {
    ScopedLock guard(lifecycle_lock_);
    why = close_reason_;
    lingering = flushing_;
  }
  if (lingering && fiber::CancelTimer(&linger_)) Deref();  // [SC6]
  EndHandshake();
  input_.Clear();
  // relaxed: only this role changes it once Start() has run or can't any more.
  const bool opening = opening_.load(std::memory_order_relaxed);
  handler_->OnClosed(why);
  Leave(opening ? 2 : 1);  // [SC2]
}

}  // namespace flare::io
