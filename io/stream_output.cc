#include "flare/io/stream_output.h"

#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <limits>
#include <new>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/status.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/fork_guard.h"
#include "flare/fiber/task.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/epoll_poller.h"
#include "flare/io/socket_calls.h"

namespace flare::io {
namespace {

// Pieces of one system call. Replies built one after another by a worker lie
// side by side and are one piece, so this is plenty.
constexpr std::size_t kMaxIovecs = 256;

// How often a flusher lets others go first that may have more to send. A
// relay's replies come in batches, each of which belongs to many connections.
constexpr int kMostTurnsGivenUp = 3;

// With more pending events than this a flush doesn't let others go first: its
// few turns would reach few of them, and if its thread loses the CPU meanwhile
// the bytes that it holds back wait for milliseconds. Exceptions: waiting has
// paid lately, or this is the connection's every kTryEvery-th flush, which
// finds out (docs/decisions/0024-late-looks.md).
constexpr std::size_t kFewEvents = 16;
constexpr std::size_t kAnyNumber = std::numeric_limits<std::size_t>::max();
constexpr unsigned kTryEvery = 16;

// How often a plain thread sends the bytes that others have written while it
// was sending, before it leaves that to a worker, which may have to be woken.
constexpr int kMostRoundsOfThread = 4;

std::size_t BytesOf(const iovec* pieces, std::size_t count) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i != count; ++i) bytes += pieces[i].iov_len;
  return bytes;
}

}  // namespace

StreamOutput::StreamOutput(StreamSocket* socket, Owner* owner,
                           const Options& options)
    : socket_(socket),
      owner_(owner),
      refuse_writes_(options.refuse_writes),
      bytes_(options.max_bytes, options.budget),
      last_sent_ns_(NowNs()) {
  task_.output = this;
  task_.run = &StreamOutput::FlushTask;
}

void StreamOutput::FlushTask(fiber::Task* task) {
  static_cast<Role*>(task)->output->RunFlusher();
}

void StreamOutput::Open() {
  switch (list_.Release()) {
    case OutputList::ReleaseResult::kReleased:
      break;
    case OutputList::ReleaseResult::kNotEmpty:
      fiber::Submit(&task_);
      break;
    case OutputList::ReleaseResult::kClosed:
      owner_->OnFlusherLeft();
      break;
  }
}

WriteResult StreamOutput::Write(Buffer&& data, Flush flush) {
  if (refused()) return WriteResult::kClosed;
  if (data.empty()) return WriteResult::kOk;
  const std::size_t charge = data.size() + kWriteCharge;
  if (!refuse_writes_) {
    bytes_.Add(charge);
  } else if (!bytes_.Admit(charge)) {
    return WriteResult::kOverLimit;
  }
  OutputNode* node;
  try {
    node = OutputNode::Make(std::move(data));
  } catch (const std::bad_alloc&) {
    ReleaseBytes(charge);
    socket_->Close(Status(ENOMEM));
    return WriteResult::kClosed;
  }
  switch (list_.Push(node)) {
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
        fiber::Submit(&task_);
      }
      break;
    case OutputList::PushResult::kClosed:
      data = std::move(node->data);
      OutputNode::Free(node);
      ReleaseBytes(charge);
      return WriteResult::kClosed;
  }
  return WriteResult::kOk;
}

void StreamOutput::End() {
  RefuseWrites();
  OutputNode* node;
  try {
    node = OutputNode::Make(Buffer(), /*last=*/true);
  } catch (const std::bad_alloc&) {
    socket_->Close(Status(ENOMEM));
    return;
  }
  switch (list_.Push(node)) {
    case OutputList::PushResult::kQueued:
      break;
    case OutputList::PushResult::kBecomeFlusher:
      fiber::Submit(&task_);
      break;
    case OutputList::PushResult::kClosed:
      OutputNode::Free(node);
      break;
  }
}

bool StreamOutput::Close() {
  RefuseWrites();
  const OutputList::Closed closed = list_.Close();  // [SC1]
  const std::size_t dropped = OutputNode::FreeAll(closed.nodes);
  static_cast<void>(bytes_.Close());  // The reader ends, too.
  ReleaseBytes(dropped);
  return closed.flusher;
}

