// The end of a stream. Seven parties may bring it about: the reader, the
// writer, the connection's reader (the peer's last message, its end, its
// reset), the loss of the connection, the deadline's timer, the canceller, and
// a server's method that returns. All they do is guarded by lock_.
//
//   input:   open -> over    by OnMessage(last), OnEnd, OnInputLost, failure
//   output:  open -> over    by Write(last), CloseWriting, Finish, failure; on
//                            a client also by OnEnd: the call is over then
//
//  [SX1] Each direction is over at most once, and for good. Nothing is queued
//        or sent after that. Messages that were queued before are read, unless
//        the call failed.
//  [SX2] A failure ends both directions; the first one counts. It is told to
//        the peer if it began here.
//  [SX3] A caller that waits has put its event in reader_ or writer_ under
//        lock_, having seen nothing to do. Each transition that gives it
//        something to do takes the event out under lock_ and sets it: once. A
//        caller that times out takes it out by itself, or, if it is gone, waits
//        for the Set() on its way: so the event outlives its setter.
//  [SX4] The wire is used under lock_ only, while it is there. Detaching takes
//        it out, once; on_detached is called after it was destroyed. So the
//        connection, which lives until then, outlives all uses of it. A client
//        detaches as soon as both directions are over, a server when its call
//        ends.
//  [SX5] The timer holds a reference while it is armed: given back by the
//        thread that cancels it in time, or by its callback.
//  [SX6] With lock_ nobody calls out, except to the wire and the counter, which
//        neither block nor call back, and the source of metadata: see After.
//  [SX7] While on_unprocessed_ is set, all messages that were written are in
//        written_. A call that the server didn't look at gives its wire back,
//        and is restarting_ until Restart() has got it another one, on which
//        these messages go first, or until it ends. Meanwhile writers wait, and
//        an end of the output is kept. The new connection's output_ waits in
//        new_output_ for the writer.
#include "flare/rpc/stream/call_stream.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/string.h"
#include "flare/rpc/log_throttle.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream/message_compression.h"
#include "flare/rpc/wire/payload.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

// How long a write waits for the connection before it looks whether the call
// has ended meanwhile.
constexpr std::int64_t kRoomSliceNs = 50'000'000;

// The connection of a peer that takes nothing for so long is given up.
constexpr std::int64_t kMaxStallNs = 10'000'000'000;

// Messages that wait to be read, however little they count for.
constexpr std::size_t kMaxQueued = 1 << 17;

// Messages up to this size are copied when they queue behind so many others.
constexpr std::size_t kSmallMessage = 512;
constexpr std::size_t kFewQueued = 16;

// Memory of messages that wait to be read, though nothing holds the peer, as
// somebody waits for credit. More than the kernel keeps for it.
constexpr std::size_t kMaxUnread = 64 << 20;

// About the memory of a message beside its bytes, or of a part.
constexpr std::size_t kMemoryPerMessage = 128;

// Memory of the parts of a message beyond twice their bytes. With more they are
// put together.
constexpr std::size_t kSparseParts = 64 << 10;

// Memory is counted in units of this: few messages change the count.
constexpr std::size_t kCountedStep = 4 << 10;

// Room for messages that is kept for the next ones.
constexpr std::size_t kMaxKeptPlaces = 1 << 10;

// Written messages that are kept until the server has answered, in case that it
// doesn't look at the call.
constexpr std::size_t kMaxWritten = 64 << 10;

// More than all windows: a peer that grants on and on has no more effect.
constexpr std::int64_t kMaxCredit = std::int64_t{1} << 32;

// The most bytes that wait to be sent in a stream without credits, beside one
// message.
constexpr std::size_t kRoomWithoutCredits = 1 << 20;

// A server's metadata comes in two parts: before its messages, and behind.
constexpr int kMostMetadataParts = 2;

void AddTo(Metadata* metadata, const Metadata& more) {
  for (const auto [name, value] : more) metadata->AddReceived(name, value);
}

void NoteDroppedMetadata(std::size_t entries) {
  static LogThrottle throttle;
  if (const auto left_out = throttle.Admit()) {
    LOG(WARNING) << "a stream ends without metadata, "
                 << CountOf(entries, "value")
                 << ": its protocol doesn't carry any there"
                 << LogThrottle::Note(*left_out);
  }
}

flare::Status CancelledStatus() {
  return flare::Status(STATUS_FAILED, "the call was cancelled");
}

}  // namespace

RefPtr<CallStream> CallStream::Create(Options options) {
  return RefPtr<CallStream>(adopt_ref, new CallStream(std::move(options)));
}

