// An RPC server: services and HTTP handlers on one port, any number of
// protocols on it.
//
//   flare::Server server;                       // inside flare::Start()
//   server.AddProtocols({"flare", "http+pb"});
//   server.AddService(std::make_unique<EchoServiceImpl>());
//   server.ListenOn(flare::EndpointFromIpv4("127.0.0.1", 5567));
//   if (!server.Start()) return 1;              // has logged why
//   flare::WaitForQuitSignal();
//   server.Stop();
//   server.Join();
//
// The path of a request: docs/architecture.md, "Six files".
//
// Set up, Start, Stop and Join from one fiber or thread; statistics() and
// method_statistics() from any. The runtime must be running from Start() to the
// end of Join().
#ifndef FLARE_RPC_SERVER_H_
#define FLARE_RPC_SERVER_H_

#include <google/protobuf/service.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/io/fd.h"
#include "flare/io/tls_options.h"
#include "flare/rpc/admission_options.h"
#include "flare/rpc/builtin_pages.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/server_statistics.h"
#include "flare/rpc/start/flags.h"

namespace flare {

namespace rpc {
class AdminPort;
class HttpCounters;
class HttpRoutes;
class HttpSite;
class PageCredentials;
enum class PagesFor;
class ServerState;
}  // namespace rpc

class ServerInterceptor;

class Server {
 public:
  // The defaults are those of the flags (--flare_rpc_server_...). Options of
  // the published framework come in its order, for designated initialisers.
  struct Options {
    // For log lines; the address if empty.
    std::string service_name = "";
    // As BuiltinPages::kNone (below), whatever that says.
    bool no_builtin_pages = rpc::ServerDefaultsFromFlags().no_builtin_pages;
    // Bytes of one message, header and attachment included. A longer one is
    // answered with an error, or closes its connection where it can't be. One
    // over 64 MiB, too, is the last on its connection; over HTTP also one in
    // chunks, or with "Expect: 100-continue".
    std::size_t maximum_packet_size =
        rpc::ServerDefaultsFromFlags().max_packet_size;
    // Bytes of a compressed body, or of a compressed attachment, after
    // decompression. A larger one is answered with an error.
    std::size_t max_decompressed_size =
        rpc::ServerDefaultsFromFlags().max_decompressed_size;
    // Bytes of a message's meta, the part that describes the call in binary
    // protocols; more closes the connection. (Bolt has limits of its own: its
    // class name and its header map have less than 64 KiB each.)
    std::size_t max_meta_size = 64 << 10;
    // Bytes of an HTTP request's line and header fields together, and how many
    // fields there may be. More is answered 431 (414 if the line alone is too
    // long), and closes the connection.
    std::size_t max_http_header_size =
        rpc::ServerDefaultsFromFlags().max_http_header_size;
    std::size_t max_http_header_fields = 100;
    // Bytes from which on the reply to a call over HTTP is compressed if its
    // caller's Accept-Encoding allows gzip or deflate. 0: none is, unless its
    // service asks for it.
    std::size_t compress_http_replies_from =
        rpc::ServerDefaultsFromFlags().compress_http_replies_from;
    // Web pages that may make calls over HTTP, by their origins:
    // "https://example.com,http://localhost:8080", or "*" for all pages. For
    // these OPTIONS is answered, and replies say that they may be read (CORS).
    // One that can't be an origin makes Start() fail.
    std::string http_cors_origins =
        rpc::ServerDefaultsFromFlags().http_cors_origins;
    // Replies that a peer doesn't take, in bytes. With more than half of that
    // waiting nothing is read from its connection, and calls that run on fibers
    // wait before they answer, or before their requests are decompressed; if
    // the peer takes nothing for `output_timeout` meanwhile, the connection is
    // closed. Plain threads don't wait: with replies from them it can be more.
    std::size_t max_output_per_connection =
        rpc::ServerDefaultsFromFlags().max_output_per_connection;
    // Bytes that all connections hold together: unfinished messages, requests
    // of calls under way, as messages, too, and replies that peers don't take
    // or that wait for earlier ones. Less than 64 KiB of a connection, and
    // requests of up to 4 KiB, aren't counted. From half of it on a connection
    // has room for 64 KiB of replies only (see above). Beyond it calls of
    // connections that hold 64 KiB or more are answered "Server overloaded.",
    // and those that hold most are closed, above all if they have made no
    // progress for a second.
    std::size_t max_buffered_bytes =
        rpc::ServerDefaultsFromFlags().max_buffered_bytes;
    // More calls than this at a time are answered "Server overloaded.".
    std::size_t max_concurrent_requests =
        rpc::ServerDefaultsFromFlags().max_ongoing_calls;
    // While running calls hold this many bytes of decompressed requests,
    // further compressed ones are answered "Server overloaded.", and streams
    // that read a compressed message fail so. A stream counts with its latest
    // message. Each worker may decompress one more at the same moment.
    std::size_t max_concurrent_decompressed_bytes =
        rpc::ServerDefaultsFromFlags().max_ongoing_decompressed_bytes;
    // While this many calls of one connection are running, no more are read
    // from it until half of them are done: it can't use up the server's limit
    // alone, if that is higher. At least 1.
    std::size_t max_concurrent_requests_per_connection =
        rpc::ServerDefaultsFromFlags().max_ongoing_calls_per_connection;
    // More connections than this are closed at once.
    std::size_t max_concurrent_connections =
        rpc::ServerDefaultsFromFlags().max_connections;
    // Calls and HTTP requests that waited longer than this for a worker are
    // answered "Server overloaded.". 0: no limit. (The caller's own timeout
    // always is one, and so is a method's max_queueing_delay_ms,
    // rpc_options.proto.) Negative, the default: seven eighths of the caller's
    // timeout, or less where the method takes long; a second, or more, where
    // the caller has told none. Once calls have waited for longer, a tenth of
    // that, until the queue is short (rpc/server/call_gate.h). Methods with a
    // max_queueing_delay_ms are exempt.
    std::chrono::nanoseconds max_request_queueing_delay =
        rpc::ServerDefaultsFromFlags().max_request_queueing_delay;
    // "package.Service.Method:10,...": limits for single methods, besides
    // those of their .proto files (max_ongoing_requests, rpc_options.proto);
    // the smaller one holds. A method that this server doesn't have is passed
    // over, as the flag is for all servers of a program; one that the program
    // doesn't have, a typo, leaves a warning in the log, and no limit.
    std::string max_concurrent_requests_per_method =
        rpc::ServerDefaultsFromFlags().max_ongoing_calls_per_method;
    // The status of calls that are refused because of a limit; not 0. Without
    // effect on those over trpc and bolt, which have codes of their own. Codes
    // above 1000 are a service's own for clients of this library, after which
    // they don't try another server (except 2004 over baidu-std).
    int status_code_for_overloaded =
        rpc::ServerDefaultsFromFlags().status_code_for_overloaded;
    // Connections without traffic and without a running call for this long are
    // closed; looked for at this interval. 0: never.
    std::chrono::nanoseconds connection_max_idle =
        rpc::ServerDefaultsFromFlags().connection_max_idle;
    std::chrono::nanoseconds remove_idle_connection_interval =
        rpc::ServerDefaultsFromFlags().remove_idle_connection_interval;
    // A message must have arrived so long after its first byte, the first one
    // so long after the connection was accepted; or 64 KiB more of a larger
    // one, again and again. Else the calls that came before are answered, and
    // the connection is closed. Time in which the server doesn't read because
    // of a limit above doesn't count; time in which the whole process is
    // stopped does. Looked for at the same interval. 0: never.
    std::chrono::nanoseconds message_timeout =
        rpc::ServerDefaultsFromFlags().message_timeout;
    // How long a peer may take no replies while a call waits for room to answer
    // (a millisecond to a day). After that its connection is cut. Over HTTP/2
    // this also limits how long an HTTP handler that writes its reply in pieces
    // waits for the stream's window; then only the stream is reset.
    std::chrono::nanoseconds output_timeout = std::chrono::seconds(10);
    // How long a streaming method's write may wait while its client grants no
    // window at all; then the call fails, and only its stream ends. A client
    // that reads slowly may grant none before it has read half of its window.
    // The time runs on while the server doesn't read the connection: another
    // stream holds its input, or as many calls run as it may have. 0: as long
    // as the call lives.
    std::chrono::nanoseconds stalled_stream_timeout = std::chrono::minutes(5);
    // How long after Stop() calls may begin, running ones go on, and replies be
    // sent. Where calls hold all workers for longer, connections have another
    // second (no more than this) for replies and refusals.
    std::chrono::nanoseconds drain_timeout =
        rpc::ServerDefaultsFromFlags().drain_timeout;
    // How long Stop() leaves a connection open for the next request, if only a
    // reply can tell the client of the end, and a request has come within the
    // last second or is coming. At most half of the drain timeout. 0: requests
    // that are on their way then go unanswered.
    std::chrono::nanoseconds stop_linger =
        rpc::ServerDefaultsFromFlags().stop_linger;
    // The set of scheduling groups that serves (--flare_scheduling_group_sets):
    // connections, and the calls that come by them, stay in its groups. Empty:
    // all groups. One that doesn't exist makes Start() fail.
    std::string scheduling_groups = "";
    // Called with the peer's address for each connection, on any worker;
    // those for which it returns false are closed. Must neither block nor throw
    // (which ends the process).
    std::function<bool(const Endpoint&)> conn_filter = nullptr;
    // A peer that ends its input, as one does that is killed, is taken for
    // gone: its calls are told to stop (docs/cancellation.md). Replies that are
    // made all the same are sent. False: only at the end of the whole
    // connection.
    bool cancel_calls_at_end_of_input = true;
    // Speaks TLS, and nothing else, on its port (docs/security.md). Files that
    // can't be used make Start() fail.
    std::optional<TlsServerOptions> tls = std::nullopt;
    // Says which clients are answered on this port by the pages under /inspect
    // and /metrics (inspect_pages.h), for which every server speaks "http".
    BuiltinPages builtin_pages = rpc::ServerDefaultsFromFlags().builtin_pages;
    // An address of their own for these pages: "127.0.0.1:9100", port 0 for one
    // that is free, "unix:/path". Without `pages_credentials_file` everyone who
    // can connect is answered there. A thread of its own does it, without
    // interceptors, while all workers are stuck, too. Empty: none. One that is
    // malformed or in use makes Start() fail: servers of one process need
    // different ones.
    std::string admin_address = rpc::ServerDefaultsFromFlags().admin_address;
    // Speaks TLS on admin_address, by `tls`; without `tls` Start() fails.
    bool admin_tls = rpc::ServerDefaultsFromFlags().admin_tls;
    // A file with the credentials of readers of these pages, on both ports
    // (docs/security.md). Empty: none are needed. A file that can't be read or
    // has a mistake makes Start() fail; later the earlier credentials stay
    // valid.
    std::string pages_credentials_file =
        rpc::ServerDefaultsFromFlags().pages_credentials_file;
    // Rules that refuse calls before queues get long, all off by default
    // (docs/admission.md).
    AdmissionOptions admission = rpc::ServerDefaultsFromFlags().admission;
  };

