// The description of a check: the question and the server. probe.h does one
// check, check_loop.h repeats checks.

#ifndef FLARE_RPC_CHECKS_SERVER_CHECK_H_
#define FLARE_RPC_CHECKS_SERVER_CHECK_H_

#include <memory>
#include <string>

#include "flare/base/endpoint.h"
#include "flare/io/tls_context.h"
#include "flare/rpc/health_check_options.h"

namespace flare::rpc {

struct ServerCheck {
  HealthCheckOptions options;  // kNone acts like kConnect.
  Endpoint endpoint;
  // The server as users write it ("a.test:80"): HTTP's Host, and the name that
  // its certificate must have.
  std::string host;
  // For kCall: a name that NewClientProtocol() knows.
  std::string protocol = {};
  // Null: no TLS. Its ALPN name must be that of the kind's protocol.
  std::shared_ptr<io::TlsClientContext> tls = nullptr;

  // For proxies: bytes that are sent first (a PROXY header), and the only
  // status of HTTP that is good; 0: any from 200 to 299.
  std::string first_bytes = {};
  int http_status = 0;

  friend bool operator==(const ServerCheck&, const ServerCheck&) = default;
};

// The name of the protocol that checks of this kind speak, on channels of that
// protocol.
std::string ProtocolOfCheck(HealthCheckKind kind, const std::string& channels);

}  // namespace flare::rpc

#endif  // FLARE_RPC_CHECKS_SERVER_CHECK_H_
