// The life of a connection hangs on one word, `holds_`: counts of calls and of
// streaming calls that were started and have not finished, and three flags.
//
//   kReading  messages may still be cut off the input
//   kOpen     SocketClosed() has not been called
//   kPaused   the reader waits for calls to finish
//
// [CN1] Calls are added by the reader only, under kReading. (Callbacks of the
//       stream come one at a time and SocketClosed() in the last one, so kOpen
//       is set, too.) One that turns into a streaming call is counted as that
//       before it isn't counted as the other, so there is always one of them.
// [CN2] kReading is cleared once: by the reader at the end of the input, after
//       bad input, or by SocketClosed().
// [CN3] When kReading is gone, kOpen is set and there is no call of either
//       kind, everything has been answered: the thread that brings that about
//       calls CloseAfterFlush(). It does so while it still holds something, a
//       call or the callback it is in, so that the connection isn't destroyed
//       under it.
// [CN4] The thread that brings the word to zero destroys the connection.
// [CN5] The reader pauses the stream, then sets kPaused; the one that takes
//       that away resumes the stream, so that happens once: the call that
//       leaves only resume_calls() others, before it lets go, or, if there were
//       no more already, the reader itself. While there is kPaused there is no
//       reader.
// [CN6] The reader pauses for one reason at a time, calls, output or a stream
//       that is full, and looks at all again when it is resumed.
// [CN7] Streams don't count for the limit that makes the reader pause, as they
//       may wait for input that it would read.
//
// Replies may be written as long as the connection lives [CN4]; once the stream
// is closed they go nowhere.
#include "flare/rpc/server/call_connection.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/long_task.h"
#include "flare/rpc/server/reply_turn_event.h"
#include "flare/rpc/stream/call_stream.h"

namespace flare::rpc {
namespace {

constexpr std::uint64_t kReading = std::uint64_t{1} << 32;
constexpr std::uint64_t kOpen = std::uint64_t{1} << 33;
constexpr std::uint64_t kPaused = std::uint64_t{1} << 34;
constexpr std::uint64_t kCalls = kReading - 1;
constexpr std::uint64_t kStreams = ~std::uint64_t{0} << 40;
constexpr std::uint64_t kWork = kCalls | kStreams;

// At most this many calls are started together, which bounds the calls that one
// read can pile up before the limits are looked at.
constexpr std::size_t kBatch = 64;

// How long a call waits for the replies before its own to be made, at most.
constexpr std::chrono::seconds kMaxTurnDelay(1);

io::StreamConnection::Options StreamOptions(const ServerState& state) {
  const Limits& limits = state.protocols().limits();
  io::StreamConnection::Options stream;
  // As much as the protocols keep of refused messages, to answer them.
  stream.max_input = std::max({limits.max_packet_size, limits.max_meta_size,
                               limits.max_head_size}) +
                     4096;
  stream.max_output = state.options().max_output_per_connection;
  stream.ends_when_broken = true;  // Nobody waits for replies to unread input.
  // A call that can wait has looked for room before it made its reply. Others,
  // and replies that waited for an earlier one, may make it more, by data that
  // calls had in memory anyway.
  stream.refuse_writes = false;
  stream.budget = state.shared_budget();
  return stream;
}

}  // namespace

CallConnection::CallConnection(RefPtr<ServerState> state, io::UniqueFd fd,
                               const Endpoint& peer, std::size_t group,
                               std::unique_ptr<io::Transport> transport)
    : state_(std::move(state)),
      peer_(peer),
      max_calls_(static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
          state_->options().max_concurrent_requests_per_connection, 1,
          kCalls))),
      holds_(kReading | kOpen) {
  stream_ = io::StreamConnection::Accepted(std::move(fd), group, this,
                                           StreamOptions(*state_), peer,
                                           std::move(transport));
}

void CallConnection::Gone() {
  // relaxed: nobody else knows of the connection.
  CountHeld(held_.load(std::memory_order_relaxed), 0);  // Replies never sent.
  state_->connections.Gone();
}

bool CallConnection::HasCalls() const {
  // relaxed: a guess, of others than the reader.
  return (holds_.load(std::memory_order_relaxed) & kWork) != 0;
}

std::size_t CallConnection::CallsToStart() const {
  if (!stream_->HasOutputRoom() || hold_.held()) return 0;
  // relaxed: only this role adds calls [CN1].
  const std::uint64_t calls = holds_.load(std::memory_order_relaxed) & kCalls;
  return calls >= max_calls_ ? 0
                             : static_cast<std::size_t>(std::min<std::uint64_t>(
                                   kBatch, max_calls_ - calls));
}