  // The options of one service.
  struct ServiceOptions {
    // Called behind those of AddInterceptor(), in this order.
    std::vector<std::shared_ptr<ServerInterceptor>> interceptors;
  };

  // Is told when the server starts and stops, for parts that depend on its
  // services (services/health.h). Called by the fiber or thread that does.
  class Listener {
   public:
    virtual ~Listener() = default;
    // By Start(), before the first connection, with the services that were
    // added. The address may yet turn out to be in use.
    virtual void OnStart(
        const std::vector<const google::protobuf::ServiceDescriptor*>&) {}
    // By the first Stop(), before anything else: calls are served as before.
    virtual void OnStop() {}
  };

  // server_statistics.h.
  using Statistics = ServerStatistics;
  using MethodStatistics = ServerMethodStatistics;

  Server();
  explicit Server(Options options);
  // Does Join() if that wasn't done: may block for Options::drain_timeout, and
  // abandon calls. If there is none, the objects given to the server (services,
  // handlers, filter) are destroyed by the time it returns; else with the last
  // of these calls, wherever that ends.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Functions for setting up, before Start(). A failure here (false, logged
  // with the reason) also makes Start() fail, so that it suffices to check
  // that. Nothing here blocks.

  // "flare", "http+pb", "http+pb-text", "http+proto3-json", "http",
  // "baidu-std", "bolt", "trpc", "grpc"; the order is that in which a
  // connection's first bytes are tried. "http" need not be added: Start() does
  // it, behind the others, if there is a handler or there are the built-in
  // pages.
  bool AddProtocol(const std::string& name);
  bool AddProtocols(const std::vector<std::string>& names);

