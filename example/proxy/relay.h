// Passes bytes between two connected stream sockets, both ways, until both
// directions have ended or one of the two connections has broken.
//
//   Relay relay(client_fd, upstream_fd, Relay::Options());
//   relay.SendFirst(Relay::kUpstream, proxy_header);
//   ...
//   // On edges, whatever they are, of either socket:
//   switch (relay.Run(client_events, upstream_events)) {
//     case Relay::Outcome::kWaiting: break;             // For more events.
//     case Relay::Outcome::kMore: ...                   // Run(0, 0) soon.
//     case Relay::Outcome::kEnded: ... relay.result();  // Close both.
//   }
//
// Bytes read from one side are written to the other at once, from a buffer that
// all relays of a thread share. Memory is used only for bytes that a slow side
// doesn't take, up to the high watermark in each direction; then the other side
// isn't read from until the low watermark is reached. In the ordinary case a
// message costs one recv and one send. Long streams are spliced instead
// (splice_pipe.h), which requires that SIGPIPE is ignored.
//
// The end of one direction is passed on as such (half-close), after all bytes
// before it. When a connection breaks, its earlier bytes are still delivered if
// the other side takes them, and that side must then be reset. While the other
// side takes nothing the relay doesn't end: broken() tells, and GiveUp() ends
// it.
//
// A side may speak TLS: its bytes then go through a flare::io::Transport, and
// none are spliced. The end of its direction is close_notify. An end without
// that, while the other direction goes on, may be an attacker's: the connection
// counts as broken.
//
// A state machine and nothing else: no threads, no poller, no timers. Not
// thread-safe; doesn't block or suspend.

#ifndef EXAMPLE_PROXY_RELAY_H_
#define EXAMPLE_PROXY_RELAY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "example/proxy/config.h"
#include "example/proxy/splice_pipe.h"
#include "flare/base/buffer.h"
#include "flare/io/transport.h"

namespace example::proxy {

class Relay {
 public:
  enum Side { kClient = 0, kUpstream = 1 };

  struct Options {
    std::size_t high_watermark = 256 << 10;  // Bytes, of each direction.
    std::size_t low_watermark = 64 << 10;    // Less than that.
    // kAuto: a direction is spliced once `splice_after` bytes have come without
    // a pause, until they come in small pieces.
    CopyMode copy_mode = CopyMode::kAuto;
    std::size_t splice_after = 1 << 20;
    // A side's transport in place of plain TCP, after its handshake. They stay
    // the caller's. Null: nothing.
    flare::io::Transport* client_tls = nullptr;
    flare::io::Transport* upstream_tls = nullptr;
  };

  enum class Outcome {
    kWaiting,  // Nothing to do until there are events.
    kMore,     // There is, but others should get their turn.
    kEnded,    // Run() must not be called again.
  };

  struct Result {
    // kFinished: both directions have ended in order, or the relay goes on.
    enum class End { kFinished, kClientBroke, kUpstreamBroke };
    End end = End::kFinished;
    int error = 0;  // errno of the side that broke.
    // Whether to close the side that didn't break by a reset, since it hasn't
    // been told a proper end.
    bool reset_other = false;
  };

  // The sockets are non-blocking and stay the caller's, open for as long as
  // Run() is called.
  Relay(int client_fd, int upstream_fd, const Options& options);

  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Sends `bytes` to `side` before anything else. They aren't counted. Before
  // the first Run().
  void SendFirst(Side side, std::string_view bytes);

  // Bytes that `side` has sent and that were read by somebody else. They go to
  // the other side first, and are counted. Before the first Run().
  void AddReceived(Side side, std::string_view bytes);

  // Reads and writes as much as possible. Takes EPOLL* bits of edge-triggered
  // events, which must include those that were pending when the sockets were
  // registered.
  Outcome Run(std::uint32_t client_events, std::uint32_t upstream_events);

  // Taken by the kernel for `side`.
  std::uint64_t bytes_to(Side side) const noexcept {
    return flows_[1 - side].bytes;
  }
  // Read and not yet taken by the kernel for `side`.
  std::size_t pending_to(Side side) const noexcept {
    return flows_[1 - side].PendingSize();
  }
  // Is what comes for `side` being spliced?
  bool splices_to(Side side) const noexcept {
    return flows_[1 - side].pipe != nullptr;
  }

  // One of the connections has broken, and bytes of it, read or not, wait for
  // the other one. Costs nothing to ask.
  bool broken() const noexcept { return broken_; }

  // Ends the relay in place of kEnded: waiting bytes are not delivered any
  // more. Only if broken().
  void GiveUp();

  // After kEnded or GiveUp().
  const Result& result() const noexcept { return result_; }

 private:
  // One direction. Its index is that of the side it comes from.
  struct Flow {
    int source = -1;
    int sink = -1;
    flare::io::Transport* source_tls = nullptr;
    flare::io::Transport* sink_tls = nullptr;
    bool readable = false;  // There may be something to read.
    // Its last edge may be behind us: only the end of input stops reading.
    bool hang_up = false;
    // Reached the high watermark, not yet the low one; or there is something
    // in the pipe.
    bool full = false;
    bool blocked = false;  // The sink takes nothing until its next edge.
    bool source_ended = false;
    bool source_broke = false;
    bool done = false;           // Nothing more will be passed on.
    std::size_t uncounted = 0;   // The first bytes of `pending`.
    std::uint64_t bytes = 0;     // Passed on.
    flare::Buffer pending = {};  // Read, and not taken by the sink.
    // While it is spliced; then `pending` is empty.
    std::unique_ptr<SplicePipe> pipe = nullptr;
    bool may_splice = true;
    std::size_t in_a_row = 0;   // Bytes that came without a short read.
    bool large_pieces = false;  // Reads ask for more.
    int small_splices = 0;      // In a row.

    std::size_t PendingSize() const {
      return pipe ? pipe->size() : pending.size();
    }
    bool CanRead() const { return readable && !full && !source_ended && !done; }
  };

  void Note(Side side, std::uint32_t events);
  void Pump(Side from);
  std::size_t Receive(Side from);
  void EndOfInput(Side from);
  void Deliver(Side from, std::string_view bytes);
  std::size_t SendNow(Side from, std::string_view bytes);
  void SendPending(Side from);
  void DrainPipe(Side from);
  std::size_t FillPipe(Side from);
  void ChooseMode(Side from, std::size_t size, bool in_full);
  void OpenPipe(Side from);
  void SourceFailed(Side from);
  void DropPending(Side from);
  void EndSource(Side from, int error);
  void PassEndOn(Side from);
  bool SendTlsEnd(Side from);
  void BreakSink(Side from, int error);
  void Blame(Side side, int error);
  bool IsBlamed(Side side) const;

  const Options options_;
  Flow flows_[2];
  bool broken_ = false;
  Result result_;
};

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_RELAY_H_
