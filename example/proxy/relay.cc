// Rules:
//  [RE1] An edge is forgotten (`readable`, `blocked`) only after a system call
//        that has seen the state behind it: a read that came back short or
//        empty, a write that was refused.
//  [RE2] A short read has emptied the socket, so later input makes a new edge;
//        but the end of the input may have come with the edge that we are
//        serving. `hang_up` remembers that it has: then only the end itself
//        stops reading.
//  [RE3] Bytes go out in the order in which they came in: directly only while
//        nothing is pending.
//  [RE4] A flow is done when its end was passed on, or can't be any more. A
//        side that has broken takes nothing, so the flow to it is done at once;
//        the flow from it is done when the received bytes have been delivered.
#include "example/proxy/relay.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "flare/io/socket_options.h"

namespace example::proxy {
namespace {

// The most bytes of one read: the first as a rule, since for streams and large
// messages both more and less cost more, the second in a direction where all
// that comes at once fits into it (docs/decisions/0007).
constexpr std::size_t kPieceSize = 32 << 10;
constexpr std::size_t kLargePieceSize = 128 << 10;

// The bytes that one run may pass on in one direction before others get their
// turn.
constexpr std::size_t kBudget = 256 << 10;

// Splicing no longer pays when so many times in a row less than a read's worth
// has come.
constexpr int kSmallSplices = 4;

// With TLS, the most waiting bytes that one write is given.
constexpr std::size_t kTlsPieceSize = 64 << 10;

// Where bytes are between a read and the write that follows it at once.
char* Scratch() {
  alignas(64) thread_local std::array<char, kLargePieceSize> scratch;
  return scratch.data();
}

constexpr Relay::Side Other(Relay::Side side) {
  return side == Relay::kClient ? Relay::kUpstream : Relay::kClient;
}

}  // namespace

Relay::Relay(int client_fd, int upstream_fd, const Options& options)
    : options_(options) {
  for (Flow& flow : flows_) {
    flow.may_splice = options_.copy_mode != CopyMode::kCopy;
  }
  flows_[kClient].source = flows_[kUpstream].sink = client_fd;
  flows_[kUpstream].source = flows_[kClient].sink = upstream_fd;
  flows_[kClient].source_tls = flows_[kUpstream].sink_tls = options_.client_tls;
  flows_[kUpstream].source_tls = flows_[kClient].sink_tls =
      options_.upstream_tls;
  for (Flow& flow : flows_) {
    if (flow.source_tls == nullptr && flow.sink_tls == nullptr) continue;
    flow.may_splice = false;
    // The handshake may have taken bytes behind it from the socket.
    flow.readable = flow.source_tls != nullptr;
  }
}

void Relay::SendFirst(Side side, std::string_view bytes) {
  Flow& flow = flows_[Other(side)];
  flow.uncounted += bytes.size();
  flow.pending.Append(bytes);
}

void Relay::AddReceived(Side side, std::string_view bytes) {
  Flow& flow = flows_[side];
  if (!bytes.empty()) flow.pending.Append(bytes);
  // Else there might be no room at all for a read, which would look like the
  // end.
  flow.full = flow.pending.size() >= options_.high_watermark;
}

Relay::Outcome Relay::Run(std::uint32_t client_events,
                          std::uint32_t upstream_events) {
  Note(kClient, client_events);
  Note(kUpstream, upstream_events);
  Pump(kClient);
  Pump(kUpstream);
  if (flows_[kClient].done && flows_[kUpstream].done) return Outcome::kEnded;
  return flows_[kClient].CanRead() || flows_[kUpstream].CanRead()
             ? Outcome::kMore
             : Outcome::kWaiting;
}

void Relay::Note(Side side, std::uint32_t events) {
  if (events == 0) return;
  constexpr std::uint32_t kEnd = EPOLLPRI | EPOLLRDHUP | EPOLLHUP | EPOLLERR;
  Flow& from = flows_[side];
  Flow& to = flows_[Other(side)];
  if ((events & (EPOLLIN | kEnd)) != 0) from.readable = true;
  if ((events & kEnd) != 0) from.hang_up = true;  // [RE2]
  if ((events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0) {
    to.blocked = false;
    // The last of a handshake, or an answer to new keys, may wait.
    if (to.sink_tls != nullptr && to.PendingSize() == 0 && !to.done) {
      static_cast<void>(to.sink_tls->Send(nullptr, 0, 0));
    }
  }
  if ((events & EPOLLERR) != 0) broken_ = true;
  // The next read from a side that isn't at its end tells the error.
  if ((events & EPOLLERR) != 0 && from.source_ended && !to.done) {
    const int error = flare::io::TakeSocketError(to.sink);
    if (error != 0) BreakSink(Other(side), error);
  }
}

void Relay::Pump(Side from) {
  Flow& flow = flows_[from];
  std::size_t passed = 0;
  for (;;) {
    if (flow.PendingSize() != 0 && !flow.blocked) SendPending(from);
    if (flow.source_ended && !flow.done && flow.PendingSize() == 0 &&
        !(flow.sink_tls != nullptr && flow.blocked)) {
      PassEndOn(from);
    }
    if (!flow.CanRead() || passed >= kBudget) return;
    if (options_.copy_mode == CopyMode::kSplice && flow.may_splice &&
        !flow.pipe) {
      OpenPipe(from);
    }
    passed += flow.pipe ? FillPipe(from) : Receive(from);
  }
}

std::size_t Relay::Receive(Side from) {
  Flow& flow = flows_[from];
  const std::size_t size =
      std::min(flow.large_pieces ? kLargePieceSize : kPieceSize,
               options_.high_watermark - flow.pending.size());
  const iovec piece{Scratch(), size};
  const ssize_t n = flow.source_tls != nullptr
                        ? flow.source_tls->Receive(&piece, 1)
                        : ::recv(flow.source, Scratch(), size, 0);
  if (n <= 0) {
    if (n == 0) {
      EndOfInput(from);
    } else {
      SourceFailed(from);
    }
    return flow.source_tls != nullptr ? flow.source_tls->taken() : 0;
  }
  const auto received = static_cast<std::size_t>(n);
  if (received < size && !flow.hang_up &&
      (flow.source_tls == nullptr || !flow.source_tls->HasMore())) {
    flow.readable = false;  // [RE2]
  }
  Deliver(from, std::string_view(Scratch(), received));
  if (!flow.done) ChooseMode(from, received, received == size);
  return flow.source_tls != nullptr ? flow.source_tls->taken() : received;
}

void Relay::EndOfInput(Side from) {
  const Flow& flow = flows_[from];
  // A peer that was told the end may go without a word.
  const bool cut_short = flow.source_tls != nullptr &&
                         flow.source_tls->cut_short() &&
                         !flows_[Other(from)].done;
  EndSource(from, cut_short ? EPROTO : 0);
}

// After a read of `size` bytes, and the write that followed it.
void Relay::ChooseMode(Side from, std::size_t size, bool in_full) {
  Flow& flow = flows_[from];
  flow.in_a_row += size;
  // The size of this input is a guess at that of the next. A blocked sink would
  // only be handed more that it doesn't take.
  if (flow.blocked || flow.in_a_row >= kLargePieceSize) {
    flow.large_pieces = false;
  } else if (!in_full && flow.in_a_row > kPieceSize) {
    flow.large_pieces = true;
  }
  if (!in_full) {
    flow.in_a_row = 0;
  } else if (flow.may_splice && flow.in_a_row >= options_.splice_after) {
    OpenPipe(from);
  }
}

void Relay::OpenPipe(Side from) {
  Flow& flow = flows_[from];
  // [RE3]. Splices in front of urgent data come back empty, or as an error.
  if (!flow.pending.empty() || flow.hang_up) return;
  flow.pipe = SplicePipe::Open(options_.high_watermark);
  flow.may_splice = flow.pipe != nullptr;
  flow.small_splices = 0;
}

std::size_t Relay::FillPipe(Side from) {
  Flow& flow = flows_[from];
  const ssize_t n = flow.pipe->FillFrom(flow.source);
  if (n > 0) {
    const auto received = static_cast<std::size_t>(n);
    flow.small_splices = received < kPieceSize ? flow.small_splices + 1 : 0;
    flow.full = true;
    return received;
  }
  if (n == 0 || errno == EINVAL || (errno == EAGAIN && flow.hang_up)) {
    // Either splicing isn't for this kind of socket, or the apparent end is
    // urgent data in front: recv() tells.
    flow.pipe.reset();
    flow.may_splice = false;
  } else {
    SourceFailed(from);
  }
  return 0;
}

void Relay::DrainPipe(Side from) {
  Flow& flow = flows_[from];
  while (flow.pipe->size() != 0 && !flow.blocked) {
    const ssize_t n = flow.pipe->DrainTo(flow.sink);
    if (n >= 0) {
      flow.bytes += static_cast<std::size_t>(n);
    } else if (errno == EAGAIN) {
      flow.blocked = true;  // [RE1]
    } else if (errno != EINTR) {
      return BreakSink(from, errno);
    }
  }
  if (flow.pipe->size() != 0) return;
  flow.full = false;
  if (flow.small_splices < kSmallSplices ||
      options_.copy_mode == CopyMode::kSplice) {
    return;
  }
  flow.pipe.reset();
  flow.in_a_row = 0;
}

void Relay::SourceFailed(Side from) {
  const int error = errno;
  if (error == EINTR) return;
  if (error != EAGAIN) return EndSource(from, error);
  flows_[from].readable = false;  // [RE1]
  // It can't be written to any more, and its input goes on: a failure that is
  // none of the connection's. There is no use in waiting for more.
  if (IsBlamed(from)) EndSource(from, result_.error);
}

void Relay::Deliver(Side from, std::string_view bytes) {
  Flow& flow = flows_[from];
  if (flow.pending.empty() && !flow.blocked) {  // [RE3]
    bytes.remove_prefix(SendNow(from, bytes));
  }
  if (bytes.empty() || flow.done) return;
  flow.pending.Append(bytes);
  flow.pending.CompactIfSparse();  // It may have come byte by byte.
  if (flow.pending.size() >= options_.high_watermark) flow.full = true;
}

// How much the sink has taken: less than all only if it is blocked or broken.
std::size_t Relay::SendNow(Side from, std::string_view bytes) {
  Flow& flow = flows_[from];
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const std::string_view rest = bytes.substr(sent);
    ssize_t n;
    if (flow.sink_tls != nullptr) {
      const iovec piece{const_cast<char*>(rest.data()), rest.size()};
      n = flow.sink_tls->Send(&piece, 1, 0);
    } else {
      n = ::send(flow.sink, rest.data(), rest.size(), MSG_NOSIGNAL);
    }
    if (n >= 0) {
      sent += static_cast<std::size_t>(n);
    } else if (errno == EAGAIN) {
      flow.blocked = true;  // [RE1]
      break;
    } else if (errno != EINTR) {
      BreakSink(from, errno);
      break;
    }
  }
  flow.bytes += sent;
  return sent;
}

void Relay::SendPending(Side from) {
  Flow& flow = flows_[from];
  if (flow.pipe) return DrainPipe(from);
  while (!flow.pending.empty() && !flow.blocked) {
    std::string_view slice = flow.pending.FirstContiguous();
    // A record of TLS for each block would be many. And no less may be given
    // than at the begin of an unfinished write.
    if (flow.sink_tls != nullptr && slice.size() < flow.pending.size()) {
      slice = {Scratch(), flow.pending.CopyTo(Scratch(), kTlsPieceSize)};
    }
    const std::size_t sent = SendNow(from, slice);
    if (flow.done) return;
    const std::size_t uncounted = std::min(sent, flow.uncounted);
    flow.uncounted -= uncounted;
    flow.bytes -= uncounted;
    flow.pending.Skip(sent);
  }
  if (flow.pending.size() <= options_.low_watermark) flow.full = false;
}

void Relay::EndSource(Side from, int error) {
  Flow& flow = flows_[from];
  flow.source_ended = true;
  flow.readable = false;
  if (error == 0 && IsBlamed(from) && result_.error != EPIPE) {
    // A write has taken the error that this read would have got. Writes get
    // EPIPE if the end of input had come in order before the reset.
    error = result_.error;
  }
  if (error == 0) return;
  Blame(from, error);
  broken_ = true;
  flow.source_broke = true;
  Flow& back = flows_[Other(from)];
  back.done = true;  // [RE4]
  DropPending(Other(from));
}

void Relay::PassEndOn(Side from) {
  Flow& flow = flows_[from];
  if (flow.source_broke) {
    result_.reset_other = true;
  } else {
    if (flow.sink_tls != nullptr && !SendTlsEnd(from)) return;
    ::shutdown(flow.sink, SHUT_WR);
  }
  flow.done = true;
}

// False: not yet, or it can't be sent.
bool Relay::SendTlsEnd(Side from) {
  Flow& flow = flows_[from];
  if (flow.sink_tls->SendEnd() == 0) return true;
  if (errno == EAGAIN) {
    flow.blocked = true;  // [RE1]
  } else {
    BreakSink(from, errno);
  }
  return false;
}

// The side that `from` sends to has broken.
void Relay::BreakSink(Side from, int error) {
  Flow& flow = flows_[from];
  const Side broken = Other(from);
  Blame(broken, error);
  broken_ = true;
  flow.done = true;  // [RE4]
  DropPending(from);
  // Its earlier bytes can still be read.
  Flow& back = flows_[broken];
  back.readable = back.hang_up = true;
}

void Relay::GiveUp() {
  for (const Side side : {kClient, kUpstream}) {
    // An error that no read and no write has taken yet, since neither was due.
    const int error = flare::io::TakeSocketError(flows_[side].source);
    if (error != 0) Blame(side, error);
  }
  result_.reset_other = true;
}

void Relay::DropPending(Side from) {
  flows_[from].pending.Clear();
  flows_[from].pipe.reset();
}

// The first that breaks is to blame for the rest.
void Relay::Blame(Side side, int error) {
  if (result_.end != Result::End::kFinished) return;
  result_.end =
      side == kClient ? Result::End::kClientBroke : Result::End::kUpstreamBroke;
  result_.error = error;
}

bool Relay::IsBlamed(Side side) const {
  return result_.end == (side == kClient ? Result::End::kClientBroke
                                         : Result::End::kUpstreamBroke);
}

}  // namespace example::proxy