void StreamOutput::ReleaseBytes(std::size_t bytes) {
  if (bytes_.Release(bytes)) owner_->OnOutputRoom();
}

void StreamOutput::RunFlusher() {
  if (LetOthersGoFirst()) return;
  SendAll();
}

// Goes behind tasks that may have more to send, unless a writer has asked for
// Flush::kNow. Where this flush may wait for any number of events
// (waits_for_many_), tells the poller whether that has brought more output.
// True: it is queued again, and must touch nothing any more.
bool StreamOutput::LetOthersGoFirst() {
  EpollPoller* const poller = EpollPoller::OfGroup(socket_->group());
  const std::size_t buffered = queued();
  if (turns_given_up_ == 0) {
    queued_at_first_ = buffered;
    waits_for_many_ = poller->waiting_may_pay() || ++flushes_ % kTryEvery == 0;
  }
  // relaxed: as in Write.
  const bool now = flush_now_.load(std::memory_order_relaxed);
  if (!now && GiveUpTurn(poller->waiting_pays())) return true;
  if (waits_for_many_ && (now || turns_given_up_ != 0)) {
    poller->NoteFlushWaited(buffered > queued_at_first_);
  }
  turns_given_up_ = 0;
  return false;
}

// A few short turns or a long one. True: as LetOthersGoFirst().
bool StreamOutput::GiveUpTurn(bool long_one) {
  if (turns_given_up_ >= (long_one ? 1 : kMostTurnsGivenUp)) return false;
  ++turns_given_up_;  // Before it is queued: another worker may take it.
  if (long_one ? fiber::SubmitBehindEvents(&task_)
               : fiber::SubmitBehindOthers(
                     &task_, waits_for_many_ ? kAnyNumber : kFewEvents)) {
    return true;
  }
  --turns_given_up_;
  return false;
}

// It isn't done by a task: often a worker would have to be woken for it. A
// writer that writes while this thread waits finds the flusher's role taken,
// and leaves it to it [OL1].
void StreamOutput::SendFromThread() {
  if (gather_policy_.ShouldWait()) {
    const std::int64_t start_ns = NowNs();
    ::sched_yield();
    std::size_t writes = 0;
    // If it is closed, SendAll() finds that, too.
    if (Collect(&writes)) {
      gather_policy_.Waited(writes - 1, NowNs() - start_ns);
    }
  }
  SendAll();
}

// Sends until there is no more, or the kernel takes no more.
void StreamOutput::SendAll() {
  for (int rounds = 1;; ++rounds) {
    // relaxed: as in Write, which has queued the output that this is about.
    flush_now_.store(false, std::memory_order_relaxed);
    if (!Collect()) break;
    if (!SendPending()) return;
    // It isn't ended if it is cut short: the peer mustn't take that for the
    // end.
    if (last_seen_ && pending_.empty()) EndOutput(0);
    // relaxed: written by this role only.
    if (ended_.load(std::memory_order_relaxed) >= 0) break;
    switch (list_.Release()) {
      case OutputList::ReleaseResult::kReleased:
        return;
      case OutputList::ReleaseResult::kNotEmpty:
        // More has been written meanwhile. A thread goes on, for a while.
        if (rounds < kMostRoundsOfThread && !fiber::IsFiberWorker()) continue;
        // The writer should finish its batch first: behind this worker's queued
        // tasks.
        fiber::Submit(&task_);
        return;
      case OutputList::ReleaseResult::kClosed:
        break;
    }
  }
  Drop();
  owner_->OnFlusherLeft();  // [SC1]
}

// Moves everything written so far to `pending_`, and tells how many writes that
// were. False: closed.
bool StreamOutput::Collect(std::size_t* writes) {
  const OutputList::Taken taken = list_.TakeAll();
  if (writes != nullptr) *writes = taken.count;
  for (OutputNode* node = taken.nodes; node != nullptr;) {
    OutputNode* const next = node->next;
    if (last_seen_) {
      ReleaseBytes(node->data.size() + kWriteCharge);
    } else {
      pending_.Append(std::move(node->data));
      last_seen_ = node->last;
      if (!node->last) pending_charge_ += kWriteCharge;
    }
    OutputNode::Free(node);
    node = next;
  }
  return !taken.closed;
}

