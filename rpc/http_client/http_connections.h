// The connections of an HttpClient, by host: which of them carries a request,
// and which are kept for further ones.
//
//   auto lease = connections->Acquire(origin, HttpConnections::Wanted::kAny,
//                                     limit);
//   if (!lease) return lease.error();
//   auto response = lease->connection().Exchange(request, limit);
//                                     // The lease's end keeps or closes it.
//
// Each connection of a host has one of its places: by HTTP/1.1 as long as it
// carries a request, by HTTP/2 as long as it is open and its server takes
// further requests. Requests by HTTP/2 go to the connection with the fewest of
// them. If all have as many as their servers
// take, one request opens another connection, and further ones wait for that;
// without a place for it they queue at those that there are.
#ifndef FLARE_RPC_HTTP_CLIENT_HTTP_CONNECTIONS_H_
#define FLARE_RPC_HTTP_CLIENT_HTTP_CONNECTIONS_H_

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/event.h"
#include "flare/fiber/semaphore.h"
#include "flare/io/tls_context.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/http_client/http2_client_connection.h"
#include "flare/rpc/http_client/http_client_connection.h"
#include "flare/rpc/http_client/http_proxies.h"
#include "flare/rpc/http_client_options.h"
#include "flare/rpc/interceptor.h"

namespace flare::rpc {

// Connections for one of these don't serve another.
struct HttpOrigin {
  bool tls = false;
  std::string host;     // As certificates name it, maybe with its port.
  std::string address;  // "host:port" or "unix:/path", to connect to,
  const HttpProxy* tunnel = nullptr;  // through this, unless it is null.

  const std::string& connects_to() const {
    return tunnel == nullptr ? address : tunnel->address;
  }

