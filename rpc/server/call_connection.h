// A connection of a server as its calls and protocols see it: it takes replies,
// counts the calls that are under way, and the memory that they hold. By that
// count it lives until its socket is closed and its last call has finished.
//
// ServerConnection reads from it, and begins the calls.
#ifndef FLARE_RPC_SERVER_CALL_CONNECTION_H_
#define FLARE_RPC_SERVER_CALL_CONNECTION_H_

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

#include "flare/base/buffer.h"
#include "flare/base/cpu.h"
#include "flare/base/endpoint.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/fiber/execution_context.h"
#include "flare/io/fd.h"
#include "flare/io/stream_connection.h"
#include "flare/rpc/server/call_watch.h"
#include "flare/rpc/server/connection_set.h"
#include "flare/rpc/server/method_table.h"
#include "flare/rpc/server/server_state.h"
#include "flare/rpc/server_protocol.h"
#include "flare/rpc/stream/input_hold.h"

namespace flare::rpc {

class CallStream;

class CallConnection : public ServedConnection, protected ReplySink {
 public:
  // --- For calls, on any thread ---

  ServerState& state() const { return *state_; }
  const RefPtr<ServerState>& shared_state() const { return state_; }
  std::size_t group() const { return stream_->group(); }
  const Endpoint& peer() const { return peer_; }
  // StreamConnection::peer_identity().
  const PeerIdentity* peer_identity() const { return stream_->peer_identity(); }

  // The method of that name; null if the server doesn't have it.
  // `short_service`: see RequestHead.
  const Method* FindMethod(std::string_view name, bool short_service) {
    const Method* const method = FindByName(name);
    if (method != nullptr || !short_service) [[likely]]
      return method;
    return state_->methods.FindByShortName(name);
  }
  const Method* FindMethod(const RequestHead& head) {
    return FindMethod(head.method, head.short_service);
  }

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
  // Before a reply to `ticket` is made: WaitForRoom(), and while much is held
  // for earlier replies, waits for its turn; unless it is `patient`, for a
  // second at most, as they may depend on the caller's fiber: on its locks, or
  // its next step. False: the connection is closed.
  bool WaitForTurn(ServerProtocol* protocol, const ReplyTicket& ticket,
                   bool patient);
  // For how long WaitForRoom() bears with a peer that takes nothing.
  std::chrono::nanoseconds output_timeout() const {
    return std::clamp<std::chrono::nanoseconds>(
        state_->options().output_timeout, std::chrono::milliseconds(1),
        std::chrono::hours(24));
  }

  // Takes a place for a streaming call, of the server's and of this
  // connection's. False: there is none, as *why says. True: LeaveStream().
  [[nodiscard]] bool EnterStream(std::string_view* why);
  void LeaveStream();

  // True: another call may begin, as little output waits for the peer.
  bool HasOutputRoom() const { return stream_->HasOutputRoom(); }

  // Memory that belongs to a call of this connection went from `before` to
  // `after` bytes. For large parts only. Doesn't block.
  void CountHeld(std::size_t before, std::size_t after) final {
    // relaxed: a count on its own. Wraps around where it falls.
    const std::size_t had =
        held_.fetch_add(after - before, std::memory_order_relaxed);
    state_->budget().Change(had, had + after - before);
  }
  // It holds more than a little, and all together exceed the budget: its calls
  // are refused.
  bool IsGreedy() const;

  // For a request that switches to another protocol.
  io::StreamConnection* output() const { return stream_.Get(); }

  // A body follows that ends where the connection does.
  void ResetOnClose() { stream_->ResetOnClose(); }

  // Reads no more because of something the peer sent, answers the accepted
  // requests and closes the connection.
  void CloseMalformed(const std::string& why);

  // A reply can't be made for lack of memory: closes at once. Doesn't throw.
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

  // A running call lasts, and may wait for input: it doesn't keep others from
  // being read any more. CallFinished() is told so.
  void TurnIntoStream() {
    // relaxed: the call itself keeps the connection meanwhile.
    holds_.fetch_add(kStream, std::memory_order_relaxed);
    WorkFinished<kCall>();
  }

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

  [[gnu::noinline]] std::size_t held() const final;
  void CloseGreedy(std::size_t bytes) final;
  std::size_t StopCalls() final {
    return watched_calls_.StopAll(fiber::StopCause::kShuttingDown);
  }
  void Close(flare::Status why) final { stream_->Close(std::move(why)); }
  void LookForRoom() final { stream_->LookForRoom(); }