CallStream::CallStream(Options options)
    : fiber::Timer(&CallStream::OnTimer),
      format_(options.format),
      is_server_(options.is_server),
      deadline_ns_(options.deadline_ns),
      max_stall_ns_(options.max_stall_ns),
      on_news_(std::move(options.on_news)),
      counter_(options.counter),
      observer_(std::move(options.observer)),
      unpacked_(std::move(options.unpacked)),
      compression_(options.compression),
      compression_chosen_(!options.is_server),
      window_(options.receive_window),
      credit_(static_cast<std::int64_t>(options.send_window)),
      on_unprocessed_(std::move(options.on_unprocessed)),
      on_answered_(std::move(options.on_answered)),
      on_detached_(std::move(options.on_detached)),
      metadata_copy_(std::move(options.metadata)) {}

CallStream::~CallStream() { UncountUnpacked(); }

bool CallStream::Start(std::unique_ptr<StreamWire> wire,
                       RefPtr<io::StreamConnection> output) {
  const bool credits = wire->has_credits();
  started_ = true;
  holds_input_ = wire->holds_input();
  message_cost_ = wire->message_cost();
  output_ = std::move(output);
  if (!credits) output_->LowerOutputRoom(kRoomWithoutCredits);
  ScopedLock guard(lock_);
  credits_ = credits;
  // Else messages sent by OnWindow() count, too.
  if (!credits_) credit_ = 0;
  wire_ = std::move(wire);
  if (deadline_ns_ != kNever) {
    timer_armed_ = true;
    Ref();  // [SX5]
    fiber::ArmTimer(this, deadline_ns_);
  }
  enforced_ = wire_->enforces_window();
  if (!wire_->may_be_unprocessed()) on_unprocessed_ = nullptr;
  if (IsCompressed(compression_) && !wire_->UseCompression(compression_)) {
    compression_ = CompressionAlgorithm::kNone;
  }
  if (!wire_->Begin(RefPtr<StreamReceiver>(ref_ptr, this))) return false;
  if (credits_ && !is_server_) {
    credit_ = static_cast<std::int64_t>(wire_->send_window());
  }
  return true;
}

void CallStream::OnNotBegun(const flare::Status& why) {
  After after;
  {
    ScopedLock guard(lock_);
    FailLocked(why, EndedBy::kConnection, &after);
    after.ending.by = EndedBy::kUs;  // Nothing that the server has done.
  }
  Do(&after);
}

bool CallStream::Restart(Another* another) {
  After after;
  bool begun = false;
  {
    ScopedLock guard(lock_);
    if (restarting_) {
      if (IsCompressed(compression_)) {
        static_cast<void>(another->wire->UseCompression(compression_));
      }
      begun = another->wire->Begin(RefPtr<StreamReceiver>(ref_ptr, this));
    }
    if (begun) {
      restarting_ = false;
      wire_ = std::move(another->wire);
      on_answered_ = std::move(another->on_answered);
      on_detached_ = std::move(another->on_detached);
      new_output_ = std::move(another->output);
      WriteAgain();
      after.writer = std::exchange(writer_, nullptr);
    }
  }
  if (!begun) {
    another->wire.reset();
    std::exchange(another->on_detached, nullptr)({.by = EndedBy::kUs});
  }
  Do(&after);
  return begun;
}

// If the connection is closed OnReset() learns of it.
void CallStream::WriteAgain() {
  credit_ = static_cast<std::int64_t>(wire_->send_window());
  bool ended = false;
  for (Written& message : std::exchange(written_, {})) {
    credit_ -= static_cast<std::int64_t>(Cost(message.bytes.size()));
    ended = message.last;
    const bool sent =
        message.compressed
            ? wire_->SendCompressed(std::move(message.bytes), message.last)
            : wire_->SendMessage(std::move(message.bytes), message.last);
    if (!sent) return;
    credit_ += static_cast<std::int64_t>(wire_->TakeCredit());
  }
  if (output_over_ && !ended) wire_->SendEnd(flare::Status());
}

void CallStream::AddObserver(MessageObserver observer) {
  if (!observer_) {
    observer_ = std::move(observer);
    return;
  }
  observer_ = [first = std::move(observer_),
               second = std::move(observer)](const ObservedMessage& message) {
    first(message);
    second(message);
  };
}

void CallStream::Accept() {
  ScopedLock guard(lock_);
  if (wire_ != nullptr && !output_over_) wire_->Accept();
}

void CallStream::SetMetadataSource(
    Function<Metadata*(StreamWire::MetadataPlace)> source) {
  ScopedLock guard(lock_);
  metadata_source_ = std::move(source);
}

void CallStream::SetCompressionSource(Function<CompressionAlgorithm()> source) {
  ScopedLock guard(lock_);
  compression_source_ = std::move(source);
}

