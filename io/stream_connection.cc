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
//  [SC7] Our direction has ended (output_ended_) and the peer's has
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

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <new>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/long_task.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/fork_guard.h"
#include "flare/io/epoll_poller.h"
#include "flare/io/socket_options.h"
#include "glog/logging.h"

namespace flare::io {

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
    : Descriptor(std::move(fd)),
      handler_(handler),
      options_(options),
      group_(group),
      remote_(std::move(remote)),
      accepted_(this->fd() >= 0),
      transport_(std::move(transport)),
      last_received_ns_(NowNs()),
      output_bytes_(options.max_output, options.budget.Get()),
      last_sent_ns_(NowNs()) {
  read_task_.connection = this;
  read_task_.run = &StreamConnection::ReadTask;
  flush_task_.connection = this;
  flush_task_.run = &StreamConnection::FlushTask;
  linger_.connection = this;
  linger_.set_callback(&StreamConnection::OnLinger);
}

StreamConnection::~StreamConnection() = default;

void StreamConnection::ReadTask(fiber::Task* task) {
  static_cast<Role*>(task)->connection->RunReader();
}

void StreamConnection::FlushTask(fiber::Task* task) {
  static_cast<Role*>(task)->connection->RunFlusher();
}

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
    } else if (transport_ == nullptr) {
      OpenOutput();  // [SC2]
    } else {
      transport_->Attach(fd());
      BeginHandshake();
    }
    if (failure.ok()) {
      failure = EpollPoller::OfGroup(group_)->Register(this);
      registered_ = failure.ok();
    }
    if (registered_ && !reader_.Finish()) {
      fiber::SubmitTo(group_, &read_task_);  // [SC2]
    }
  }
  if (!failure.ok()) Close(std::move(failure));
}

Status StreamConnection::BeginConnecting() {
  auto socket = CreateStreamSocket(remote_.family());
  if (!socket) {
    return Status(socket.error().code(), "connect to " + remote_.ToString() +
                                             ": " + socket.error().message());
  }
  AdoptFd(std::move(*socket));
  SetUrgentInline(fd());
  if (transport_ != nullptr) transport_->Attach(fd());
  sockaddr_storage address;
  const socklen_t length = remote_.ToSockaddr(&address);
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  // An interrupted connect goes on by itself, like one in progress.
  if (::connect(fd(), generic, length) != 0 && errno != EINPROGRESS &&
      errno != EINTR) {
    return StatusFromErrno(errno, "connect to " + remote_.ToString());
  }
  return Status();
}

void StreamConnection::BeginHandshake() {
  const std::int64_t timeout_ns = transport_->handshake_timeout_ns();
  if (timeout_ns <= 0) return;
  handshake_ = std::make_unique<OwnHandshake>();
  handshake_->connection = this;
  handshake_->all = transport_->handshakes();
  if (handshake_->all != nullptr) handshake_->all->Begin(handshake_.get());
  handshake_->set_callback(&StreamConnection::OnHandshakeTimeout);
  Ref();  // The timer's [SC8].
  fiber::ArmTimer(handshake_.get(), SaturatingAdd(NowNs(), timeout_ns));
}

void StreamConnection::EndHandshake() noexcept {
  if (handshake_ == nullptr) return;
  if (Handshakes* const all = handshake_->all) {
    if (handshake_->has_turn) all->EndStep();  // The step came to nothing.
    all->End(handshake_.get());
  }
  if (fiber::CancelTimer(handshake_.get())) Deref();  // [SC8]
  handshake_ = nullptr;
}

void StreamConnection::OwnHandshake::OnTurn() {
  // Called after the step of another one.
  fiber::SubmitToLast(connection->group_, &connection->read_task_);  // [SC9]
}

std::function<void()> StreamConnection::OwnHandshake::MakeWay() {
  StreamConnection* const self = connection;
  self->Ref();
  return [self] {
    self->Close(Status::Lenient(
        ECONNABORTED,
        "TLS: the handshake made way for a newer one (max_handshakes)"));
    self->Deref();
  };
}

void StreamConnection::OnHandshakeTimeout(fiber::Timer* timer) {
  StreamConnection* const self = static_cast<LingerTimer*>(timer)->connection;
  const std::int64_t timeout_ns = self->transport_->handshake_timeout_ns();
  self->Close(Status::Lenient(
      ETIMEDOUT, "TLS: the handshake took longer than " +
                     std::to_string(timeout_ns / kNsPerMs) + " ms"));
  self->Deref();
}

// Ends the opening's hold on the flusher's role [SC2].
void StreamConnection::OpenOutput() {
  // relaxed: the poller may see it late, and then wakes the reader in vain.
  opening_.store(false, std::memory_order_relaxed);
  switch (output_.Release()) {
    case OutputList::ReleaseResult::kReleased:
      break;
    case OutputList::ReleaseResult::kNotEmpty:
      fiber::Submit(&flush_task_);
      break;
    case OutputList::ReleaseResult::kClosed:
      Leave(1);
      break;
  }
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
  if ((events & (EPOLLOUT | kGone)) != 0 && writable_.OnWritable()) {
    ready->PushBack(&flush_task_);
  }
}

