// One connection of an HttpClient, which carries one request at a time, by
// HTTP/1.1; or a session of HTTP/2 (http2_client_connection.h).
//
//   auto connection = HttpClientConnection::Make(peer, transport, owner);
//   connection->Start();
//   Status connected = connection->AwaitConnected(limit, connect_timeout);
//   auto response = connection->Exchange(request, limit);
//   if (connection->reusable()) connection->BeginIdle(until_ns);
//   ...
//   if (connection->EndIdle()) ...                      // The next request.
//
// Rules:
//  [HX1] A user, one at a time, calls the functions; the stream's callbacks,
//        one at a time, are on the other side. busy_ says whose the reader, the
//        response and its whole body are: the callbacks' while it is true. It
//        is set by Exchange() and cleared by the callback that ends the
//        response, both under lock_.
//  [HX2] The user waits for one Event, on its stack, that waiter_ points to. A
//        callback takes it from there and sets it, all under lock_; so when the
//        user finds it gone, with the lock held, nobody uses it any more.
//  [HX3] The timer runs while idle_ is true: it is armed with setting that, and
//        cancelled before that is cleared, all under lock_, which the timer's
//        callback doesn't take: it only closes the stream. If it can't be
//        cancelled the connection is closing.
//  [HX4] For on_body reading is paused in OnData() only, and resumed by the
//        user that has found paused_ set, with lock_ held each time: so no
//        pause comes after its end.
//  [HX5] The connection refers to itself from Make() to the end of OnClosed().
//  [HX6] Behind a response 101, or a handshake that has chosen HTTP/2, reading
//        is paused, until Switch() has set receiver_ and resumes it. From then
//        on the callbacks take it from there; OnClosed() takes it out.
#ifndef FLARE_RPC_HTTP_CLIENT_HTTP_CLIENT_CONNECTION_H_
#define FLARE_RPC_HTTP_CLIENT_HTTP_CLIENT_CONNECTION_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/event.h"
#include "flare/fiber/timer.h"
#include "flare/io/stream_connection.h"
#include "flare/io/transport.h"
#include "flare/rpc/client/wait_limit.h"
#include "flare/rpc/http/http_tunnel.h"
#include "flare/rpc/http_client/http_reply_reader.h"
#include "flare/rpc/http_client_options.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/stream/input_hold.h"
#include "flare/rpc/stream_wire.h"

