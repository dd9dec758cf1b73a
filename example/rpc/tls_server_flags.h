// TLS by the flags of a server: --tls_certificate, --tls_key, --tls_client_ca,
// --tls_crl, --tls_client_certificates, --tls_min_version.

#ifndef EXAMPLE_RPC_TLS_SERVER_FLAGS_H_
#define EXAMPLE_RPC_TLS_SERVER_FLAGS_H_

#include <optional>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/io/tls_options.h"

namespace example {

// Nothing: the flags ask for no TLS. Fails with a text that names the flag.
flare::Expected<std::optional<flare::TlsServerOptions>, flare::Status>
TlsFromServerFlags();

}  // namespace example

#endif  // EXAMPLE_RPC_TLS_SERVER_FLAGS_H_