  // Fails if a service of that name was added, or an option of one of its
  // methods (rpc_options.proto) makes no sense.
  bool AddService(std::unique_ptr<google::protobuf::Service> service,
                  ServiceOptions options = {});
  // Adds a borrowed `service`: it must live until Join() has returned 0, or, if
  // that abandoned calls, until these have ended, too (see Join()). A service
  // that is given away to the other AddService() is destroyed as ~Server()
  // says.
  bool AddService(google::protobuf::Service* service,
                  ServiceOptions options = {});

  // For all services, also those that were added before, and for HTTP handlers
  // (not for requests that the server answers by itself, such as those for
  // methods that it doesn't have). Called in the order in which they are added:
  // the first one is the outermost. With one the pages under /inspect aren't
  // served while the server is overloaded.
  void AddInterceptor(std::shared_ptr<ServerInterceptor> interceptor);

  // Told in the order in which they are added. Kept as long as the server.
  void AddListener(std::shared_ptr<Listener> listener);

  // For the path alone, without query. Fails if there is one for this path, if
  // it doesn't begin with a slash, or has a '?', a '#', a blank or a control
  // character, as no request's has. Paths are compared as they are sent:
  // nothing is decoded, /%61 isn't /a. A handler is given away, or borrowed as
  // a service is; a borrowed one may have several paths.
  bool AddHttpHandler(std::string path, HttpHandlerArgument handler);
  // For all paths that begin like this and have no handler of their own; the
  // longest prefix wins.
  bool AddHttpPrefixHandler(std::string prefix, HttpHandlerArgument handler);
  // For everything else, also "OPTIONS *". Without it that is answered 404, and
  // "OPTIONS *" with the methods that the server knows.
  void SetDefaultHttpHandler(HttpHandlerArgument handler);

