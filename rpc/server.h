// An RPC server: services, HTTP handlers and commands of Redis on one port, any
// number of protocols on it.
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

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/io/fd.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/redis_service.h"
#include "flare/rpc/server_options.h"
#include "flare/rpc/server_statistics.h"
#include "flare/rpc/websocket.h"

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

class GenericService;
class ServerInterceptor;

class Server {
 public:
  // server_options.h.
  using Options = ServerOptions;

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

  // Sets the service that gets calls of methods that no service above has
  // (generic_service.h). Fails if there is one already.
  bool SetGenericService(std::unique_ptr<GenericService> service);

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
  // AddHttpHandler() of NewWebSocketHandler(), see websocket.h.
  bool AddWebSocketHandler(std::string path, WebSocketHandler handler,
                           WebSocketServerOptions options = {});
  // For everything else, also "OPTIONS *". Without it that is answered 404, and
  // "OPTIONS *" with the methods that the server knows.
  void SetDefaultHttpHandler(HttpHandlerArgument handler);

  // Clients of Redis are served, too (redis_service.h). Their connections are
  // told from the other protocols' by their first bytes. Fails if `service` has
  // an error. Once.
  bool AddRedisService(RedisService service);

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
  std::shared_ptr<RedisService> redis_;                     // Null: none.
  std::vector<std::string> protocols_;
  Endpoint address_;
  std::vector<io::UniqueFd> sockets_;  // To adopt; empty: none.
  bool leaves_sockets_ = false;        // Said before the start.
  int backlog_ = 0;
  std::vector<std::shared_ptr<Listener>> listeners_;
  std::stop_source stopping_;  // Stop() was called.
  std::vector<AbandonedCall> abandoned_calls_;
  Endpoint endpoint_;
  Endpoint admin_endpoint_;
  Status error_;
  std::unique_ptr<Running> running_;
  std::unique_ptr<rpc::AdminPort> admin_;
};

}  // namespace flare

#endif  // FLARE_RPC_SERVER_H_
