// One HTTP/2 connection, either side (RFC 9113): frames, flow control and the
// states of streams; fields are compressed by hpack.h. No IO: bytes go in by
// Receive(), and come out by Flush().
//
//   Http2Session session(Http2Session::Role::kServer, options, &handler);
//   session.Receive(&in);                    // calls the handler
//   session.SendHeaders(stream, {{":status", "200"}}, /*end=*/false);
//   session.SendData(stream, std::move(message));
//   session.SendTrailers(stream, {{"grpc-status", "0"}});
//   connection->Write(session.Flush());
//
// The Send functions make frames, which Flush() hands out together. Data beyond
// the peer's windows stay queued in their stream until a later Flush(), behind
// a Receive().
//
// Left out: the upgrade from HTTP/1.1, pushes, and priorities, which are passed
// over.
//
// Not thread-safe: users that share one guard it with a lock, under which the
// handler is called, too. Nothing blocks. In steady state nothing is allocated
// but by queues of data that wait. Without memory the constructor and the Send
// functions throw std::bad_alloc, and the session has failed; Receive() and
// Flush() fail the session.
#ifndef FLARE_RPC_HTTP2_HTTP2_SESSION_H_
#define FLARE_RPC_HTTP2_HTTP2_SESSION_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/rpc/http2/hpack.h"
#include "flare/rpc/http2/http2_floods.h"
#include "flare/rpc/http2/http2_frame.h"
#include "flare/rpc/http2/http2_frame_writer.h"
#include "flare/rpc/http2/http2_head.h"
#include "flare/rpc/http2/http2_known_heads.h"
#include "flare/rpc/http2/http2_stream_line.h"
#include "flare/rpc/http2/http2_stream_numbers.h"
#include "flare/rpc/http2/http2_stream_table.h"
#include "flare/rpc/wire/flood_guard.h"

namespace flare::rpc {

// A session's state of a stream. Its user derives from it.
class Http2Stream {
 public:
  std::int32_t id() const { return id_; }
  // Bytes of data that wait for the peer's windows.
  std::size_t queued() const { return out_.size(); }
  // On clients: the peer knows nothing of it yet.
  bool waits_to_open() const { return waits_to_open_; }

 protected:
  Http2Stream() = default;
  ~Http2Stream() = default;
  Http2Stream(const Http2Stream&) = delete;
  Http2Stream& operator=(const Http2Stream&) = delete;

 private:
  friend class Http2Session;

  static constexpr std::int64_t kUnknown = -1;

  // Fields that can't be sent yet.
  struct KeptField {
    std::string name;
    std::string value;
    HpackIndexing indexing;
  };
  struct Kept {
    std::vector<KeptField> head;      // It isn't the stream's turn.
    std::vector<KeptField> trailers;  // Data are before them.
  };

  std::int32_t id_ = 0;
  bool waits_to_open_ = false;
  bool ends_ = false;        // Nothing follows out_ but trailers.
  bool local_end_ = false;   // We have sent all.
  bool remote_end_ = false;  // The peer has.
  bool has_head_ = false;    // The peer's head, interim ones excluded.
  bool asks_head_ = false;   // By HEAD: the response has no data.
  bool in_line_ = false;     // In Http2Session::line_.
  bool is_closing_ = false;  // In Http2Session::closing_.
  Http2Error outcome_ = Http2Error::kNoError;  // ... with this.
  std::int64_t send_window_ = 0;
  std::int64_t receive_window_ = 0;
  std::int64_t content_left_ = kUnknown;  // The rest of content-length.
  std::int64_t opened_at_ns_ = 0;         // By the peer.
  std::size_t padding_ = 0;               // Received, and not granted anew.
  Buffer out_;
  // Short messages lie in blocks that many streams share.
  PacedCompaction compaction_;
  std::unique_ptr<Kept> kept_;
};

// The peer's input. Called by Receive(), and by Flush(): OnSent() and
// OnClosed(). OnSent() is called by SendData(), too. May call the session's
// Send functions, except in OnSent(), and not Receive() or Flush().
class Http2Handler {
 public:
  // The peer has opened a stream. Null: it is refused. On servers only.
  virtual Http2Stream* OnStream() = 0;
  // A field of the head, or of trailers. False: the stream is reset. Pseudo
  // header fields, such as ":path", come first.
  virtual bool OnField(Http2Stream* stream, std::string_view name,
                       std::string_view value) = 0;
  // On servers: the fields of a head have come, and the same may come again.
  // True: OnSameHead() with that place may stand for OnField(), until another
  // head gets the place. There are Http2Session::kKnownHeads of them.
  virtual bool KeepHead(Http2Stream* /*stream*/, std::size_t /*place*/) {
    return false;
  }
  virtual void OnSameHead(Http2Stream* /*stream*/, std::size_t /*place*/) {}
  // All fields of a block have come. `end`: nothing follows; OnEnd() is called,
  // too. `trailers`: they follow the head. Interim responses are heads of their
  // own.
  virtual void OnHeaders(Http2Stream* stream, bool trailers, bool end) = 0;
  // On clients: a stream that waited to open has opened.
  virtual void OnOpened(Http2Stream* /*stream*/) {}
  // The bytes count for the stream's window until Grant().
  virtual void OnData(Http2Stream* stream, Buffer&& bytes) = 0;
  // The peer sends no more by this stream.
  virtual void OnEnd(Http2Stream* stream) = 0;
  // So many bytes of data have become frames.
  virtual void OnSent(Http2Stream* stream, std::size_t bytes) = 0;
  // The session doesn't use the stream any more. kNoError: both sides have
  // ended it. `by_peer`: it has reset it.
  virtual void OnClosed(Http2Stream* stream, Http2Error error,
                        bool by_peer) = 0;
  // The peer takes no further streams. Those above `last_id` it hasn't looked
  // at.
  virtual void OnGoAway(std::int32_t /*last_id*/, Http2Error /*error*/,
                        std::string_view /*text*/) {}
  // The answer to Ping().
  virtual void OnPong() {}