  // Once. Port 0: the system picks one, see endpoint().
  bool ListenOn(const Endpoint& address, int backlog = 1024);

  // In place of ListenOn(): adopts stream sockets that listen already, all on
  // one address, as a service manager or the process before this one hands them
  // over (hand_over.h). Start() fails if they aren't such sockets. Once.
  bool AdoptSockets(std::vector<io::UniqueFd> sockets, int backlog = 1024);

  // The sockets that listen, which stay the server's. Between Start() and
  // Stop().
  std::vector<int> ListeningSockets() const;
  // Another process has these sockets, too, and goes on with them: Stop()
  // leaves connections that wait in the kernel, and the file of a Unix socket,
  // to that process. Before Stop(); from Start() on any thread; doesn't block.
  void LeaveSockets();

  // Starts serving. False: with the first error of the above, or the address
  // can't be listened on; error() says it, and it was logged. Doesn't block,
  // except for a Unix socket: the thread, for 200 ms at most (io/acceptor.h).
  [[nodiscard]] bool Start();
  const Status& error() const { return error_; }

  // Where it listens, after Start().
  const Endpoint& endpoint() const { return endpoint_; }
  // ... of Options::admin_address; empty if there is none.
  const Endpoint& admin_endpoint() const { return admin_endpoint_; }

