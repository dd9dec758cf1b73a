// [SN1] Calls that are watched are stopped at the end of the peer's input and
//       by OnClosed(), before SocketClosed(): the list lives in the connection.
// [SN2] At a stop AnnounceEnd() stores lingers_, then asks the protocols about
//       the peer; the reader has them note each request, then looks at
//       lingers_. All in one total order: so one of the two notices a request
//       that comes meanwhile, and the peer is told.
#include "flare/rpc/server/server_connection.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/string.h"
#include "flare/fiber/runtime.h"
#include "flare/rpc/server/server_call.h"

namespace flare::rpc {
namespace {

// Whenever this many more bytes of a message have come, its time begins anew,
// so that large ones may come on slow lines.
constexpr std::size_t kProgress = 64 << 10;

// Less of a message isn't counted.
constexpr std::size_t kLittleInput = 16 << 10;

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

void Refuse(ServerState* state, const Endpoint& peer, const std::string& why) {
  state->Count(&state->connection_counters.refused);
  state->LogConnection(peer, "refused" + why);
}

void RefuseOneMore(ServerState* state, const Endpoint& peer) {
  Refuse(state, peer,
         ": there are " +
             std::to_string(state->options().max_concurrent_connections) +
             " already (--flare_rpc_server_max_connections)");
}

}  // namespace

void ServerConnection::Serve(const RefPtr<ServerState>& state, io::UniqueFd fd,
                             const Endpoint& peer, std::size_t group) {
  const auto& filter = state->options().conn_filter;
  if (filter && !filter(peer))
    return Refuse(state.Get(), peer, " by the filter");
  std::unique_ptr<io::Transport> transport;
  if (state->tls() != nullptr) {
    // No handshake is to make way for it.
    if (state->connections.full()) return RefuseOneMore(state.Get(), peer);
    transport = state->tls()->NewTransport();
    if (transport == nullptr) {
      return Refuse(state.Get(), peer,
                    ": " + std::to_string(state->tls()->handshakes()) +
                        " TLS handshakes are going on (max_handshakes)");
    }
  }
  auto* const self = new ServerConnection(state, std::move(fd), peer, group,
                                          std::move(transport));
  if (!state->connections.Add(self)) {
    RefuseOneMore(state.Get(), peer);
    delete self;
    return;
  }
  state->Count(&state->connection_counters.accepted);
  self->stream()->Start();
}

ServerConnection::ServerConnection(const RefPtr<ServerState>& state,
                                   io::UniqueFd fd, const Endpoint& peer,
                                   std::size_t group,
                                   std::unique_ptr<io::Transport> transport)
    : CallConnection(state, std::move(fd), peer, group, std::move(transport)) {
  const ServerProtocolSet& set = state->protocols();
  protocols_.reserve(set.size());
  for (std::size_t i = 0; i != set.size(); ++i) {
    protocols_.push_back(set.New(i, this));
  }
  // relaxed: nobody else knows of the connection.
  message_began_ns_.store(stream()->last_activity_ns(),
                          std::memory_order_relaxed);
}

// The reader: called with new input, one call at a time.
bool ServerConnection::OnData(Buffer& in, std::size_t* need,
                              std::string* error) {
  if (reading_ended_ || malformed()) {
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
    heard_ = Heard::kMessage;
    began = true;
  }
  left_ = in.size();
  cut_short_ = left_ != 0;
  const bool within = cut_short_ || protocols_[speaking_]->WithinMessage();
  NoteIncomplete(within, /*begins=*/began, arrived, now_ns);
  CountInput(within);
  StopLeft();
  if (calls.size() != 0) {
    // seq_cst: behind the protocols' notes of requests; pairs with the store in
    // AnnounceEnd [SN2].
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
  if (heard_ == Heard::kNothing) heard_ = Heard::kPart;
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
    state().CloseGreedy();
  }
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
    heard_ = Heard::kMessage;
    *took = true;
    if (in.empty()) return CutResult::kNeedMore;
    if (input_held()) return CutResult::kHandled;
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
    *error = "no protocol of this server (" + state().protocol_names() +
             ") begins with " + FirstBytes(in);
    if (BeginsTls(in)) *error += ": the peer speaks TLS, this server doesn't";
  }
  NoteMalformed(*error);
  // Nothing was understood: io closes at once.
  if (heard_ != Heard::kMessage) return false;
  in.Clear();
  EndReading(flare::Status(EPROTO, *error));
  return true;
}

