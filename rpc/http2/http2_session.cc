#include "flare/rpc/http2/http2_session.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/string.h"

namespace flare::rpc {
namespace {

// Shorter pieces of data are copied: a slice would keep a block of input. Not
// the end of a stream, which is mostly read at once.
constexpr std::size_t kCopyAtMost = 512;

// For a peer that hasn't said how many streams it takes.
constexpr std::size_t kFirstStreams = 100;

// Smaller ones, in the middle of a block, count as frames that are no messages.
constexpr std::size_t kLeastContinuation = 1024;

// The most that a peer may announce by SETTINGS_MAX_FRAME_SIZE.
constexpr std::uint32_t kLargestFrame = (1 << 24) - 1;

constexpr std::size_t kPrioritySize = 5;
constexpr std::size_t kPingSize = 8;

constexpr char kTooManyFrames[] = "too many frames that are no messages";
constexpr char kTooManyResets[] = "too many streams are reset";

constexpr std::size_t kEndless = std::numeric_limits<std::size_t>::max();
constexpr std::uint64_t kMaxContent = std::numeric_limits<std::int64_t>::max();

std::uint32_t NumberOf(std::string_view bytes) {
  return ReadBigEndian32(bytes.data());
}

// From a field of 31 bits.
std::int32_t StreamOf(std::string_view bytes) {
  return static_cast<std::int32_t>(NumberOf(bytes) & 0x7fffffff);
}

using FieldSpan = std::span<const Http2Field>;

}  // namespace

// --------------------------------------------------------------------------
// The session
// --------------------------------------------------------------------------

Http2Session::Http2Session(Role role, const Options& options,
                           Http2Handler* handler)
    : role_(role),
      options_(options),
      handler_(handler),
      has_preface_(role == Role::kClient),
      floods_(options.max_control_frames_per_second,
              options.max_resets_per_second, options.max_concurrent_streams),
      decoder_({.max_header_list = options.max_header_list}),
      peer_max_streams_(kFirstStreams) {
  if (role == Role::kClient) writer_.output()->Append(kPreface);
  WriteSettings();
  if (options_.connection_window > kHttp2InitialWindow) {
    receive_window_ = options_.connection_window;
    writer_.WindowUpdate(0, options_.connection_window - kHttp2InitialWindow);
  }
}

Http2Session::~Http2Session() = default;

void Http2Session::WriteSettings() {
  const auto max_header_list = static_cast<std::uint32_t>(std::min<std::size_t>(
      options_.max_header_list, std::numeric_limits<std::uint32_t>::max()));
  writer_.Settings(
      {{Http2Setting::kInitialWindowSize, options_.stream_window},
       {Http2Setting::kMaxHeaderListSize, max_header_list},
       role_ == Role::kServer
           ? std::pair(Http2Setting::kMaxConcurrentStreams,
                       options_.max_concurrent_streams)
           : std::pair(Http2Setting::kEnablePush, std::uint32_t{0})});
}

bool Http2Session::over() const {
  return broken() ||
         ((goaway_sent_ || goaway_received_) && streams_.size() == 0);
}

void Http2Session::Fail(std::string_view why) noexcept {
  failed_ = true;
  try {
    if (error_.empty()) error_.assign("HTTP/2: ").append(why);
  } catch (const std::bad_alloc&) {
    error_ = "no memory";  // As short as to need none.
  }
  writer_.Drop();
}

void Http2Session::Terminate(Http2Error error, std::string_view why) {
  if (std::exchange(terminated_, true)) return;
  error_.assign("HTTP/2: ").append(why);
  writer_.GoAway(role_ == Role::kServer ? numbers_.last() : 0, error, why);
}

void Http2Session::AdmitControlFrame() {
  if (floods_.AdmitControlFrame()) [[likely]]
    return;
  Terminate(Http2Error::kEnhanceYourCalm, kTooManyFrames);
}

void Http2Session::AdmitPeersReset(const Http2Stream& stream) {
  switch (floods_.AdmitPeersReset(stream.opened_at_ns_, ReceiveTime())) {
    case Http2Floods::Verdict::kFine:
      return;
    case Http2Floods::Verdict::kTooManyFrames:
      return Terminate(Http2Error::kEnhanceYourCalm, kTooManyFrames);
    case Http2Floods::Verdict::kTooManyResets:
      return Terminate(Http2Error::kEnhanceYourCalm, kTooManyResets);
  }
}

void Http2Session::AdmitReset() {
  if (floods_.AdmitReset()) return;
  Terminate(Http2Error::kEnhanceYourCalm, kTooManyResets);
}

// --------------------------------------------------------------------------
// What comes
// --------------------------------------------------------------------------

bool Http2Session::Receive(Buffer* bytes) {
  paused_ = false;
  need_ = 0;
  receive_time_ns_ = 0;
  try {
    if (has_preface_ || TakePreface(bytes)) [[likely]] {
      while (!broken() && !paused_ && TakeFrame(bytes)) continue;
    }
  } catch (const std::bad_alloc&) {
    Fail("out of memory");
  }
  if (broken()) bytes->Clear();
  return !over();
}

bool Http2Session::TakePreface(Buffer* bytes) {
  char space[kPreface.size()];
  const std::string_view start =
      bytes->Peek(std::min(bytes->size(), kPreface.size()), space);
  if (!kPreface.starts_with(start)) {
    Fail("the client doesn't begin as HTTP/2 does");
    return false;
  }
  need_ = kPreface.size();
  if (start.size() < need_) return false;
  bytes->Skip(need_);
  return has_preface_ = true;
}

bool Http2Session::TakeFrame(Buffer* bytes) {
  need_ = kFrameHeaderSize;
  if (bytes->size() < need_) return false;
  char space[kFrameHeaderSize];
  const auto header =
      Http2FrameHeader::Parse(bytes->Peek(kFrameHeaderSize, space).data());
  if (!CheckFrame(header)) return false;
  need_ += header.length;
  if (bytes->size() < need_) return false;
  if (header.type == Http2FrameType::kData) {
    bytes->Skip(kFrameHeaderSize);
    TakeData(header, bytes->Cut(header.length));
    return true;
  }
  const std::string_view first = bytes->FirstContiguous();
  if (first.size() >= need_) [[likely]] {
    Take(header, first.substr(kFrameHeaderSize, header.length));
  } else {
    scratch_.resize(header.length);
    bytes->CopyTo(scratch_.data(), header.length, kFrameHeaderSize);
    Take(header, scratch_);
    ClearKeeping(&scratch_);
  }
  bytes->Skip(kFrameHeaderSize + header.length);
  return true;
}

// Checks that need the header alone, before the rest has come.
bool Http2Session::CheckFrame(const Http2FrameHeader& header) {
  if (header.length > kMaxFrameSize) [[unlikely]] {
    Terminate(Http2Error::kFrameSizeError, "a frame that is too large");
  } else if (block_stream_ != 0 &&
             (header.type != Http2FrameType::kContinuation ||
              header.stream != block_stream_)) [[unlikely]] {
    Terminate(Http2Error::kProtocolError, "a frame within a block of fields");
  } else if (!has_settings_ && (header.type != Http2FrameType::kSettings ||
                                header.Has(kHttp2Ack))) [[unlikely]] {
    Terminate(Http2Error::kProtocolError, "the first frame isn't SETTINGS");
  }
  return !terminated_;
}

void Http2Session::Take(const Http2FrameHeader& header,
                        std::string_view payload) {
  switch (header.type) {
    case Http2FrameType::kHeaders:
      return TakeHeaders(header, payload);
    case Http2FrameType::kContinuation:
      return TakeContinuation(header, payload);
    case Http2FrameType::kPriority:
      return TakePriority(header, payload);
    case Http2FrameType::kRstStream:
      return TakeReset(header, payload);
    case Http2FrameType::kSettings:
      return TakeSettings(header, payload);
    case Http2FrameType::kPing:
      return TakePing(header, payload);
    case Http2FrameType::kGoAway:
      return TakeGoAway(header, payload);
    case Http2FrameType::kWindowUpdate:
      return TakeWindowUpdate(header, payload);
    case Http2FrameType::kPushPromise:  // Clients forbid it by SETTINGS.
      return Terminate(Http2Error::kProtocolError, "PUSH_PROMISE");
    case Http2FrameType::kData:
      break;  // Taken before.
  }
  AdmitControlFrame();  // Unknown ones are passed over.
}

// --- data ---

void Http2Session::TakeData(const Http2FrameHeader& header, Buffer&& payload) {
  std::size_t padding = 0;
  if (header.Has(kHttp2Padded)) [[unlikely]] {
    if (!CutPadding(&payload, &padding)) return;
  }
  if (!CountData(header.length)) return;
  Http2Stream* const stream = streams_.Find(header.stream);
  if (stream == nullptr || stream->waits_to_open_) return PassOver(header);
  if (stream->remote_end_) {
    return Terminate(Http2Error::kStreamClosed,
                     "a frame of a stream that has ended");
  }
  // Perhaps for its head: later frames are on their way.
  if (stream->is_closing_) return PassOverData(header.length);
  if (!stream->has_head_) {
    return Terminate(Http2Error::kProtocolError, "DATA before a head");
  }
  const bool end = header.Has(kHttp2EndStream);
  if (!payload.empty()) {
    floods_.NoteMessageFrame();
  } else if (!end) {  // Padding isn't a message, either.
    AdmitControlFrame();
  }
  stream->receive_window_ -= header.length;
  if (stream->receive_window_ < 0) {
    return Reject(stream, Http2Error::kFlowControlError);
  }
  if (padding != 0) [[unlikely]]
    GrantPadding(stream, padding);
  if (!CountContent(stream, payload.size(), end)) {
    return Reject(stream, Http2Error::kProtocolError);
  }
  stream->remote_end_ = end;
  if (!payload.empty()) {
    if (payload.size() <= kCopyAtMost && !end) {
      BufferBuilder copy;
      for (const std::string_view piece : payload) copy.Append(piece);
      payload = copy.DestructiveGet();
    }
    handler_->OnData(stream, std::move(payload));
  }
  if (end) EndRemote(stream);
}

bool Http2Session::CutPadding(Buffer* payload, std::size_t* padding) {
  char length = 0;
  if (payload->CopyTo(&length, 1) == 1) {
    payload->Skip(1);
    const std::size_t size = static_cast<unsigned char>(length);
    if (size <= payload->size()) {
      *payload = payload->Cut(payload->size() - size);
      *padding = size + 1;
      return true;
    }
  }
  Terminate(Http2Error::kProtocolError,
            "padding that is longer than its frame");
  return false;
}

// For the window of the connection.
bool Http2Session::CountData(std::size_t size) {
  receive_window_ -= static_cast<std::int64_t>(size);
  if (receive_window_ < 0) {
    Terminate(Http2Error::kFlowControlError,
              "more data than the connection's window");
    return false;
  }
  ungranted_ += size;
  if (ungranted_ >= options_.connection_window / 2) {
    writer_.WindowUpdate(0, ungranted_);
    receive_window_ += static_cast<std::int64_t>(ungranted_);
    ungranted_ = 0;
  }
  return true;
}

// The handler doesn't see it.
void Http2Session::GrantPadding(Http2Stream* stream, std::size_t padding) {
  stream->padding_ += padding;
  if (stream->padding_ < options_.stream_window / 4) return;
  Grant(stream, std::exchange(stream->padding_, 0));
}

// False: it isn't as much as content-length has announced.
bool Http2Session::CountContent(Http2Stream* stream, std::size_t size,
                                bool end) {
  if (stream->content_left_ == Http2Stream::kUnknown) return true;
  if (static_cast<std::int64_t>(size) > stream->content_left_) return false;
  stream->content_left_ -= static_cast<std::int64_t>(size);
  return !end || stream->content_left_ == 0;
}

void Http2Session::EndRemote(Http2Stream* stream) {
  // The handler may have given it up, or answered.
  if (!stream->is_closing_) handler_->OnEnd(stream);
  if (stream->local_end_ && !stream->is_closing_) {
    CloseLater(stream, Http2Error::kNoError);
  }
}

// Data of a stream that we have ended.
void Http2Session::PassOverData(std::size_t size) {
  const auto bytes = static_cast<std::int64_t>(size);
  if (bytes == 0 || bytes > late_data_) return AdmitControlFrame();
  late_data_ -= bytes;
}

// The peer may have sent a window of data before it learns of the end.
void Http2Session::ExpectLateData(std::int64_t window) {
  late_data_ = std::min<std::int64_t>(
      late_data_ + std::max<std::int64_t>(window, 0),
      std::max<std::int64_t>(options_.connection_window, kHttp2InitialWindow));
}

// A frame of a stream that isn't open: it has come late, or breaks the rules.
void Http2Session::PassOver(const Http2FrameHeader& header) {
  if (header.stream == 0 || numbers_.IsIdle(header.stream)) {
    return Terminate(Http2Error::kProtocolError,
                     "a frame of a stream that nobody has opened");
  }
  // A reset, or a window, may have crossed the end.
  if (header.type != Http2FrameType::kData) return AdmitControlFrame();
  if (numbers_.HasEnded(header.stream)) {
    return Terminate(Http2Error::kStreamClosed,
                     "a frame of a stream that has ended");
  }
  PassOverData(header.length);
}

// --- fields ---

void Http2Session::TakeHeaders(const Http2FrameHeader& header,
                               std::string_view payload) {
  if (header.Has(kHttp2Padded)) {
    const std::size_t padding =
        payload.empty() ? 0 : static_cast<unsigned char>(payload.front());
    if (padding >= payload.size()) {
      return Terminate(Http2Error::kProtocolError,
                       "padding that is longer than its frame");
    }
    payload = payload.substr(1, payload.size() - 1 - padding);
  }
  if (header.Has(kHttp2Priority)) {
    if (payload.size() < kPrioritySize) {
      return Terminate(Http2Error::kFrameSizeError, "HEADERS without priority");
    }
    if (!CheckPriority(header.stream, payload)) return;
    payload.remove_prefix(kPrioritySize);
  }
  const bool end = header.Has(kHttp2EndStream);
  if (header.Has(kHttp2EndHeaders)) [[likely]] {
    return TakeBlock(header.stream, end, payload);
  }
  if (header.stream == 0) {
    return Terminate(Http2Error::kProtocolError, "HEADERS without a stream");
  }
  block_stream_ = header.stream;
  block_ends_ = end;
  block_.assign(payload);
}

void Http2Session::TakeContinuation(const Http2FrameHeader& header,
                                    std::string_view payload) {
  if (block_stream_ == 0) {
    return Terminate(Http2Error::kProtocolError,
                     "CONTINUATION of no block of fields");
  }
  if (payload.size() < kLeastContinuation && !header.Has(kHttp2EndHeaders)) {
    AdmitControlFrame();
  }
  // Compression makes blocks smaller than their fields.
  if (block_.size() + payload.size() >
      kMaxFrameSize + 4 * options_.max_header_list) {
    return Terminate(Http2Error::kEnhanceYourCalm,
                     "a block of fields that is too large");
  }
  block_.append(payload);
  if (!header.Has(kHttp2EndHeaders)) return;
  TakeBlock(std::exchange(block_stream_, 0), block_ends_, block_);
  ClearKeeping(&block_);
}

void Http2Session::TakeBlock(std::int32_t id, bool end,
                             std::string_view block) {
  target_ = FindForBlock(id);
  if (terminated_) return;
  const bool is_head =
      target_ != nullptr && !target_->has_head_ && role_ == Role::kServer;
  if (is_head && TakeKnownHead(end, block)) return;
  // Also if nobody wants the fields: they may be in the table.
  const HpackResult result =
      decoder_.Decode(block, [this](const HpackField& field) {
        if (target_ != nullptr) [[likely]]
          TakeField(field);
      });
  if (result.table_changed) known_heads_.Clear();
  if (!result.error.empty()) {
    return Terminate(Http2Error::kCompressionError, result.error);
  }
  Http2Stream* const stream = std::exchange(target_, nullptr);
  if (stream == nullptr) return;
  if (result.too_long) return Reject(stream, Http2Error::kEnhanceYourCalm);
  if (is_head && !result.table_changed) KeepHead(stream, block);
  CompleteBlock(stream, end);
}

// Takes the head of a stream that has just begun, if it is known. False: it is
// another one.
bool Http2Session::TakeKnownHead(bool end, std::string_view block) {
  const auto place = known_heads_.Find(block);
  if (!place) return false;
  Http2Stream* const stream = std::exchange(target_, nullptr);
  check_ = known_heads_.check(*place);
  handler_->OnSameHead(stream, *place);
  CompleteBlock(stream, end);
  return true;
}

void Http2Session::KeepHead(Http2Stream* stream, std::string_view block) {
  if (!check_.End()) return;
  known_heads_.Keep(block, check_, [&](std::size_t place) {
    return handler_->KeepHead(stream, place);
  });
}

// The stream that a block of fields is for. Null: for none that is open.
Http2Stream* Http2Session::FindForBlock(std::int32_t id) {
  using Kind = Http2HeadCheck::Kind;
  Http2Stream* const stream = streams_.Find(id);
  if (stream == nullptr || stream->waits_to_open_) {
    if (role_ == Role::kServer && numbers_.IsNext(id)) [[likely]] {
      check_.Begin(Kind::kRequest);
      return Accept(id);
    }
    PassOverBlock(id);
    return nullptr;
  }
  if (stream->remote_end_ && role_ == Role::kServer) {
    Terminate(Http2Error::kStreamClosed, "a frame of a stream that has ended");
    return nullptr;
  }
  if (stream->is_closing_ || stream->remote_end_) {
    AdmitControlFrame();
    return nullptr;
  }
  check_.Begin(stream->has_head_ ? Kind::kTrailers : Kind::kResponse);
  return stream;
}

void Http2Session::PassOverBlock(std::int32_t id) {
  if (id == 0 || numbers_.IsIdle(id)) {
    return Terminate(Http2Error::kProtocolError,
                     "HEADERS of a stream that can't be opened");
  }
  // Servers by gRPC's C core send the end of a call twice if its deadline
  // passes, and then its method fails. Other calls share the connection.
  if (role_ == Role::kClient) return AdmitControlFrame();
  if (numbers_.HasEnded(id)) {
    return Terminate(Http2Error::kStreamClosed,
                     "a frame of a stream that has ended");
  }
  if (numbers_.WasSkipped(id)) {
    return Terminate(Http2Error::kProtocolError,
                     "a stream whose number is lower than the last one's");
  }
  AdmitControlFrame();
}

Http2Stream* Http2Session::Accept(std::int32_t id) {
  numbers_.NoteOpened(id);
  const bool is_new = id <= goaway_last_;
  Http2Stream* const stream = is_new && open_ < options_.max_concurrent_streams
                                  ? handler_->OnStream()
                                  : nullptr;
  if (stream == nullptr) {
    if (is_new) writer_.Reset(id, Http2Error::kRefusedStream);
    ExpectLateData(initial_receive_window_);
    AdmitControlFrame();
    return nullptr;
  }
  Begin(stream, id);
  stream->opened_at_ns_ = ReceiveTime();
  ++open_;
  return stream;
}

void Http2Session::Begin(Http2Stream* stream, std::int32_t id) {
  stream->id_ = id;
  stream->send_window_ = initial_send_window_;
  stream->receive_window_ = initial_receive_window_;
  streams_.Insert(id, stream);
}

void Http2Session::TakeField(const HpackField& field) {
  if (!check_.Add(field)) [[unlikely]] {
    Reject(std::exchange(target_, nullptr), Http2Error::kProtocolError);
  } else if (!handler_->OnField(target_, field.name, field.value))
      [[unlikely]] {
    Reject(std::exchange(target_, nullptr), Http2Error::kEnhanceYourCalm);
  }
}

void Http2Session::CompleteBlock(Http2Stream* stream, bool end) {
  const bool trailers = check_.kind() == Http2HeadCheck::Kind::kTrailers;
  bool well = check_.End() && (end || !trailers) && !(end && check_.interim());
  if (well && !trailers && !check_.interim()) {
    stream->has_head_ = true;
    if (const auto length = check_.content_length()) {
      stream->content_left_ = static_cast<std::int64_t>(
          std::min<std::uint64_t>(*length, kMaxContent));
    }
    if (stream->asks_head_ || check_.status() == 204 ||
        check_.status() == 304) {
      stream->content_left_ = 0;
    }
  }
  if (well && end) well = CountContent(stream, 0, end);
  if (!well) return Reject(stream, Http2Error::kProtocolError);
  floods_.NoteMessageFrame();
  stream->remote_end_ = end;
  handler_->OnHeaders(stream, trailers, end);
  if (end) EndRemote(stream);
}

// --- the rest ---

void Http2Session::TakePriority(const Http2FrameHeader& header,
                                std::string_view payload) {
  if (header.stream == 0) {
    return Terminate(Http2Error::kProtocolError, "PRIORITY without a stream");
  }
  if (payload.size() != kPrioritySize) {
    return Terminate(Http2Error::kFrameSizeError, "PRIORITY of another size");
  }
  if (CheckPriority(header.stream, payload)) AdmitControlFrame();
}

// Priorities are passed over, except invalid ones.
bool Http2Session::CheckPriority(std::int32_t stream,
                                 std::string_view payload) {
  if (StreamOf(payload) != stream) return true;
  Terminate(Http2Error::kProtocolError, "a stream that depends on itself");
  return false;
}

void Http2Session::TakeReset(const Http2FrameHeader& header,
                             std::string_view payload) {
  if (payload.size() != sizeof(std::uint32_t)) {
    return Terminate(Http2Error::kFrameSizeError, "RST_STREAM of another size");
  }
  Http2Stream* const stream = streams_.Find(header.stream);
  if (stream == nullptr || stream->waits_to_open_) return PassOver(header);
  AdmitPeersReset(*stream);
  if (terminated_) return;
  stream->remote_end_ = true;
  if (stream->is_closing_) return;
  Close(stream, static_cast<Http2Error>(NumberOf(payload)), /*by_peer=*/true);
}

void Http2Session::TakeSettings(const Http2FrameHeader& header,
                                std::string_view payload) {
  if (header.stream != 0) {
    return Terminate(Http2Error::kProtocolError, "SETTINGS of a stream");
  }
  const bool ack = header.Has(kHttp2Ack);
  if (payload.size() % kHttp2SettingSize != 0 || (ack && !payload.empty())) {
    return Terminate(Http2Error::kFrameSizeError, "SETTINGS of another size");
  }
  AdmitControlFrame();
  if (ack) return ApplyOwnWindow();
  // Until it says otherwise there is no limit.
  if (!std::exchange(has_settings_, true)) {
    peer_max_streams_ = std::numeric_limits<std::size_t>::max();
  }
  std::int64_t window = initial_send_window_;
  for (; !payload.empty(); payload.remove_prefix(kHttp2SettingSize)) {
    const auto setting =
        static_cast<Http2Setting>(ReadBigEndian16(payload.data()));
    if (!ApplySetting(setting, NumberOf(payload.substr(2)), &window)) return;
  }
  if (!ApplyPeerWindow(window)) return;
  writer_.Header({.type = Http2FrameType::kSettings, .flags = kHttp2Ack});
}

bool Http2Session::ApplySetting(Http2Setting setting, std::uint32_t value,
                                std::int64_t* window) {
  switch (setting) {
    case Http2Setting::kHeaderTableSize:
      writer_.SetMaxTableSize(value);
      return true;
    case Http2Setting::kEnablePush:
      if (value == 0 || (value == 1 && role_ == Role::kServer)) return true;
      break;
    case Http2Setting::kMaxConcurrentStreams:
      peer_max_streams_ = value;
      return true;
    case Http2Setting::kInitialWindowSize:
      *window = value;
      if (value <= kHttp2MaxWindow) return true;
      Terminate(Http2Error::kFlowControlError, "an initial window too large");
      return false;
    case Http2Setting::kMaxFrameSize:
      if (value >= kMaxFrameSize && value <= kLargestFrame) return true;
      break;
    case Http2Setting::kMaxHeaderListSize:
    default:
      return true;
  }
  Terminate(Http2Error::kProtocolError, "a setting out of its range");
  return false;
}

// The peer's SETTINGS_INITIAL_WINDOW_SIZE, which changes open streams, too.
bool Http2Session::ApplyPeerWindow(std::int64_t window) {
  const std::int64_t more = window - initial_send_window_;
  if (more == 0) return true;
  if (!floods_.AdmitWindowChange()) {
    Terminate(Http2Error::kEnhanceYourCalm,
              "too many changes of the initial window");
    return false;
  }
  initial_send_window_ = window;
  bool fits = true;
  streams_.ForEach([&](Http2Stream* stream) {
    if (stream->waits_to_open_) return;
    stream->send_window_ += more;
    fits &= stream->send_window_ <= kHttp2MaxWindow;
    if (more > 0) StandInLine(stream);
  });
  if (!fits) {
    Terminate(Http2Error::kFlowControlError, "a stream's window overflows");
  }
  return fits;
}

// The peer knows ours now.
void Http2Session::ApplyOwnWindow() {
  const std::int64_t more = options_.stream_window - initial_receive_window_;
  if (more == 0) return;
  initial_receive_window_ = options_.stream_window;
  streams_.ForEach(
      [&](Http2Stream* stream) { stream->receive_window_ += more; });
}

void Http2Session::TakePing(const Http2FrameHeader& header,
                            std::string_view payload) {
  if (header.stream != 0) {
    return Terminate(Http2Error::kProtocolError, "PING of a stream");
  }
  if (payload.size() != kPingSize) {
    return Terminate(Http2Error::kFrameSizeError, "PING of another size");
  }
  AdmitControlFrame();
  if (terminated_) return;
  if (header.Has(kHttp2Ack)) return handler_->OnPong();
  writer_.Header(
      {.length = kPingSize, .type = Http2FrameType::kPing, .flags = kHttp2Ack});
  writer_.output()->Append(payload);
}

void Http2Session::TakeGoAway(const Http2FrameHeader& header,
                              std::string_view payload) {
  constexpr std::size_t kLeast = 8;
  if (header.stream != 0) {
    return Terminate(Http2Error::kProtocolError, "GOAWAY of a stream");
  }
  if (payload.size() < kLeast) {
    return Terminate(Http2Error::kFrameSizeError, "GOAWAY of another size");
  }
  AdmitControlFrame();
  goaway_received_ = true;
  const std::int32_t last_id = StreamOf(payload);
  handler_->OnGoAway(last_id,
                     static_cast<Http2Error>(NumberOf(payload.substr(4))),
                     payload.substr(kLeast));
  if (role_ == Role::kServer) return;
  // Streams that the peer knows nothing of. None may be opened now.
  std::vector<Http2Stream*> unseen;
  streams_.ForEach([&](Http2Stream* stream) {
    if (stream->is_closing_) return;
    if (stream->id_ > last_id || stream->waits_to_open_) {
      unseen.push_back(stream);
    }
  });
  for (Http2Stream* const stream : unseen) {
    Close(stream, Http2Error::kRefusedStream, /*by_peer=*/false);
  }
}

void Http2Session::TakeWindowUpdate(const Http2FrameHeader& header,
                                    std::string_view payload) {
  if (payload.size() != sizeof(std::uint32_t)) {
    return Terminate(Http2Error::kFrameSizeError,
                     "WINDOW_UPDATE of another size");
  }
  AdmitControlFrame();
  if (terminated_) return;
  const std::int32_t more = StreamOf(payload);
  if (header.stream == 0) {
    send_window_ += more;
    if (more == 0) {
      Terminate(Http2Error::kProtocolError, "WINDOW_UPDATE by nothing");
    } else if (send_window_ > kHttp2MaxWindow) {
      Terminate(Http2Error::kFlowControlError,
                "the connection's window overflows");
    }
    return;
  }
  Http2Stream* const stream = streams_.Find(header.stream);
  if (stream == nullptr || stream->waits_to_open_) return PassOver(header);
  if (stream->is_closing_) return;
  stream->send_window_ += more;
  if (more == 0) return Reject(stream, Http2Error::kProtocolError);
  if (stream->send_window_ > kHttp2MaxWindow) {
    return Reject(stream, Http2Error::kFlowControlError);
  }
  StandInLine(stream);
}

// --------------------------------------------------------------------------
// Output
// --------------------------------------------------------------------------

Buffer Http2Session::Flush() {
  if (failed_) {
    writer_.Drop();
    return Buffer();
  }
  try {
    do {
      CloseMarked();
      if (broken()) break;  // Nothing begins behind our GOAWAY.
      if (!waiting_.empty()) [[unlikely]]
        OpenWaiting();
      if (!line_.empty()) [[unlikely]]
        ServeLine();
    } while (!closing_.empty());
    return writer_.Take();
  } catch (const std::bad_alloc&) {
    Fail("out of memory");
    return Buffer();
  }
}

template <class Code>
void Http2Session::Send(const Http2Stream* stream, Code&& code) {
  if (broken() || (stream != nullptr && stream->is_closing_)) return;
  try {
    code();
  } catch (const std::bad_alloc&) {
    Fail("out of memory");
    throw;
  }
}

bool Http2Session::Open(Http2Stream* stream, std::span<const Http2Field> fields,
                        bool end) {
  stream->asks_head_ =
      std::any_of(fields.begin(), fields.end(), [](const Http2Field& field) {
        return field.name == ":method" && field.value == "HEAD";
      });
  return OpenBy(stream, fields, end,
                [&] { writer_.Fields(stream->id_, fields, end); });
}

bool Http2Session::Open(Http2Stream* stream, Http2FixedFields* fields,
                        bool end) {
  return OpenBy(stream, fields->fields(), end,
                [&] { writer_.Fixed(stream->id_, fields, end); });
}

template <class Write>
bool Http2Session::OpenBy(Http2Stream* stream,
                          std::span<const Http2Field> fields, bool end,
                          Write&& write) {
  if (broken() || goaway_sent_ || goaway_received_ || !numbers_.AnyLeft()) {
    return false;
  }
  Send(nullptr, [&] {
    Begin(stream, numbers_.Take());
    stream->ends_ = end;
    if (waiting_.empty() && open_ < peer_max_streams_) {
      ++open_;
      write();
      if (end) EndLocal(stream);
    } else {
      stream->waits_to_open_ = true;
      KeepFields(fields, &KeptOf(stream)->head);
      waiting_.Add(stream->id_);
    }
  });
  return true;
}

void Http2Session::SendHeaders(Http2Stream* stream,
                               std::span<const Http2Field> fields, bool end) {
  Send(stream, [&] {
    if (stream->ends_) return;
    stream->ends_ = end;
    writer_.Fields(stream->id_, fields, end);
    if (end) EndLocal(stream);
  });
}

void Http2Session::SendData(Http2Stream* stream, Buffer&& bytes, bool end) {
  Send(stream, [&] {
    if (stream->ends_) return;
    stream->ends_ = end;
    if (stream->out_.empty() && !stream->waits_to_open_) {
      WriteData(stream, &bytes, kEndless);
      if (bytes.empty()) {
        if (end && !stream->local_end_) WriteEnd(stream, FieldSpan());
        return;
      }
    }
    stream->out_.Append(std::move(bytes));
    stream->compaction_.AfterAppend(&stream->out_);
    StandInLine(stream);
  });
}

void Http2Session::SendTrailers(Http2Stream* stream,
                                std::span<const Http2Field> fields) {
  Send(stream, [&] {
    if (std::exchange(stream->ends_, true)) return;
    if (stream->out_.empty() && !stream->waits_to_open_) {
      WriteEnd(stream, fields);
    } else if (!fields.empty()) {
      KeepFields(fields, &KeptOf(stream)->trailers);
    }
  });
}

void Http2Session::SendResponse(Http2Stream* stream, Http2FixedFields* head,
                                const MessageWriter& message,
                                Http2FixedFields* trailers) {
  Send(stream, [&] {
    if (stream->ends_) return;
    const auto size = static_cast<std::int64_t>(message.size);
    if (message.size > kMaxFrameSize || size > send_window_ ||
        size > stream->send_window_) [[unlikely]] {
      SendHeaders(stream, head->fields(), /*end=*/false);
      BufferBuilder builder;
      message.write(message.code, &builder);
      SendData(stream, builder.DestructiveGet());
      return SendTrailers(stream, trailers->fields());
    }
    stream->ends_ = true;
    writer_.Fixed(stream->id_, head, /*end=*/false);
    stream->send_window_ -= size;
    send_window_ -= size;
    writer_.Header({.length = static_cast<std::uint32_t>(size),
                    .type = Http2FrameType::kData,
                    .stream = stream->id_});
    message.write(message.code, writer_.output());
    floods_.NoteMessageFrame();
    writer_.Fixed(stream->id_, trailers, /*end=*/true);
    handler_->OnSent(stream, message.size);
    EndLocal(stream);
  });
}

void Http2Session::SendReset(Http2Stream* stream, Http2Error error) {
  Send(stream, [&] {
    if (!stream->waits_to_open_) writer_.Reset(stream->id_, error);
    CloseLater(stream, error);
  });
}

void Http2Session::Grant(Http2Stream* stream, std::size_t bytes) {
  const auto more = std::min(static_cast<std::int64_t>(bytes),
                             kHttp2MaxWindow - stream->receive_window_);
  if (more <= 0 || stream->remote_end_) return;
  Send(stream, [&] {
    stream->receive_window_ += more;
    writer_.WindowUpdate(stream->id_, static_cast<std::size_t>(more));
  });
}

std::size_t Http2Session::Window(const Http2Stream& stream) const {
  return static_cast<std::size_t>(
      std::max<std::int64_t>(0, stream.receive_window_));
}

void Http2Session::Ping() {
  Send(nullptr, [&] { writer_.Numbers(Http2FrameType::kPing, 0, {0, 0}); });
}

void Http2Session::SendShutdownNotice() {
  Send(nullptr, [&] {
    writer_.GoAway(std::numeric_limits<std::int32_t>::max(),
                   Http2Error::kNoError, "");
  });
}

void Http2Session::SendGoAway(Http2Error error, std::string_view text) {
  Send(nullptr, [&] {
    goaway_sent_ = true;
    goaway_last_ =
        role_ == Role::kServer ? std::min(goaway_last_, numbers_.last()) : 0;
    writer_.GoAway(goaway_last_, error, text);
  });
}

// --- frames ---

// As much as the windows have room for, and at most so many bytes. The last
// ones end the stream if nothing follows them.
void Http2Session::WriteData(Http2Stream* stream, Buffer* bytes,
                             std::size_t most) {
  const bool ends = stream->ends_ && (stream->kept_ == nullptr ||
                                      stream->kept_->trailers.empty());
  const std::int64_t room = std::min(stream->send_window_, send_window_);
  if (room <= 0) return;
  std::size_t left =
      std::min({bytes->size(), most, static_cast<std::size_t>(room)});
  const std::size_t sent = left;
  stream->send_window_ -= static_cast<std::int64_t>(left);
  send_window_ -= static_cast<std::int64_t>(left);
  bool last = false;
  while (left != 0) {
    const std::size_t size = std::min(left, kMaxFrameSize);
    left -= size;
    last = ends && size == bytes->size();
    writer_.Header({.length = static_cast<std::uint32_t>(size),
                    .type = Http2FrameType::kData,
                    .flags = last ? kHttp2EndStream : std::uint8_t{0},
                    .stream = stream->id_});
    writer_.output()->Append(size == bytes->size()
                                 ? std::exchange(*bytes, Buffer())
                                 : bytes->Cut(size));
    floods_.NoteMessageFrame();
  }
  if (sent != 0) handler_->OnSent(stream, sent);
  if (last) EndLocal(stream);
}

void Http2Session::WriteEnd(Http2Stream* stream,
                            std::span<const Http2Field> trailers) {
  if (trailers.empty()) {
    writer_.Header({.type = Http2FrameType::kData,
                    .flags = kHttp2EndStream,
                    .stream = stream->id_});
  } else {
    writer_.Fields(stream->id_, trailers, /*end=*/true);
  }
  EndLocal(stream);
}

// --- waiting data ---

Http2Stream::Kept* Http2Session::KeptOf(Http2Stream* stream) {
  if (stream->kept_ == nullptr) {
    stream->kept_ = std::make_unique<Http2Stream::Kept>();
  }
  return stream->kept_.get();
}

void Http2Session::KeepFields(std::span<const Http2Field> fields,
                              std::vector<Http2Stream::KeptField>* kept) {
  kept->reserve(fields.size());
  for (const Http2Field& field : fields) {
    kept->push_back({.name = std::string(field.name),
                     .value = std::string(field.value),
                     .indexing = field.indexing});
  }
}

// For the connection's window, if the stream's own is open.
void Http2Session::StandInLine(Http2Stream* stream) {
  if (stream->out_.empty() || stream->send_window_ <= 0 ||
      stream->waits_to_open_ || stream->is_closing_ || stream->in_line_) {
    return;
  }
  line_.Add(stream->id_);
  stream->in_line_ = true;
}

// A frame each at a time, so that none waits for all of another.
void Http2Session::ServeLine() {
  while (!line_.empty() && send_window_ > 0) {
    Http2Stream* const stream = streams_.Find(line_.Pop());
    if (stream == nullptr) continue;  // It has closed.
    stream->in_line_ = false;
    WriteQueued(stream, kMaxFrameSize);
  }
}

void Http2Session::WriteQueued(Http2Stream* stream, std::size_t most) {
  if (stream->is_closing_) return;
  WriteData(stream, &stream->out_, most);
  if (!stream->out_.empty()) return StandInLine(stream);
  if (!stream->ends_ || stream->local_end_) return;
  if (stream->kept_ == nullptr || stream->kept_->trailers.empty()) {
    return WriteEnd(stream, FieldSpan());
  }
  writer_.Fields(stream->id_, stream->kept_->trailers, /*end=*/true);
  EndLocal(stream);
}

void Http2Session::OpenWaiting() {
  while (!waiting_.empty() && open_ < peer_max_streams_) {
    Http2Stream* const stream = streams_.Find(waiting_.Pop());
    if (stream == nullptr || stream->is_closing_) continue;
    stream->waits_to_open_ = false;
    ++open_;
    // The window may have changed meanwhile.
    stream->send_window_ = initial_send_window_;
    writer_.Fields(stream->id_, stream->kept_->head, /*end=*/false);
    handler_->OnOpened(stream);
    WriteQueued(stream, kEndless);
  }
}

// --------------------------------------------------------------------------
// Ends
// --------------------------------------------------------------------------

void Http2Session::EndLocal(Http2Stream* stream) {
  stream->local_end_ = true;
  if (!stream->remote_end_) {
    if (role_ == Role::kClient) return;
    // The response is all sent: the rest of the request isn't wanted.
    writer_.Reset(stream->id_, Http2Error::kNoError);
  }
  floods_.NoteAnswer();
  CloseLater(stream, Http2Error::kNoError);
}

void Http2Session::Reject(Http2Stream* stream, Http2Error error) {
  writer_.Reset(stream->id_, error);
  CloseLater(stream, error);
  AdmitReset();
}

// Closes it later: the sender of a stream's last frame may use it still.
void Http2Session::CloseLater(Http2Stream* stream, Http2Error outcome) {
  closing_.push_back(stream);
  stream->is_closing_ = true;
  stream->outcome_ = outcome;
  if (stream->waits_to_open_) return;
  --open_;
  if (!stream->remote_end_) ExpectLateData(stream->receive_window_);
}

void Http2Session::CloseMarked() {
  // The handler may mark others.
  for (std::size_t i = 0; i != closing_.size(); ++i) {
    Http2Stream* const stream = closing_[i];
    Close(stream, stream->outcome_, /*by_peer=*/false);
  }
  closing_.clear();
}

void Http2Session::Close(Http2Stream* stream, Http2Error outcome,
                         bool by_peer) {
  if (!stream->waits_to_open_ && !stream->is_closing_) --open_;
  if (stream->remote_end_) numbers_.NoteEnded(stream->id_);
  streams_.Remove(stream->id_);
  const auto is_open = [this](std::int32_t id) { return Find(id) != nullptr; };
  if (stream->in_line_) [[unlikely]]
    line_.NoteClosed(is_open);
  if (stream->waits_to_open_) [[unlikely]]
    waiting_.NoteClosed(is_open);
  handler_->OnClosed(stream, outcome, by_peer);
}

}  // namespace flare::rpc