 protected:
  CallConnection(RefPtr<ServerState> state, io::UniqueFd fd,
                 const Endpoint& peer, std::size_t group,
                 std::unique_ptr<io::Transport> transport);
  ~CallConnection() override = default;
  // By the destructor of one that state().connections knows.
  void Gone();

  io::StreamConnection* stream() const { return stream_.Get(); }

  // Answers the requests received by now, then closes. Any thread.
  void Drain() {
    // relaxed: see drained().
    drained_.store(true, std::memory_order_relaxed);
    stream_->EndInput();
  }
  bool drained() const {
    // relaxed: for log lines, and so that it isn't drained twice in vain.
    return drained_.load(std::memory_order_relaxed);
  }

  // Calls of either kind are under way; a hint for others than the reader.
  bool HasCalls() const;

  // --- For the reader ---

  // Logs what the peer did.
  void NoteMalformed(const std::string& why);
  bool malformed() const {
    // relaxed: a hint; a request that is cut in spite of it is answered.
    return malformed_.load(std::memory_order_relaxed);
  }

  void SetLeavers(Leavers leavers) {
    // relaxed: see leavers().
    leavers_.store(leavers, std::memory_order_relaxed);
  }

  // How many calls may begin together now.
  std::size_t CallsToStart() const;
  // So many begin, `streams` of which are streaming ones.
  void AddCalls(std::size_t n, std::size_t streams) {
    // relaxed: [CN1] holds; the tasks' queue orders the rest.
    holds_.fetch_add(n - streams + streams * kStream,
                     std::memory_order_relaxed);
  }
  // A stream is full: no more input until it has room.
  bool input_held() const { return hold_.held(); }
  // Stops reading until calls may begin: OnData() comes again then, also if
  // nothing new has come. Nothing may be read or cut after this.
  void Pause();

  // No more calls begin. Closes the connection when all are answered.
  void EndCalls(flare::Status why);
  // The socket is closed. The reader's last use of the connection.
  void SocketClosed();

 private:
  // Parts of holds_: one call, and one streaming call.
  static constexpr std::uint64_t kCall = 1;
  static constexpr std::uint64_t kStream = std::uint64_t{1} << 40;

  const Method* FindByName(std::string_view name);
  template <std::uint64_t kUnit>
  void WorkFinished();
  [[gnu::noinline]] void EndPause();
  // Running calls down to which a pause lasts.
  std::uint64_t resume_calls() const { return max_calls_ / 2; }

  // ReplySink
  bool Write(Buffer&& bytes) final;
  RefPtr<StreamReceiver> OpenStream(const StreamOpening& opening,
                                    std::unique_ptr<StreamWire> wire) final;
  MethodKind KindOfMethod(std::string_view name, bool short_service) final;
  bool WriteSoon(Buffer&& bytes) final {
    return stream_->Write(std::move(bytes)) == io::WriteResult::kOk;
  }
  void HoldInput() final { hold_.Hold(); }
  void ReleaseInput() final { hold_.Release(stream_.Get()); }
  // Requests in other protocols are answered first [CN3].
  void CloseAfterReplies() final { Drain(); }
  void Abort(const flare::Status& why) final { stream_->Close(why); }
  void SetMuchHeld(bool much) final {
    // relaxed: see MuchHeld().
    much_held_.store(much, std::memory_order_relaxed);
  }

  const RefPtr<ServerState> state_;
  const Endpoint peer_;
  // Running calls at which reading pauses.
  const std::uint32_t max_calls_;
  InputHold hold_;
  RefPtr<io::StreamConnection> stream_;
  // See held(). Changes with large messages.
  std::atomic<std::size_t> held_{0};
  [[no_unique_address]] WatchedCalls watched_calls_;
  std::atomic<bool> much_held_{false};
  std::atomic<bool> drained_{false};              // Drain() was called.
  std::atomic<bool> malformed_{false};            // Closed for bad input.
  std::atomic<Leavers> leavers_{Leavers::kNone};  // See leavers().
  std::atomic<std::uint16_t> streams_{0};         // Running ones.
  std::atomic<const Method*> last_method_{nullptr};

  // Members that change with each message are from here on, as are the
  // reader's, on another cache line than the members above, which calls read on
  // workers that stole them.

  // References that keep the connection alive: see call_connection.cc.
  alignas(kCacheLine) std::atomic<std::uint64_t> holds_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_CALL_CONNECTION_H_
