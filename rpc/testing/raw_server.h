// A server for tests of the client side: a listening socket under our hands, so
// that it can answer late, twice, with garbage or not at all. Speaks the flare
// protocol; runs on plain threads. Nothing waits longer than 20 s.
//
//   RawServer server;
//   ...a call is made to server.uri()...
//   auto peer = server.Accept();
//   auto request = peer->ReadRequest();
//   peer->Reply(request->id, "hello");
#ifndef FLARE_RPC_TESTING_RAW_SERVER_H_
#define FLARE_RPC_TESTING_RAW_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/base/endpoint.h"
#include "flare/io/fd.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc::testing {

// The server's end of one connection.
class RawPeer {
 public:
  struct Request {
    std::uint64_t id = 0;
    std::string method;
    std::uint32_t timeout_ms = 0;
    CompressionAlgorithm compression = CompressionAlgorithm::kNone;
    bool attachment_compressed = false;
    std::string body;
    std::string attachment;
  };

  explicit RawPeer(io::UniqueFd fd);
  ~RawPeer();

  // nullopt: the client has closed the connection.
  std::optional<Request> ReadRequest();

  // Has something come (or the end) that was not read yet?
  bool HasInput() const;

  // The bytes of a reply: a TestResponse with this text (for status 0), ...
  std::string Encode(std::uint64_t id, std::string_view text, int status = 0);
  // ... or whatever is in `response`.
  std::string Encode(std::uint64_t id, OutboundResponse&& response);
  void Send(std::string_view bytes);
  void Reply(std::uint64_t id, std::string_view text) {
    Send(Encode(id, text));
  }
  void Fail(std::uint64_t id, int status, std::string_view why) {
    Send(Encode(id, why, status));
  }

  // The next bytes of the stream, up to and including `end`, or to its end.
  std::string ReadUntil(std::string_view end);
  std::string ReadExactly(std::size_t n);
  std::string ReadAll();
  // Waits for the client to close; false: it sends more.
  bool AtEnd();
  void Close() { fd_.Reset(); }

 private:
  class Sink;

  bool ReadMore();

  io::UniqueFd fd_;
  std::unique_ptr<Sink> sink_;
  std::unique_ptr<ServerProtocol> protocol_;
  Buffer in_;
};

class DeadAddress;

class RawServer {
 public:
  // Listens on 127.0.0.1; port 0: any. At most backlog + 1 connections wait to
  // be accepted; the kernel doesn't answer further ones.
  explicit RawServer(std::uint16_t port = 0, int backlog = 128);
  // At an address that has refused connections so far.
  explicit RawServer(DeadAddress* address);

  std::string uri() const { return "flare://" + endpoint_.ToString(); }
  const Endpoint& endpoint() const { return endpoint_; }

  // The next connection; null, and a failed test, if there is none in time.
  std::unique_ptr<RawPeer> Accept();
  // Is a connection waiting to be accepted?
  bool HasVisitor();

  // Connections are refused from now on. Closing is at once; connections that
  // were not accepted are reset.
  void Close() { listener_.Reset(); }

 private:
  Endpoint endpoint_;
  io::UniqueFd listener_;
};

// An address that refuses connections: nobody listens, and nobody else gets it
// while this lives.
class DeadAddress {
 public:
  DeadAddress();
  std::string uri() const { return "flare://" + endpoint_.ToString(); }
  const Endpoint& endpoint() const { return endpoint_; }

 private:
  friend class RawServer;

  Endpoint endpoint_;
  io::UniqueFd bound_;
};

// Takes the one place in the queue of a server without a backlog: the kernel
// answers no further connection.
class ConnectionInQueue {
 public:
  explicit ConnectionInQueue(RawServer& server);

 private:
  io::UniqueFd connection_;
};

// An address that never answers.
class SilentAddress {
 public:
  std::string uri() const { return server_.uri(); }
  const Endpoint& endpoint() const { return server_.endpoint(); }

 private:
  RawServer server_{0, /*backlog=*/0};
  ConnectionInQueue first_{server_};
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_TESTING_RAW_SERVER_H_
