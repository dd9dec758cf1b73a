// Life cycle. Three roles exist, each taken by at most one thread at a time:
// the reader (Readiness), the flusher (OutputList), the closer.
//
//  [SC1] The first Close() is the closer. It ends the output list and stops the
//        reader; each role finds that out by its own next step, or is scheduled
//        for it, and then leaves for good. A flusher that nobody was is left by
//        the closer. One that has ended our direction ends the list itself and
//        leaves [OL5].
//  [SC2] Until Start() of an accepted, the establishment of an outgoing
//        connection, or the end of a transport's handshake, the flusher's role
//        is held by the opening: by Start(), or by the reader, which leaves it
//        if it never got that far. So nothing is sent early. The reader's role
//        is held until Start() has succeeded: then edges, or EndInput(), may
//        have come, and it is scheduled for them. Else by the closer. So no
//        task of an unstarted connection is queued but its last one.
//  [SC3] From Start() or Close() on, whichever is first, the connection holds a
//        reference to itself. The last role to leave closes the file descriptor
//        and drops that reference. So no system call meets a closed or reused
//        number, and no task a dead object.
//  [SC4] OnClosed runs in the reader's role after Stop(): after the last OnData
//        and once. The handler is not touched afterwards.
//  [SC5] The poller is told to retire the descriptor by the closer, which is
//        still in its role: before the descriptor is closed.
//  [SC6] The linger timer holds a reference of its own. It is armed only under
//        lifecycle_lock_ with closing_ unset, and cancelled by the reader when
//        it finishes: by then closing_ is set.
//  [SC7] Our direction has ended (StreamOutput::ended()) and the peer's has
//        (input_ended_): the side that sets the second of these closes. Each
//        side sets its own, then reads the other's, all seq_cst.
//  [SC8] The timer of a transport's handshake holds a reference of its own. It
//        is armed by Start(), before the reader can run, and cancelled by the
//        reader, when the handshake is done or when it finishes.
//  [SC9] While a handshake awaits its turn (handshakes.h) no task has the
//        reader's role: OnTurn() hands it to one. So nothing of the connection
//        ends before that, a Close() included.
//
// Lock order: none is taken inside lifecycle_lock_, except the timer wheel's
// and the run queues' of fiber/, and that of Handshakes.
#include "flare/io/stream_connection.h"

#include <poll.h>
#include <sys/epoll.h>
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
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/fork_guard.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/epoll_poller.h"
#include "flare/io/socket_calls.h"
#include "flare/io/socket_options.h"
#include "glog/logging.h"

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

RefPtr<StreamConnection> StreamConnection::Accepted(
    UniqueFd fd, std::size_t group, StreamHandler* handler,
    const Options& options, Endpoint peer,
    std::unique_ptr<Transport> transport) {
  if (peer.empty()) peer = GetRemoteEndpoint(fd.get());
  return RefPtr<StreamConnection>(
      adopt_ref, new StreamConnection(std::move(fd), group, handler, options,
                                      std::move(peer), std::move(transport)));
}

RefPtr<StreamConnection> StreamConnection::Connect(
    const Endpoint& peer, std::size_t group, StreamHandler* handler,
    const Options& options, std::unique_ptr<Transport> transport) {
  return RefPtr<StreamConnection>(
      adopt_ref, new StreamConnection(UniqueFd(), group, handler, options, peer,
                                      std::move(transport)));
}

StreamConnection::StreamConnection(UniqueFd fd, std::size_t group,
                                   StreamHandler* handler,
                                   const Options& options, Endpoint remote,
                                   std::unique_ptr<Transport> transport)
    : StreamSocket(std::move(fd), group, std::move(remote),
                   std::move(transport)),
      handler_(handler),
      options_(options),
      accepted_(this->fd() >= 0),
      last_received_ns_(NowNs()),
      output_(this, this,
              {.max_bytes = options.max_output,
               .refuse_writes = options.refuse_writes,
               .budget = options.budget.Get()}) {
  read_task_.connection = this;
  read_task_.run = &StreamConnection::ReadTask;
  linger_.connection = this;
  linger_.set_callback(&StreamConnection::OnLinger);
}