void CallStream::Do(After* after) {
  // First: a thread that goes on may look at its effects.
  if (after->on_ended) after->on_ended(after->ending.status);
  if (after->on_failed) after->on_failed(after->failure);
  if (after->dropped_metadata != 0) {
    NoteDroppedMetadata(after->dropped_metadata);
  }
  if (after->reader != nullptr) after->reader->Set();
  if (after->writer != nullptr) after->writer->Set();
  if (after->ender != nullptr) after->ender->Set();
  after->wire.reset();
  if (after->on_answered) after->on_answered();
  if (after->on_detached) after->on_detached(after->ending);
  if (after->on_unprocessed) {
    after->on_unprocessed(RefPtr<CallStream>(ref_ptr, this));
  }
  if (after->cancel_timer && fiber::CancelTimer(this)) Deref();  // [SX5]
}

void CallStream::OnTimer(fiber::Timer* timer) {
  const RefPtr<CallStream> self(adopt_ref, static_cast<CallStream*>(timer));
  {
    ScopedLock guard(self->lock_);
    self->timer_armed_ = false;
  }
  self->Fail(flare::Status(STATUS_TIMEOUT,
                           "the stream was not at its end by its deadline"));
}

// --------------------------------------------------------------------------
// Who reads
// --------------------------------------------------------------------------

bool CallStream::ReadMessage(google::protobuf::Message* message,
                             std::int64_t deadline_ns, StreamError* error) {
  Buffer bytes;
  if (!Read(&bytes, deadline_ns, error)) return false;
  flare::Status status = ParsePayload(format_, bytes, message);
  if (status.ok()) [[likely]]
    return true;
  FailReading(status, error);
  return false;
}

// A message is broken, though the call may have gone well.
void CallStream::FailReading(const flare::Status& why, StreamError* error) {
  *error = StreamError::IoError;
  at_ = batch_.size();
  After after;
  {
    ScopedLock guard(lock_);
    FailLocked(why, EndedBy::kUs, &after);
    if (status_.ok()) status_ = why;
    DropUnread(&after);
  }
  Do(&after);
  if (on_news_) on_news_(nullptr, status());
}

bool CallStream::Read(Buffer* message, std::int64_t deadline_ns,
                      StreamError* error) {
  if (counted_unpacked_ != 0) [[unlikely]]
    UncountUnpacked();
  if (at_ == batch_.size() && !Refill(deadline_ns, error)) return false;
  Incoming& next = batch_[at_++];
  *message = std::move(next.bytes);
  consumed_ += Cost(message->size());
  read_compressed_ = next.compression != CompressionAlgorithm::kNone;
  if (read_compressed_) [[unlikely]] {
    const flare::Status status = Unpack(next.compression, message);
    if (!status.ok()) {
      FailReading(status, error);
      return false;
    }
  }
  if (observer_) [[unlikely]] {
    Observe(ObservedMessage::Direction::kReceived, message->size());
  }
  return true;
}

flare::Status CallStream::Unpack(CompressionAlgorithm algorithm,
                                 Buffer* message) {
  if (unpacked_ != nullptr && !unpacked_->HasRoom()) {
    return flare::Status(STATUS_OVERLOADED,
                         "too many compressed requests at the same time");
  }
  flare::Status status = DecompressMessage(algorithm, max_unpacked_, message);
  if (unpacked_ != nullptr && status.ok()) {
    counted_unpacked_ = message->size();
    unpacked_->Add(counted_unpacked_);
  }
  return status;
}

// The caller has read on.
void CallStream::UncountUnpacked() {
  if (counted_unpacked_ == 0) return;
  unpacked_->Remove(std::exchange(counted_unpacked_, 0));
}

void CallStream::Observe(ObservedMessage::Direction direction,
                         std::size_t bytes) const {
  observer_({.direction = direction, .bytes = bytes});
}

bool CallStream::WaitToRead(std::int64_t deadline_ns) {
  StreamError error;
  return at_ != batch_.size() || Refill(deadline_ns, &error) ||
         error != StreamError::Timeout;
}

bool CallStream::ReadyToRead() {
  if (at_ != batch_.size()) return true;
  ScopedLock guard(lock_);
  return !incoming_.empty() || input_over_;
}

