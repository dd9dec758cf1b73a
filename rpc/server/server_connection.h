// One connection of a server: reads, cuts messages off the input, and queues a
// task for each. CallConnection takes their replies.
//
// Created by the acceptor, destroyed by itself once its socket is closed and
// its last call has finished.
#ifndef FLARE_RPC_SERVER_SERVER_CONNECTION_H_
#define FLARE_RPC_SERVER_SERVER_CONNECTION_H_

#include <atomic>
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
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/fiber/task.h"
#include "flare/io/fd.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server/call_connection.h"
#include "flare/rpc/server/server_state.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

class ServerConnection final : public CallConnection {
 public:
  // Begins to serve an accepted connection, or closes it if the server has too
  // many or its filter doesn't like the peer. On a worker; doesn't block.
  static void Serve(const RefPtr<ServerState>& state, io::UniqueFd fd,
                    const Endpoint& peer, std::size_t group);

  // --- ServedConnection ---

  bool StandsStill(std::int64_t since_ns) const override;
  bool AnnounceEnd(std::int64_t active_since_ns) override;
  void EndLingering() override {
    // relaxed: a connection that misses it lingers until EndAnnounced().
    if (lingers_.load(std::memory_order_relaxed)) EndOrTell();
  }
  void EndAnnounced() override {
    if (!drained()) Drain();
  }
  std::string_view NameOf(const ServerProtocol* protocol) const override;
  void DrainIfIdle(std::int64_t since_ns) override;
  void DrainIfSlow(std::int64_t since_ns) override;

 private:
  // The most that has come: nothing, a part of a message, or all of one.
  enum class Heard : std::uint8_t { kNothing, kPart, kMessage };
  // The reason for which the sweeper drains the connection.
  enum class Overdue : std::uint8_t { kNone, kSlow, kIdle };

  ServerConnection(const RefPtr<ServerState>& state, io::UniqueFd fd,
                   const Endpoint& peer, std::size_t group,
                   std::unique_ptr<io::Transport> transport);
  ~ServerConnection() override {
    protocols_.clear();  // They may hold objects of the user's.
    Gone();
  }

  // io::StreamHandler
  bool OnData(Buffer& in, std::size_t* need, std::string* error) override;
  bool OnEndOfInput() override;
  void OnClosed(const flare::Status& why) override;

  bool TellEnd();
  void EndOrTell();
  [[gnu::noinline]] void EndWithCalls();
  void CountInput(bool within);
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
  Overdue overdue() const {
    // relaxed: for counts and log lines.
    return overdue_.load(std::memory_order_relaxed);
  }

  // ReplySink
  void StopLeftCalls() override {
    if (leavers() == Leavers::kNone) SetLeavers(Leavers::kSome);
    left_calls_ = true;
  }
  // Once for all callers that have left since.
  void StopLeft() {
    if (std::exchange(left_calls_, false)) [[unlikely]]
      watched_calls().StopLeft();
  }

  // When the message that isn't complete began; 0: there is none, or nothing
  // is read. The first one begins with the connection.
  std::atomic<std::int64_t> message_began_ns_;
  // The reader's own (see OnData).
  std::vector<std::unique_ptr<ServerProtocol>> protocols_;
  std::size_t left_ = 0;          // Bytes of input, when OnData() returned.
  std::uint32_t input_held_ = 0;  // Their part that is counted as held.
  std::uint32_t progress_ = 0;    // Bytes since message_began_ns_.
  std::uint16_t speaking_ = 0;    // The protocol that took the last bytes.
  Heard heard_ = Heard::kNothing;
  bool reading_ended_ = false;  // Input is thrown away.
  bool cut_short_ = false;      // There is a part of a message.
  bool left_calls_ = false;     // StopLeft() is due.
  std::atomic<Overdue> overdue_{Overdue::kNone};
  // The server stops: it goes on until a request comes, or that took too long.
  std::atomic<bool> lingers_{false};
};
// Many may be idle.
static_assert(sizeof(ServerConnection) <= 3 * kCacheLine);

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_SERVER_CONNECTION_H_