StreamConnection::~StreamConnection() = default;

void StreamConnection::Start() {
  Status failure;
  {
    ScopedLock guard(lifecycle_lock_);
    DCHECK(!started_) << "started twice";
    if (closing_) return;
    started_ = true;
    Ref();  // [SC3]
    if (fd() < 0) {
      failure = BeginConnecting();
    } else if (transport() == nullptr) {
      OpenOutput();  // [SC2]
    } else {
      transport()->Attach(fd());
      handshake_ = TransportHandshake::Begin(this, &read_task_);
    }
    if (failure.ok()) {
      failure = EpollPoller::OfGroup(group())->Register(this);
      registered_ = failure.ok();
    }
    if (registered_ && !reader_.Finish()) {
      fiber::SubmitTo(group(), &read_task_);  // [SC2]
    }
  }
  if (!failure.ok()) Close(std::move(failure));
}

Status StreamConnection::BeginConnecting() {
  auto socket = CreateStreamSocket(remote_endpoint().family());
  if (!socket) {
    return Status(socket.error().code(), "connect to " +
                                             remote_endpoint().ToString() +
                                             ": " + socket.error().message());
  }
  AdoptFd(std::move(*socket));
  SetUrgentInline(fd());
  if (transport() != nullptr) transport()->Attach(fd());
  sockaddr_storage address;
  const socklen_t length = remote_endpoint().ToSockaddr(&address);
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  // An interrupted connect goes on by itself, like one in progress.
  if (::connect(fd(), generic, length) != 0 && errno != EINPROGRESS &&
      errno != EINTR) {
    return StatusFromErrno(errno, "connect to " + remote_endpoint().ToString());
  }
  return Status();
}

void StreamConnection::EndHandshake() noexcept {
  if (handshake_ == nullptr) return;
  handshake_->End();
  handshake_ = nullptr;
}

// Ends the opening's hold on the flusher's role [SC2].
void StreamConnection::OpenOutput() {
  // relaxed: the poller may see it late, and then wakes the reader in vain.
  opening_.store(false, std::memory_order_relaxed);
  output_.Open();
}

void StreamConnection::OnEvents(std::uint32_t events, fiber::TaskList* ready) {
  constexpr std::uint32_t kGone = EPOLLHUP | EPOLLERR;
  // A read stops short at urgent data, with more behind it.
  constexpr std::uint32_t kShort = EPOLLRDHUP | EPOLLPRI;
  std::uint32_t input = EPOLLIN | kShort | kGone;
  // relaxed: see OpenOutput. An accepted socket takes output from the start, as
  // its first event says: no step of a handshake for that.
  if (opening_.load(std::memory_order_relaxed) &&
      (std::exchange(had_event_, true) || !accepted_)) {
    input |= EPOLLOUT;
  }
  if ((events & input) != 0 &&
      reader_.Signal((events & (kShort | kGone)) != 0,
                     options_.ends_when_broken && (events & EPOLLERR) != 0)) {
    ready->PushBack(&read_task_);
  }
  if ((events & (EPOLLOUT | kGone)) != 0 && output_.OnWritable()) {
    ready->PushBack(output_.task());
  }
}

// --- The reader's role ---

void StreamConnection::ReadTask(fiber::Task* task) {
  static_cast<Role*>(task)->connection->RunReader();
}

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
        UnreadBytes(fd()) + (transport() != nullptr ? kHeldByTransport : 0);
  }
}

std::size_t StreamConnection::ReadBudget(std::size_t message) const {
  if (!EpollPoller::OfGroup(group())->serves_one()) return kReadBudget;
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
  if (transport() != nullptr) {
    if (const Opening o = ShakeHands(); o != Opening::kDone) return o;
  }
  if (!accepted_) handler_->OnConnected();
  OpenOutput();
  return Opening::kDoneNow;
}