// Fetches all messages that have come, once those of batch_ are read.
bool CallStream::Refill(std::int64_t deadline_ns, StreamError* error) {
  batch_.clear();
  if (batch_.capacity() > kMaxKeptPlaces) [[unlikely]]
    batch_.shrink_to_fit();
  at_ = 0;
  for (;;) {
    fiber::Event event;
    flare::Status failure;
    std::unique_ptr<Metadata> metadata;
    bool over = false;
    {
      ScopedLock guard(lock_);
      Settle();
      batch_held_ = std::exchange(incoming_held_, 0);
      CountUnread();
      metadata = std::move(metadata_);
      if (!incoming_.empty()) {
        batch_.swap(incoming_);
        max_unpacked_ = max_size_;
      } else if (input_over_) {
        over = true;
        *error = ErrorLocked();
        failure = status_;
      } else {
        reader_ = &event;  // [SX3]
      }
    }
    if (on_news_ && (metadata != nullptr || !failure.ok())) {
      on_news_(std::move(metadata), failure);
    }
    if (over) return false;
    if (at_ != batch_.size()) return true;
    if (!Wait(&event, &reader_, deadline_ns)) {
      *error = StreamError::Timeout;
      return false;
    }
  }
}

// False: the deadline has passed, and the event isn't set. [SX3]
bool CallStream::Wait(fiber::Event* event, fiber::Event** place,
                      std::int64_t deadline_ns) {
  if (deadline_ns == kNever) {
    event->Wait();
    return true;
  }
  if (event->WaitUntil(deadline_ns)) return true;
  {
    ScopedLock guard(lock_);
    if (*place == event) {
      *place = nullptr;
      return false;
    }
  }
  event->Wait();
  return true;
}

StreamError CallStream::ErrorLocked() const {
  if (status_.ok() && !input_lost_) return StreamError::EndOfStream;
  return status_.code() == STATUS_TIMEOUT ? StreamError::Timeout
                                          : StreamError::IoError;
}

// Read messages make room.
void CallStream::Settle() {
  if (consumed_ == 0 && !holding_) return;
  queued_ -= std::min(queued_, consumed_);
  owed_ += std::exchange(consumed_, 0);
  GrantLocked();
}

// Nobody reads messages that haven't been fetched.
void CallStream::DropUnread(After* after) {
  if (!incoming_.empty()) after->dropped.swap(incoming_);
  if (!parts_.empty()) after->dropped_parts = std::exchange(parts_, {});
  incoming_held_ = parts_held_ = 0;
  CountUnread();
}

void CallStream::CountUnread() {
  if (counter_ == nullptr || wire_ == nullptr) return;
  const std::size_t held = incoming_held_ + batch_held_ + parts_held_;
  const std::size_t now = held - held % kCountedStep;
  if (now != counted_) [[unlikely]] {
    counter_->CountHeld(std::exchange(counted_, now), now);
  }
}

void CallStream::GrantLocked() {
  if (wire_ == nullptr) return;
  if (holding_ && queued_ <= window_ / 2) {
    holding_ = false;
    wire_->ReleaseInput();
  }
  if (!credits_ || input_over_) return;
  if (owed_ < window_ / 2) {
    if (owed_ != 0 && incoming_.empty() && wire_->grants_when_drained()) {
      wire_->SendCredit(std::exchange(owed_, 0));
    }
    return;
  }
  std::size_t bytes = std::exchange(owed_, 0);
  // The reader has waited for the peer, and the peer for credit.
  if (incoming_.empty() && window_ < StreamWindow::kMax &&
      !wire_->grants_when_drained()) {
    bytes += window_;
    window_ *= 2;
  }
  wire_->SendCredit(bytes);
}

// --------------------------------------------------------------------------
// Who writes
// --------------------------------------------------------------------------

bool CallStream::WriteMessage(const google::protobuf::Message& message,
                              bool last, std::int64_t deadline_ns) {
  OutboundBody body;
  flare::Status status = SerializePayload(format_, message, &body);
  if (!status.ok()) {
    Fail(is_server_
             ? status
             : flare::Status(STATUS_SERIALIZE_REQUEST, status.message()));
    return false;
  }
  return Write(std::move(body), last, deadline_ns);
}

bool CallStream::Write(OutboundBody&& message, bool last,
                       std::int64_t deadline_ns) {
  const std::size_t bytes = message.size();
  if (!compression_chosen_) [[unlikely]]
    ChooseCompression();
  const bool compressed = compression_ != CompressionAlgorithm::kNone &&
                          compress_ && CompressMessage(compression_, &message);
  for (;;) {
    if (!WaitForRoom(deadline_ns)) return false;
    fiber::Event event;
    switch (TryToSend(&message, compressed, last, &event)) {
      case Sent::kYes:
        if (observer_) [[unlikely]] {
          Observe(ObservedMessage::Direction::kSent, bytes);
        }
        return true;
      case Sent::kNever:
        return false;
      case Sent::kLater:
        if (!WaitForCredit(&event, deadline_ns)) return false;
    }
  }
}

