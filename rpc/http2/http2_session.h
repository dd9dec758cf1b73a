// One HTTP/2 connection, either side: frames, HPACK, flow control and the
// states of streams, by libnghttp2. No IO: bytes go in by Receive(), and come
// out by Flush().
//
//   Http2Session session(Http2Session::Role::kServer, options, &handler);
//   session.Receive(std::move(bytes));       // calls the handler
//   session.SendHeaders(stream, {{":status", "200"}}, /*end=*/false);
//   session.SendData(stream, std::move(message));
//   session.SendTrailers(stream, {{"grpc-status", "0"}});
//   connection->Write(session.Flush());
//
// Of what is sent nothing leaves before Flush(), and data only as far as the
// peer's windows go: the rest stays queued in its stream, and a later Flush(),
// behind a Receive(), takes it.
//
// Not thread-safe: whoever shares one guards it with a lock, under which the
// handler is called, too. Nothing blocks. Allocates as libnghttp2 does. Without
// memory the constructor and the Send functions throw std::bad_alloc; Receive()
// and Flush() fail the session.
#ifndef FLARE_RPC_HTTP2_HTTP2_SESSION_H_
#define FLARE_RPC_HTTP2_HTTP2_SESSION_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/rpc/wire/flood_guard.h"

struct nghttp2_session;

namespace flare::rpc {

struct Http2Field {
  std::string_view name;  // In lower case.
  std::string_view value;
};

// RFC 9113, section 7.
enum class Http2Error : std::uint32_t {
  kNoError = 0,
  kProtocolError = 1,
  kInternalError = 2,
  kFlowControlError = 3,
  kStreamClosed = 5,
  kRefusedStream = 7,
  kCancel = 8,
  kEnhanceYourCalm = 11,
};

// What a session keeps of a stream. Its user derives from it.
class Http2Stream {
 public:
  std::int32_t id() const { return id_; }
  // Bytes of data that wait for the peer's windows.
  std::size_t queued() const { return out_.size(); }

 protected:
  Http2Stream() = default;
  ~Http2Stream() = default;
  Http2Stream(const Http2Stream&) = delete;
  Http2Stream& operator=(const Http2Stream&) = delete;

 private:
  friend class Http2Session;

  struct Field {
    std::string name;
    std::string value;
  };

  std::int32_t id_ = 0;
  bool ends_ = false;      // Nothing follows out_ but trailers_.
  bool deferred_ = false;  // libnghttp2 waits to be told of more data.
  Buffer out_;
  // Short messages lie in blocks that many streams share.
  PacedCompaction compaction_;
  std::vector<Field> trailers_;
};

// What comes from the peer. Called by Receive(), and by Flush(): OnSent() and
// OnClosed(). May call the session's Send functions, not Receive() or Flush().
class Http2Handler {
 public:
  // The peer has opened a stream. Null: it is refused. On servers only.
  virtual Http2Stream* OnStream() = 0;
  // A field of the head, or of trailers. False: the stream is reset. Pseudo
  // header fields, such as ":path", come first.
  virtual bool OnField(Http2Stream* stream, std::string_view name,
                       std::string_view value) = 0;
  // All fields of a block have come. `end`: nothing follows; OnEnd() is called,
  // too. `trailers`: it is the second block.
  virtual void OnHeaders(Http2Stream* stream, bool trailers, bool end) = 0;
  // The bytes count for the stream's window until Grant().
  virtual void OnData(Http2Stream* stream, Buffer&& bytes) = 0;
  // The peer sends no more by this stream.
  virtual void OnEnd(Http2Stream* stream) = 0;
  // So many queued bytes have left by Flush().
  virtual void OnSent(Http2Stream* stream, std::size_t bytes) = 0;
  // The session doesn't use the stream any more. kNoError: both sides have
  // ended it. `by_peer`: it has reset it.
  virtual void OnClosed(Http2Stream* stream, Http2Error error,
                        bool by_peer) = 0;
  // The peer takes no further streams. Those above `last_id` it hasn't looked
  // at.
  virtual void OnGoAway(std::int32_t /*last_id*/, Http2Error /*error*/,
                        std::string_view /*text*/) {}
  // The peer takes so many bytes more of the stream's data.
  virtual void OnWindow(Http2Stream* /*stream*/, std::size_t /*bytes*/) {}
  // So many it takes of each stream at first, and those that are open change
  // by as much. 65,535 until then.
  virtual void OnPeerWindow(std::size_t /*bytes*/) {}
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
  static constexpr std::size_t kFrameHeaderSize = 9;
  static constexpr std::size_t kMaxFrameSize = 16384;