// kDone: the transport is ready for data.
StreamConnection::Opening StreamConnection::ShakeHands() {
  if (handshake_ != nullptr && !handshake_->BeginStep()) {
    return Opening::kAwaitsTurn;  // Another task may have the role already.
  }
  Transport::Progress progress = transport()->Handshake();
  // The last edge may be behind us: read on until the end.
  if (progress == Transport::Progress::kWaiting && reader_.hang_up()) {
    progress = transport()->Handshake();
  }
  if (handshake_ != nullptr) handshake_->EndStep();
  if (progress == Transport::Progress::kWaiting) return Opening::kWaiting;
  EndHandshake();
  if (progress == Transport::Progress::kDone) return Opening::kDone;
  const Status why = transport()->failure();
  Close(Status(why.code(), (accepted_ ? "handshake with " : "connect to ") +
                               remote_endpoint().ToString() + ": " +
                               why.message()));
  return Opening::kWaiting;
}

bool StreamConnection::FinishTcpConnecting() {
  const int error = TakeSocketError(fd());
  if (error != 0) {
    Close(StatusFromErrno(error, "connect to " + remote_endpoint().ToString()));
    return false;
  }
  // In place of remote_endpoint(), which may be the wildcard address.
  const Endpoint peer = GetRemoteEndpoint(fd());
  if (peer.empty()) return false;  // Still in progress.
  connected_ = true;
  if (peer.family() != AF_UNIX && GetLocalEndpoint(fd()) == peer) {
    // Connecting to a free port from which the kernel picks our own end: two
    // halves of one socket shake hands. Nobody listens there.
    Close(StatusFromErrno(ECONNREFUSED,
                          "connect to " + remote_endpoint().ToString()));
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
        transport() == nullptr
            ? ReceivePieces(fd(), space.iovecs(), space.iovec_count())
            : transport()->Receive(space.iovecs(), space.iovec_count());
    if (transport() != nullptr) *bytes = transport()->taken();
    if (n == 0) return HandleEndOfInput();
    if (n < 0) {
      // In place of `errno`: the handler may have moved this loop to another
      // thread.
      return FailToRead(fiber::GetLastError());
    }
    const auto received = static_cast<std::size_t>(n);
    if (transport() == nullptr) *bytes = received;
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
                 (transport() != nullptr && transport()->HasMore())
             ? ReadOutcome::kMore
             : ReadOutcome::kDrained;
}

StreamConnection::ReadOutcome StreamConnection::FailToRead(int error) {
  if (error == EINTR) return ReadOutcome::kMore;
  if (error == EAGAIN) {
    // Sending has failed, and all that the peer had sent before is read [SC7].
    const int ended = output_.ended();
    if (ended > 0) CloseEnded(ended);
  } else if (transport() != nullptr) {
    const Status why = transport()->failure();
    Close(Status(why.code(), "read from " + remote_endpoint().ToString() +
                                 ": " + why.message()));
  } else {
    Close(ErrorOf(error, "read from"));
  }
  return ReadOutcome::kDrained;
}

void StreamConnection::Deliver() {
  std::string error;
  need_ = 0;
  if (!handler_->OnData(input_, &need_, &error)) {
    refused_ = true;
    Close(Status(EPROTO, "bad input from " + remote_endpoint().ToString() +
                             ": " +
                             (error.empty() ? "not understood" : error)));
    return;
  }
  // relaxed: see PauseReading. The rest may be any number of messages.
  if (left_over_.load(std::memory_order_relaxed)) return;
  const std::size_t wanted = std::max(need_, input_.size());
  if (wanted > options_.max_input) {
    Close(Status(EMSGSIZE, "a message from " + remote_endpoint().ToString() +
                               " is too large: more than " +
                               std::to_string(options_.max_input) + " bytes (" +
                               std::to_string(wanted) + ")"));
    return;
  }
  if (!input_.empty()) compaction_.AfterAppend(&input_);
}

StreamConnection::ReadOutcome StreamConnection::HandleEndOfInput() {
  // seq_cst: pairs with OnOutputEnded [SC7]. relaxed: written here only.
  const bool first = !input_ended_.load(std::memory_order_relaxed);
  input_ended_.store(true, std::memory_order_seq_cst);
  int ended = output_.ended();
  bool gone = false;
  if (ended < 0) {
    // Asked before the output is, again: if our own end has made the socket
    // hang up, ended() was set first.
    gone = HasHungUp(fd());
    ended = output_.ended();
  }
  if (ended >= 0) {
    CloseEnded(ended);
    return ReadOutcome::kDrained;
  }
  // A look; a later step ends the output.
  const bool flushing = output_.refused();
  if (!gone && (!first || flushing || end_told_)) return ReadOutcome::kDrained;
  if (!gone && handler_->OnEndOfInput()) return ReadOutcome::kDrained;
  CloseByPeer(gone);
  return ReadOutcome::kDrained;
}

void StreamConnection::CloseByPeer(bool gone) {
  const std::string peer = remote_endpoint().ToString();
  int error = gone ? TakeSocketError(fd()) : 0;
  if (gone && error == 0 && remote_endpoint().family() != AF_UNIX) {
    // Ours had not ended: it was a reset, which the flusher has been told of.
    error = ECONNRESET;
  }
  if (error != 0) {
    Close(StatusFromErrno(error, "connection to " + peer));
  } else if (!accepted_ && transport() != nullptr && transport()->cut_short()) {
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
  if (transport() != nullptr && opening_.load(std::memory_order_relaxed)) {
    Close(Status(ECANCELED, "closed within its handshake"));
    return;
  }
  // relaxed: as in HandleEndOfInput, which may have told it already.
  if (input_ended_.load(std::memory_order_relaxed) || output_.refused()) {
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

void StreamConnection::PauseReading() {
  // relaxed: set by the reader itself if it matters, that is from OnData.
  left_over_.store(true, std::memory_order_relaxed);
  reader_.Pause();
}

void StreamConnection::PauseReadingForOutput() {
  PauseReading();
  if (!output_.AskForRoom()) ResumeReading();
}

void StreamConnection::ResumeReading() {
  if (reader_.Resume()) fiber::SubmitTo(group(), &read_task_);
}

void StreamConnection::EndInput() {
  // release: pairs with the acquire in RunReader.
  end_asked_.store(true, std::memory_order_release);
  if (reader_.Signal()) fiber::SubmitTo(group(), &read_task_);
}

void StreamConnection::Close(Status why) {
  CloseNow(std::move(why), CloseKind::kClose);
}

void StreamConnection::Reset(Status why) {
  CloseNow(std::move(why), CloseKind::kReset);
}

void StreamConnection::CloseNow(Status why, CloseKind kind) {
  // The parent has the socket, too, and goes on with it.
  if (fiber::IsForkedChild()) [[unlikely]] {
    fiber::DieAsForkedChild();
  }
  bool started;
  bool registered;
  {
    ScopedLock guard(lifecycle_lock_);
    if (closing_) return;
    closing_ = true;
    close_reason_ = why.ok() ? Status(ECANCELED, "closed") : std::move(why);
    started = started_;
    registered = registered_;
    if (!started) Ref();  // [SC3]
  }
  const bool has_flusher = output_.Close();  // [SC1]
  // relaxed: bytes written after ResetOnClose() have come into the list, which
  // publishes it, or never do.
  const bool reset = kind == CloseKind::kReset ||
                     (kind == CloseKind::kClose &&
                      reset_on_close_.load(std::memory_order_relaxed));
  if (started && fd() >= 0) {
    // Output that was dropped must not look complete.
    if (transport() != nullptr && !reset && BufferedOutput() == 0) {
      static_cast<void>(transport()->SendEnd());
    }
    if (reset) SetResetOnClose(fd());
    // relaxed: that of the side which set it, or which saw it [SC7].
    const bool both_ended = kind == CloseKind::kEnded &&
                            input_ended_.load(std::memory_order_relaxed);
    if (!both_ended) ::shutdown(fd(), reset ? SHUT_RD : SHUT_RDWR);
  }
  if (registered) EpollPoller::OfGroup(group())->Retire(this);  // [SC5]
  output_.Wake();
  if (reader_.Stop() || !registered) {  // [SC2]
    fiber::SubmitTo(group(), &read_task_);
  }
  Leave(has_flusher ? 1 : 2);
}

void StreamConnection::CloseAfterFlush() {
  CloseAfterFlush(Status::Lenient(ECANCELED, "closed after the last output"));
}

void StreamConnection::CloseAfterFlush(Status why) {
  {
    ScopedLock guard(lifecycle_lock_);
    if (closing_ || flushing_) return;
    flushing_ = true;
    flush_reason_ = std::move(why);
    NoteTaken();
    Ref();  // The timer's [SC6].
    fiber::ArmTimer(&linger_, SaturatingAdd(NowNs(), options_.linger_ns));
  }
  output_.End();
}

std::int64_t StreamConnection::NoteTaken() {
  taken_.Look(fd(), output_.sent_bytes());
  return std::max(taken_.taken_at_ns(), output_.last_sent_ns());
}

bool StreamConnection::PeerTakesOutput(std::int64_t span_ns) {
  ScopedLock guard(lifecycle_lock_);
  // The descriptor is closed some time after that.
  return !closing_ && SaturatingAdd(NoteTaken(), span_ns) > NowNs();
}

StreamConnection::OutputLook StreamConnection::LookAtOutput() {
  ScopedLock guard(lifecycle_lock_);
  if (closing_) return {.left = true, .taken_ns = 0};  // It is dropped.
  const std::int64_t sent_ns = NoteTaken();
  // The kernel counts memory instead of bytes in a Unix socket, which itself
  // takes no more than its peer does.
  const bool is_unix = remote_endpoint().family() == AF_UNIX;
  return {.left = HasUntakenOutput(),
          .taken_ns = is_unix ? sent_ns : taken_.taken_at_ns()};
}

// Must not touch anything after having let the lock go, if it returns true: the
// connection may be gone [SC6].
bool StreamConnection::ProlongLinger() {
  ScopedLock guard(lifecycle_lock_);
  if (closing_) return false;
  // Input doesn't count: a peer that sends for ever is not waited for.
  std::int64_t until = SaturatingAdd(NoteTaken(), options_.linger_ns);
  if (HasUntakenOutput()) {
    until = SaturatingAdd(SaturatingAdd(until, options_.linger_ns),
                          options_.linger_ns);
  }
  if (until <= NowNs()) return false;
  fiber::ArmTimer(&linger_, until);
  return true;
}

void StreamConnection::OnLinger(fiber::Timer* timer) {
  StreamConnection* const self = static_cast<LingerTimer*>(timer)->connection;
  if (self->ProlongLinger()) return;
  self->GiveUpLingering();
  self->Deref();
}

void StreamConnection::GiveUpLingering() {
  bool reset;
  {
    ScopedLock guard(lifecycle_lock_);
    reset = HasUntakenOutput();
  }
  CloseNow(ErrorOf(ETIMEDOUT,
                   "gave up on closing in good order, as the peer did not take "
                   "the output or close its end in time, the connection to"),
           reset ? CloseKind::kReset : CloseKind::kEnded);
}

Status StreamConnection::ErrorOf(int error, std::string_view what) const {
  try {
    return StatusFromErrno(
        error, std::string(what) + " " + remote_endpoint().ToString());
  } catch (const std::bad_alloc&) {
    return Status(error);
  }
}

// Both directions have ended [SC7].
void StreamConnection::CloseEnded(int output_error) {
  if (output_error > 0) {
    Close(ErrorOf(output_error, "send to"));
    return;
  }
  Status why;
  {
    ScopedLock guard(lifecycle_lock_);
    why = flush_reason_;
  }
  CloseNow(std::move(why), CloseKind::kEnded);
}

void StreamConnection::OnOutputEnded(int error) {
  // seq_cst: pairs with HandleEndOfInput [SC7].
  if (input_ended_.load(std::memory_order_seq_cst)) {
    CloseEnded(error);
  } else if (error != 0 && reader_.Signal(/*hang_up=*/true)) {
    // The peer is gone, but its last output may still be unread: perhaps the
    // answer that explains it. The reader closes when it has read all.
    fiber::Submit(&read_task_);
  }
}

void StreamConnection::Leave(unsigned roles) {
  // acq_rel: pairs with itself: all that every role did happens before the
  // socket is closed [SC3].
  if (roles_.fetch_sub(roles, std::memory_order_acq_rel) == roles) {
    CloseFd();
    Deref();
  }
}

}  // namespace flare::io
