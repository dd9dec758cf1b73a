// The life of a connection hangs on one word, `holds_`: counts of calls and of
// streaming calls that were started and have not finished, and three flags.
//
//   kReading  messages may still be cut off the input
//   kOpen     OnClosed() has not been called
//   kPaused   the reader waits for calls to finish
//
// [SN1] Calls are added by the reader only, under kReading. (Callbacks of the
//       stream come one at a time and OnClosed() last, so kOpen is set, too.)
// [SN2] kReading is cleared once: by the reader at the end of the input, after
//       bad input, or by OnClosed().
// [SN3] When kReading is gone, kOpen is set and there is no call of either
//       kind, everything has been answered: the thread that brings that about
//       calls CloseAfterFlush(). It does so while it still holds something, a
//       call or the callback it is in, so that the connection isn't destroyed
//       under it.
// [SN4] The thread that brings the word to zero destroys the connection.
// [SN5] The reader pauses the stream, then sets kPaused; the one that takes
//       that away resumes the stream, so that happens once: the call that
//       leaves only resume_calls() others, before it lets go, or, if there were
//       no more already, the reader itself. While there is kPaused there is no
//       reader.
// [SN6] The reader pauses for one reason at a time, calls, output or a stream
//       that is full, and looks at all again when it is resumed.
// [SN7] Streams don't count for the limit that makes the reader pause, as they
//       may wait for input that it would read.
// [SN8] Calls that are watched are stopped at the end of the peer's input and
//       by OnClosed(), while it still holds kOpen: the list lives in here.
// [SN9] At a stop AnnounceEnd() stores lingers_, then asks the protocols about
//       the peer; the reader has them note each request, then looks at
//       lingers_. All in one total order: so one of the two notices a request
//       that comes meanwhile, and the peer is told.
//
// Replies may be written as long as the connection lives [SN4]; once the stream
// is closed they go nowhere.
#include "flare/rpc/server/server_connection.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/string.h"
#include "flare/fiber/long_task.h"
#include "flare/fiber/runtime.h"
#include "flare/rpc/server/server_call.h"
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

// Whenever this many more bytes of a message have come, its time begins anew,
// so that large ones may come on slow lines.
constexpr std::size_t kProgress = 64 << 10;

// Less of a message isn't counted.
constexpr std::size_t kLittleInput = 16 << 10;

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

// Calls that were cut off the input and aren't started. If something throws
// they are given back, unanswered: the connection ends then.
class CallsToBe {
 public:
  CallsToBe() = default;
  CallsToBe(const CallsToBe&) = delete;
  CallsToBe& operator=(const CallsToBe&) = delete;
  ~CallsToBe() {
    if (last_ != nullptr) last_->Recycle();
    while (fiber::Task* const task = calls_.PopFront()) {
      static_cast<ServerCall*>(task)->Abandon();
    }
  }

  // Adds one, which the caller keeps or drops before the next.
  ServerCall* Add() { return last_ = ServerCall::New(); }
  void KeepLast() {
    streams_ += last_->is_stream() ? 1 : 0;
    calls_.PushBack(std::exchange(last_, nullptr));
  }
  void DropLast() { std::exchange(last_, nullptr)->Recycle(); }

  std::size_t size() const { return calls_.size(); }
  std::size_t streams() const { return streams_; }
  fiber::TaskList Take() {
    streams_ = 0;
    return std::exchange(calls_, {});
  }

 private:
  fiber::TaskList calls_;
  std::size_t streams_ = 0;  // How many of them are streams.
  ServerCall* last_ = nullptr;
};

// The first bytes of `in`, for a log line.
std::string FirstBytes(const Buffer& in) {
  char bytes[16];
  const std::size_t n = in.CopyTo(bytes, sizeof(bytes));
  std::string text;
  for (std::size_t i = 0; i != n; ++i) {
    if (i != 0) text += ' ';
    const auto hex = HexOf(static_cast<unsigned char>(bytes[i]));
    text.append(hex.data(), hex.size());
  }
  return text;
}

// Whether they begin a record of a handshake.
bool BeginsTls(const Buffer& in) {
  char bytes[2];
  return in.CopyTo(bytes, sizeof(bytes)) == sizeof(bytes) && bytes[0] == 0x16 &&
         bytes[1] == 0x03;
}

}  // namespace

