// A connected stream socket (TCP or Unix) driven by edges: bytes come in as
// calls of a handler, bytes go out through a lock-free list with one flusher.
//
//   class Session : public StreamHandler {
//     bool OnData(Buffer& in, std::size_t* need, std::string* error) override {
//       while (auto message = CutMessage(&in)) Handle(*message);
//       return true;
//     }
//     void OnClosed(const Status& why) override { delete this; }
//   };
//
//   auto c = StreamConnection::Connect(peer, group, session);
//   c->Start();
//   (void)c->Write(std::move(request));   // any thread; connected or not yet
//
// Reading, cutting and all handler callbacks happen in one task at a time, on a
// worker: as a rule one of the connection's group, but handlers must not rely
// on that. Write() only queues; a task sends what several writers have written
// (stream_output.h).
//
// For blocking-style reads and writes this is the wrong class.

#ifndef FLARE_IO_STREAM_CONNECTION_H_
#define FLARE_IO_STREAM_CONNECTION_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/base/endpoint.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/task.h"
#include "flare/fiber/timer.h"
#include "flare/io/back_pressure.h"
#include "flare/io/fd.h"
#include "flare/io/memory_budget.h"
#include "flare/io/readiness.h"
#include "flare/io/stream_output.h"
#include "flare/io/stream_socket.h"
#include "flare/io/taken_output.h"
#include "flare/io/transport.h"
#include "flare/io/transport_handshake.h"

namespace flare::io {

// Tells the user of a connection of its events. Callbacks run on workers, never
// two at once for one connection, each seeing the writes of the one before, and
// must not block. The handler must live until OnClosed() has been entered; that
// may delete it.
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;

  // An outgoing connection is established, its transport's handshake included.
  // Isn't called for accepted ones.
  virtual void OnConnected() {}

  // `in` holds all bytes received and not consumed yet, including some new
  // ones. Consume complete messages from its front and leave the rest. May set
  // `*need` to how many bytes `in` must hold before the next message is
  // complete (0: unknown), so that large bodies are read in large pieces.
  // Return false with a text in `*error` to close the connection because of
  // bad input; only OnClosed() follows.
  virtual bool OnData(Buffer& in, std::size_t* need, std::string* error) = 0;

  // The peer will send no more, but may still want our answers. True: keep the
  // connection open for writing; the handler must CloseAfterFlush() it. False:
  // close it now. At most once, and not after CloseAfterFlush().
  virtual bool OnEndOfInput() { return false; }

  // Exactly once for each connection that was started or closed, as the last
  // callback. Must not throw; if another one throws std::bad_alloc, the
  // connection is closed. `why` is never OK. Its code() is the one given to
  // Close(), or an errno value: ESHUTDOWN if the peer closed in good order,
  // EPROTO if OnData returned false, EMSGSIZE if max_input was exceeded,
  // otherwise the system's. message() is for people.
  virtual void OnClosed(const Status& why) = 0;
};