namespace flare::rpc {

// How long a request may wait.
struct HttpWaitLimit : WaitLimit {
  // ERROR_CANCELLED or ERROR_TIMEOUT, `during` a wait.
  flare::Status Exceeded(std::string_view during) const {
    return WaitLimit::Exceeded(during, {ERROR_TIMEOUT, ERROR_CANCELLED});
  }
};

// The known facts of a request that has failed.
struct HttpRequestFate {
  bool sent = false;  // Bytes of it may have been sent.
  bool source_begun = false;
  bool replied = false;      // Bytes of its response have come.
  bool lost = false;         // The connection has broken.
  bool unprocessed = false;  // The server has certainly not looked at it.
  bool needs_http1 = false;  // ... as it takes it over HTTP/1.1 only.
};

class HttpClientConnection final : public RefCounted<HttpClientConnection>,
                                   private io::StreamHandler,
                                   private StreamOutput,
                                   private fiber::Timer {
 public:
  // Is told of the end of a connection, by its last callback. Must not block.
  class Owner {
   public:
    virtual void OnGone(HttpClientConnection* connection) = 0;

   protected:
    ~Owner() = default;
  };

  struct Request {
    Buffer bytes;
    // That of the URL; for HTTP/2.
    std::string_view scheme;
    bool is_head = false;
    std::size_t max_body = 0;
    // The request asks for another protocol: 101 is a response, behind which
    // the connection waits for Switch(), or to be closed.
    bool may_switch = false;
    // Null: the body is in the response. See HttpRequestOptions::on_body.
    const std::function<bool(const HttpResponse&, Buffer)>* on_body = nullptr;
    // Null: `bytes` have all of the request; else they have its head.
    const HttpBodySource* source = nullptr;
  };

  // Null `transport`: without TLS. `knows_http2`: the server speaks HTTP/2,
  // whatever the handshake says. To be started or closed.
  static RefPtr<HttpClientConnection> Make(
      const Endpoint& peer, std::unique_ptr<io::Transport> transport,
      std::weak_ptr<Owner> owner, bool knows_http2 = false);
  // Only RefPtr's.
  ~HttpClientConnection() override = default;

  // Begins to connect, unless it has been closed. Once. Doesn't block.
  void Start() { stream_->Start(); }

  // Blocks. Fails with ERROR_FAIL_TO_CONNECT_SERVER, ERROR_SSL or as `limit`
  // does, and closes the connection.
  flare::Status AwaitConnected(const HttpWaitLimit& limit,
                               std::chrono::nanoseconds connect_timeout);

  // Sends a request and gets its response. Blocks. If it fails, or on_body or
  // the source throws, the connection is closed, or closing.
  Expected<HttpResponse, flare::Status> Exchange(Request request,
                                                 const HttpWaitLimit& limit,
                                                 HttpRequestFate* fate);

  // The connection is for HTTP/2: it waits for Switch(), and Exchange() is none
  // of its functions.
  bool speaks_http2() const;

  // For the other protocol: HTTP/2, or that of a response 101. The output is
  // there until its receiver is told the end.
  const RefPtr<io::StreamConnection>& stream() const { return stream_; }
  StreamOutput* output() { return this; }
  // From here on the input is `receiver`'s, and so is the end. False: it is
  // closed.
  [[nodiscard]] bool Switch(RefPtr<HttpTunnelReceiver> receiver);
  // OK: it hasn't failed.
  flare::Status failure() const;

  // Another request may follow. False: to be closed, if it isn't yet.
  bool reusable() const;

  // Waits for the next user, and closes at `until_ns` if there is none. False:
  // it is closed or closing.
  bool BeginIdle(std::int64_t until_ns);
  // False: it is closed or closing.
  bool EndIdle();

  // `why` is the error of a request under way. Any thread; doesn't block.
  void Close(const flare::Status& why);

 private:
  HttpClientConnection(const Endpoint& peer,
                       std::unique_ptr<io::Transport> transport,
                       std::weak_ptr<Owner> owner, bool knows_http2);

  // io::StreamHandler.
  void OnConnected() override;
  bool OnData(Buffer& in, std::size_t* need, std::string* error) override;
  void OnClosed(const flare::Status& why) override;

  // StreamOutput.
  bool WriteSoon(Buffer&& bytes) override {
    return stream_->Write(std::move(bytes)) == io::WriteResult::kOk;
  }
  void Abort(const flare::Status& why) override { stream_->Close(why); }
  void HoldInput() override { hold_.Hold(); }
  void ReleaseInput() override { hold_.Release(stream_.Get()); }

  // False: the connection is closed.
  bool Send(Request* request);
  flare::Status Carry(Request* request, const HttpWaitLimit& limit);
  flare::Status SendBody(const HttpBodySource& source,
                         const HttpWaitLimit& limit);
  // Whether the rest of the body doesn't matter.
  bool IsOver(const HttpWaitLimit& limit) const;
  // False of these two: the connection has closed, or time is up.
  bool AwaitRoom(const HttpWaitLimit& limit);
  bool SendPiece(Buffer piece, bool last, const HttpWaitLimit& limit);
  // The reader's, once it has switched.
  bool TakeOther(Buffer& in, std::size_t* need, std::string* error);
  // Hands the body over piece by piece until the response ends.
  flare::Status TakePieces(const Request& request, const HttpWaitLimit& limit);
  // Waits until `done()`, which is called with lock_ held. False: until `at`,
  // or a stop.
  template <class Done>
  bool AwaitUntil(const std::stop_token& stop,
                  std::chrono::steady_clock::time_point at, Done done);
  void Notify() FLARE_REQUIRES(lock_);
  // The first reason counts.
  void NoteFailure(const flare::Status& why) FLARE_REQUIRES(lock_);
  flare::Status FailureOf(const flare::Status& why) const FLARE_REQUIRES(lock_);
  // Fails if the connection must close.
  flare::Status Publish(HttpReplyReader::Result progress, bool more_input,
                        Buffer piece);

  const std::weak_ptr<Owner> owner_;
  const bool tls_;
  const bool knows_http2_;
  const RefPtr<io::StreamConnection> stream_;

  // The callbacks' while busy_, else the user's [HX1].
  HttpReplyReader reader_;
  HttpResponse response_;
  Buffer body_;
  bool in_pieces_ = false;

  bool sent_ = false;  // The user's.

  InputHold hold_;

  mutable Spinlock lock_;
  fiber::Event* waiter_ FLARE_GUARDED_BY(lock_) = nullptr;  // [HX2]
  bool connected_ FLARE_GUARDED_BY(lock_) = false;
  bool closed_ FLARE_GUARDED_BY(lock_) = false;
  bool idle_ FLARE_GUARDED_BY(lock_) = false;  // [HX3]
  bool busy_ FLARE_GUARDED_BY(lock_) = false;
  bool replied_ FLARE_GUARDED_BY(lock_) = false;
  bool done_ FLARE_GUARDED_BY(lock_) = false;     // The response has ended.
  bool sending_ FLARE_GUARDED_BY(lock_) = false;  // The body isn't all sent.
  bool reusable_ FLARE_GUARDED_BY(lock_) = false;
  bool paused_ FLARE_GUARDED_BY(lock_) = false;         // [HX4]
  Buffer pieces_ FLARE_GUARDED_BY(lock_);               // For Request::on_body.
  PacedCompaction compaction_ FLARE_GUARDED_BY(lock_);  // That of pieces_.
  flare::Status failure_ FLARE_GUARDED_BY(lock_);
  bool speaks_http2_ FLARE_GUARDED_BY(lock_) = false;
  // By a response 101, or as it speaks HTTP/2.
  bool switched_ FLARE_GUARDED_BY(lock_) = false;
  RefPtr<HttpTunnelReceiver> receiver_ FLARE_GUARDED_BY(lock_);  // [HX6]
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_CLIENT_HTTP_CLIENT_CONNECTION_H_
