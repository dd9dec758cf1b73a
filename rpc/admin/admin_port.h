// A small HTTP server on a thread of its own, for pages that answer while all
// workers are stuck.
//
//   auto port = AdminPort::Listen(address);
//   if (!port) return port.error();
//   AddInspectPages(..., (*port)->routes());
//   if (flare::Status s = (*port)->Start(); !s.ok()) return s;
//
// Serves requests without a body, one of each connection; pages are made one
// after the other, by handlers that run on that thread and must not wait for
// workers. A connection has ten seconds for its request, and ten for its reply.
// Beyond kMaxConnections further ones wait in the kernel's queue.
#ifndef FLARE_RPC_ADMIN_ADMIN_PORT_H_
#define FLARE_RPC_ADMIN_ADMIN_PORT_H_

#include <poll.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/io/fd.h"
#include "flare/io/tls_context.h"
#include "flare/io/transport.h"
#include "flare/rpc/http/http_routes.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/log_throttle.h"

namespace flare::rpc {

class AdminPort {
 public:
  static constexpr std::size_t kMaxConnections = 32;
  static constexpr std::size_t kMaxHeadSize = 16 << 10;

  // Any endpoint, Unix sockets included. Errors: as io::Acceptor::Listen().
  // `tls`: speaks TLS; null: plain.
  static Expected<std::unique_ptr<AdminPort>, flare::Status> Listen(
      const Endpoint& address,
      std::shared_ptr<io::TlsServerContext> tls = nullptr);

  // Ends the thread, having waited for the page that is being made.
  ~AdminPort();
  AdminPort(const AdminPort&) = delete;
  AdminPort& operator=(const AdminPort&) = delete;

  // Filled in before Start().
  HttpRoutes* routes() { return &routes_; }

  // Has the handler of `path` run on a thread of its own for each request, as
  // it waits: in an execution context that is stopped when the client leaves,
  // or this object goes. Before Start().
  void ServeApart(std::string path) { apart_.insert(std::move(path)); }

  // Once. Fails if the system has no more threads or descriptors.
  flare::Status Start();

  const Endpoint& local_endpoint() const { return local_; }

 private:
  // A page in the making on a thread of its own.
  class ApartPage;

  struct Connection {
    io::UniqueFd fd;
    std::unique_ptr<io::Transport> transport;  // Null: the socket itself.
    bool secure = true;                        // No handshake is due.
    Endpoint peer;
    std::int64_t deadline_ns = 0;
    std::string input;
    std::unique_ptr<ApartPage> page;  // Null: none.
    std::string output;  // Empty: the request isn't complete, or there is one.
    std::size_t sent = 0;
    bool ended = false;  // Our side; input is thrown away.
  };

  AdminPort(io::UniqueFd listening, std::shared_ptr<io::TlsServerContext> tls);

  void Main();
  // False: stop.
  bool WaitForEvents();
  void AcceptSome();
  void Accept();
  // These return false when the connection must be closed.
  bool AdvanceOrDrop(Connection* connection);
  bool Advance(Connection* connection);
  bool ShakeHands(Connection* connection);
  bool Read(Connection* connection);
  bool Send(Connection* connection);
  void Answer(std::string_view head, Connection* connection);
  void AnswerApart(HttpRequest request, Connection* connection);
  // The reply. Any thread.
  std::string MakePage(const HttpRequest& request, const Endpoint& peer) const;
  bool AdvancePage(Connection* connection);
  // As recv(2) and send(2), without waiting.
  static ssize_t Receive(Connection* connection, char* to, std::size_t size);
  static ssize_t SendSome(Connection* connection, std::string_view bytes);

  HttpRoutes routes_;
  io::UniqueFd listening_;
  const std::shared_ptr<io::TlsServerContext> tls_;  // Null: plain.
  const Endpoint local_;
  std::set<std::string, std::less<>> apart_;
  io::UniqueFd stop_;  // An eventfd.
  io::UniqueFd wake_;  // ... of pages that are made.
  std::list<Connection> connections_;
  std::vector<pollfd> events_;  // For WaitForEvents().
  bool can_accept_ = true;
  LogThrottle handshake_log_;
  std::thread thread_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_ADMIN_ADMIN_PORT_H_