void ServerConnection::Serve(RefPtr<ServerState> state, io::UniqueFd fd,
                             const Endpoint& peer, std::size_t group) {
  auto& counters = state->connection_counters;
  const auto& filter = state->options().conn_filter;
  if (filter && !filter(peer)) {
    state->Count(&counters.refused);
    return state->LogConnection(peer, "refused by the filter");
  }
  std::unique_ptr<io::Transport> transport;
  if (state->tls() != nullptr) {
    transport = state->tls()->NewTransport();
    if (transport == nullptr) {
      state->Count(&counters.refused);
      return state->LogConnection(
          peer, "refused: " + std::to_string(state->tls()->handshakes()) +
                    " TLS handshakes are going on (max_handshakes)");
    }
  }
  auto* const self = new ServerConnection(std::move(state), std::move(fd), peer,
                                          group, std::move(transport));
  if (!self->state_->connections.Add(self)) {
    self->state_->Count(&counters.refused);
    self->state_->LogConnection(
        peer,
        "refused: there are " +
            std::to_string(self->state_->options().max_concurrent_connections) +
            " already (--flare_rpc_server_max_connections)");
    delete self;
    return;
  }
  self->state_->Count(&counters.accepted);
  self->stream_->Start();
}

ServerConnection::ServerConnection(RefPtr<ServerState> state, io::UniqueFd fd,
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
  const ServerProtocolSet& set = state_->protocols();
  protocols_.reserve(set.size());
  for (std::size_t i = 0; i != set.size(); ++i) {
    protocols_.push_back(set.New(i, this));
  }
  // relaxed: nobody else knows of the connection.
  message_began_ns_.store(stream_->last_activity_ns(),
                          std::memory_order_relaxed);
}

ServerConnection::~ServerConnection() {
  // relaxed: nobody else knows of the connection.
  CountHeld(held_.load(std::memory_order_relaxed), 0);  // Replies never sent.
  state_->connections.Gone();
}

// The reader: called with new input, one call at a time.
bool ServerConnection::OnData(Buffer& in, std::size_t* need,
                              std::string* error) {
  // relaxed: a hint; a request that is cut in spite of it is answered.
  if (reading_ended_ || malformed_.load(std::memory_order_relaxed)) {
    in.Clear();
    return true;
  }
  const std::int64_t now_ns = NowNs();
  const std::size_t arrived = in.size() - left_;
  bool began = false;  // The rest belongs to another message.
  CallsToBe calls;
  CutResult result = CutResult::kNeedMore;
  for (std::size_t room = CallsToStart(); !in.empty();) {
    if (calls.size() == room) {
      StopLeft();
      if (calls.size() != 0) {
        const std::size_t streams = calls.streams();
        StartCalls(calls.Take(), streams);
      }
      room = CallsToStart();
      if (room == 0) {
        // It's not the peer who makes it wait.
        NoteIncomplete(/*within=*/false, /*begins=*/began, arrived, now_ns);
        left_ = in.size();
        CountInput(/*within=*/true);
        Pause();
        return true;
      }
    }
    ServerCall* const call = calls.Add();
    result = CutMessage(in, call->request(), need, error, &began);
    if (result == CutResult::kHandled) [[unlikely]] {
      // A stream is full.
      calls.DropLast();
      result = CutResult::kNeedMore;
      room = calls.size();
      continue;
    }
    if (result != CutResult::kMessage) {
      calls.DropLast();
      break;
    }
    call->Prepare(this, protocols_[speaking_].get(), now_ns);
    if (call->request()->wire_size > kMaxKeptBytes) [[unlikely]] {
      call->CountHeld(call->request()->wire_size);
    }
    calls.KeepLast();
    speaks_ = began = true;
  }
  left_ = in.size();
  cut_short_ = left_ != 0;
  const bool within = cut_short_ || protocols_[speaking_]->WithinMessage();
  NoteIncomplete(within, /*begins=*/began, arrived, now_ns);
  CountInput(within);
  StopLeft();
  if (calls.size() != 0) {
    // seq_cst: behind the protocols' notes of requests; pairs with the store in
    // AnnounceEnd [SN9].
    if (lingers_.load(std::memory_order_seq_cst)) [[unlikely]]
      EndWithCalls();
    const std::size_t streams = calls.streams();
    StartCalls(calls.Take(), streams);
  }
  if (result == CutResult::kNotMine || result == CutResult::kError) {
    return HandleBadInput(result, in, error);
  }
  return true;
}

