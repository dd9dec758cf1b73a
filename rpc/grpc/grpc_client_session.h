// The calls of one client connection of `grpc`: an HTTP/2 session that callers,
// streams and the connection's reader share.
//
// Rules, kept in grpc_client_session.cc:
//  [GC1] lock_ guards the session, all calls, and their events for the reader
//        (events_). It is held for as long as it takes to frame a message, and
//        never while a receiver is told of events: receivers have locks of
//        their own, with which they call us.
//  [GC2] The session's bytes go to the output under lock_: fields are
//        compressed in the order in which they are sent.
//  [GC3] Only the reader, in Read(), hands out events, in their order. Events
//        of other threads wait for it.
//  [GC4] A call is the session's from Open() to OnClosed(), and its wire's from
//        StreamBegin() to StreamDrop(). The last of the two deletes it.
//  [GC5] Bytes of a stream that leave are credit for its writer: so a bounded
//        part of them waits here, whatever windows the server opens. A writer's
//        own flush returns it; others add it to credited_, and tell the
//        receivers without lock_: the reader in Read(), and those who end a
//        call, by which a stream that has waited may begin.
//  [GC6] A unary call gets one reply, unless its caller abandons it before: it
//        is in unary_ exactly as long as it waits for one.
#ifndef FLARE_RPC_GRPC_GRPC_CLIENT_SESSION_H_
#define FLARE_RPC_GRPC_GRPC_CLIENT_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/base/intrusive_list.h"
#include "flare/base/object_pool.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/rpc/client_protocol.h"
#include "flare/rpc/grpc/grpc_mapping.h"
#include "flare/rpc/http2/http2_session.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/stream_wire.h"
#include "flare/rpc/wire/flood_guard.h"

namespace flare::rpc {

// An allocator of single objects, from a pool.
template <class T>
struct PooledNodes {
  using value_type = T;
  PooledNodes() = default;
  template <class U>
  PooledNodes(const PooledNodes<U>&) {}

  T* allocate(std::size_t n) {
    return static_cast<T*>(n == 1 ? PoolAllocate<sizeof(T)>()
                                  : ::operator new(n * sizeof(T)));
  }
  void deallocate(T* at, std::size_t n) {
    n == 1 ? PoolFree<sizeof(T)>(at) : ::operator delete(at);
  }
  bool operator==(const PooledNodes&) const = default;
};

class GrpcClientSession final : private Http2Handler {
 public:
  struct Call;

  // `output` must outlive the session.
  GrpcClientSession(const Limits& limits, std::string_view host,
                    StreamOutput* output);
  ~GrpcClientSession();

  // --- callers; any thread, doesn't block ---

  // Sends a request, whose body is a message with its prefix. *scratch is empty
  // before and after.
  enum class Sent {
    kYes,
    // The message is as it was: the method's name is none, or the server takes
    // no further calls on this connection.
    kBadMethod,
    kRefused,
  };
  [[nodiscard]] Sent Send(const OutboundRequest& request, Buffer* message,
                          BufferBuilder* scratch);
  // Asks the server for an answer, which Read() takes.
  void Ping();
  // Nobody waits for that reply any more.
  void Abandon(std::uint64_t correlation_id);
  // Resets abandoned calls for which it was too early before.
  void SendDelayed();

  // A stream's call. Null: the server takes no more of them.
  struct StreamHead {
    std::string path;
    std::uint32_t timeout_ms = 0;
    std::string_view encoding;  // grpc-encoding; empty: none.
    Metadata metadata;
  };
  Call* StreamBegin(const StreamHead& head, RefPtr<StreamReceiver> receiver);
  // Adds bytes that have left meanwhile to *credit.
  bool StreamSend(Call* call, Buffer&& bytes, bool last, std::size_t* credit);
  void StreamReset(Call* call);
  void StreamCredit(Call* call, std::size_t bytes);
  void StreamDrop(Call* call);

  // --- the reader ---

  // Takes whole frames off `in`, whose rest needs *need bytes to be one. False:
  // close the connection, with *error.
  bool Read(Buffer& in, std::size_t* need, std::string* error);
  // The next reply, or notice to send no more. False: there is none.
  bool TakeReply(InboundResponse* response);
  bool HasCalls() const;
  void Close(const flare::Status& why);

 private:
  struct Event;
  // kOversized: beyond our limit. The status says why it isn't read.
  enum class Reply : std::uint8_t { kReadable, kUnreadable, kOversized };

  static Http2Session::Options SessionOptions();

  // Called by the session, with lock_.
  Http2Stream* OnStream() override { return nullptr; }
  bool OnField(Http2Stream* stream, std::string_view name,
               std::string_view value) override FLARE_REQUIRES(lock_);
  void OnHeaders(Http2Stream* stream, bool trailers, bool end) override
      FLARE_REQUIRES(lock_);
  void OnData(Http2Stream* stream, Buffer&& bytes) override
      FLARE_REQUIRES(lock_);
  void OnEnd(Http2Stream* stream) override FLARE_REQUIRES(lock_);
  void OnSent(Http2Stream* stream, std::size_t bytes) override
      FLARE_REQUIRES(lock_);
  void OnClosed(Http2Stream* stream, Http2Error error, bool by_peer) override
      FLARE_REQUIRES(lock_);
  void OnGoAway(std::int32_t last_id, Http2Error error,
                std::string_view text) override FLARE_REQUIRES(lock_);

