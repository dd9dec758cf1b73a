// One connection of a server: reads, cuts messages off the input, queues a
// task for each, and hands replies to the socket.
//
// Created by the acceptor's callback, destroyed by itself once its socket is
// closed and its last call has finished.
#ifndef FLARE_RPC_SERVER_SERVER_CONNECTION_H_
#define FLARE_RPC_SERVER_SERVER_CONNECTION_H_

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/cpu.h"
#include "flare/base/endpoint.h"
#include "flare/base/intrusive_list.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/fiber/task.h"
#include "flare/io/fd.h"
#include "flare/io/stream_connection.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server/call_watch.h"
#include "flare/rpc/server/connection_set.h"
#include "flare/rpc/server/method_table.h"
#include "flare/rpc/server/server_state.h"
#include "flare/rpc/server_protocol.h"
#include "flare/rpc/stream/input_hold.h"

namespace flare::rpc {

class ServerConnection final : public ServedConnection, private ReplySink {
 public:
  // Begins to serve an accepted connection, or closes it if the server has too
  // many or its filter doesn't like the peer. On a worker; doesn't block.
  static void Serve(RefPtr<ServerState> state, io::UniqueFd fd,
                    const Endpoint& peer, std::size_t group);

  // The calls of all connections of a server, closed ones included: see
  // ServerCall::Running().
  static std::vector<AbandonedCall> RunningCalls(ServerState* state);

  // --- For calls ---

  ServerState& state() const { return *state_; }
  const RefPtr<ServerState>& shared_state() const { return state_; }
  std::size_t group() const { return stream_->group(); }
  const Endpoint& peer() const { return peer_; }
  // StreamConnection::peer_identity().
  const PeerIdentity* peer_identity() const { return stream_->peer_identity(); }

  // The method of that name; null if the server doesn't have it. Any thread.
  const Method* FindMethod(std::string_view name);

  // True: another reply may be made, as little output waits for the peer, and
  // few replies for an earlier one.
  bool HasRoom() const { return stream_->HasOutputRoom() && !MuchHeld(); }
  // Many replies wait for an earlier one (ServerProtocol::AskToReply).
  bool MuchHeld() const {
    // relaxed: a hint; a reply made in spite of it is held, too.
    return much_held_.load(std::memory_order_relaxed);
  }
  // While much output waits for the peer to take it: blocks the fiber or thread
  // until there is less. A peer that takes none for long is given up: the
  // connection is closed. False: it is.
  bool WaitForRoom();
  // For how long that may be.
  std::chrono::nanoseconds output_timeout() const {
    return std::clamp<std::chrono::nanoseconds>(
        state_->options().output_timeout, std::chrono::milliseconds(1),
        std::chrono::hours(24));
  }

  // True: another call may begin, as little output waits for the peer.
  bool HasOutputRoom() const { return stream_->HasOutputRoom(); }

  // Memory that belongs to a call of this connection went from `before` to
  // `after` bytes. For large parts only. Any thread; doesn't block.
  void CountHeld(std::size_t before, std::size_t after) override {
    // relaxed: a count on its own. Wraps around where it falls.
    const std::size_t had =
        held_.fetch_add(after - before, std::memory_order_relaxed);
    state_->budget().Change(had, had + after - before);
  }
  // It holds more than a little, and all together exceed the budget: its calls
  // are refused.
  bool IsGreedy() const;

  // A body follows that ends where the connection does.
  void ResetOnClose() { stream_->ResetOnClose(); }

  // Reads no more because of something the peer sent, answers the accepted
  // requests and closes the connection.
  void CloseMalformed(const std::string& why);

  // A reply can't be made for lack of memory: closes at once. Any thread;
  // doesn't throw.
  void CloseOutOfMemory() { stream_->Close(flare::Status(ENOMEM)); }