// True: there may be some. False: the deadline has passed, or the peer has
// granted nothing for long. Messages that wait for such a peer's window aren't
// sent.
bool CallStream::WaitForCredit(fiber::Event* event, std::int64_t deadline_ns) {
  const std::int64_t stalled_ns = SaturatingAdd(NowNs(), max_stall_ns_);
  if (Wait(event, &writer_, std::min(deadline_ns, stalled_ns))) return true;
  if (deadline_ns <= stalled_ns) return false;
  const flare::Status why(
      STATUS_IO_ERROR,
      "the client takes no messages of its stream "
      "(Server::Options::stalled_stream_timeout): the call was given up");
  After after;
  {
    ScopedLock guard(lock_);
    if (granted_) return true;  // Too little for a message yet.
    if (!failed_ && !output_over_ && wire_ != nullptr) wire_->SendReset(why);
    FailLocked(why, EndedBy::kConnection, &after);
  }
  Do(&after);
  return false;
}

// For a server, before its first message: the head says how messages may be
// compressed.
void CallStream::ChooseCompression() {
  compression_chosen_ = true;
  ScopedLock guard(lock_);
  if (!compression_source_ || wire_ == nullptr) return;
  const CompressionAlgorithm wanted = compression_source_();
  if (IsCompressed(wanted) && wire_->UseCompression(wanted)) {
    compression_ = wanted;
  }
}

// kLater: `event` is set when there is credit.
CallStream::Sent CallStream::TryToSend(OutboundBody* message, bool compressed,
                                       bool last, fiber::Event* event) {
  After after;
  {
    ScopedLock guard(lock_);
    if (output_over_ || writing_closed_ || (wire_ == nullptr && !restarting_)) {
      return Sent::kNever;
    }
    if (new_output_ != nullptr) [[unlikely]]
      output_ = std::move(new_output_);
    if ((credits_ && credit_ <= 0) || restarting_) {
      writer_ = event;  // [SX3]
      granted_ = false;
      // The credit may come behind the messages that are too many.
      if (std::exchange(holding_, false)) wire_->ReleaseInput();
      return Sent::kLater;
    }
    credit_ -= static_cast<std::int64_t>(Cost(message->size()));
    if (on_unprocessed_) [[unlikely]]
      KeepWritten(message, compressed, last, &after);
    // While requests may come only the end of the method ends the call: no wire
    // would tell its reader of anything after the outcome.
    writing_closed_ = last && is_server_ && !input_over_;
    last = last && !writing_closed_;
    if (is_server_) {
      if (!std::exchange(sent_, true)) {
        PutMetadata(StreamWire::MetadataPlace::kInitial);
      }
      if (last) PutMetadataLast(&after);
    }
    // OnReset() learns of the connection's end, or OnUnprocessed(): then the
    // message is written again, if it was kept [SX7].
    const bool sent =
        compressed ? wire_->SendCompressed(std::move(*message).ToBuffer(), last)
                   : wire_->SendMessage(std::move(*message), last);
    if (!sent && !on_unprocessed_) return Sent::kNever;
    credit_ += static_cast<std::int64_t>(wire_->TakeCredit());
    if (!last) return Sent::kYes;
    EndOutputLocked(&after);
  }
  Do(&after);
  return Sent::kYes;
}

void CallStream::KeepWritten(OutboundBody* message, bool compressed, bool last,
                             After* after) {
  written_bytes_ += Cost(message->size());
  if (written_bytes_ > kMaxWritten) return ForgetWritten(after);
  Buffer bytes = std::move(*message).ToBuffer();
  written_.push_back({.bytes = bytes, .compressed = compressed, .last = last});
  *message = OutboundBody(std::move(bytes));
}

// The metadata that the server's method has for the client by now.
void CallStream::PutMetadata(StreamWire::MetadataPlace place) {
  Metadata* const metadata =
      metadata_source_ ? metadata_source_(place) : nullptr;
  if (metadata == nullptr || metadata->empty()) [[likely]]
    return;
  if (wire_->AddMetadata(place, *metadata)) metadata->Clear();
}

// The end follows.
void CallStream::PutMetadataLast(After* after) {
  if (!metadata_source_) return;
  PutMetadata(StreamWire::MetadataPlace::kTrailing);
  if (!sent_) PutMetadata(StreamWire::MetadataPlace::kInitial);
  if (const Metadata* const rest =
          metadata_source_(StreamWire::MetadataPlace::kTrailing)) {
    after->dropped_metadata = rest->size();
  }
}

