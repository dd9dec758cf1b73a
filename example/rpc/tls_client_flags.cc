#include "example/rpc/tls_client_flags.h"

#include <gflags/gflags.h>

#include "flare/rpc/tls_names.h"

DEFINE_string(tls_ca, "",
              "tls+protocol://...: the roots that vouch for servers, in PEM; "
              "empty: the system's.");
DEFINE_string(
    tls_certificate, "",
    "tls+protocol://...: the certificate to show to servers, in PEM.");
DEFINE_string(tls_key, "", "The private key to --tls_certificate, in PEM.");
DEFINE_string(tls_crl, "", "Revoked certificates of servers, as PEM CRLs.");
DEFINE_string(tls_server_name, "",
              "tls+protocol://...: the host that certificates must be for; "
              "empty: the one of --server_addr.");
DEFINE_bool(tls_insecure_skip_verify, false,
            "tls+protocol://...: take any certificate. For experiments only.");

namespace example {

std::optional<flare::TlsClientOptions> TlsFromClientFlags(
    const std::string& server_addr) {
  if (!server_addr.starts_with(flare::rpc::kTlsPrefix)) return std::nullopt;
  flare::TlsClientOptions tls;
  tls.ca = FLAGS_tls_ca;
  tls.crl = FLAGS_tls_crl;
  tls.certificate = FLAGS_tls_certificate;
  tls.key = FLAGS_tls_key;
  tls.server_name = FLAGS_tls_server_name;
  tls.insecure_skip_verify = FLAGS_tls_insecure_skip_verify;
  return tls;
}

}  // namespace example