  // Callers that don't wait for their replies any more: some at times, by
  // ServerProtocol::CallerLeft; or all, as the connection is closed.
  enum class Leavers : std::uint8_t { kNone, kSome, kAll };
  Leavers leavers() const {
    // relaxed: a hint; a call that begins in spite of it is answered in vain.
    return leavers_.load(std::memory_order_relaxed);
  }
  // Those whose contexts somebody watches. They are stopped when the caller is
  // gone, or the server doesn't wait for them any longer.
  WatchedCalls& watched_calls() { return watched_calls_; }
  const WatchedCalls& watched_calls() const { return watched_calls_; }

  // One call is answered and over. The last use of the connection by it.
  void CallFinished(bool is_stream) {
    if (is_stream) [[unlikely]]
      return WorkFinished<kStream>();
    WorkFinished<kCall>();
  }

  // The messages of a call, which `wire` carries. Null: the connection is
  // closed.
  RefPtr<CallStream> StartStream(const StreamOpening& opening,
                                 std::unique_ptr<StreamWire> wire);

  // --- ServedConnection ---

  [[gnu::noinline]] std::size_t held() const override;
  bool StandsStill(std::int64_t since_ns) const override;
  void CloseGreedy(std::size_t bytes) override;
  bool AnnounceEnd(std::int64_t active_since_ns) override;
  void EndLingering() override {
    // relaxed: a connection that misses it lingers until EndAnnounced().
    if (lingers_.load(std::memory_order_relaxed)) EndOrTell();
  }
  void EndAnnounced() override {
    // relaxed: draining twice does no harm.
    if (!drained_.load(std::memory_order_relaxed)) Drain();
  }
  std::size_t StopCalls() override {
    return watched_calls_.StopAll(fiber::StopCause::kShuttingDown);
  }
  std::string_view NameOf(const ServerProtocol* protocol) const override;
  void Close(flare::Status why) override { stream_->Close(std::move(why)); }
  void DrainIfIdle(std::int64_t since_ns) override;
  void LookForRoom() override { stream_->LookForRoom(); }
  void DrainIfSlow(std::int64_t since_ns) override;

 private:
  ServerConnection(RefPtr<ServerState> state, io::UniqueFd fd,
                   const Endpoint& peer, std::size_t group,
                   std::unique_ptr<io::Transport> transport);
  ~ServerConnection() override;

  // Parts of holds_: one call, and one streaming call.
  static constexpr std::uint64_t kCall = 1;
  static constexpr std::uint64_t kStream = std::uint64_t{1} << 40;

  // Answers the requests received by now, then closes.
  void Drain() {
    // relaxed: for a log line, and for EndAnnounced().
    drained_.store(true, std::memory_order_relaxed);
    stream_->EndInput();
  }

  // io::StreamHandler
  bool OnData(Buffer& in, std::size_t* need, std::string* error) override;
  bool OnEndOfInput() override;
  void OnClosed(const flare::Status& why) override;

  template <std::uint64_t kUnit>
  void WorkFinished();
  [[gnu::noinline]] void EndPause();
  bool TellEnd();
  void EndOrTell();
  [[gnu::noinline]] void EndWithCalls();
  void CountInput(bool within);
  std::size_t CallsToStart() const;
  void Pause();
  // Running calls down to which a pause lasts.
  std::uint64_t resume_calls() const { return max_calls_ / 2; }
  CutResult AskOthers(CutResult first, Buffer& in, InboundRequest* request,
                      std::size_t* need, std::string* error);
  CutResult CutMessage(Buffer& in, InboundRequest* request, std::size_t* need,
                       std::string* error, bool* took);
  bool HandleBadInput(CutResult result, Buffer& in, std::string* error);
  void StartCalls(fiber::TaskList&& calls, std::size_t streams);
  void EndReading(flare::Status why);
  void CountEnd(const flare::Status& why);
  // Keeps message_began_ns_: since when the message that isn't complete yet has
  // been coming in. `within`: there is one, and reading goes on. `begins`:
  // messages were cut off before it, so its time begins now, unless others that
  // came beside these are still incomplete, as it does whenever 64 KiB more
  // have `arrived`.
  void NoteIncomplete(bool within, bool begins, std::size_t arrived,
                      std::int64_t now_ns);

