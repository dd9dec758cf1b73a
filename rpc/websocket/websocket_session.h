// One WebSocket of either side: its messages, each way, its limits, its pings
// and its end. flare::WebSocket (websocket.h) is a handle of it.
//
//   connection's reader -> OnInput() -> queue -> Read() by a fiber
//   Write() by fibers   -> connection's output
//
// The rules are at the top of websocket_session.cc.
#ifndef FLARE_RPC_WEBSOCKET_WEBSOCKET_SESSION_H_
#define FLARE_RPC_WEBSOCKET_WEBSOCKET_SESSION_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/endpoint.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/event.h"
#include "flare/fiber/timer.h"
#include "flare/io/stream_connection.h"
#include "flare/rpc/http/http_tunnel.h"
#include "flare/rpc/stream_wire.h"
#include "flare/rpc/websocket/websocket_decoder.h"
#include "flare/rpc/websocket/websocket_frame.h"
#include "flare/rpc/websocket_options.h"
#include "flare/rpc/wire/flood_guard.h"

namespace flare::rpc {

class WebSocketSession final : public HttpTunnelReceiver {
 public:
  struct Options {
    bool is_client = false;
    WebSocketLimits limits = {};
    std::string subprotocol = {};
    // With permessage-deflate: messages from that size on are compressed, for a
    // window of so many bits. 0: without.
    std::size_t compress_from = 0;
    int window_bits = 15;
    Endpoint remote_peer = {};
    RefPtr<io::StreamConnection> connection = {};
    // Must live until Finish(), or, of a client, until OnClosed().
    StreamOutput* output = nullptr;
    // Dropped with the session.
    std::shared_ptr<const void> kept = nullptr;
  };

  static RefPtr<WebSocketSession> Create(Options options);
  ~WebSocketSession() override = default;

  // The share of a handle and its copies. With the last one a client's session
  // is abandoned.
  static std::shared_ptr<WebSocketSession> Share(
      const RefPtr<WebSocketSession>& session);

  // The handshake is over: time begins. Once.
  void Begin();

  // --- WebSocket's functions ---

  std::optional<WebSocketMessage> Read(std::chrono::steady_clock::time_point at,
                                       const std::stop_token& stop);
  flare::Status Write(WebSocketMessage message);
  flare::Status Close(int code, std::string_view reason);
  bool closed() const;
  int close_code() const;
  std::string close_reason() const;
  const std::string& subprotocol() const { return options_.subprotocol; }
  bool deflates() const { return options_.compress_from != 0; }
  const Endpoint& remote_peer() const { return options_.remote_peer; }
  bool is_client() const { return options_.is_client; }

  // --- Ends ---

  // For a server: the handler is through. Closes by `code`, unless that was
  // done, waits for the peer's answer, and leaves the connection. Blocks.
  void Finish(int code);
  // For a client: nobody has it any more.
  void Abandon();

  // --- HttpTunnelReceiver ---

  Input OnInput(Buffer& in, std::size_t* need, std::string* error) override;
  bool WithinMessage() const override { return decoder_.within_frame(); }
  void OnEnd(const flare::Status& why, bool closed) override;
  void OnServerStops() override;

 private:
  explicit WebSocketSession(Options options);

  WebSocketMessage TakeUnread() FLARE_REQUIRES(lock_);

  // Messages that come. By the reader.
  bool Deliver(WebSocketMessage message);
  bool AdmitControl(std::string* error);
  void Pong();
  void TakeClose();
  Input Break(int code, std::string_view why, std::string* error);
  void CountPartial();

  // Output.
  flare::Status WaitForRoom();
  Buffer FrameOfMessage(WebSocketMessage message) const;
  Buffer FrameOf(WebSocketOpcode opcode, Buffer payload,
                 bool deflated = false) const;
  void SendControl(WebSocketOpcode opcode, std::string_view payload)
      FLARE_REQUIRES(lock_);
  // `all_read`: only if no message waits for Read().
  void AnswerClose(bool all_read) FLARE_EXCLUDES(lock_);
  void SendClose(int code, std::string_view reason) FLARE_REQUIRES(lock_);
  flare::Status OverStatus() const FLARE_REQUIRES(lock_);