 protected:
  ~Http2Handler() = default;
};

class Http2Session {
 public:
  enum class Role { kServer, kClient };

  // The first bytes that a client sends.
  static constexpr std::string_view kPreface =
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  static constexpr std::size_t kFrameHeaderSize = Http2FrameHeader::kSize;
  static constexpr std::size_t kMaxFrameSize = Http2FrameWriter::kMaxFrameSize;
  // Heads of requests that a server knows again.
  static constexpr std::size_t kKnownHeads = Http2KnownHeads::kPlaces;

  struct Options {
    // The limit of the peer's streams that are open at a time.
    std::uint32_t max_concurrent_streams = 1024;
    // The bytes that a stream takes before they are granted anew.
    std::uint32_t stream_window = 64 << 10;
    // ... and all of them together. Granted anew as data come.
    std::uint32_t connection_window = 4 << 20;
    // Names and values of one block, each with 32 bytes more. A stream with a
    // larger one is reset.
    std::size_t max_header_list = 64 << 10;
    // Limit of frames that are neither heads nor data of a message, beyond four
    // for each of those. More end the session.
    int max_control_frames_per_second = FloodGuard::kMaxNotices;
    // ... of streams that break the rules, or that the peer resets within 10 ms
    // of their begin, beyond one for each that was answered. Later resets, of
    // calls that it has waited for, are among the former, but none is free.
    int max_resets_per_second = 1000;
  };

  // `handler` must outlive the session. Queues the begin of a connection.
  Http2Session(Role role, const Options& options, Http2Handler* handler);
  ~Http2Session();
  Http2Session(const Http2Session&) = delete;
  Http2Session& operator=(const Http2Session&) = delete;

  // Takes whole frames off *bytes. The rest of the last one stays, whose size
  // is need(). False: the session has failed, see error(), or is over. Send
  // Flush()'s output even then: it tells the peer why.
  [[nodiscard]] bool Receive(Buffer* bytes);
  // Receives from callers that keep no rest.
  [[nodiscard]] bool Receive(Buffer&& bytes) {
    rest_.Append(std::move(bytes));
    return Receive(&rest_);
  }
  // By the handler: Receive() returns behind the frame at hand.
  void Pause() { paused_ = true; }
  // As many bytes as Receive() needs to go on; 0: any.
  std::size_t need() const { return need_; }
  // More frames of a head, or of trailers, are to come.
  bool within_block() const { return block_stream_ != 0; }
  // Bytes of it that are kept.
  std::size_t block_size() const { return block_.size(); }
  // The output to send now; may be empty. Without memory the session fails.
  [[nodiscard]] Buffer Flush();
  // Output until Flush(), which must follow, is written by *builder, which is
  // empty. For callers that have one: a second one beside it would begin
  // another block.
  void WriteBy(BufferBuilder* builder) { writer_.WriteBy(builder); }
  // Nothing more is read or sent: either side has said GOAWAY, and no stream is
  // open, or the session has failed.
  bool over() const;
  // Nothing can be sent any more, mostly for want of memory: the connection is
  // to be closed at once.
  bool failed() const { return failed_; }
  // It has failed, or is over for an error of the peer's.
  bool broken() const { return failed_ || terminated_; }
  // The text for a log, where it is broken.
  const std::string& error() const { return error_; }