// While much output waits for the peer to take it. False: the call is over, or
// the deadline has passed. A peer that takes nothing for long is given up.
bool CallStream::WaitForRoom(std::int64_t deadline_ns) {
  if (output_ == nullptr || output_->HasOutputRoom()) [[likely]]
    return true;
  output_->PeerTakesOutput(0);  // The look that later ones are compared with.
  std::int64_t look_ns = NowNs() + kMaxStallNs;
  while (!output_->HasOutputRoom()) {
    if (TakeNewOutput()) output_->PeerTakesOutput(0);
    if (OutputOver()) return false;
    const std::int64_t now = NowNs();
    if (now >= deadline_ns) return false;
    if (now >= look_ns) {
      if (!output_->PeerTakesOutput(kMaxStallNs)) {
        output_->Reset(
            flare::Status::Lenient(ETIMEDOUT, "the peer takes no messages"));
        return false;
      }
      look_ns = now + kMaxStallNs;
    }
    static_cast<void>(
        output_->WaitWritable(std::min(deadline_ns, now + kRoomSliceNs)));
  }
  return true;
}

bool CallStream::TakeNewOutput() {
  ScopedLock guard(lock_);
  if (new_output_ == nullptr) return false;
  output_ = std::move(new_output_);
  return true;
}

bool CallStream::OutputOver() const {
  ScopedLock guard(lock_);
  return output_over_;
}

bool CallStream::ReadyToWrite() {
  if (output_ != nullptr && !output_->HasOutputRoom()) return false;
  ScopedLock guard(lock_);
  return output_over_ || !credits_ || (credit_ > 0 && !restarting_);
}

// --------------------------------------------------------------------------
// Ends
// --------------------------------------------------------------------------

void CallStream::CloseReading() {
  // Called by the reader, or when there is none any more.
  for (; at_ != batch_.size(); ++at_) {
    consumed_ += Cost(batch_[at_].bytes.size());
  }
  std::vector<Incoming> unread;
  unread.swap(batch_);
  at_ = 0;
  After after;
  {
    ScopedLock guard(lock_);
    reading_closed_ = true;
    batch_held_ = 0;
    owed_ += parts_.size() + std::exchange(consumed_, 0);
    DropUnread(&after);
    for (const Incoming& message : after.dropped) {
      owed_ += Cost(message.bytes.size());
    }
    queued_ = 0;
    if (!input_over_ && output_over_ && !is_server_) {
      FailLocked(CancelledStatus(), EndedBy::kUs, &after);
    } else {
      GrantLocked();
    }
  }
  Do(&after);
}

void CallStream::CloseWriting() {
  After after;
  {
    ScopedLock guard(lock_);
    if (output_over_ || (wire_ == nullptr && !restarting_)) return;
    if (is_server_) {
      // The end follows with the status. Nothing more is written.
      writing_closed_ = true;
      return;
    }
    if (wire_ != nullptr) wire_->SendEnd(flare::Status());  // Else [SX7].
    EndOutputLocked(&after);
    if (reading_closed_ && !input_over_) {
      FailLocked(CancelledStatus(), EndedBy::kUs, &after);
    }
  }
  Do(&after);
}

void CallStream::Cancel() { Fail(CancelledStatus()); }

void CallStream::DropReader() {
  if (is_server_) {
    CloseReading();
  } else {
    Cancel();
  }
}

void CallStream::DropWriter() {
  if (!is_server_) return Cancel();
  ScopedLock guard(lock_);
  if (output_over_ || std::exchange(writing_closed_, true)) return;
  // For Finish(), which comes with the status of the method.
  if (status_.ok()) {
    status_ = flare::Status(STATUS_FAILED,
                            "the method has dropped its writer without "
                            "closing it");
  }
}

void CallStream::Fail(const flare::Status& why) {
  After after;
  {
    ScopedLock guard(lock_);
    FailLocked(why, EndedBy::kUs, &after);
  }
  Do(&after);
}

void CallStream::Finish(const flare::Status& status) {
  After after;
  {
    ScopedLock guard(lock_);
    if (status_.ok()) status_ = status;
    if (!output_over_ && wire_ != nullptr) {
      PutMetadataLast(&after);
      wire_->SendEnd(status.ok() ? status_ : status);
    }
    metadata_source_ = nullptr;
    compression_source_ = nullptr;
    EndOutputLocked(&after);
    EndInputLocked(&after);
    DropUnread(&after);
  }
  Do(&after);
}

void CallStream::Detach() {
  After after;
  {
    ScopedLock guard(lock_);
    metadata_source_ = nullptr;
    compression_source_ = nullptr;
    // A user left with a reader or a writer finds it at its end.
    EndOutputLocked(&after);
    EndInputLocked(&after);
    DetachLocked(&after);
  }
  Do(&after);
}

flare::Status CallStream::status() const {
  ScopedLock guard(lock_);
  return status_;
}

bool CallStream::over() const {
  ScopedLock guard(lock_);
  return input_over_ && output_over_;
}

void CallStream::SetOnFailed(Function<void(const flare::Status&)> on_failed) {
  flare::Status why;
  {
    ScopedLock guard(lock_);
    if (!failed_) {
      on_failed_ = std::move(on_failed);
      return;
    }
    why = status_;
  }
  on_failed(why);
}