void CallConnection::Pause() {  // [CN6]
  if (!stream_->HasOutputRoom()) return stream_->PauseReadingForOutput();
  if (hold_.held()) return hold_.Pause(stream_.Get());
  stream_->PauseReading();
  // acq_rel: pairs with EndPause [CN5].
  const std::uint64_t before =
      holds_.fetch_or(kPaused, std::memory_order_acq_rel);
  if ((before & kCalls) <= resume_calls()) EndPause();
}

// The reader calls it, unless another has resumed it.
void CallConnection::EndPause() {
  // acq_rel: pairs with Pause [CN5].
  if ((holds_.fetch_and(~kPaused, std::memory_order_acq_rel) & kPaused) != 0) {
    stream_->ResumeReading();
  }
}

void CallConnection::EndCalls(flare::Status why) {
  // acquire: pairs with the release in WorkFinished, so that all replies have
  // been written before the output is ended [CN3].
  const std::uint64_t before =
      holds_.fetch_and(~kReading, std::memory_order_acquire);
  if ((before & kWork) == 0) stream_->CloseAfterFlush(std::move(why));
}

template <std::uint64_t kUnit>
void CallConnection::WorkFinished() {
  // acquire: as in EndCalls; and pairs with the release below, so that the
  // destroyer of the connection sees all uses of it [CN4].
  std::uint64_t holds = holds_.load(std::memory_order_acquire);
  for (;;) {
    if (kUnit == kCall && (holds & kPaused) != 0 &&
        (holds & kCalls) == resume_calls() + 1) [[unlikely]] {
      EndPause();
      // acquire: as in EndCalls [CN4].
      holds = holds_.load(std::memory_order_acquire);
      continue;
    }
    if (holds == (kOpen | kUnit)) [[unlikely]]
      stream_->CloseAfterFlush();  // [CN3]
    // acq_rel: see above.
    if (holds_.compare_exchange_weak(holds, holds - kUnit,
                                     std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
      break;
    }
  }
  if (holds == kUnit) [[unlikely]]
    delete this;  // [CN4]
}
template void CallConnection::WorkFinished<CallConnection::kCall>();
template void CallConnection::WorkFinished<CallConnection::kStream>();

void CallConnection::SocketClosed() {
  // acq_rel: as in WorkFinished [CN4].
  const std::uint64_t before =
      holds_.fetch_and(kWork, std::memory_order_acq_rel);
  if ((before & kWork) == 0) delete this;
}

const Method* CallConnection::FindByName(std::string_view name) {
  // relaxed: methods are constant since before the connection was accepted.
  const Method* const last = last_method_.load(std::memory_order_relaxed);
  if (last != nullptr && last->name() == name) return last;
  const Method* const method = state_->methods.Find(name);
  if (method != nullptr) {
    last_method_.store(method, std::memory_order_relaxed);
  }
  return method;
}

MethodKind CallConnection::KindOfMethod(std::string_view name,
                                        bool short_service) {
  const Method* const method = FindMethod(name, short_service);
  if (method == nullptr) {
    return state_->methods.fallback() != nullptr ? MethodKind::kUnary
                                                 : MethodKind::kUnknown;
  }
  if (method->descriptor->client_streaming()) return MethodKind::kStreaming;
  return method->streaming() ? MethodKind::kReplyStreaming : MethodKind::kUnary;
}

RefPtr<StreamReceiver> CallConnection::OpenStream(
    const StreamOpening& opening, std::unique_ptr<StreamWire> wire) {
  return StartStream(opening, std::move(wire));
}

RefPtr<CallStream> CallConnection::StartStream(
    const StreamOpening& opening, std::unique_ptr<StreamWire> wire) {
  const std::int64_t max_stall_ns =
      ToNs(state_->options().stalled_stream_timeout);
  RefPtr<CallStream> stream = CallStream::Create(
      {.format = opening.format,
       .is_server = true,
       .deadline_ns = opening.timeout_ms == 0
                          ? CallStream::kNever
                          : NowNs() + opening.timeout_ms * kNsPerMs,
       .send_window = opening.send_window,
       .max_stall_ns = max_stall_ns > 0 ? max_stall_ns : CallStream::kNever,
       .unpacked = state_->unpacked(),
       .counter = this});
  if (!stream->Start(std::move(wire), stream_)) {
    stream->Detach();
    return nullptr;
  }
  return stream;
}

bool CallConnection::EnterStream(std::string_view* why) {
  const std::size_t most = std::clamp<std::size_t>(
      state_->options().max_concurrent_streams_per_connection, 1,
      std::numeric_limits<std::uint16_t>::max());
  // relaxed, all: a limit, nothing is ordered by it.
  std::uint16_t running = streams_.load(std::memory_order_relaxed);
  do {
    if (running >= most) {
      *why =
          "Server overloaded: this connection has all the streaming calls that "
          "one may have "
          "(--flare_rpc_server_max_ongoing_streams_per_connection).";
      return false;
    }
  } while (!streams_.compare_exchange_weak(
      running, static_cast<std::uint16_t>(running + 1),
      std::memory_order_relaxed));
  if (state_->EnterStream()) return true;
  streams_.fetch_sub(1, std::memory_order_relaxed);
  *why =
      "Server overloaded: streaming calls have all the places that they may "
      "have.";
  return false;
}

void CallConnection::LeaveStream() {
  // relaxed: as in EnterStream.
  streams_.fetch_sub(1, std::memory_order_relaxed);
  state_->LeaveStream();
}

bool CallConnection::WaitForRoom() {
  if (stream_->HasOutputRoom()) [[likely]]
    return true;
  stream_->PeerTakesOutput(0);  // The look that later ones are compared with.
  // Many calls may wait and be woken together: each looks again.
  while (!stream_->HasOutputRoom()) {
    switch (stream_->WaitWritable(NowNs() + ToNs(output_timeout()))) {
      case io::RoomResult::kRoom:
        break;
      case io::RoomResult::kTimedOut:
        if (stream_->HasOutputRoom() ||
            stream_->PeerTakesOutput(ToNs(output_timeout())))
          break;  // If slowly.
        stream_->Reset(
            flare::Status::Lenient(ETIMEDOUT, "the peer takes no replies"));
        return false;
      case io::RoomResult::kClosed:
        return false;
    }
  }
  return true;
}

// Where many have replies ready they are made in the order in which they leave,
// if there is one: those made before their turn would only lie there.
bool CallConnection::WaitForTurn(ServerProtocol* protocol,
                                 const ReplyTicket& ticket, bool patient) {
  state_->CloseGreedy();  // Before others make theirs.
  if (!WaitForRoom()) return false;
  while (MuchHeld()) {
    ReplyTurnEvent turn;
    if (protocol->AskToReply(ticket, &turn) != ReplyTurn::kLater) break;
    if (!patient && !turn.WaitFor(kMaxTurnDelay) &&
        protocol->StopWaitingToReply(ticket)) {
      break;
    }
    turn.Wait();
  }
  return WaitForRoom();
}

void CallConnection::NoteMalformed(const std::string& why) {
  state_->LogConnection(peer_, why);
  // relaxed: see malformed(); io orders the end, which reads it, behind this.
  malformed_.store(true, std::memory_order_relaxed);
}

void CallConnection::CloseMalformed(const std::string& why) {
  NoteMalformed(why);
  stream_->EndInput();
}

bool CallConnection::IsGreedy() const {
  return state_->budget().over() && held() >= io::MemoryBudget::kStep;
}

std::size_t CallConnection::held() const {
  // relaxed: an estimate.
  return held_.load(std::memory_order_relaxed) + stream_->BufferedOutput();
}

void CallConnection::CloseGreedy(std::size_t bytes) {
  try {
    stream_->Reset(flare::Status(
        ENOBUFS, "it held " + std::to_string(bytes) +
                     " bytes, and all connections together more than "
                     "--flare_rpc_server_max_buffered_bytes"));
  } catch (const std::bad_alloc&) {
    stream_->Reset(flare::Status(ENOBUFS));
  }
}

bool CallConnection::Write(Buffer&& bytes) {
  // The reply to the only call has nothing to wait for, and that of a long one
  // mustn't wait for others that are as long. relaxed: a guess at the future.
  const bool now = (holds_.load(std::memory_order_relaxed) & kWork) <= 1 ||
                   fiber::ClaimLongTask();
  return stream_->Write(std::move(bytes),
                        now ? io::Flush::kNow : io::Flush::kSoon) ==
         io::WriteResult::kOk;
}

}  // namespace flare::rpc