// `streams`: so many of them are streaming calls.
void ServerConnection::StartCalls(fiber::TaskList&& calls,
                                  std::size_t streams) {
  const std::size_t n = calls.size();
  AddCalls(n, streams);
  const std::size_t admitted = IsGreedy() ? state().RefuseCalls(group(), n)
                                          : state().AdmitCalls(group(), n);
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
  const bool ours = drained();
  if (ours) {
    cut_short_ = false;
  } else if (protocols_[speaking_]->WithinMessage()) {
    cut_short_ = true;
  }
  if (!ours && overdue() == Overdue::kNone && !malformed() &&
      state().options().cancel_calls_at_end_of_input) {
    watched_calls().StopAll(fiber::StopCause::kCallerGone);  // [SN1]
  }
  switch (overdue()) {
    case Overdue::kIdle:
      EndReading(flare::Status(ETIMEDOUT, "it was idle"));
      break;
    case Overdue::kSlow:
      EndReading(flare::Status(ETIMEDOUT, "a message took too long"));
      break;
    case Overdue::kNone:
      EndReading(flare::Status(ECONNRESET, "the end of its input"));
      break;
  }
  return true;
}

void ServerConnection::EndReading(flare::Status why) {
  if (std::exchange(reading_ended_, true)) return;
  left_ = 0;
  for (const auto& protocol : protocols_) protocol->EndInput();
  CountHeld(std::exchange(input_held_, 0), 0);
  // relaxed: see NoteIncomplete.
  message_began_ns_.store(0, std::memory_order_relaxed);
  EndCalls(std::move(why));
}

void ServerConnection::OnClosed(const flare::Status& why) {
  try {
    CountEnd(why);
  } catch (const std::bad_alloc&) {  // It isn't logged.
  }
  CountHeld(std::exchange(input_held_, 0), 0);
  SetLeavers(Leavers::kAll);
  watched_calls().StopAll(fiber::StopCause::kCallerGone);  // [SN1]
  state().connections.Closed(this);
  for (const auto& protocol : protocols_) protocol->OnClosed(why);
  SocketClosed();
}

void ServerConnection::CountEnd(const flare::Status& why) {
  auto& counters = state().connection_counters;
  if (why.code() == ENOMEM) {
    state().Count(&counters.broken);
    state().LogConnection(peer(), "closed: out of memory");
  } else if (why.code() == ENOBUFS) {
    state().Count(&counters.greedy);
    state().LogConnection(peer(), "closed: " + why.message());
  } else if (malformed()) {
    state().Count(&counters.malformed);
  } else if (overdue() == Overdue::kIdle) {
    state().Count(&counters.idle);
  } else if (overdue() == Overdue::kSlow) {
    state().Count(&counters.slow);
    state().LogConnection(peer(), std::string("closed: ") +
                                      (heard_ != Heard::kNothing
                                           ? "a message took too long to arrive"
                                           : "nothing came") +
                                      " (--flare_rpc_server_message_timeout)");
  } else if (reading_ended_ && cut_short_) {
    state().Count(&counters.broken);
    state().LogConnection(peer(), "broken: its input ended within a message");
  } else if (!reading_ended_ && why.code() != ESHUTDOWN &&
             why.code() != ECANCELED) {
    // Neither side ended it in an orderly way.
    state().Count(&counters.broken);
    state().LogConnection(peer(), "broken: " + why.message());
  }
}

bool ServerConnection::AnnounceEnd(std::int64_t active_since_ns) {
  if (TellEnd()) return false;
  // seq_cst: before the protocols are asked [SN2].
  lingers_.store(true, std::memory_order_seq_cst);
  bool lingers = false;
  if (stream()->last_activity_ns() >= active_since_ns) {
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
  // seq_cst: before the protocols are asked, as in AnnounceEnd [SN2].
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
  if (HasCalls())
    return;  // One that starts meanwhile is answered all the same.
  if (stream()->last_activity_ns() >= since_ns) return;
  // relaxed: see overdue().
  overdue_.store(Overdue::kIdle, std::memory_order_relaxed);
  if (HasOutputRoom()) return Drain();
  // It doesn't read, since the peer takes no replies, and so wouldn't drain.
  Close(flare::Status::Lenient(ETIMEDOUT, "the peer takes no replies"));
}

void ServerConnection::DrainIfSlow(std::int64_t since_ns) {
  // relaxed, both: see NoteIncomplete; a message completed meanwhile is
  // answered all the same.
  const std::int64_t began = message_began_ns_.load(std::memory_order_relaxed);
  if (began == 0 || began >= since_ns) return;
  if (overdue() == Overdue::kNone) {
    overdue_.store(Overdue::kSlow, std::memory_order_relaxed);
  }
  Drain();
}

bool ServerConnection::StandsStill(std::int64_t since_ns) const {
  // relaxed: see NoteIncomplete.
  const std::int64_t began = message_began_ns_.load(std::memory_order_relaxed);
  if (began != 0) return began < since_ns;
  return stream()->last_activity_ns() < since_ns;
}

}  // namespace flare::rpc