void CallStream::SetOnEnded(Function<void(int)> on_ended) {
  int status = 0;
  {
    ScopedLock guard(lock_);
    if (!detached_) {
      on_ended_ = std::move(on_ended);
      return;
    }
    status = status_.code();
  }
  on_ended(status);
}

void CallStream::WaitForEnd() {
  fiber::Event event;
  {
    ScopedLock guard(lock_);
    if (detached_) return;
    ender_ = &event;  // [SX3]
  }
  event.Wait();
}

void CallStream::KeepUntilDetached(std::shared_ptr<const void> thing) {
  ScopedLock guard(lock_);
  if (!detached_) kept_.swap(thing);  // Dropped without the lock.
}

void CallStream::FailLocked(const flare::Status& why, EndedBy by,
                            After* after) {
  if (failed_ || (input_over_ && output_over_)) return;  // [SX2]
  failed_ = true;
  ended_by_ = by;
  if (status_.ok()) status_ = why;
  if (by == EndedBy::kUs && wire_ != nullptr) {
    if (!is_server_) {
      wire_->SendReset(why);
    } else if (!output_over_) {
      // The client knows its deadline. It may open no window for more.
      if (why.code() == STATUS_TIMEOUT) {
        wire_->SendReset(why);
      } else {
        wire_->SendEnd(why);
      }
    }
  }
  DropUnread(after);
  if (on_failed_) {
    after->on_failed = std::move(on_failed_);
    after->failure = why;
  }
  EndOutputLocked(after);
  EndInputLocked(after);
}

void CallStream::EndInputLocked(After* after) {
  if (input_over_) return;  // [SX1]
  input_over_ = true;
  if (std::exchange(holding_, false) && wire_ != nullptr) wire_->ReleaseInput();
  if (reader_ != nullptr) after->reader = std::exchange(reader_, nullptr);
  DetachIfOver(after);
}

void CallStream::EndOutputLocked(After* after) {
  if (output_over_) return;  // [SX1]
  output_over_ = true;
  if (writer_ != nullptr) after->writer = std::exchange(writer_, nullptr);
  DetachIfOver(after);
}

void CallStream::DetachIfOver(After* after) {
  if (!is_server_ && input_over_ && output_over_) DetachLocked(after);
}

void CallStream::DetachLocked(After* after) {
  if (std::exchange(detached_, true)) return;  // [SX4]
  restarting_ = false;
  ForgetWritten(after);
  if (counted_ != 0) counter_->CountHeld(std::exchange(counted_, 0), 0);
  after->wire = std::move(wire_);
  after->on_ended = std::move(on_ended_);
  after->on_detached = std::move(on_detached_);
  after->ending = {
      .by = ended_by_, .status = status_.code(), .answered = answered_};
  after->not_answered = std::move(on_answered_);
  after->unused = std::move(on_failed_);
  after->kept = std::move(kept_);
  after->ender = std::exchange(ender_, nullptr);
  after->cancel_timer = std::exchange(timer_armed_, false);
}

// --------------------------------------------------------------------------
// What comes from the peer
// --------------------------------------------------------------------------

void CallStream::OnMessage(Buffer&& message, bool last) {
  After after;
  {
    ScopedLock guard(lock_);
    if (input_over_) return;
    Take({.bytes = std::move(message)}, &after);
    if (last) {
      if (!is_server_) EndOutputLocked(&after);  // The call is over.
      EndInputLocked(&after);
    }
  }
  Do(&after);
}

void CallStream::OnCompressed(Buffer&& message, CompressionAlgorithm algorithm,
                              std::size_t max_size) {
  After after;
  {
    ScopedLock guard(lock_);
    if (input_over_) return;
    max_size_ = max_size;
    Take({.bytes = std::move(message), .compression = algorithm}, &after);
  }
  Do(&after);
}

void CallStream::OnPart(Buffer&& part) {
  ScopedLock guard(lock_);
  if (input_over_ || part.empty()) return;
  if (reading_closed_) {
    owed_ += part.size();
    return;
  }
  parts_held_ += part.size() + kMemoryPerMessage;
  parts_.Append(std::move(part));
  // Small parts hold much more memory than they have bytes.
  if (parts_held_ > 2 * parts_.size() + kSparseParts) [[unlikely]] {
    parts_.CompactIfSparse();
    parts_held_ = parts_.size() + kMemoryPerMessage;
  }
  CountUnread();
}