  // The stream of that number; null if it is closed.
  Http2Stream* Find(std::int32_t id) const { return streams_.Find(id); }

  // On clients: opens *stream. False: no number is left, or the connection
  // takes no further streams; OnClosed() isn't called for it then. Waits for
  // its turn if the peer has enough open.
  [[nodiscard]] bool Open(Http2Stream* stream,
                          std::span<const Http2Field> fields, bool end);
  // Opens a stream, but not for HEAD.
  [[nodiscard]] bool Open(Http2Stream* stream, Http2FixedFields* fields,
                          bool end);
  // On clients: so many streams the peer takes at a time.
  std::size_t peer_max_streams() const { return peer_max_streams_; }
  // On servers: the head of the response. `end`: it is all.
  void SendHeaders(Http2Stream* stream, std::span<const Http2Field> fields,
                   bool end);
  // Behind the head. `end`: they are the last.
  void SendData(Http2Stream* stream, Buffer&& bytes, bool end = false);
  // The stream ends behind its data, the first time with these trailers.
  void SendTrailers(Http2Stream* stream, std::span<const Http2Field> fields);
  void SendEnd(Http2Stream* stream) {
    SendTrailers(stream, std::span<const Http2Field>());
  }
  // On servers: all of a response, whose data are `size` bytes, which
  // write(BufferBuilder*) appends, now.
  template <class Write>
  void SendResponse(Http2Stream* stream, Http2FixedFields* head,
                    std::size_t size, Write&& write,
                    Http2FixedFields* trailers) {
    using Code = std::remove_reference_t<Write>;
    const MessageWriter message = {
        size,
        [](void* code, BufferBuilder* out) {
          (*static_cast<Code*>(code))(out);
        },
        const_cast<std::remove_const_t<Code>*>(&write)};
    SendResponse(stream, head, message, trailers);
  }
  // With fields that are listed at the call.
  using FieldList = std::initializer_list<Http2Field>;
  [[nodiscard]] bool Open(Http2Stream* stream, FieldList fields, bool end) {
    return Open(stream, std::span(fields.begin(), fields.size()), end);
  }
  void SendHeaders(Http2Stream* stream, FieldList fields, bool end) {
    SendHeaders(stream, std::span(fields.begin(), fields.size()), end);
  }
  void SendTrailers(Http2Stream* stream, FieldList fields) {
    SendTrailers(stream, std::span(fields.begin(), fields.size()));
  }
  // OnClosed() follows in Flush().
  void SendReset(Http2Stream* stream, Http2Error error);

  // The peer may send so many bytes more by this stream.
  void Grant(Http2Stream* stream, std::size_t bytes);
  // So many it may send now.
  std::size_t Window(const Http2Stream& stream) const;

  void Ping();
  // On servers: the peer is told that we'll say GOAWAY soon.
  void SendShutdownNotice();
  // The peer is to open no further streams; those that are open go on.
  void SendGoAway(Http2Error error, std::string_view text);

 private:
  // --- input ---

  // False: the input must wait, or the session is broken.
  bool TakePreface(Buffer* bytes);
  bool TakeFrame(Buffer* bytes);
  bool CheckFrame(const Http2FrameHeader& header);
  void Take(const Http2FrameHeader& header, std::string_view payload);

  void TakeData(const Http2FrameHeader& header, Buffer&& payload);
  bool CutPadding(Buffer* payload, std::size_t* padding);
  bool CountData(std::size_t size);
  void GrantPadding(Http2Stream* stream, std::size_t padding);
  bool CountContent(Http2Stream* stream, std::size_t size, bool end);
  void EndRemote(Http2Stream* stream);
  void PassOver(const Http2FrameHeader& header);
  void PassOverData(std::size_t size);
  void ExpectLateData(std::int64_t window);

  void TakeHeaders(const Http2FrameHeader& header, std::string_view payload);
  void TakeContinuation(const Http2FrameHeader& header,
                        std::string_view payload);
  void TakeBlock(std::int32_t id, bool end, std::string_view block);
  Http2Stream* FindForBlock(std::int32_t id);
  void PassOverBlock(std::int32_t id);
  Http2Stream* Accept(std::int32_t id);
  void Begin(Http2Stream* stream, std::int32_t id);
  void TakeField(const HpackField& field);
  void CompleteBlock(Http2Stream* stream, bool end);
  bool TakeKnownHead(bool end, std::string_view block);
  void KeepHead(Http2Stream* stream, std::string_view block);