  // Sets path_. False: it is no method's name.
  bool FindPath(std::string_view method) FLARE_REQUIRES(lock_);
  // Sets plain_head_, with path_.
  void FindPlainHead(std::uint32_t timeout_ms, std::string_view encoding)
      FLARE_REQUIRES(lock_);
  void FillHead(std::string_view path, std::string_view encoding,
                std::string_view timeout,
                std::vector<Http2Field>* fields) const;
  Sent SendLocked(std::unique_ptr<Call> call, const OutboundRequest& request,
                  Buffer* message, BufferBuilder* scratch)
      FLARE_REQUIRES(lock_);
  void AbandonLocked(std::uint64_t correlation_id) FLARE_REQUIRES(lock_);
  bool OpenUnary(Call* call, const OutboundRequest& request,
                 BufferBuilder* scratch) FLARE_REQUIRES(lock_);
  // Output is written by *scratch, if it isn't null, until Flush().
  bool Open(Call* call, std::string_view path, std::uint32_t timeout_ms,
            std::string_view encoding, const Metadata* metadata,
            BufferBuilder* scratch) FLARE_REQUIRES(lock_);
  void TakeMessages(Call* call) FLARE_REQUIRES(lock_);
  bool TakeMessage(Call* call, GrpcMessage&& message) FLARE_REQUIRES(lock_);
  void GrantForMessage(Call* call) FLARE_REQUIRES(lock_);
  void TakeMetadata(Call* call) FLARE_REQUIRES(lock_);
  void ResetAnswered() FLARE_REQUIRES(lock_);
  void ResetUnwanted() FLARE_REQUIRES(lock_);
  void FailAndReset(Call* call, flare::Status why,
                    Reply reply = Reply::kUnreadable) FLARE_REQUIRES(lock_);
  // The server didn't look at the call.
  void EndUnprocessed(Call* call, std::string why) FLARE_REQUIRES(lock_);
  // Hands the outcome out, once.
  void End(Call* call, flare::Status status, Reply reply = Reply::kReadable)
      FLARE_REQUIRES(lock_);
  static flare::Status OutcomeOf(const Call& call);
  // False: the connection is closed.
  bool Flush() FLARE_REQUIRES(lock_);
  // Credit of other streams, to be told without lock_. [GC5]
  struct Credit {
    RefPtr<StreamReceiver> receiver;
    std::size_t bytes = 0;
  };
  std::vector<Credit> TakeCredits() FLARE_REQUIRES(lock_);
  static void TellCredits(const std::vector<Credit>& credits);
  void Tell(Event&& event) const;
  void Delete(Call* call) FLARE_REQUIRES(lock_);

  const Limits limits_;
  const std::string authority_;
  StreamOutput* const output_;

  mutable ThreadMutex lock_;
  Http2Session session_ FLARE_GUARDED_BY(lock_);
  bool closed_ FLARE_GUARDED_BY(lock_) = false;
  bool going_away_ FLARE_GUARDED_BY(lock_) = false;
  IntrusiveList<Call> calls_ FLARE_GUARDED_BY(lock_);
  std::unordered_map<std::uint64_t, Call*, std::hash<std::uint64_t>,
                     std::equal_to<>,
                     PooledNodes<std::pair<const std::uint64_t, Call*>>>
      unary_ FLARE_GUARDED_BY(lock_);
  std::vector<Event> events_ FLARE_GUARDED_BY(lock_);           // [GC3]
  std::vector<std::int32_t> credited_ FLARE_GUARDED_BY(lock_);  // [GC5]
  const Call* writing_ FLARE_GUARDED_BY(lock_) = nullptr;  // In StreamSend().
  // Streams that the server has answered before it had all of the request.
  std::vector<std::int32_t> answered_ FLARE_GUARDED_BY(lock_);
  // Calls that nobody waits for, to be reset when the guard admits that: with
  // the next call or input, or by SendDelayed().
  std::vector<std::int32_t> unwanted_ FLARE_GUARDED_BY(lock_);
  FloodGuard resets_ FLARE_GUARDED_BY(lock_);
  // Fields of Open(), kept for their memory.
  std::vector<Http2Field> fields_ FLARE_GUARDED_BY(lock_);

  // The method of the latest unary call, and its path.
  std::string method_ FLARE_GUARDED_BY(lock_);
  std::string path_ FLARE_GUARDED_BY(lock_);
  // ... and of the latest one that has no metadata, all that it begins with.
  // Null: its method was another one.
  std::uint32_t plain_timeout_ms_ FLARE_GUARDED_BY(lock_) = 0;
  std::string_view plain_encoding_ FLARE_GUARDED_BY(lock_);
  std::string plain_timeout_ FLARE_GUARDED_BY(lock_);
  std::vector<Http2Field> plain_fields_ FLARE_GUARDED_BY(lock_);
  std::optional<Http2FixedFields> plain_head_ FLARE_GUARDED_BY(lock_);

  // The reader's.
  std::vector<Event> telling_;
  std::vector<Event> replies_;
  std::size_t next_reply_ = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_GRPC_GRPC_CLIENT_SESSION_H_