void ServerConnection::NoteIncomplete(bool within, bool begins,
                                      std::size_t arrived,
                                      std::int64_t now_ns) {
  // relaxed, all: there is one writer, and readers want no more than a time.
  const std::int64_t before = message_began_ns_.load(std::memory_order_relaxed);
  if (!within) [[likely]] {
    if (before != 0) message_began_ns_.store(0, std::memory_order_relaxed);
    return;
  }
  heard_ = true;
  begins = begins && protocols_[speaking_]->EarlierMessagesEnded();
  progress_ += static_cast<std::uint32_t>(std::min(arrived, kProgress));
  if (before != 0 && !begins && progress_ < kProgress) return;
  progress_ = 0;
  message_began_ns_.store(now_ns, std::memory_order_relaxed);
}

// Counts the rest of the input, with the bytes that the protocol has taken off
// it, if that is `within` a message.
void ServerConnection::CountInput(bool within) {
  std::size_t bytes = left_;
  if (within) bytes += protocols_[speaking_]->KeptOfMessage();
  if (bytes < kLittleInput) bytes = 0;
  if (bytes != input_held_) [[unlikely]] {
    CountHeld(std::exchange(input_held_, static_cast<std::uint32_t>(bytes)),
              bytes);
    // At once: behind the queue, more of it would be read first.
    state_->CloseGreedy();
  }
}

// How many calls may be started together now.
std::size_t ServerConnection::CallsToStart() const {
  if (!stream_->HasOutputRoom() || hold_.held()) return 0;
  // relaxed: only this role adds calls [SN1].
  const std::uint64_t calls = holds_.load(std::memory_order_relaxed) & kCalls;
  return calls >= max_calls_ ? 0
                             : static_cast<std::size_t>(std::min<std::uint64_t>(
                                   kBatch, max_calls_ - calls));
}

// Stops reading until there is room: we are called again then, also if nothing
// new has come. Nothing may be read or cut after this.
void ServerConnection::Pause() {
  if (!stream_->HasOutputRoom()) return stream_->PauseReadingForOutput();
  if (hold_.held()) return hold_.Pause(stream_.Get());
  stream_->PauseReading();
  // acq_rel: pairs with EndPause [SN5].
  const std::uint64_t before =
      holds_.fetch_or(kPaused, std::memory_order_acq_rel);
  if ((before & kCalls) <= resume_calls()) EndPause();
}

MethodKind ServerConnection::KindOfMethod(std::string_view name,
                                          bool short_service) {
  const Method* method = FindMethod(name);
  if (method == nullptr && short_service) {
    method = state_->methods.FindByShortName(name);
  }
  if (method == nullptr) return MethodKind::kUnknown;
  if (method->descriptor->client_streaming()) return MethodKind::kStreaming;
  return method->streaming() ? MethodKind::kReplyStreaming : MethodKind::kUnary;
}

RefPtr<StreamReceiver> ServerConnection::OpenStream(
    const StreamOpening& opening, std::unique_ptr<StreamWire> wire) {
  return StartStream(opening, std::move(wire));
}