  // State.
  void EndInput(int code, std::string_view reason, bool broken = false)
      FLARE_REQUIRES(lock_);
  void DropUnread() FLARE_REQUIRES(lock_);
  void Release() FLARE_REQUIRES(lock_);
  void CountHeld() FLARE_REQUIRES(lock_);
  void Notify() FLARE_REQUIRES(lock_);
  // Nothing comes any more: a client ends its side of the connection. That of a
  // server ends when the handler has returned.
  void AfterEnd();

  // Time.
  void OnTimer();
  void SetTimer(std::int64_t at_ns) FLARE_REQUIRES(lock_);
  void OnCloseTimer();
  void SetCloseTimer() FLARE_REQUIRES(lock_);
  void StopTimers();
  // Tells by looks at the output from time to time when the peer was last seen
  // to take some of it, though it had more to take: a sign of life of one that
  // says nothing.
  class OutputWatch {
   public:
    // Output was just written.
    void Begin(std::int64_t now_ns) {
      left_ = true;
      looked_ns_ = now_ns;
    }
    // When the peer took some, as `look` shows, which was made at `now_ns`; 0:
    // it has taken none since the look before.
    std::int64_t TakenSince(const io::StreamConnection::OutputLook& look,
                            std::int64_t now_ns) {
      const bool had_more = std::exchange(left_, look.left) || look.left;
      const std::int64_t since_ns = std::exchange(looked_ns_, now_ns);
      return had_more && look.taken_ns > since_ns ? look.taken_ns : 0;
    }

   private:
    bool left_ = false;  // At the last look.
    std::int64_t looked_ns_ = 0;
  };
  struct Due {
    std::int64_t at_ns;
    bool ping;  // Else the peer is given up.
  };
  Due NextDue(std::int64_t now_ns) const FLARE_REQUIRES(lock_);

  const Options options_;
  const RefPtr<io::StreamConnection> connection_;

  // The reader's own.
  WebSocketDecoder decoder_;
  FloodGuard control_guard_;
  bool deaf_ = false;  // Input is thrown away.
  // discarding_, for the reader: a hint.
  std::atomic<bool> drops_messages_{false};

  mutable Spinlock lock_;
  StreamOutput* output_ FLARE_GUARDED_BY(lock_);  // Null: left.
  std::deque<WebSocketMessage> unread_ FLARE_GUARDED_BY(lock_);
  std::size_t unread_bytes_ FLARE_GUARDED_BY(lock_) = 0;
  std::size_t partial_bytes_ FLARE_GUARDED_BY(lock_) = 0;
  std::size_t counted_ FLARE_GUARDED_BY(lock_) = 0;  // As output_ was told.
  bool holding_ FLARE_GUARDED_BY(lock_) = false;     // The input.
  bool discarding_ FLARE_GUARDED_BY(lock_) = false;  // Nobody reads any more.
  bool begun_ FLARE_GUARDED_BY(lock_) = false;
  bool input_over_ FLARE_GUARDED_BY(lock_) = false;
  bool lost_ FLARE_GUARDED_BY(lock_) = false;  // The connection.
  bool close_sent_ FLARE_GUARDED_BY(lock_) = false;
  bool owes_close_ FLARE_GUARDED_BY(lock_) = false;  // The answer.
  int close_code_ FLARE_GUARDED_BY(lock_) = 0;
  std::string close_reason_ FLARE_GUARDED_BY(lock_);
  bool owes_pong_ FLARE_GUARDED_BY(lock_) = false;
  std::string owed_pong_ FLARE_GUARDED_BY(lock_);
  fiber::Event* reader_ FLARE_GUARDED_BY(lock_) = nullptr;
  fiber::Event* finisher_ FLARE_GUARDED_BY(lock_) = nullptr;
  fiber::TimerId timer_ FLARE_GUARDED_BY(lock_) = 0;
  fiber::TimerId close_timer_ FLARE_GUARDED_BY(lock_) = 0;
  bool timers_over_ FLARE_GUARDED_BY(lock_) = false;
  std::int64_t heard_ns_ FLARE_GUARDED_BY(lock_) = 0;  // Since when to count.
  std::int64_t pinged_ns_ FLARE_GUARDED_BY(lock_) = 0;
  OutputWatch output_watch_ FLARE_GUARDED_BY(lock_);  // While it is open.
  // The peer's time to answer our close frame begins when it has got that.
  OutputWatch close_watch_ FLARE_GUARDED_BY(lock_);
  std::int64_t close_since_ns_ FLARE_GUARDED_BY(lock_) = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_WEBSOCKET_WEBSOCKET_SESSION_H_