void CallStream::Take(Incoming&& message, After* after) {
  if (!parts_.empty()) [[unlikely]] {
    parts_.Append(std::move(message.bytes));
    message.bytes = std::exchange(parts_, {});
  }
  const std::size_t cost = Cost(message.bytes.size());
  if (reading_closed_) {
    owed_ += cost;
    GrantLocked();
    return;
  }
  const bool many = incoming_.size() >= kMaxQueued;
  const bool too_many =
      holds_input_ ? credits_ && batch_held_ + incoming_held_ >= kMaxUnread
                   : credits_ && !enforced_ && (many || queued_ >= 2 * window_);
  if (too_many) {
    FailLocked(
        flare::Status(STATUS_MALFORMED_DATA, "the peer sends more than it may"),
        EndedBy::kUs, after);
    return;
  }
  NoteAnswered(after);
  // A slice keeps the block of input that it lies in, of which the rest may be
  // anything.
  if (incoming_.size() >= kFewQueued && message.bytes.size() <= kSmallMessage) {
    BufferBuilder copy;
    for (const std::string_view piece : message.bytes) copy.Append(piece);
    message.bytes = copy.DestructiveGet();
  }
  queued_ += cost;
  incoming_held_ +=
      message.bytes.size() + kMemoryPerMessage + std::exchange(parts_held_, 0);
  incoming_.push_back(std::move(message));
  CountUnread();
  after->reader = std::exchange(reader_, nullptr);
  // A peer that heeds the window may overrun it by a message. While somebody
  // waits for credit all input is taken: a peer that can grant some sends no
  // more than it had sent before it knew the window.
  if (holds_input_ && !holding_ && wire_ != nullptr && writer_ == nullptr &&
      (many || (queued_ > (credits_ ? 2 * window_ : window_) &&
                queued_ > wire_->unread_allowance()))) {
    holding_ = true;
    wire_->HoldInput();
  }
}

void CallStream::OnEnd(const flare::Status& status) {
  After after;
  {
    ScopedLock guard(lock_);
    if (input_over_) return;
    if (!is_server_) {
      status_ = status;
      // The call is over: unsent messages aren't wanted.
      EndOutputLocked(&after);
    }
    EndInputLocked(&after);
  }
  Do(&after);
}

bool CallStream::OnUnprocessed() {
  After after;
  {
    ScopedLock guard(lock_);
    if (!on_unprocessed_ || wire_ == nullptr) return false;
    restarting_ = true;  // [SX7]
    after.on_unprocessed = std::move(on_unprocessed_);
    after.wire = std::move(wire_);
    after.not_answered = std::move(on_answered_);
    after.on_detached = std::move(on_detached_);
    after.ending = {.by = EndedBy::kUs, .status = STATUS_FAIL_TO_CONNECT};
  }
  Do(&after);
  return true;
}

void CallStream::OnCredit(std::size_t bytes) {
  After after;
  {
    ScopedLock guard(lock_);
    granted_ |= bytes != 0;
    AddCredit(bytes);
    if (credit_ > 0) after.writer = std::exchange(writer_, nullptr);
  }
  Do(&after);
}

void CallStream::OnWindow(std::size_t bytes) {
  ScopedLock guard(lock_);
  if (std::exchange(credits_, true)) return;
  AddCredit(bytes);
}

void CallStream::AddCredit(std::size_t bytes) {
  const std::size_t some = std::min(bytes, std::size_t{1} << 31);
  credit_ = std::min(credit_ + static_cast<std::int64_t>(some), kMaxCredit);
}

void CallStream::OnMetadata(std::unique_ptr<Metadata> metadata) {
  After after;  // Drops things without the lock.
  ScopedLock guard(lock_);
  if (input_over_ || metadata_parts_ == kMostMetadataParts) return;
  ForgetWritten(&after);
  ++metadata_parts_;
  if (metadata_copy_ != nullptr) AddTo(metadata_copy_.get(), *metadata);
  if (metadata_ == nullptr) {
    metadata_ = std::move(metadata);
    return;
  }
  AddTo(metadata_.get(), *metadata);
}

void CallStream::OnReset(const flare::Status& why) {
  After after;
  {
    ScopedLock guard(lock_);
    FailLocked(why, EndedBy::kConnection, &after);
  }
  Do(&after);
}

void CallStream::OnTooLarge(const flare::Status& why) {
  After after;
  {
    ScopedLock guard(lock_);
    if (input_over_) return;
    NoteAnswered(&after);  // Though not so that it can be read.
    FailLocked(why, EndedBy::kConnection, &after);
  }
  Do(&after);
}

void CallStream::OnInputLost(const flare::Status& why) {
  After after;
  {
    ScopedLock guard(lock_);
    if (input_over_) return;
    if (!is_server_) {
      FailLocked(why, EndedBy::kConnection, &after);
    } else {
      input_lost_ = true;
      EndInputLocked(&after);
    }
  }
  Do(&after);
}

}  // namespace flare::rpc