RefPtr<CallStream> ServerConnection::StartStream(
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

// *took: a protocol has dealt with messages itself before. kHandled: and by
// that holds the input.
[[gnu::always_inline]] inline CutResult ServerConnection::CutMessage(
    Buffer& in, InboundRequest* request, std::size_t* need, std::string* error,
    bool* took) {
  for (;;) {
    // As a rule it is the protocol that spoke last.
    CutResult result = protocols_[speaking_]->Cut(in, request, need, error);
    if (result == CutResult::kNotMine || result == CutResult::kUnsure)
        [[unlikely]] {
      result = AskOthers(result, in, request, need, error);
    }
    // The message behind it may be another protocol's.
    if (result != CutResult::kHandled) return result;
    speaks_ = *took = true;
    if (in.empty()) return CutResult::kNeedMore;
    if (hold_.held()) return CutResult::kHandled;
  }
}

// In their order. `first`: the answer of the one that spoke last.
[[gnu::noinline]] CutResult ServerConnection::AskOthers(CutResult first,
                                                        Buffer& in,
                                                        InboundRequest* request,
                                                        std::size_t* need,
                                                        std::string* error) {
  bool unsure = first == CutResult::kUnsure;
  for (std::size_t index = 0; index != protocols_.size(); ++index) {
    if (index == speaking_) continue;
    const CutResult result = protocols_[index]->Cut(in, request, need, error);
    if (result == CutResult::kNotMine) continue;
    if (result == CutResult::kUnsure) {
      unsure = true;
      continue;
    }
    speaking_ = static_cast<std::uint16_t>(index);
    return result;
  }
  return unsure ? CutResult::kUnsure : CutResult::kNotMine;
}

// Answers the requests before the bad input, then closes.
bool ServerConnection::HandleBadInput(CutResult result, Buffer& in,
                                      std::string* error) {
  if (result == CutResult::kNotMine) {
    *error = "no protocol of this server (" + state_->protocol_names() +
             ") begins with " + FirstBytes(in);
    if (BeginsTls(in)) *error += ": the peer speaks TLS, this server doesn't";
  }
  state_->LogConnection(peer_, *error);
  // relaxed: read by OnClosed(), a later callback, which io orders.
  malformed_.store(true, std::memory_order_relaxed);
  if (!speaks_) return false;  // Nothing was understood: io closes at once.
  in.Clear();
  EndReading(flare::Status(EPROTO, *error));
  return true;
}

// `streams`: so many of them are streaming calls.
void ServerConnection::StartCalls(fiber::TaskList&& calls,
                                  std::size_t streams) {
  const std::size_t n = calls.size();
  // relaxed: [SN1] holds; the tasks' queue orders the rest.
  holds_.fetch_add(n - streams + streams * kStream, std::memory_order_relaxed);
  const std::size_t admitted = IsGreedy() ? state_->RefuseCalls(group(), n)
                                          : state_->AdmitCalls(group(), n);
  if (admitted == n) [[likely]] {
    return fiber::SubmitAll(std::move(calls));
  }
  fiber::TaskList run;
  while (run.size() != admitted) run.PushBack(calls.PopFront());
  if (!run.empty()) fiber::SubmitAll(std::move(run));
  // Right here, so that there can't be many of them.
  while (fiber::Task* task = calls.PopFront()) {
    static_cast<ServerCall*>(task)->Refuse();
  }
}

// The peer has closed its side, or Drain() was called and all that had been
// received by then has been cut.
bool ServerConnection::OnEndOfInput() {
  // relaxed: see DrainIfIdle().
  const bool idle = idle_.load(std::memory_order_relaxed);
  if (drained_.load(std::memory_order_relaxed)) {
    cut_short_ = false;
  } else if (protocols_[speaking_]->WithinMessage()) {
    cut_short_ = true;
  }
  const bool slow = slow_.load(std::memory_order_relaxed);
  // The end isn't ours, but the peer's.
  if (!idle && !slow && !drained_.load(std::memory_order_relaxed) &&
      !malformed_.load(std::memory_order_relaxed) &&
      state_->options().cancel_calls_at_end_of_input) {
    watched_calls_.StopAll(fiber::StopCause::kCallerGone);  // [SN8]
  }
  EndReading(idle   ? flare::Status(ETIMEDOUT, "it was idle")
             : slow ? flare::Status(ETIMEDOUT, "a message took too long")
                    : flare::Status(ECONNRESET, "the end of its input"));
  return true;
}

void ServerConnection::EndReading(flare::Status why) {
  if (std::exchange(reading_ended_, true)) return;
  left_ = 0;
  for (const auto& protocol : protocols_) protocol->EndInput();
  CountHeld(std::exchange(input_held_, 0), 0);
  // relaxed: see NoteIncomplete.
  message_began_ns_.store(0, std::memory_order_relaxed);
  // acquire: pairs with the release in WorkFinished, so that all replies have
  // been written before the output is ended [SN3].
  const std::uint64_t before =
      holds_.fetch_and(~kReading, std::memory_order_acquire);
  if ((before & kWork) == 0) stream_->CloseAfterFlush(std::move(why));
}

template <std::uint64_t kUnit>
void ServerConnection::WorkFinished() {
  // acquire: as in EndReading; and pairs with the release below, so that the
  // destroyer of the connection sees all uses of it [SN4].
  std::uint64_t holds = holds_.load(std::memory_order_acquire);
  for (;;) {
    if (kUnit == kCall && (holds & kPaused) != 0 &&
        (holds & kCalls) == resume_calls() + 1) [[unlikely]] {
      EndPause();
      // acquire: as in EndReading [SN4].
      holds = holds_.load(std::memory_order_acquire);
      continue;
    }
    if (holds == (kOpen | kUnit)) [[unlikely]]
      stream_->CloseAfterFlush();  // [SN3]
    // acq_rel: see above.
    if (holds_.compare_exchange_weak(holds, holds - kUnit,
                                     std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
      break;
    }
  }
  if (holds == kUnit) [[unlikely]]
    delete this;  // [SN4]
}
template void ServerConnection::WorkFinished<ServerConnection::kCall>();
template void ServerConnection::WorkFinished<ServerConnection::kStream>();

// The reader calls it, unless another has resumed it.
void ServerConnection::EndPause() {
  // acq_rel: pairs with Pause [SN5].
  if ((holds_.fetch_and(~kPaused, std::memory_order_acq_rel) & kPaused) != 0) {
    stream_->ResumeReading();
  }
}

void ServerConnection::OnClosed(const flare::Status& why) {
  try {
    CountEnd(why);
  } catch (const std::bad_alloc&) {  // It isn't logged.
  }
  CountHeld(std::exchange(input_held_, 0), 0);
  // relaxed: see leavers().
  leavers_.store(Leavers::kAll, std::memory_order_relaxed);
  watched_calls_.StopAll(fiber::StopCause::kCallerGone);  // [SN8]
  state_->connections.Closed(this);
  for (const auto& protocol : protocols_) protocol->OnClosed(why);
  // acq_rel: as in WorkFinished [SN4].
  const std::uint64_t before =
      holds_.fetch_and(kWork, std::memory_order_acq_rel);
  if ((before & kWork) == 0) delete this;
}

void ServerConnection::CountEnd(const flare::Status& why) {
  auto& counters = state_->connection_counters;
  // relaxed: io orders the callbacks' writes; `idle_` and `slow_` are hints.
  if (why.code() == ENOMEM) {
    state_->Count(&counters.broken);
    state_->LogConnection(peer_, "closed: out of memory");
  } else if (why.code() == ENOBUFS) {
    state_->Count(&counters.greedy);
    state_->LogConnection(peer_, "closed: " + why.message());
  } else if (malformed_.load(std::memory_order_relaxed)) {
    state_->Count(&counters.malformed);
  } else if (idle_.load(std::memory_order_relaxed)) {
    state_->Count(&counters.idle);
  } else if (slow_.load(std::memory_order_relaxed)) {
    state_->Count(&counters.slow);
    state_->LogConnection(
        peer_, std::string("closed: ") +
                   (speaks_ || heard_ ? "a message took too long to arrive"
                                      : "nothing came") +
                   " (--flare_rpc_server_message_timeout)");
  } else if (reading_ended_ && cut_short_) {
    state_->Count(&counters.broken);
    state_->LogConnection(peer_, "broken: its input ended within a message");
  } else if (!reading_ended_ && why.code() != ESHUTDOWN &&
             why.code() != ECANCELED) {
    // Neither side ended it in an orderly way.
    state_->Count(&counters.broken);
    state_->LogConnection(peer_, "broken: " + why.message());
  }
}

const Method* ServerConnection::FindMethod(std::string_view name) {
  // relaxed: methods are constant since before the connection was accepted.
  const Method* const last = last_method_.load(std::memory_order_relaxed);
  if (last != nullptr && last->name() == name) return last;
  const Method* const method = state_->methods.Find(name);
  if (method != nullptr) {
    last_method_.store(method, std::memory_order_relaxed);
  }
  return method;
}

bool ServerConnection::WaitForRoom() {
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

void ServerConnection::CloseMalformed(const std::string& why) {
  state_->LogConnection(peer_, why);
  // relaxed: as in HandleBadInput.
  malformed_.store(true, std::memory_order_relaxed);
  stream_->EndInput();
}

bool ServerConnection::AnnounceEnd(std::int64_t active_since_ns) {
  if (TellEnd()) return false;
  // seq_cst: before the protocols are asked [SN9].
  lingers_.store(true, std::memory_order_seq_cst);
  bool lingers = false;
  if (stream_->last_activity_ns() >= active_since_ns) {
    // The first request is on its way, as a rule, or another one's rest.
    // relaxed: see NoteIncomplete.
    lingers = message_began_ns_.load(std::memory_order_relaxed) != 0;
    for (const auto& protocol : protocols_) {
      lingers |= protocol->EndWithNextReply();
    }
  }
  if (!lingers) EndOrTell();
  return lingers;
}

std::vector<AbandonedCall> ServerConnection::RunningCalls(ServerState* state) {
  return ServerCall::Running(state);
}

std::string_view ServerConnection::NameOf(
    const ServerProtocol* protocol) const {
  for (const auto& mine : protocols_) {
    if (mine.get() == protocol) return mine->name();
  }
  return "";
}

// False: there is nobody to be told so.
bool ServerConnection::TellEnd() {
  bool told = false;
  for (const auto& protocol : protocols_) told |= protocol->AnnounceEnd();
  return told;
}

// For a connection that lingers: bytes that came since may have shown that the
// peer can be told.
void ServerConnection::EndOrTell() {
  // seq_cst: before the protocols are asked, as in AnnounceEnd [SN9].
  if (!lingers_.exchange(false, std::memory_order_seq_cst)) return;
  if (!TellEnd()) Drain();
}

// The reader calls it: calls are about to begin on a connection that lingers.
void ServerConnection::EndWithCalls() {
  for (const auto& protocol : protocols_) {
    if (protocol->EndWithNextReply()) return;
  }
  EndOrTell();
}

void ServerConnection::DrainIfIdle(std::int64_t since_ns) {
  // relaxed: a call that starts meanwhile is answered all the same.
  if ((holds_.load(std::memory_order_relaxed) & kWork) != 0) return;
  if (stream_->last_activity_ns() >= since_ns) return;
  idle_.store(true, std::memory_order_relaxed);
  if (stream_->HasOutputRoom()) return Drain();
  // It doesn't read, since the peer takes no replies, and so wouldn't drain.
  Close(flare::Status::Lenient(ETIMEDOUT, "the peer takes no replies"));
}

void ServerConnection::DrainIfSlow(std::int64_t since_ns) {
  // relaxed, both: see NoteIncomplete; a message completed meanwhile is
  // answered all the same.
  const std::int64_t began = message_began_ns_.load(std::memory_order_relaxed);
  if (began == 0 || began >= since_ns) return;
  slow_.store(true, std::memory_order_relaxed);
  Drain();
}

bool ServerConnection::IsGreedy() const {
  return state_->budget().over() && held() >= io::MemoryBudget::kStep;
}

std::size_t ServerConnection::held() const {
  // relaxed: an estimate.
  return held_.load(std::memory_order_relaxed) + stream_->BufferedOutput();
}

bool ServerConnection::StandsStill(std::int64_t since_ns) const {
  // relaxed: see NoteIncomplete.
  const std::int64_t began = message_began_ns_.load(std::memory_order_relaxed);
  if (began != 0) return began < since_ns;
  return stream_->last_activity_ns() < since_ns;
}

void ServerConnection::CloseGreedy(std::size_t bytes) {
  try {
    stream_->Reset(flare::Status(
        ENOBUFS, "it held " + std::to_string(bytes) +
                     " bytes, and all connections together more than "
                     "--flare_rpc_server_max_buffered_bytes"));
  } catch (const std::bad_alloc&) {
    stream_->Reset(flare::Status(ENOBUFS));
  }
}

bool ServerConnection::Write(Buffer&& bytes) {
  // The reply to the only call has nothing to wait for, and that of a long one
  // mustn't wait for others that are as long. relaxed: a guess at the future.
  const bool now = (holds_.load(std::memory_order_relaxed) & kWork) <= 1 ||
                   fiber::ClaimLongTask();
  return stream_->Write(std::move(bytes),
                        now ? io::Flush::kNow : io::Flush::kSoon) ==
         io::WriteResult::kOk;
}

}  // namespace flare::rpc