WriteResult StreamConnection::Write(Buffer&& data, Flush flush) {
  // relaxed: a Write() that doesn't see it yet finds the list closed, or its
  // bytes are dropped.
  if (output_refused_.load(std::memory_order_relaxed)) {
    return WriteResult::kClosed;
  }
  if (data.empty()) return WriteResult::kOk;
  const std::size_t charge = data.size() + kWriteCharge;
  if (!options_.refuse_writes) {
    output_bytes_.Add(charge);
  } else if (!output_bytes_.Admit(charge)) {
    return WriteResult::kOverLimit;
  }
  OutputNode* node;
  try {
    node = OutputNode::Make(std::move(data));
  } catch (const std::bad_alloc&) {
    ReleaseOutput(charge);
    Close(Status(ENOMEM));
    return WriteResult::kClosed;
  }
  switch (output_.Push(node)) {
    case OutputList::PushResult::kQueued:
      // relaxed: says when to send, no more.
      if (flush == Flush::kNow) {
        flush_now_.store(true, std::memory_order_relaxed);
      }
      break;
    case OutputList::PushResult::kBecomeFlusher:
      // Its bytes would go among those of the parent.
      if (fiber::IsForkedChild()) [[unlikely]] {
        fiber::DieAsForkedChild();
      }
      if (flush == Flush::kNow) {
        SendAll();
      } else if (!fiber::IsFiberWorker()) {
        SendFromThread();
      } else {
        fiber::Submit(&flush_task_);
      }
      break;
    case OutputList::PushResult::kClosed:
      data = std::move(node->data);
      OutputNode::Free(node);
      ReleaseOutput(charge);
      return WriteResult::kClosed;
  }
  return WriteResult::kOk;
}

void StreamConnection::ReleaseOutput(std::size_t bytes) {
  if (output_bytes_.Release(bytes)) ResumeReading();
}

void StreamConnection::LookForRoom() {
  if (output_bytes_.LookForRoom()) ResumeReading();
}

void StreamConnection::PauseReading() {
  // relaxed: set by the reader itself if it matters, that is from OnData.
  left_over_.store(true, std::memory_order_relaxed);
  reader_.Pause();
}

void StreamConnection::PauseReadingForOutput() {
  PauseReading();
  if (!output_bytes_.AskForRoom()) ResumeReading();
}

void StreamConnection::ResumeReading() {
  if (reader_.Resume()) fiber::SubmitTo(group_, &read_task_);
}

void StreamConnection::EndInput() {
  // release: pairs with the acquire in RunReader.
  end_asked_.store(true, std::memory_order_release);
  if (reader_.Signal()) fiber::SubmitTo(group_, &read_task_);
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
  // relaxed: as in Write.
  output_refused_.store(true, std::memory_order_relaxed);
  const OutputList::Closed output = output_.Close();  // [SC1]
  const std::size_t dropped = OutputNode::FreeAll(output.nodes);
  output_bytes_.Close();
  ReleaseOutput(dropped);
  // relaxed: bytes written after ResetOnClose() have come into the list, which
  // publishes it, or never do.
  const bool reset = kind == CloseKind::kReset ||
                     (kind == CloseKind::kClose &&
                      reset_on_close_.load(std::memory_order_relaxed));
  if (started && fd() >= 0) {
    // Output that was dropped must not look complete.
    if (transport_ != nullptr && !reset && BufferedOutput() == 0) {
      static_cast<void>(transport_->SendEnd());
    }
    if (reset) SetResetOnClose(fd());
    // relaxed: that of the side which set it, or which saw it [SC7].
    const bool both_ended = kind == CloseKind::kEnded &&
                            input_ended_.load(std::memory_order_relaxed);
    if (!both_ended) ::shutdown(fd(), reset ? SHUT_RD : SHUT_RDWR);
  }
  if (registered) EpollPoller::OfGroup(group_)->Retire(this);  // [SC5]
  if (writable_.OnWritable()) fiber::Submit(&flush_task_);
  if (reader_.Stop() || !registered) {  // [SC2]
    fiber::SubmitTo(group_, &read_task_);
  }
  Leave(output.flusher ? 1 : 2);
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
  // relaxed: as in Write.
  output_refused_.store(true, std::memory_order_relaxed);
  OutputNode* node;
  try {
    node = OutputNode::Make(Buffer(), /*last=*/true);
  } catch (const std::bad_alloc&) {
    Close(Status(ENOMEM));
    return;
  }
  switch (output_.Push(node)) {
    case OutputList::PushResult::kQueued:
      break;
    case OutputList::PushResult::kBecomeFlusher:
      fiber::Submit(&flush_task_);
      break;
    case OutputList::PushResult::kClosed:
      OutputNode::Free(node);
      break;
  }
}

// Notes how much of the output the peer has taken; returns when it last took
// some, as far as is known.
std::int64_t StreamConnection::NoteTaken() {
  // relaxed: the flusher's, which adds to it after having sent. Before the call
  // below, so that bytes sent meanwhile look as if they weren't taken.
  const std::int64_t sent = sent_bytes_.load(std::memory_order_relaxed);
  int left = 0;
  // Bytes that were not acknowledged. Another kind of socket: none.
  if (fd() < 0 || ::ioctl(fd(), SIOCOUTQ, &left) != 0) left = 0;
  in_kernel_ = left;
  // It doesn't ask whether there is less than before: bytes that the peer has
  // taken may have been made up for since.
  if (sent - left > taken_bytes_) {
    taken_bytes_ = sent - left;
    taken_at_ns_ = NowNs();
  }
  // relaxed: timing only.
  return std::max(taken_at_ns_, last_sent_ns_.load(std::memory_order_relaxed));
}

bool StreamConnection::PeerTakesOutput(std::int64_t span_ns) {
  ScopedLock guard(lifecycle_lock_);
  // The descriptor is closed some time after that.
  return !closing_ && SaturatingAdd(NoteTaken(), span_ns) > NowNs();
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
    return StatusFromErrno(error, std::string(what) + " " + remote_.ToString());
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

void StreamConnection::Leave(unsigned roles) {
  // acq_rel: pairs with itself: all that every role did happens before the
  // socket is closed [SC3].
  if (roles_.fetch_sub(roles, std::memory_order_acq_rel) == roles) {
    CloseFd();
    Deref();
  }
}

}  // namespace flare::io
