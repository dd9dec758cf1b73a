// The output of a stream connection: writers put bytes into a lock-free list,
// and one flusher at a time sends them. The first Write() to a quiet one
// submits a flush task behind the tasks that its worker has already queued, so
// that the replies of a batch of requests leave in one system call. On a busy
// worker that task lets others go first a few times more.
//
// The flusher is a role (output_list.h) that is held from the beginning, until
// Open(): so nothing is sent early. It is left for good after Close(), or by
// the flusher that has ended our direction. Rules: stream_connection.cc
// [SC...], output_list.cc, readiness.cc.
#ifndef FLARE_IO_STREAM_OUTPUT_H_
#define FLARE_IO_STREAM_OUTPUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stop_token>

#include "flare/base/buffer.h"
#include "flare/fiber/task.h"
#include "flare/io/back_pressure.h"
#include "flare/io/gather_policy.h"
#include "flare/io/memory_budget.h"
#include "flare/io/output_list.h"
#include "flare/io/readiness.h"
#include "flare/io/stream_socket.h"
#include "flare/io/transport.h"

namespace flare::io {

enum class WriteResult {
  kOk,         // Queued.
  kClosed,     // The connection is closed or about to be.
  kOverLimit,  // Too much output is waiting already; see WaitForRoom().
};

// When to send written bytes.
enum class Flush {
  kSoon,  // With other output written by then: as a task.
  kNow,   // By the writer, unless somebody is sending already.
};

// Any thread, unless a function says more; what isn't said to block doesn't.
class StreamOutput {
 public:
  // The connection.
  class Owner {
   public:
    // There is the room that AskForRoom() has asked for. Any thread.
    virtual void OnOutputRoom() = 0;
    // Our direction has ended: after the last output (0), or since sending
    // failed with this errno. By the flusher, once.
    virtual void OnOutputEnded(int error) = 0;
    // The flusher's role is left for good. The last use of the output by it.
    virtual void OnFlusherLeft() = 0;

   protected:
    ~Owner() = default;
  };

  struct Options {
    std::size_t max_bytes;  // BackPressure's limit.
    bool refuse_writes;     // Whether Write() refuses bytes beyond it.
    MemoryBudget* budget;   // Null: none.
  };

  // Both outlive it.
  StreamOutput(StreamSocket* socket, Owner* owner, const Options& options);
  StreamOutput(const StreamOutput&) = delete;
  StreamOutput& operator=(const StreamOutput&) = delete;

  // --- Writers ---

  // StreamConnection::Write().
  [[nodiscard]] WriteResult Write(Buffer&& data, Flush flush);
  // Refuses later writes, and ends our direction behind those so far.
  void End();
  // No writes are taken any more. A hint: others come too late, too.
  bool refused() const noexcept {
    // relaxed: a Write() that doesn't see it yet finds the list closed, or its
    // bytes are dropped.
    return refused_.load(std::memory_order_relaxed);
  }

  bool HasRoom() const noexcept { return bytes_.HasRoom(); }
  void LowerRoom(std::size_t bytes) noexcept { bytes_.LowerRoom(bytes); }
  // Blocks the fiber, or the thread.
  [[nodiscard]] RoomResult WaitForRoom(std::int64_t deadline_ns,
                                       const std::stop_token& stop) {
    return bytes_.Wait(deadline_ns, stop);
  }
  // True: OnOutputRoom() will be called, once. For one asker at a time.
  [[nodiscard]] bool AskForRoom() noexcept { return bytes_.AskForRoom(); }
  void LookForRoom() {
    if (bytes_.LookForRoom()) owner_->OnOutputRoom();
  }
  // Bytes queued and not yet taken by the kernel, with each write's own charge.
  std::size_t queued() const noexcept { return bytes_.queued(); }

  // --- The connection ---

  // Ends the opening's hold on the flusher's role [SC2].
  void Open();
  // Ends the list and drops its content. Wake() must follow, for a flusher that
  // waits. True: somebody has the flusher's role, or had it to the end. False:
  // nobody has, and OnFlusherLeft() isn't called. Once.
  [[nodiscard]] bool Close();
  // There may be room in the socket, or a reason not to wait for it. True: the
  // caller must schedule task().
  [[nodiscard]] bool OnWritable() noexcept { return writable_.OnWritable(); }
  void Wake() {
    if (OnWritable()) fiber::Submit(&task_);
  }
  fiber::Task* task() noexcept { return &task_; }

  // Our direction has ended, with this errno or 0; -1: it has not.
  int ended() const noexcept {
    // seq_cst: pairs with EndOutput [SC7].
    return ended_.load(std::memory_order_seq_cst);
  }
  // When bytes were last sent (at first: creation), in NowNs() time.
  std::int64_t last_sent_ns() const noexcept {
    // relaxed: a timestamp on its own.
    return last_sent_ns_.load(std::memory_order_relaxed);
  }
  // How many, in all.
  std::int64_t sent_bytes() const noexcept {
    // relaxed: the flusher's, which adds to it after having sent.
    return sent_bytes_.load(std::memory_order_relaxed);
  }

 private:
  struct Role : fiber::Task {
    StreamOutput* output = nullptr;
  };
  enum class SendOutcome { kSent, kShort, kFull, kFailed };

  // As a function whose name reports show.
  static void FlushTask(fiber::Task* task);

  // The flusher's role.
  void RunFlusher();
  bool LetOthersGoFirst();
  bool GiveUpTurn(bool long_one);
  void SendFromThread();
  void SendAll();
  [[nodiscard]] bool Collect(std::size_t* writes = nullptr);
  void Drop();
  [[nodiscard]] bool SendPending();
  // Something is left to be sent, the transport's own end included.
  bool HasPending() const {
    return !pending_.empty() ||
           (socket_->transport() != nullptr && last_seen_ &&
            !socket_->transport()->end_sent());
  }
  SendOutcome SendOnce();
  void EndOutput(int error);

  void ReleaseBytes(std::size_t bytes);
  void RefuseWrites() noexcept {
    // relaxed: see refused().
    refused_.store(true, std::memory_order_relaxed);
  }

  StreamSocket* const socket_;
  Owner* const owner_;
  const bool refuse_writes_;

  Role task_;
  OutputList list_{/*held=*/true};
  // Something that is queued was written with Flush::kNow: the flusher shall
  // not let other tasks go first.
  std::atomic<bool> flush_now_{false};
  std::atomic<bool> refused_{false};  // See refused().
  std::atomic<int> ended_{-1};        // See ended().
  WritableWait writable_;
  BackPressure bytes_;
  // The flusher's own.
  bool last_seen_ = false;  // End()'s marker.
  Buffer pending_;
  // The bytes that the nodes whose bytes are in `pending_` count in `bytes_`
  // besides their bytes.
  std::size_t pending_charge_ = 0;
  // How often this flush has let other tasks go first.
  int turns_given_up_ = 0;
  // Flushes for which waiting wasn't expected to pay: some wait all the same.
  unsigned flushes_ = 0;
  // This flush may wait for any number of events.
  bool waits_for_many_ = false;
  // Bytes that were queued when this flush first let others go.
  std::size_t queued_at_first_ = 0;
  GatherPolicy gather_policy_;  // For plain threads.
  std::atomic<std::int64_t> last_sent_ns_;
  std::atomic<std::int64_t> sent_bytes_{0};  // Written by the flusher.
};

}  // namespace flare::io

#endif  // FLARE_IO_STREAM_OUTPUT_H_
