// The transport of a connection through a proxy (RFC 9110, 9.3.6): asks the
// proxy for a tunnel to a server, and then is the transport that speaks to the
// server through it, TLS for https, or the bare socket.
//
//   stream = io::StreamConnection::Connect(
//       proxy, group, handler, options,
//       std::make_unique<ConnectTunnel>("example.com:443", lines,
//                                       std::move(tls)));
#ifndef FLARE_RPC_HTTP_CLIENT_CONNECT_TUNNEL_H_
#define FLARE_RPC_HTTP_CLIENT_CONNECT_TUNNEL_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "flare/base/status.h"
#include "flare/io/tls_options.h"
#include "flare/io/transport.h"

namespace flare::rpc {

class ConnectTunnel final : public io::Transport {
 public:
  // The head of the proxy's answer, interim ones included.
  static constexpr std::size_t kMaxAnswer = 16 << 10;

  // `server`: with its port. `lines`: fields for the proxy, each with its CRLF.
  // Null `inner`: the bare socket.
  ConnectTunnel(std::string server, std::string_view lines,
                std::unique_ptr<io::Transport> inner);

  void Attach(int fd) override;
  // A proxy that refuses is ECONNREFUSED, one that answers badly too: failure()
  // says which.
  Progress Handshake() override;
  std::int64_t handshake_timeout_ns() const override { return 0; }
  io::Handshakes* handshakes() const override;
  ssize_t Receive(const iovec* pieces, int count) override;
  bool HasMore() const override;
  std::size_t taken() const override;
  bool cut_short() const override;
  ssize_t Send(const iovec* pieces, std::size_t count, int flags) override;
  ssize_t SendEnd() override;
  bool end_sent() const override;
  flare::Status failure() const override;
  const PeerIdentity* peer_identity() const override;
  std::string_view alpn() const override;

 private:
  Progress SendRequest();
  Progress ReadAnswer();
  Progress TakeHead();
  Progress Fail(std::string_view why);

  const std::string server_;
  const std::unique_ptr<io::Transport> inner_;
  int fd_ = -1;
  std::string request_;   // The rest of it.
  std::string answer_;    // The part that has come.
  std::size_t size_ = 0;  // ... with interim ones.
  bool open_ = false;
  flare::Status failure_;  // The proxy's.
  std::size_t taken_ = 0;  // Without inner_.
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_CLIENT_CONNECT_TUNNEL_H_