  struct Options {
    // Of the peer's streams that are open at a time.
    std::uint32_t max_concurrent_streams = 1024;
    // What a stream takes that isn't granted anew.
    std::uint32_t stream_window = 64 << 10;
    // ... and all of them together. Granted anew as data come.
    std::uint32_t connection_window = 4 << 20;
    // Names and values of one block, each with 32 bytes more. A stream with a
    // larger one is reset.
    std::size_t max_header_list = 64 << 10;
    // Of frames that are neither heads nor data of a message, beyond four for
    // each of those, and of streams that the peer resets. More end the session.
    int max_control_frames_per_second = FloodGuard::kMaxNotices;
    int max_resets_per_second = 1000;
  };

  // `handler` must outlive the session. Queues what a connection begins with.
  Http2Session(Role role, const Options& options, Http2Handler* handler);
  ~Http2Session();
  Http2Session(const Http2Session&) = delete;
  Http2Session& operator=(const Http2Session&) = delete;

  // False: the session has failed, see error(). What Flush() has then is still
  // to be sent: it tells the peer why. After some failures only over() says so,
  // behind that Flush().
  [[nodiscard]] bool Receive(Buffer&& bytes);
  // On servers, of a frame that Receive() is given next, with the
  // kFrameHeaderSize bytes of its header: data and heads for a stream that the
  // peer has ended or passed over break the session. libnghttp2 would need
  // memory of each closed stream to see it, and ignores them.
  void CheckFrame(std::string_view header);
  // What is to be sent now; may be empty. Without memory the session fails.
  [[nodiscard]] Buffer Flush();
  // The same, by the empty builder of a caller that has one: a second one
  // beside it would begin another block.
  [[nodiscard]] Buffer Flush(BufferBuilder* builder);
  // Nothing more is read or sent: both sides have said GOAWAY, and no stream is
  // open, or the session has failed.
  bool over() const;
  // Nothing can be sent any more, mostly for want of memory: the connection is
  // to be closed at once.
  bool failed() const { return failed_; }
  // It has failed, or is over for an error of the peer's.
  bool broken() const { return failed_ || terminated_; }
  // The text for a log, where it is broken.
  const std::string& error() const { return error_; }

  // The peer's stream of that number; null if it is closed.
  Http2Stream* Find(std::int32_t id) const;

  // On clients: opens *stream. False: no number is left, or the session has
  // failed; OnClosed() isn't called for it then. Waits for its turn if the peer
  // has enough open.
  [[nodiscard]] bool Open(Http2Stream* stream,
                          const std::vector<Http2Field>& fields, bool end);
  // On servers: the head of the response. `end`: it is all.
  void SendHeaders(Http2Stream* stream, const std::vector<Http2Field>& fields,
                   bool end);
  // Behind the head.
  void SendData(Http2Stream* stream, Buffer&& bytes);
  // The stream ends behind its data, the first time with these trailers.
  void SendTrailers(Http2Stream* stream, const std::vector<Http2Field>& fields);
  void SendEnd(Http2Stream* stream) { SendTrailers(stream, {}); }
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
  class Callbacks;
  friend class Callbacks;

  void Fail(std::string_view why) noexcept;
  // GOAWAY, for what the peer has done.
  void Terminate(Http2Error error, std::string why);
  // Too many end the session.
  void AdmitControlFrame();
  void AdmitReset();
  // Frames of messages, which ask for updates of windows, and for answers to
  // pings.
  void NoteMessageFrame() {
    free_control_frames_ = std::min(free_control_frames_ + 4, 1000);
  }

  const Role role_;
  const Options options_;
  Http2Handler* const handler_;
  struct Delete {
    void operator()(nghttp2_session* session) const;
  };
  std::unique_ptr<nghttp2_session, Delete> session_;
  std::string error_;
  bool failed_ = false;
  bool terminated_ = false;      // By GOAWAY, for what the peer has done.
  int free_control_frames_ = 0;  // Not counted, see NoteMessageFrame().
  FloodGuard control_frames_;
  FloodGuard resets_;
  // While the handler is told of them.
  Buffer input_;
  const char* input_begin_ = nullptr;
  BufferBuilder* output_ = nullptr;
  // On servers: the last stream that was opened, those that were passed over
  // before it, from the first one on, and the latest that were closed when the
  // peer had ended them.
  std::int32_t last_opened_ = 0;
  std::int32_t first_skipped_ = 0;
  std::array<std::int32_t, 8> ended_ = {};
  std::size_t next_ended_ = 0;
  // Of the block that comes in.
  std::size_t header_list_ = 0;
  std::int32_t reset_by_peer_ = 0;  // Of the frame at hand.
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP2_HTTP2_SESSION_H_