  void TakePriority(const Http2FrameHeader& header, std::string_view payload);
  bool CheckPriority(std::int32_t stream, std::string_view payload);
  void TakeReset(const Http2FrameHeader& header, std::string_view payload);
  void TakeSettings(const Http2FrameHeader& header, std::string_view payload);
  bool ApplySetting(Http2Setting setting, std::uint32_t value,
                    std::int64_t* window);
  bool ApplyPeerWindow(std::int64_t window);
  void ApplyOwnWindow();
  void TakePing(const Http2FrameHeader& header, std::string_view payload);
  void TakeGoAway(const Http2FrameHeader& header, std::string_view payload);
  void TakeWindowUpdate(const Http2FrameHeader& header,
                        std::string_view payload);

  // --- output ---

  struct MessageWriter {
    std::size_t size;
    void (*write)(void* code, BufferBuilder* out);
    void* code;
  };
  void SendResponse(Http2Stream* stream, Http2FixedFields* head,
                    const MessageWriter& message, Http2FixedFields* trailers);

  // Opens a stream by write(), which writes its head, now or in its turn.
  template <class Write>
  bool OpenBy(Http2Stream* stream, std::span<const Http2Field> fields, bool end,
              Write&& write);

  // Runs `code`, which writes, unless nothing is sent any more on that stream;
  // null: on the connection.
  template <class Code>
  void Send(const Http2Stream* stream, Code&& code);

  void WriteSettings();
  void WriteData(Http2Stream* stream, Buffer* bytes, std::size_t most);
  void WriteEnd(Http2Stream* stream, std::span<const Http2Field> trailers);

  static Http2Stream::Kept* KeptOf(Http2Stream* stream);
  static void KeepFields(std::span<const Http2Field> fields,
                         std::vector<Http2Stream::KeptField>* kept);
  void StandInLine(Http2Stream* stream);
  void ServeLine();
  void WriteQueued(Http2Stream* stream, std::size_t most);
  void OpenWaiting();

  // --- ends ---

  // We have sent all.
  void EndLocal(Http2Stream* stream);
  // Resets a stream for a fault of the peer.
  void Reject(Http2Stream* stream, Http2Error error);
  void CloseLater(Http2Stream* stream, Http2Error outcome);
  void CloseMarked();
  void Close(Http2Stream* stream, Http2Error outcome, bool by_peer);

  // GOAWAY, for a fault of the peer.
  void Terminate(Http2Error error, std::string_view why);
  void Fail(std::string_view why) noexcept;
  // Too many end the session.
  void AdmitControlFrame();
  void AdmitReset();
  void AdmitPeersReset(const Http2Stream& stream);
  // The time of the Receive() at hand.
  std::int64_t ReceiveTime() {
    if (receive_time_ns_ == 0) receive_time_ns_ = NowNs();
    return receive_time_ns_;
  }

  const Role role_;
  const Options options_;
  Http2Handler* const handler_;
  std::string error_;
  bool failed_ = false;
  bool terminated_ = false;  // By GOAWAY, for a fault of the peer.
  bool paused_ = false;
  bool has_preface_ = false;   // Or needs none.
  bool has_settings_ = false;  // The peer's.
  bool goaway_sent_ = false;
  bool goaway_received_ = false;
  Http2Floods floods_;

  Http2StreamTable<Http2Stream> streams_;
  std::size_t open_ = 0;  // Those neither closing nor waiting to open.
  std::vector<Http2Stream*> closing_;
  Http2StreamNumbers numbers_;
  std::int32_t goaway_last_ = 0x7fffffff;  // As we have said.

  // Data of streams that we ended, at most as much as the peer may send at all.
  std::int64_t late_data_ = 0;

  // Input.
  Buffer rest_;
  std::size_t need_ = 0;
  std::int64_t receive_time_ns_ = 0;  // 0: it wasn't needed yet.
  std::string scratch_;               // A frame that lay in pieces.
  HpackDecoder decoder_;
  Http2HeadCheck check_;
  std::string block_;              // The beginning of one,
  std::int32_t block_stream_ = 0;  // of this stream, if not 0,
  bool block_ends_ = false;        // which it ends.
  Http2Stream* target_ = nullptr;  // The stream of the fields that come.
  Http2KnownHeads known_heads_;
  std::int64_t receive_window_ = kHttp2InitialWindow;
  std::size_t ungranted_ = 0;  // The part of that window.
  std::int64_t initial_receive_window_ = kHttp2InitialWindow;

  // Output.
  Http2FrameWriter writer_;
  std::int64_t send_window_ = kHttp2InitialWindow;
  std::int64_t initial_send_window_ = kHttp2InitialWindow;
  Http2StreamLine line_;     // Streams whose data wait for send_window_.
  Http2StreamLine waiting_;  // On clients: to be opened.
  std::size_t peer_max_streams_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP2_HTTP2_SESSION_H_