  friend bool operator<(const HttpOrigin& a, const HttpOrigin& b) {
    return std::tie(a.tls, a.host, a.address, a.tunnel) <
           std::tie(b.tls, b.host, b.address, b.tunnel);
  }
};

// All functions are thread-safe.
class HttpConnections final
    : public ClientSideMember,
      public HttpClientConnection::Owner,
      public std::enable_shared_from_this<HttpConnections> {
 private:
  struct Host;

 public:
  enum class Wanted {
    kAny,
    // One that is new, or speaks HTTP/2: a kept one was broken.
    kFresh,
    // A new one that speaks HTTP/1.1, for something else than requests, or for
    // one that the server takes in no other way.
    kOwn,
  };

  // A connection for one request, or a part of one.
  class Lease {
   public:
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease();

    // Null: connection() speaks HTTP/1.1, else there is none.
    Http2ClientConnection* http2() const { return http2_.Get(); }
    HttpClientConnection& connection() const { return *connection_; }
    // It was made for another request.
    bool reused() const { return reused_; }
    // The connection is used for something else than requests from here on:
    // it is neither kept nor closed, and counts as none of its host's.
    void Leave() { connection_ = nullptr; }

   private:
    friend class HttpConnections;
    Lease(std::shared_ptr<HttpConnections> all, std::shared_ptr<Host> host)
        : all_(std::move(all)), host_(std::move(host)) {}

    std::shared_ptr<HttpConnections> all_;  // Null: moved from.
    std::shared_ptr<Host> host_;
    RefPtr<HttpClientConnection> connection_;  // Null: there is none.
    RefPtr<Http2ClientConnection> http2_;      // ... or this one.
    bool has_place_ = false;
    bool reused_ = false;
  };

  static std::shared_ptr<HttpConnections> Create(HttpClientOptions options);
  // Closes kept connections.
  ~HttpConnections();
  HttpConnections(const HttpConnections&) = delete;
  HttpConnections& operator=(const HttpConnections&) = delete;

  const HttpClientOptions& options() const { return options_; }
  // Or the fault of the options.
  const Expected<HttpProxies, flare::Status>& proxies() const {
    return proxies_;
  }
  // Those of extensions, the outermost first.
  const std::vector<std::shared_ptr<HttpClientInterceptor>>& interceptors()
      const {
    return interceptors_;
  }

  // Returns a kept or shared connection, or a new one if there is none. Blocks.
  // Fails with an HttpErrorCode.
  Expected<Lease, flare::Status> Acquire(const HttpOrigin& origin,
                                         Wanted wanted,
                                         const HttpWaitLimit& limit);

  // Hosts that it holds something for. For tests.
  std::size_t known_hosts() {
    ScopedLock guard(mutex_);
    return hosts_.size();
  }

 private:
  using Connection = RefPtr<HttpClientConnection>;
  using TlsContext = std::shared_ptr<io::TlsClientContext>;

  // A look-up of one host, which all requests to it share.
  struct Lookup {
    explicit Lookup(std::string what) : address(std::move(what)) {}

    const std::string address;  // A proxy's goes with HttpConnections.
    fiber::Event done;
    // Once it is done.
    Expected<std::vector<Endpoint>, flare::Status> found{
        flare::Status(ENOMEM, "no memory to look it up")};
  };

  // A connection that speaks HTTP/2.
  struct Shared {
    RefPtr<Http2ClientConnection> connection;
    std::size_t requests = 0;  // 0: it is idle, and counts in kept_count_.
  };

  // A connection that one request opens, and others wait for.
  struct Opening {
    // One for each of those that wait, at its end. Before it for one of them,
    // if another connection has room.
    fiber::Semaphore news{0};
    // Guarded by mutex_.
    std::size_t waiting = 0;
    flare::Status failure;  // OK: there may be a connection.
  };

  // Lives as long as it has a lease, a connection or a look-up.
  struct Host {
    Host(HttpOrigin its_origin, std::size_t max)
        : origin(std::move(its_origin)),
          places(static_cast<std::ptrdiff_t>(max)) {}

    const HttpOrigin origin;
    fiber::Semaphore places;  // For requests.
    // Those without a request, the last one used at the end. Guarded by mutex_
    // of the HttpConnections.
    std::vector<Connection> kept;
    // That under way, null if there is none. Guarded likewise.
    std::shared_ptr<Lookup> lookup;
    // For HTTP/2, guarded likewise.
    std::vector<Shared> shared;
    std::shared_ptr<Opening> opening;  // Null: none is under way.
    std::int64_t pause_end_ns = 0;     // No further one before, if possible.
    bool chose_http1 = false;          // In its latest handshake.
  };
  struct Open {
    Connection connection;
    std::shared_ptr<Host> host;
    bool has_place = false;
  };

  explicit HttpConnections(HttpClientOptions options);

  // ClientSideMember.
  void Shutdown() override;
  // HttpClientConnection::Owner.
  void OnGone(HttpClientConnection* connection) override;

  std::shared_ptr<Host> HostOf(const HttpOrigin& origin);
  void ForgetIfUnused(std::shared_ptr<Host> host);
  // These fill *lease in. With a place of its own, unless it has one:
  flare::Status TakeOne(Lease* lease, Wanted wanted,
                        const HttpWaitLimit& limit);
  // ... or by sharing a connection that speaks HTTP/2, if the host has any.
  flare::Status TakeShared(Lease* lease, Wanted wanted,
                           const HttpWaitLimit& limit);
  // For all that wait for the host's `opening`, too.
  flare::Status OpenShared(Lease* lease, Wanted wanted,
                           const HttpWaitLimit& limit);
  // Makes a new connection that speaks HTTP/2 one to be shared.
  flare::Status Share(Lease* lease, const Connection& connection);
  // False: there is none, or all have as many requests as they take, if *lease
  // is not to `queue`.
  bool Join(Lease* lease, bool queue) FLARE_REQUIRES(mutex_);
  // Connections that take no further requests leave their places to others, and
  // end with the requests that they have.
  void FreePlacesOfLeaving(Host* host) FLARE_REQUIRES(mutex_);
  // Gives the place of an idle one back, for which others wait.
  void CloseOneIdle(Host* host);
  // At the end of a request.
  void LeaveShared(Host* host, const Http2ClientConnection* http2);
  // True: the caller must close it. Sets *opening if somebody waits for that.
  bool EndShare(Host* host, const Http2ClientConnection* http2,
                std::shared_ptr<Opening>* opening);
  // A kept connection, null if there is none. `fresh`: none is wanted, and one
  // is closed, so that a new one stays within the limit.
  Connection TakeKept(Host* host, bool fresh);
  Expected<std::vector<Endpoint>, flare::Status> LookUp(
      const std::shared_ptr<Host>& host, const HttpWaitLimit& limit);
  std::shared_ptr<Lookup> LookupUnderWay(Host* host);
  // Begins `lookup`, for one that has a place of lookups_; returns another one
  // if that has begun.
  std::shared_ptr<Lookup> BeginLookup(const std::shared_ptr<Host>& host,
                                      std::shared_ptr<Lookup> lookup);
  void EndLookup(std::shared_ptr<Host> host, Lookup* lookup);
  Expected<Connection, flare::Status> Connect(const std::shared_ptr<Host>& host,
                                              HttpClientHttp2 http2,
                                              const HttpWaitLimit& limit);
  Expected<Connection, flare::Status> ConnectTo(
      const Endpoint& peer, const std::shared_ptr<Host>& host,
      HttpClientHttp2 http2, const HttpWaitLimit& limit);
  flare::Status Establish(const Connection& connection,
                          const std::shared_ptr<Host>& host,
                          const HttpWaitLimit& limit);
  Expected<TlsContext, flare::Status> Tls(HttpClientHttp2 http2);
  // At the end of a request.
  void Keep(Host* host, const Connection& connection);
  std::vector<Connection> AllOpen();
  // For a connection that begins to be idle now.
  std::int64_t IdleEnd() const {
    return SaturatingAdd(NowNs(), ToNs(options_.max_idle));
  }

  const HttpClientOptions options_;
  const Expected<HttpProxies, flare::Status> proxies_;
  std::vector<std::shared_ptr<HttpClientInterceptor>> interceptors_;
  // Places for look-ups. One that nobody waits for any more keeps its own: each
  // takes a thread.
  fiber::Semaphore lookups_{32};
  // Taken with the lock of the client side held (client_side.h), or alone;
  // locks of connections may be taken with it held.
  ThreadMutex mutex_;
  std::map<HttpOrigin, std::weak_ptr<Host>> hosts_ FLARE_GUARDED_BY(mutex_);
  std::map<const HttpClientConnection*, Open> open_ FLARE_GUARDED_BY(mutex_);
  std::size_t kept_count_ FLARE_GUARDED_BY(mutex_) = 0;
  // By HttpClientHttp2; null: not needed yet.
  std::array<TlsContext, 3> tls_ FLARE_GUARDED_BY(mutex_);
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_CLIENT_HTTP_CONNECTIONS_H_