// Drops the bytes that are still to be sent, and those that come later [OL5].
void StreamOutput::Drop() {
  std::size_t bytes = pending_.size() + std::exchange(pending_charge_, 0);
  pending_.Clear();
  bytes += OutputNode::FreeAll(list_.Close().nodes);
  ReleaseBytes(bytes);
}

// Sends `pending_`. False: has left the role and waits for room. True: all is
// sent, or will never be.
bool StreamOutput::SendPending() {
  bool armed = false;
  while (HasPending()) {
    const bool only_end = pending_.empty();
    const SendOutcome outcome = SendOnce();
    if (outcome == SendOutcome::kFailed) break;
    if (outcome == SendOutcome::kSent) {
      // Whatever end_sent() says: else this could go on for ever.
      if (only_end) break;
      continue;
    }
    // The rest of a short send will hardly fit at once: armed right away, it
    // costs one send that says so, not two.
    if (outcome == SendOutcome::kShort && armed) continue;
    if (!armed) {
      // From here on an edge is not lost; then one more try.
      writable_.Arm();
      armed = true;
      if (list_.closed()) break;  // [OL4]
    } else {
      if (writable_.Wait()) return false;
      armed = false;
    }
  }
  if (armed) writable_.Disarm();
  return true;
}

// kSent: the socket has all of this call, or the end.
StreamOutput::SendOutcome StreamOutput::SendOnce() {
  iovec pieces[kMaxIovecs];
  const std::size_t count = pending_.FillIovecs(pieces, kMaxIovecs);
  // The end follows at once: as one segment with the last bytes.
  const int flags = last_seen_ ? MSG_MORE : 0;
  Transport* const transport = socket_->transport();
  ssize_t n;
  int error;
  do {
    n = transport == nullptr ? SendPieces(socket_->fd(), pieces, count, flags)
        : count == 0         ? transport->SendEnd()
                             : transport->Send(pieces, count, flags);
    // In place of `errno`: waiting may have moved this to another thread.
    error = n < 0 ? fiber::GetLastError() : 0;
  } while (error == EINTR);
  // With nothing taken it waits for room, as if the socket were full.
  if (error == EAGAIN || (n == 0 && count != 0)) return SendOutcome::kFull;
  if (error != 0) {
    EndOutput(error);
    return SendOutcome::kFailed;
  }
  const auto sent = static_cast<std::size_t>(n);
  const bool whole = sent == BytesOf(pieces, count);
  pending_.Skip(sent);
  // relaxed, all: a timestamp on its own; a counter with one writer.
  last_sent_ns_.store(NowNs(), std::memory_order_relaxed);
  sent_bytes_.store(sent_bytes_.load(std::memory_order_relaxed) +
                        static_cast<std::int64_t>(sent),
                    std::memory_order_relaxed);
  ReleaseBytes(sent + std::exchange(pending_charge_, 0));
  return whole ? SendOutcome::kSent : SendOutcome::kShort;
}

// Ends our direction: after the last output (0) or because sending failed. The
// role ends with it.
void StreamOutput::EndOutput(int error) {
  // relaxed: written by this role only.
  if (ended_.load(std::memory_order_relaxed) >= 0) return;
  RefuseWrites();
  // Before bytes are dropped: that isn't room. A reader that waits for some
  // goes on behind that, when there is nothing left to wait for.
  const bool asked = bytes_.Close();
  Drop();
  if (asked) owner_->OnOutputRoom();
  // relaxed: a timestamp on its own; the peer's time to end starts here.
  last_sent_ns_.store(NowNs(), std::memory_order_relaxed);
  // seq_cst: pairs with StreamConnection::HandleEndOfInput [SC7].
  ended_.store(error, std::memory_order_seq_cst);
  if (error == 0) ::shutdown(socket_->fd(), SHUT_WR);
  owner_->OnOutputEnded(error);
}

}  // namespace flare::io
