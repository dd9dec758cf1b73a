#include "example/rpc/tls_server_flags.h"

#include <gflags/gflags.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/string.h"

DEFINE_string(tls_certificate, "",
              "Speak TLS, with the certificate and its chain from this PEM "
              "file. Several, separated by commas: clients choose by the host "
              "that they name (SNI).");
DEFINE_string(tls_key, "",
              "The private key to --tls_certificate, in PEM. As many.");
DEFINE_string(tls_client_ca, "",
              "Clients must show a certificate that a root in this PEM file "
              "vouches for.");
DEFINE_string(tls_client_certificates, "require",
              "With --tls_client_ca: require, or request (clients without a "
              "good certificate are served, too).");
DEFINE_string(tls_crl, "", "Revoked certificates of clients, as PEM CRLs.");
DEFINE_string(tls_min_version, "1.2", "The oldest TLS version: 1.2 or 1.3.");

namespace example {
namespace {

flare::Status BadTlsFlag(std::string text) { return {EINVAL, std::move(text)}; }

std::vector<std::string> SplitFiles(std::string_view list) {
  std::vector<std::string> files;
  for (const std::string_view file : flare::Split(list, ',')) {
    files.emplace_back(file);
  }
  return files;
}

}  // namespace

flare::Expected<std::optional<flare::TlsServerOptions>, flare::Status>
TlsFromServerFlags() {
  const auto certificates = SplitFiles(FLAGS_tls_certificate);
  const auto keys = SplitFiles(FLAGS_tls_key);
  if (certificates.size() != keys.size()) {
    return BadTlsFlag(
        "--tls_certificate and --tls_key must name as many files.");
  }
  if (certificates.empty()) {
    if (FLAGS_tls_client_ca.empty() && FLAGS_tls_crl.empty()) {
      return std::optional<flare::TlsServerOptions>();
    }
    return BadTlsFlag(
        "--tls_client_ca and --tls_crl go with --tls_certificate "
        "and --tls_key only.");
  }
  flare::TlsServerOptions options;
  for (std::size_t i = 0; i != keys.size(); ++i) {
    options.certificates.push_back({certificates[i], keys[i]});
  }
  options.client_ca = FLAGS_tls_client_ca;
  options.crl = FLAGS_tls_crl;
  if (FLAGS_tls_client_certificates != "require" &&
      FLAGS_tls_client_certificates != "request") {
    return BadTlsFlag("--tls_client_certificates is require or request.");
  }
  if (!options.client_ca.empty()) {
    options.client_certificates = FLAGS_tls_client_certificates == "require"
                                      ? flare::ClientCertificates::kRequire
                                      : flare::ClientCertificates::kRequest;
  }
  if (FLAGS_tls_min_version != "1.2" && FLAGS_tls_min_version != "1.3") {
    return BadTlsFlag("--tls_min_version is 1.2 or 1.3.");
  }
  options.min_version = FLAGS_tls_min_version == "1.3"
                            ? flare::TlsVersion::k1_3
                            : flare::TlsVersion::k1_2;
  return std::optional<flare::TlsServerOptions>(std::move(options));
}

}  // namespace example