  // Tells listeners, then stops accepting, after having accepted the queued
  // connections, then ends each connection in the way of its protocol:
  //
  //  * flare (with clients of this library) and grpc: the client is told to
  //    send no more calls. Those that it has sent are served; the connection
  //    ends when the client has closed or confirmed, or after a second.
  //  * HTTP/1: the next reply says "Connection: close" and is the last. A
  //    connection in use waits for a request for Options::stop_linger.
  //  * other protocols, and idle connections: requests that have arrived are
  //    answered.
  //
  // Doesn't wait for that, but blocks the fiber or thread until running accept
  // callbacks have returned. No effect a second time. The drain timeout is
  // counted from the beginning; calls that a worker comes to after it aren't
  // begun, but fail with STATUS_OUT_OF_SERVICE (over HTTP 503; baidu-std 2003;
  // trpc 22).
  //
  // A thread of this library does the first part for the program if SIGINT,
  // SIGQUIT or SIGTERM comes (WaitForQuitSignal(), init.h) while the workers
  // are held, so that no fiber can call this: while they leave a queued task
  // for 0.3 s. Queued calls aren't begun from then on.
  void Stop();

  // Blocks the fiber or thread until all calls have been answered, replies sent
  // and connections closed, or Options::drain_timeout has passed since Stop():
  // then running calls are told to stop (docs/cancellation.md), which, if they
  // do, have a second (no more than that timeout) to answer; connections are
  // cut and calls that still run are abandoned with a log line; their replies
  // go nowhere. Does Stop() if nobody has. After it returns, nothing of this
  // server calls user code but such abandoned calls (a method that has called
  // its `done` may still be on its way back, and values of ExecutionLocals are
  // destroyed when it is). Returns how many of these there are. They have ended
  // when a further Join(), which doesn't wait for them, returns 0. Fibers don't
  // go on after the end of flare::Start(), so neither do they, except on
  // threads of your own.
  std::size_t Join();

  // The calls that were running when Join() cut the connections, the oldest one
  // first. They may be more than Join() returned: some end by the cut. Empty
  // before, and if all calls ended in time; empty, too, without memory for it,
  // and where the system keeps a process from reading its own memory, by
  // process_vm_readv() and by /proc/self/mem. After Join(), by the fiber or
  // thread that called it.
  const std::vector<AbandonedCall>& abandoned_calls() const {
    return abandoned_calls_;
  }

  Statistics statistics() const;
  // Returns the statistics of each method of the services, by their names, 34
  // KiB for each. HTTP handlers aren't counted one by one.
  std::vector<MethodStatistics> method_statistics() const;

 private:
  class Running;

  bool Fail(std::string what);
  Status FixProtocols();
  Status SetUpTls();
  Status ReadPageCredentials();
  Status StartAdmin();
  void AddPages(rpc::PagesFor who, rpc::HttpRoutes* routes);
  void NameByAddress(const Endpoint& address);

  RefPtr<rpc::ServerState> state_;
  std::shared_ptr<rpc::HttpSite> http_;
  std::shared_ptr<rpc::HttpCounters> http_counters_;
  std::shared_ptr<rpc::PageCredentials> page_credentials_;  // Null: none.
  std::vector<std::string> protocols_;
  Endpoint address_;
  std::vector<io::UniqueFd> sockets_;  // To adopt; empty: none.
  bool leaves_sockets_ = false;        // Said before the start.
  int backlog_ = 0;
  std::vector<std::shared_ptr<Listener>> listeners_;
  bool stopped_ = false;
  std::vector<AbandonedCall> abandoned_calls_;
  Endpoint endpoint_;
  Endpoint admin_endpoint_;
  Status error_;
  std::unique_ptr<Running> running_;
  std::unique_ptr<rpc::AdminPort> admin_;
};

}  // namespace flare

#endif  // FLARE_RPC_SERVER_H_