  // ReplySink
  bool Write(Buffer&& bytes) override;
  RefPtr<StreamReceiver> OpenStream(const StreamOpening& opening,
                                    std::unique_ptr<StreamWire> wire) override;
  MethodKind KindOfMethod(std::string_view name, bool short_service) override;
  void StopLeftCalls() override {
    // relaxed: see leavers(). This role is the only one to change it.
    if (leavers() == Leavers::kNone) {
      leavers_.store(Leavers::kSome, std::memory_order_relaxed);
    }
    left_calls_ = true;
  }
  // The reader's: once for all callers that have left since.
  void StopLeft() {
    if (std::exchange(left_calls_, false)) [[unlikely]]
      watched_calls_.StopLeft();
  }
  bool WriteSoon(Buffer&& bytes) override {
    return stream_->Write(std::move(bytes)) == io::WriteResult::kOk;
  }
  void HoldInput() override { hold_.Hold(); }
  void ReleaseInput() override { hold_.Release(stream_.Get()); }
  // Requests in other protocols are answered first [SN3].
  void CloseAfterReplies() override { Drain(); }
  void Abort(const flare::Status& why) override { stream_->Close(why); }
  void SetMuchHeld(bool much) override {
    // relaxed: see MuchHeld().
    much_held_.store(much, std::memory_order_relaxed);
  }

  const RefPtr<ServerState> state_;
  const Endpoint peer_;
  // Running calls at which reading pauses.
  const std::uint32_t max_calls_;
  InputHold hold_;
  RefPtr<io::StreamConnection> stream_;
  std::atomic<std::size_t> held_{
      0};  // See held(). Changes with large messages.
  [[no_unique_address]] WatchedCalls watched_calls_;
  std::atomic<bool> much_held_{false};
  std::atomic<bool> idle_{false};                 // Closed by DrainIfIdle().
  std::atomic<bool> slow_{false};                 // Closed by DrainIfSlow().
  std::atomic<bool> drained_{false};              // Drain() was called.
  std::atomic<bool> malformed_{false};            // Closed for bad input.
  std::atomic<Leavers> leavers_{Leavers::kNone};  // See leavers().
  std::atomic<const Method*> last_method_{nullptr};

  // Members that change with each message are from here on, on other cache
  // lines than the members above, which calls read on workers that stole them.

  // References that keep the connection alive: see server_connection.cc.
  alignas(kCacheLine) std::atomic<std::uint64_t> holds_;
  // When the message that isn't complete began; 0: there is none, or nothing
  // is read. The first one begins with the connection.
  std::atomic<std::int64_t> message_began_ns_;
  // The reader's own (see OnData).
  std::vector<std::unique_ptr<ServerProtocol>> protocols_;
  std::size_t left_ = 0;          // Bytes of input, when OnData() returned.
  std::uint32_t input_held_ = 0;  // Their part that is counted in held_.
  std::uint32_t progress_ = 0;    // Bytes since message_began_ns_.
  std::uint16_t speaking_ = 0;    // The protocol that took the last bytes.
  bool speaks_ = false;           // A whole message was taken.
  bool heard_ = false;            // A part of some message came.
  bool reading_ended_ = false;    // Input is thrown away.
  bool cut_short_ = false;        // There is a part of a message.
  bool left_calls_ = false;       // StopLeft() is due.
  // The server stops: it goes on until a request comes, or that took too long.
  std::atomic<bool> lingers_{false};
};
// Many may be idle.
static_assert(sizeof(ServerConnection) <= 3 * kCacheLine);

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_SERVER_CONNECTION_H_
