// The HTTP/2 session of one connection of an HttpClient: many requests share
// it, each of which is a stream.
//
//   auto http2 = Http2ClientConnection::Begin(connection);
//   if (http2 == nullptr) ...                       // It has closed meanwhile.
//   auto response = http2->Exchange(request, limit, &fate);
//
// Rules:
//  [H2C1] lock_ guards the session and the streams. It isn't held while a
//         function of the user runs, or while anything blocks.
//  [H2C2] The session's bytes go to the output under lock_: fields are
//         compressed in the order in which they are sent.
//  [H2C3] A stream lives on the stack of its requester. It is the session's
//         from Open() to OnClosed(), which Leave() brings about. Behind ended_
//         nobody uses the session any more, so it may keep streams that are
//         gone.
//  [H2C4] A requester waits for one Event, on its stack, that the waiter of its
//        stream points to. The function that sets it takes it from there, under
//        lock_.
#ifndef FLARE_RPC_HTTP_CLIENT_HTTP2_CLIENT_CONNECTION_H_
#define FLARE_RPC_HTTP_CLIENT_HTTP2_CLIENT_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/expected.h"
#include "flare/base/intrusive_list.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/rpc/http/http_tunnel.h"
#include "flare/rpc/http2/http1_text.h"
#include "flare/rpc/http2/http2_session.h"
#include "flare/rpc/http_client/http_client_connection.h"
#include "flare/rpc/http_message.h"

namespace flare::rpc {

class Http2ClientConnection final : public HttpTunnelReceiver,
                                    private Http2Handler {
 public:
  // `connection` speaks_http2() and waits for this. Null: it has closed.
  static RefPtr<Http2ClientConnection> Begin(
      const RefPtr<HttpClientConnection>& connection);
  // Only RefPtr's.
  ~Http2ClientConnection() override = default;

  const RefPtr<HttpClientConnection>& connection() const { return connection_; }

  // Sends a request and gets its response. Blocks. Any number at a time; those
  // beyond max_requests() wait for others.
  Expected<HttpResponse, flare::Status> Exchange(
      HttpClientConnection::Request request, const HttpWaitLimit& limit,
      HttpRequestFate* fate);

  // So many requests the server takes at a time; nullopt: no further ones; 0:
  // none had better come before something is heard of it. Any thread; doesn't
  // block.
  std::optional<std::size_t> max_requests() const;

 private:
  struct Stream;
  // The part of a request's body that isn't sent.
  struct Upload;

  explicit Http2ClientConnection(RefPtr<HttpClientConnection> connection);

  // HttpTunnelReceiver.
  Input OnInput(Buffer& in, std::size_t* need, std::string* error) override;
  bool WithinMessage() const override { return false; }
  void OnEnd(const flare::Status& why, bool closed) override;

  // Called by the session, with lock_.
  Http2Stream* OnStream() override { return nullptr; }
  bool OnField(Http2Stream* base, std::string_view name,
               std::string_view value) override FLARE_REQUIRES(lock_);
  void OnHeaders(Http2Stream* base, bool trailers, bool end) override
      FLARE_REQUIRES(lock_);
  void OnOpened(Http2Stream* base) override FLARE_REQUIRES(lock_);
  void OnData(Http2Stream* base, Buffer&& bytes) override FLARE_REQUIRES(lock_);
  void OnEnd(Http2Stream* base) override FLARE_REQUIRES(lock_);
  void OnSent(Http2Stream* base, std::size_t bytes) override
      FLARE_REQUIRES(lock_);
  void OnClosed(Http2Stream* base, Http2Error error, bool by_peer) override
      FLARE_REQUIRES(lock_);
  void OnGoAway(std::int32_t last_id, Http2Error error,
                std::string_view text) override FLARE_REQUIRES(lock_);

  // The requester's. False: the connection takes no further requests.
  bool Open(Stream* stream, Http2Request* head);
  flare::Status Carry(Stream* stream, Buffer body, const HttpWaitLimit& limit);
  bool AwaitEvent(Stream* stream, const HttpWaitLimit& limit);
  bool HasNews(const Stream& stream) const FLARE_REQUIRES(lock_);
  bool AwaitRoom(Stream* stream, const HttpWaitLimit& limit);
  bool HasEvent(const Stream& stream) const FLARE_REQUIRES(lock_);
  // Sends the next part of the body. An error ends the request.
  flare::Status SendPart(Stream* stream, Upload* upload,
                         const HttpWaitLimit& limit);
  void Grant(Stream* stream, std::size_t bytes);
  void Leave(Stream* stream) noexcept;

  void Fail(Stream* stream, flare::Status why) FLARE_REQUIRES(lock_);
  flare::Status FailureOf(Http2Error error, bool by_peer) const
      FLARE_REQUIRES(lock_);
  static void Notify(Stream* stream);
  void Flush() noexcept FLARE_REQUIRES(lock_);
  void End(const flare::Status& why) noexcept FLARE_REQUIRES(lock_);

  const RefPtr<HttpClientConnection> connection_;

  mutable ThreadMutex lock_;
  Http2Session session_ FLARE_GUARDED_BY(lock_);
  IntrusiveList<Stream> streams_ FLARE_GUARDED_BY(lock_);
  // No further requests: the server has said so, or no number is left.
  bool going_away_ FLARE_GUARDED_BY(lock_) = false;
  std::string goaway_ FLARE_GUARDED_BY(lock_);  // ": ", and the server's cause.
  // A request has timed out while nothing came at all, for a second or longer:
  // further ones had better go elsewhere until the answer to our PING, or
  // anything else, comes.
  bool silent_ FLARE_GUARDED_BY(lock_) = false;
  bool ended_ FLARE_GUARDED_BY(lock_) = false;  // [H2C3]
  flare::Status end_ FLARE_GUARDED_BY(lock_);   // The cause of that.
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_CLIENT_HTTP2_CLIENT_CONNECTION_H_