class StreamConnection final : public StreamSocket,
                               private StreamOutput::Owner {
 public:
  struct Options {
    // Close if this many received bytes are waiting and the handler could not
    // cut a message from them. Leave room for the largest message plus header.
    std::size_t max_input = (std::size_t{4} << 20) + 4096;

    // Refuse writes while this many bytes (0: any) are waiting to be sent; each
    // write counts as kWriteCharge more. A single message is accepted
    // whatever its size.
    std::size_t max_output = std::size_t{64} << 20;
    // Whether Write() refuses bytes beyond max_output. False: for writers that
    // look at HasOutputRoom() before they make their output.
    bool refuse_writes = true;

    // Whether a reset ends the connection also while reading is paused, with
    // the peer's earlier input unread. False: when reading goes on, for peers
    // whose last words count.
    bool ends_when_broken = false;

    // Bytes that wait to be sent count in it; while it is tight more than
    // MemoryBudget::kStep of them are taken for more than half of max_output.
    // Null: none.
    RefPtr<MemoryBudget> budget = nullptr;

    // CloseAfterFlush() gives up on a peer that doesn't close its end for this
    // long, or takes no output for three times as long: a slow reader makes
    // room in lumps.
    std::int64_t linger_ns = 3'000'000'000;
  };

  // A connection over an accepted socket (see Acceptor), watched by `group`'s
  // poller. `peer` is its address; empty: the kernel is asked, which has
  // forgotten that of a peer that has reset the connection meanwhile. With a
  // `transport` nothing is delivered or sent before its handshake is done; if
  // that fails OnClosed() follows. Doesn't block.
  static RefPtr<StreamConnection> Accepted(
      UniqueFd fd, std::size_t group, StreamHandler* handler,
      const Options& options, Endpoint peer = {},
      std::unique_ptr<Transport> transport = nullptr);
  static RefPtr<StreamConnection> Accepted(UniqueFd fd, std::size_t group,
                                           StreamHandler* handler) {
    return Accepted(std::move(fd), group, handler, Options());
  }

  // A connection to `peer`. Start() begins to connect, without blocking;
  // earlier output goes out once it is established. Failure is reported by
  // OnClosed with a text like "connect to 1.2.3.4:5: Connection refused". There
  // is no connect time-out beyond the kernel's: use Close().
  static RefPtr<StreamConnection> Connect(
      const Endpoint& peer, std::size_t group, StreamHandler* handler,
      const Options& options, std::unique_ptr<Transport> transport = nullptr);
  static RefPtr<StreamConnection> Connect(const Endpoint& peer,
                                          std::size_t group,
                                          StreamHandler* handler) {
    return Connect(peer, group, handler, Options());
  }

  // Closes the socket of a connection that was neither started nor closed.
  ~StreamConnection() override;

  // No callback comes before this. From here on the connection keeps itself
  // alive until it is closed, by either side, even if nobody holds a
  // reference. Call once. Any thread; doesn't block.
  void Start();

  // Queues `data` for sending, in the order of the calls as far as there is
  // one, and takes it; other results than kOk leave it untouched. kOk is no
  // promise of delivery. Flush::kNow is for the case that nothing else will be
  // written soon. A plain thread sends by itself, too, if nobody is sending;
  // while that pays, it lets other threads add to it first. Any thread; doesn't
  // block, allocates nothing in steady state.
  [[nodiscard]] WriteResult Write(Buffer&& data, Flush flush = Flush::kSoon) {
    return output_.Write(std::move(data), flush);
  }

  // At most half of max_output is waiting to be sent, or less while
  // Options::budget is tight. Any thread.
  bool HasOutputRoom() const noexcept { return output_.HasRoom(); }

  // From here on HasOutputRoom() is false from `bytes` on already, if that is
  // less than half of max_output: for a connection with a single writer, whose
  // further output would only wait here. The limit of Write() stays. Any
  // thread.
  void LowerOutputRoom(std::size_t bytes) noexcept { output_.LowerRoom(bytes); }

  // After kOverLimit: waits until HasOutputRoom() (kRoom), the connection is
  // closed (kClosed), or NowNs() reaches the deadline or `stop` is requested
  // (kTimedOut). Blocks the fiber, or the thread. Don't call it from callbacks.
  [[nodiscard]] RoomResult WaitWritable(std::int64_t deadline_ns = kNoDeadline,
                                        const std::stop_token& stop = {}) {
    return output_.WaitForRoom(deadline_ns, stop);
  }

  // Sends the output that Write() accepted so far, ends our direction of the
  // stream, and closes once the peer has ended its own (at most linger_ns
  // later), so that the last reply isn't destroyed by a reset. Input arriving
  // meanwhile is still given to OnData; later writes return kClosed. OnClosed
  // gets `why` unless something else went wrong first. Any thread, any number
  // of times (the first counts); doesn't block.
  void CloseAfterFlush(Status why);
  void CloseAfterFlush();

  // Closes now; output still waiting is dropped. OnClosed follows as a task.
  // The first `why` wins; it should not be OK. Any thread, also from callbacks;
  // doesn't block.
  void Close(Status why) override;
  // Closes, and tells the peer by a reset, so that it doesn't take the received
  // bytes for all there are.
  void Reset(Status why);
  // From here on Close() acts like Reset(); an end in good order stays one. For
  // output whose end is that of the stream: call it before that is written. Any
  // thread; doesn't block.
  void ResetOnClose() noexcept {
    // relaxed: bytes written later publish it (CloseNow).
    reset_on_close_.store(true, std::memory_order_relaxed);
  }

  // Suspends calls of OnData until ResumeReading(); one that is running isn't
  // waited for, and one more may start if this isn't called from OnData. The
  // kernel then slows the peer down. Neither end of input nor a reset are
  // noticed while suspended, nor EndInput(); closing works. OnData itself may
  // pause and leave complete messages, of any total size, and is given them
  // again after ResumeReading(), before anything else is read. Don't call it
  // before the first OnData() or OnConnected(). Any thread.
  void PauseReading();
  void ResumeReading();

  // PauseReading() until HasOutputRoom(): then reading resumes by itself. From
  // OnData only.
  void PauseReadingForOutput();

  // Has those who wait for HasOutputRoom() go on if it is true by now, though
  // the peer has taken nothing: as the budget is no longer tight, of which
  // nobody tells them. To be called from time to time. Any thread; doesn't
  // block.
  void LookForRoom() { output_.LookForRoom(); }

  // Reads once more, gives all input to OnData, and then calls OnEndOfInput()
  // as if the peer had ended its direction: all that had arrived when this was
  // called has been delivered by then, and an incomplete message is dropped. A
  // peer that goes on sending doesn't delay that. Input that comes later is
  // still given to OnData, which should throw it away. For ending a connection
  // without losing a request. Any thread, any number of times; doesn't block.
  void EndInput();

  // Bytes queued and not yet taken by the kernel, with each write's own charge.
  std::size_t BufferedOutput() const noexcept { return output_.queued(); }

  // The peer has taken output within the last `span_ns`, from us or from the
  // kernel, which may hold megabytes and tells us only when a third of that is
  // gone: of this no more is known than that the peer has taken some since the
  // last call. Any thread; one system call.
  bool PeerTakesOutput(std::int64_t span_ns);

  // How far the peer is with our output, as far as the kernel says.
  struct OutputLook {
    bool left;  // It hasn't taken all.
    // When it was first seen to have taken as much as it has now, in NowNs()
    // time; 0: it has taken nothing.
    std::int64_t taken_ns;
  };
  // Any thread; one system call.
  OutputLook LookAtOutput();

  // When bytes were last received or sent (at first: creation), in NowNs()
  // time. Any thread.
  std::int64_t last_activity_ns() const noexcept {
    return std::max(last_received_ns(), output_.last_sent_ns());
  }

  // When bytes were last received, likewise.
  std::int64_t last_received_ns() const noexcept {
    // relaxed: a timestamp on its own.
    return last_received_ns_.load(std::memory_order_relaxed);
  }

  // Returns the identity of the peer, by its certificate. Null: a plain
  // connection, or the peer has shown none. From OnConnected(), or the first
  // OnData(), on; lives as long as the connection.
  const PeerIdentity* peer_identity() const noexcept {
    return transport() == nullptr ? nullptr : transport()->peer_identity();
  }

  // The protocol that the handshake has agreed on (ALPN); empty: none. As
  // peer_identity().
  std::string_view alpn() const noexcept {
    return transport() == nullptr ? std::string_view() : transport()->alpn();
  }

  // EpollPoller's.
  void OnEvents(std::uint32_t events, fiber::TaskList* ready) override;

 private:
  struct Role : fiber::Task {
    StreamConnection* connection = nullptr;
  };
  struct LingerTimer : fiber::Timer {
    StreamConnection* connection = nullptr;
  };
  enum class Opening {
    kDone,
    kDoneNow,  // By this step, in which time has passed.
    kWaiting,
    // The handshake's: the reader's role belongs to the coming task.
    kAwaitsTurn,
  };
  enum class ReadOutcome { kDrained, kMore };
  // kEnded: the peer has all output, and its end.
  enum class CloseKind { kEnded, kClose, kReset };

  StreamConnection(UniqueFd fd, std::size_t group, StreamHandler* handler,
                   const Options& options, Endpoint remote,
                   std::unique_ptr<Transport> transport);

  // --- The reader's role ---

  // As a function whose name reports show.
  static void ReadTask(fiber::Task* task);
  void RunReader();
  [[nodiscard]] bool ReadInTurn();
  [[nodiscard]] Opening FinishConnecting();
  [[nodiscard]] bool FinishTcpConnecting();
  [[nodiscard]] Opening ShakeHands();
  ReadOutcome ReadOnce(std::size_t* bytes);
  ReadOutcome FailToRead(int error);
  ReadOutcome HandleEndOfInput();
  void CloseByPeer(bool gone);
  void TellEndOfInput();
  void NoteLeftToEnd(std::size_t bytes);
  std::size_t ReadBudget(std::size_t message) const;
  [[nodiscard]] bool DeliverLeft();
  void Deliver();
  void FinishReading() noexcept;

  // --- Life cycle ---

  Status BeginConnecting();
  void EndHandshake() noexcept;
  void OpenOutput();
  // `what` and the peer; without a text if there is no memory for it.
  Status ErrorOf(int error, std::string_view what) const;
  void CloseEnded(int output_error);
  void Leave(unsigned roles);
  void CloseNow(Status why, CloseKind kind);

  // StreamOutput::Owner
  void OnOutputRoom() override { ResumeReading(); }
  void OnOutputEnded(int error) override;
  void OnFlusherLeft() override { Leave(1); }

  // Notes how much of the output the peer has taken; returns when it last took
  // some, as far as is known.
  std::int64_t NoteTaken() FLARE_REQUIRES(lifecycle_lock_);
  // Whether output is left that the peer hasn't taken: ours, or the kernel's as
  // of the last NoteTaken().
  bool HasUntakenOutput() const FLARE_REQUIRES(lifecycle_lock_) {
    return taken_.left() || BufferedOutput() != 0;
  }
  [[nodiscard]] bool ProlongLinger();
  void GiveUpLingering();
  static void OnLinger(fiber::Timer* timer);

  StreamHandler* const handler_;
  const Options options_;
  const bool accepted_;

  // True before the start, the connection, and the end of the transport's
  // handshake: the flusher's role is still held for Start() or, after it, for
  // the reader.
  std::atomic<bool> opening_{true};
  bool had_event_ = false;  // While opening_; the poller's own.

  Role read_task_;
  Readiness reader_{/*held=*/true};
  // The reader's own.
  std::size_t need_ = 0;
  bool connected_ = false;  // The socket of an outgoing connection.
  bool refused_ = false;    // By OnData.
  bool end_told_ = false;   // EndInput() has had its effect.
  // After EndInput(): the number of bytes that had arrived then and are still
  // unread.
  std::optional<std::size_t> left_to_end_;
  Buffer input_;
  PacedCompaction compaction_;  // The compaction of input_.
  std::atomic<std::int64_t> last_received_ns_;

  StreamOutput output_;

  // ResetOnClose() was called.
  std::atomic<bool> reset_on_close_{false};
  // EndInput() was called.
  std::atomic<bool> end_asked_{false};
  // PauseReading() was called: OnData may have left complete messages.
  std::atomic<bool> left_over_{false};
  // The peer's direction has ended.
  std::atomic<bool> input_ended_{false};
  // Reader, flusher, closer: the last one to leave closes the socket.
  std::atomic<unsigned> roles_{3};

  Spinlock lifecycle_lock_;
  bool started_ FLARE_GUARDED_BY(lifecycle_lock_) = false;
  bool registered_ FLARE_GUARDED_BY(lifecycle_lock_) = false;
  bool closing_ FLARE_GUARDED_BY(lifecycle_lock_) = false;
  bool flushing_ FLARE_GUARDED_BY(lifecycle_lock_) = false;
  Status flush_reason_ FLARE_GUARDED_BY(lifecycle_lock_);
  Status close_reason_ FLARE_GUARDED_BY(lifecycle_lock_);
  TakenOutput taken_ FLARE_GUARDED_BY(lifecycle_lock_);
  LingerTimer linger_;
  // Set for an accepted connection with a transport, until its handshake is
  // done.
  std::unique_ptr<TransportHandshake> handshake_;
};

}  // namespace flare::io

#endif  // FLARE_IO_STREAM_CONNECTION_H_
