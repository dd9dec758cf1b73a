// The messages of one streaming call, each way, with their limits and their
// end. Both sides use it. Generated code, StreamReader<T> and StreamWriter<T>
// (stream_reader.h, stream_writer.h) are built on it.
//
//   connection's reader -> OnMessage -> queue -> ReadMessage() by a fiber
//   WriteMessage() by a fiber -> StreamWire -> connection's output
//
// One fiber (or thread) may read while another one writes. Two that read, or
// two that write, may not be at it at once. All other functions may be called
// by anybody at any time.
//
// The rules of its end are at the top of call_stream.cc.
#ifndef FLARE_RPC_STREAM_CALL_STREAM_H_
#define FLARE_RPC_STREAM_CALL_STREAM_H_

#include <google/protobuf/message.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/base/compression.h"
#include "flare/base/function.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/event.h"
#include "flare/fiber/timer.h"
#include "flare/io/stream_connection.h"
#include "flare/rpc/cancel_target.h"
#include "flare/rpc/message_observer.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/outbound_body.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/stream/unpacked_bytes.h"
#include "flare/rpc/stream_wire.h"

namespace flare {

// Why a message could not be read.
enum class StreamError {
  EndOfStream,  // All messages were read, and the call went well.
  IoError,      // The call failed, was cancelled, or its connection broke.
  Timeout,      // No message came in time.
};

namespace rpc {

class CallStream final : public StreamReceiver,
                         public CancelTarget,
                         private fiber::Timer {
 public:
  // NowNs() time: no limit.
  static constexpr std::int64_t kNever =
      std::numeric_limits<std::int64_t>::max();

  using News = Function<void(std::unique_ptr<Metadata>, const flare::Status&)>;

  // How a client's stream has ended.
  enum class EndedBy : std::uint8_t { kServer, kConnection, kUs };
  struct Ending {
    EndedBy by = EndedBy::kServer;
    int status = 0;
    bool answered = false;  // A message has come.
  };

  struct Options {
    PayloadFormat format = PayloadFormat::kProtobuf;
    bool is_server = false;
    // Until when all of the call has to be over.
    std::int64_t deadline_ns = kNever;
    // The bytes that the peer may be sent before it grants more. Only with
    // credits.
    std::size_t send_window = StreamWindow::kInitial;
    std::size_t receive_window = StreamWindow::kInitial;
    // For a server: for how long a write waits while the peer grants nothing.
    // After that the call fails.
    std::int64_t max_stall_ns = kNever;
    // For a server: counts the message that was read last, if it came
    // compressed. May be null.
    std::shared_ptr<UnpackedBytes> unpacked = nullptr;
    // For a server: learns the size of messages that wait to be read. May be
    // null.
    StreamOutput* counter = nullptr;
    // For a client: the reader calls it with the server's metadata (null: none
    // is new) and how the call failed (OK: it hasn't). May be empty.
    News on_news = {};
    // For a client: used for the messages that it sends, if the protocol has
    // it.
    CompressionAlgorithm compression = CompressionAlgorithm::kNone;
    MessageObserver observer = {};
    // For a client: gets a copy of the server's metadata, and is constant from
    // the end on. May be null.
    std::shared_ptr<Metadata> metadata = nullptr;
    // For a client: called once, when the first message has come, were it too
    // large.
    Function<void()> on_answered = {};
    // Called once, when nothing of the connection is needed any more. For a
    // server: by Detach() alone. May be called while on_answered runs.
    Function<void(const Ending&)> on_detached = {};
    // For a client, called once at most: the server didn't look at the call,
    // which may begin again, on another connection, by Restart() or Fail(). By
    // the connection's reader, so it mustn't block. Once the server has
    // answered, or more was written than is kept (64 KiB), the call fails
    // instead, as it does if this is empty.
    Function<void(RefPtr<CallStream>)> on_unprocessed = {};
  };

  // Life: counted. The connection of `output` must live until on_detached.
  static RefPtr<CallStream> Create(Options options);
  ~CallStream() override;

  // Once, before anything else. False: the connection is closed; the caller is
  // to say so by OnNotBegun().
  // `output` may be null for a wire that has credits, and no connection.
  [[nodiscard]] bool Start(std::unique_ptr<StreamWire> wire,
                           RefPtr<io::StreamConnection> output);

  // For a client: the server knows nothing of the call.
  void OnNotBegun(const flare::Status& why);

  // After on_unprocessed: begins again on another connection, where all written
  // messages are written again. The functions are as in Options. False: the
  // call is over() by now, or that connection takes none; on_detached was
  // called. Without memory it throws: the caller is to call on_detached, if
  // that is still in *another, and then Fail().
  struct Another {
    std::unique_ptr<StreamWire> wire = nullptr;
    RefPtr<io::StreamConnection> output = {};
    Function<void()> on_answered = {};
    Function<void(const Ending&)> on_detached = {};
  };
  bool Restart(Another* another);

  // Another observer, after those that there are. Before the first message.
  void AddObserver(MessageObserver observer);

  // For a server: its method is called next.
  void Accept();

  // For a server, before its method is called: where its metadata for the
  // client is; null, for none, is fine. The writer asks for it with the first
  // message and at the end, but not after Finish() or Detach(). Sent metadata
  // is taken out.
  void SetMetadataSource(Function<Metadata*(StreamWire::MetadataPlace)> source);

  // For a server, before its method is called: where the algorithm is that its
  // messages are compressed by. The writer asks for it once, before the first
  // message; not after Finish() or Detach(). The constructor of a client says
  // it.
  void SetCompressionSource(Function<CompressionAlgorithm()> source);

  // --- Messages. They block the fiber (or thread). ---

  // True: a message was read into *message. False: none will come, or none has
  // come by `deadline_ns` (NowNs() time), see *error. A message that can't be
  // parsed ends the call.
  [[nodiscard]] bool ReadMessage(google::protobuf::Message* message,
                                 std::int64_t deadline_ns, StreamError* error);
  // Reads bytes.
  [[nodiscard]] bool Read(Buffer* message, std::int64_t deadline_ns,
                          StreamError* error);
  // Waits, as ReadMessage() does, until that returns at once.
  bool WaitToRead(std::int64_t deadline_ns);
  // How messages are encoded.
  PayloadFormat format() const { return format_; }
  // The message that was read last came compressed. For the reader.
  bool read_compressed() const { return read_compressed_; }
  // ReadMessage() returns at once. For the reader.
  bool ReadyToRead();

  // Sends a message. Waits while the peer, or the connection, takes no more.
  // `last`: no other one follows. False: it can't be sent, as the call is over,
  // or not by then.
  [[nodiscard]] bool WriteMessage(const google::protobuf::Message& message,
                                  bool last, std::int64_t deadline_ns);
  [[nodiscard]] bool Write(OutboundBody&& message, bool last,
                           std::int64_t deadline_ns);
  // Whether messages are compressed from now on, where there is an algorithm
  // for it. For the writer.
  void SetCompressed(bool compressed) { compress_ = compressed; }
  // WriteMessage() returns at once. For the writer.
  bool ReadyToWrite();

  // --- Ends. None blocks. ---

  // No message is read any more; input is dropped. If none is written any more
  // either the call is cancelled.
  void CloseReading();
  // No message follows. On a server: of the messages; the call ends with its
  // method.
  void CloseWriting();
  // The call is given up. The peer is told.
  void Cancel() override;
  // A reader or a writer was dropped before its end. For a client: Cancel().
  // For a server the reader closes reading. A dropped writer makes the call
  // fail when the method has ended, unless that fails it otherwise.
  void DropReader();
  void DropWriter();
  // Fails with a status of its own: nothing is read or written any more.
  void Fail(const flare::Status& why);

  // For a server: the method has ended with `status`, after which nothing is
  // sent.
  void Finish(const flare::Status& status);
  // ... and the connection isn't needed any more.
  void Detach();

  // How the call ended: OK while it hasn't.
  flare::Status status() const;
  bool over() const;
  // Start() was called. For the caller of Start().
  bool started() const { return started_; }

  // Called once, when the call is given up, or lost: by whom that is noticed,
  // so it mustn't block. At once, if it is so already.
  void SetOnFailed(Function<void(const flare::Status&)> on_failed);

  // For a client: called once, when nothing comes or goes any more, with the
  // status of the call, by the thread that ends it, so it mustn't block. At
  // once, if that is so already. May be set once.
  void SetOnEnded(Function<void(int status)> on_ended);

  // For a client: waits until nothing comes or goes any more. Messages may be
  // left to be read. Blocks the fiber (or thread); one at a time.
  void WaitForEnd();

  // Drops it when nothing of the connection is needed any more, or at once.
  void KeepUntilDetached(std::shared_ptr<const void> thing);

  // --- StreamReceiver ---

  void OnMessage(Buffer&& message, bool last) override;
  void OnCompressed(Buffer&& message, CompressionAlgorithm algorithm,
                    std::size_t max_size) override;
  void OnPart(Buffer&& part) override;
  void OnEnd(const flare::Status& status) override;
  bool OnUnprocessed() override;
  void OnCredit(std::size_t bytes) override;
  void OnReset(const flare::Status& why) override;
  void OnTooLarge(const flare::Status& why) override;
  void OnInputLost(const flare::Status& why) override;
  void OnWindow(std::size_t bytes) override;
  void OnMetadata(std::unique_ptr<Metadata> metadata) override;
  void Drop() override { Detach(); }

 private:
  explicit CallStream(Options options);

  // As it came.
  struct Incoming {
    Buffer bytes;
    CompressionAlgorithm compression = CompressionAlgorithm::kNone;
  };

  // As it was written, for Restart().
  struct Written {
    Buffer bytes;
    bool compressed = false;
    bool last = false;
  };

  // Work that a transition leaves for when lock_ is free.
  struct After {
    fiber::Event* reader = nullptr;
    fiber::Event* writer = nullptr;
    fiber::Event* ender = nullptr;
    Function<void(const flare::Status&)> on_failed;
    flare::Status failure;  // For on_failed.
    Function<void()> on_answered;
    Function<void()> not_answered;  // Dropped.
    Function<void(int)> on_ended;
    Function<void(const Ending&)> on_detached;
    Ending ending;  // For on_ended and on_detached.
    Function<void(const flare::Status&)> unused;
    std::size_t dropped_metadata = 0;  // Entries.
    std::shared_ptr<const void> kept;
    std::unique_ptr<StreamWire> wire;
    std::vector<Incoming> dropped;
    Buffer dropped_parts;
    std::vector<Written> forgotten;
    Function<void(RefPtr<CallStream>)> on_unprocessed;  // To be called,
    Function<void(RefPtr<CallStream>)> no_restart;      // ... or dropped.
    bool cancel_timer = false;
  };
  void Do(After* after);

  enum class Sent { kYes, kLater, kNever };

  static void OnTimer(fiber::Timer* timer);
  bool Refill(std::int64_t deadline_ns, StreamError* error);
  bool Wait(fiber::Event* event, fiber::Event** place,
            std::int64_t deadline_ns);
  void FailReading(const flare::Status& why, StreamError* error);
  void ChooseCompression();
  Sent TryToSend(OutboundBody* message, bool compressed, bool last,
                 fiber::Event* event);
  void NoteAnswered(After* after) FLARE_REQUIRES(lock_) {
    if (std::exchange(answered_, true)) return;
    after->on_answered = std::move(on_answered_);
    ForgetWritten(after);
  }
  void KeepWritten(OutboundBody* message, bool compressed, bool last,
                   After* after) FLARE_REQUIRES(lock_);
  void ForgetWritten(After* after) FLARE_REQUIRES(lock_) {
    if (!written_.empty()) after->forgotten.swap(written_);
    after->no_restart = std::move(on_unprocessed_);
  }
  void WriteAgain() FLARE_REQUIRES(lock_);
  bool TakeNewOutput() FLARE_EXCLUDES(lock_);
  void Take(Incoming&& message, After* after) FLARE_REQUIRES(lock_);
  bool WaitForRoom(std::int64_t deadline_ns);
  bool WaitForCredit(fiber::Event* event, std::int64_t deadline_ns);
  bool OutputOver() const;
  std::size_t Cost(std::size_t bytes) const { return bytes + message_cost_; }
  [[nodiscard]] flare::Status Unpack(CompressionAlgorithm algorithm,
                                     Buffer* message);
  void UncountUnpacked();
  void Observe(ObservedMessage::Direction direction, std::size_t bytes) const;
  StreamError ErrorLocked() const FLARE_REQUIRES(lock_);
  void PutMetadata(StreamWire::MetadataPlace place) FLARE_REQUIRES(lock_);
  void PutMetadataLast(After* after) FLARE_REQUIRES(lock_);
  void Settle() FLARE_REQUIRES(lock_);
  void GrantLocked() FLARE_REQUIRES(lock_);
  void DropUnread(After* after) FLARE_REQUIRES(lock_);
  void CountUnread() FLARE_REQUIRES(lock_);
  void AddCredit(std::size_t bytes) FLARE_REQUIRES(lock_);
  void FailLocked(const flare::Status& why, EndedBy by, After* after)
      FLARE_REQUIRES(lock_);
  void EndInputLocked(After* after) FLARE_REQUIRES(lock_);
  void EndOutputLocked(After* after) FLARE_REQUIRES(lock_);
  void DetachIfOver(After* after) FLARE_REQUIRES(lock_);
  void DetachLocked(After* after) FLARE_REQUIRES(lock_);

  const PayloadFormat format_;
  const bool is_server_;
  const std::int64_t deadline_ns_;
  const std::int64_t max_stall_ns_;
  const News on_news_;
  StreamOutput* const counter_;  // Used like wire_.
  MessageObserver observer_;     // Constant since the first message.
  // Constant since Start().
  bool started_ = false;
  bool holds_input_ = false;
  bool enforced_ = false;  // StreamWire::enforces_window()
  std::size_t message_cost_ = StreamWindow::kPerMessage;

  // The reader's alone.
  std::vector<Incoming> batch_;
  std::size_t at_ = 0;        // In batch_.
  std::size_t consumed_ = 0;  // Bytes, since Settle().
  std::size_t max_unpacked_ = 0;
  const std::shared_ptr<UnpackedBytes> unpacked_;
  std::size_t counted_unpacked_ = 0;  // The count of the message before.
  bool read_compressed_ = false;

  // The writer's alone, since Start().
  RefPtr<io::StreamConnection> output_;
  CompressionAlgorithm compression_;
  bool compression_chosen_;
  bool compress_ = true;

  mutable Spinlock lock_;
  std::unique_ptr<StreamWire> wire_ FLARE_GUARDED_BY(lock_);
  std::vector<Incoming> incoming_ FLARE_GUARDED_BY(lock_);
  Buffer parts_ FLARE_GUARDED_BY(lock_);  // The parts of an incomplete message.
  // Memory of incoming_, batch_ and parts_, and how much is told to counter_.
  std::size_t incoming_held_ FLARE_GUARDED_BY(lock_) = 0;
  std::size_t batch_held_ FLARE_GUARDED_BY(lock_) = 0;
  std::size_t parts_held_ FLARE_GUARDED_BY(lock_) = 0;
  std::size_t counted_ FLARE_GUARDED_BY(lock_) = 0;
  std::size_t max_size_ FLARE_GUARDED_BY(lock_) = 0;  // Set by OnCompressed().
  std::size_t queued_ FLARE_GUARDED_BY(lock_) = 0;    // Bytes, unread.
  std::size_t owed_ FLARE_GUARDED_BY(lock_) = 0;      // Bytes to be granted.
  std::size_t window_ FLARE_GUARDED_BY(lock_);        // For input.
  std::int64_t credit_ FLARE_GUARDED_BY(lock_);       // For output.
  fiber::Event* reader_ FLARE_GUARDED_BY(lock_) = nullptr;  // Waiting fibers.
  fiber::Event* writer_ FLARE_GUARDED_BY(lock_) = nullptr;
  fiber::Event* ender_ FLARE_GUARDED_BY(lock_) = nullptr;
  bool credits_ FLARE_GUARDED_BY(lock_) = false;
  bool granted_ FLARE_GUARDED_BY(lock_) = false;  // Since the writer waits.
  bool sent_ FLARE_GUARDED_BY(lock_) = false;     // The first message.
  bool input_over_ FLARE_GUARDED_BY(lock_) = false;
  bool output_over_ FLARE_GUARDED_BY(lock_) = false;
  bool reading_closed_ FLARE_GUARDED_BY(lock_) = false;
  bool writing_closed_ FLARE_GUARDED_BY(lock_) = false;  // On a server.
  bool failed_ FLARE_GUARDED_BY(lock_) = false;
  bool input_lost_ FLARE_GUARDED_BY(lock_) = false;
  bool holding_ FLARE_GUARDED_BY(lock_) = false;  // The connection's input.
  bool timer_armed_ FLARE_GUARDED_BY(lock_) = false;
  bool detached_ FLARE_GUARDED_BY(lock_) = false;
  bool answered_ FLARE_GUARDED_BY(lock_) = false;
  // [SX7]
  bool restarting_ FLARE_GUARDED_BY(lock_) = false;
  std::vector<Written> written_ FLARE_GUARDED_BY(lock_);
  std::size_t written_bytes_ FLARE_GUARDED_BY(lock_) = 0;
  RefPtr<io::StreamConnection> new_output_ FLARE_GUARDED_BY(lock_);
  Function<void(RefPtr<CallStream>)> on_unprocessed_ FLARE_GUARDED_BY(lock_);
  EndedBy ended_by_ FLARE_GUARDED_BY(lock_) = EndedBy::kServer;
  flare::Status status_ FLARE_GUARDED_BY(lock_);
  Function<void(const flare::Status&)> on_failed_ FLARE_GUARDED_BY(lock_);
  Function<void()> on_answered_ FLARE_GUARDED_BY(lock_);
  Function<void(int)> on_ended_ FLARE_GUARDED_BY(lock_);
  Function<void(const Ending&)> on_detached_ FLARE_GUARDED_BY(lock_);
  std::shared_ptr<const void> kept_ FLARE_GUARDED_BY(lock_);
  // The server's, until the reader calls on_news_; so many parts came.
  std::unique_ptr<Metadata> metadata_ FLARE_GUARDED_BY(lock_);
  std::shared_ptr<Metadata> metadata_copy_ FLARE_GUARDED_BY(lock_);
  int metadata_parts_ FLARE_GUARDED_BY(lock_) = 0;
  Function<Metadata*(StreamWire::MetadataPlace)> metadata_source_
      FLARE_GUARDED_BY(lock_);
  Function<CompressionAlgorithm()> compression_source_ FLARE_GUARDED_BY(lock_);
};

}  // namespace rpc
}  // namespace flare

#endif  // FLARE_RPC_STREAM_CALL_STREAM_H_
