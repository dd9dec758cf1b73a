// TLS by the flags of a client: --tls_ca, --tls_crl, --tls_certificate,
// --tls_key, --tls_server_name, --tls_insecure_skip_verify.

#ifndef EXAMPLE_RPC_TLS_CLIENT_FLAGS_H_
#define EXAMPLE_RPC_TLS_CLIENT_FLAGS_H_

#include <optional>
#include <string>

#include "flare/io/tls_options.h"

namespace example {

// For RpcChannel::Options::tls of a channel to that address; nothing unless it
// begins with "tls+".
std::optional<flare::TlsClientOptions> TlsFromClientFlags(
    const std::string& server_addr);

}  // namespace example

#endif  // EXAMPLE_RPC_TLS_CLIENT_FLAGS_H_
