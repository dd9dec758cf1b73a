// TLS as users set it up: Server::Options::tls and RpcChannel::Options::tls;
// and the known facts of a peer that has shown a certificate. How to use them:
// docs/security.md.
//
//   flare::Server server({.tls = flare::TlsServerOptions{
//       .certificates = {{"server.crt", "server.key"}}}});
//
// All files are in PEM. They are read again when they change, at most
// `reload_interval` later for new connections. New files that can't be used
// are logged, and those before stay in use.
#ifndef FLARE_IO_TLS_OPTIONS_H_
#define FLARE_IO_TLS_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace flare {

enum class TlsVersion { k1_2, k1_3 };

// How a server treats certificates of its clients.
enum class ClientCertificates {
  kIgnore,   // Asks for none.
  kRequest,  // Asks, and serves a client without one, or with one that can't be
             // verified: PeerIdentity::verified tells.
  kRequire,  // Serves only clients with one that `client_ca` vouches for.
};

struct TlsKeyPair {
  std::string certificate;  // File: the certificate, then its chain.
  std::string key;          // File: its private key, not encrypted.

  friend bool operator==(const TlsKeyPair&, const TlsKeyPair&) = default;
};

struct TlsServerOptions {
  // At least one. A client that names a host (SNI) gets the first certificate
  // that is for it, or else the first of all.
  std::vector<TlsKeyPair> certificates = {};
  // File: the authorities that vouch for clients. Needed unless they are
  // ignored.
  std::string client_ca = "";
  // File: lists of revoked certificates, one of each issuer. Empty: none is
  // looked at.
  std::string crl = "";
  ClientCertificates client_certificates = ClientCertificates::kIgnore;
  TlsVersion min_version = TlsVersion::k1_2;
  // Names of protocols that clients may choose from (ALPN), the best one
  // first. Empty: those of the server's protocols. A client that offers only
  // others is served all the same: its first bytes tell.
  std::vector<std::string> alpn = {};
  // A connection whose handshake takes longer is closed.
  std::chrono::nanoseconds handshake_timeout = std::chrono::seconds(10);
  // With so many handshakes going on, the one that began first is closed for
  // each further one.
  std::size_t max_handshakes = 4096;
  // Between two looks at the files. 0: they are never read again.
  std::chrono::nanoseconds reload_interval = std::chrono::seconds(1);
};

struct TlsClientOptions {
  // File: roots that vouch for servers. Empty: those of the system.
  std::string ca = "";
  // File: as TlsServerOptions::crl.
  std::string crl = "";
  // The client shows this to servers that ask. Empty: nothing.
  std::string certificate = "";
  std::string key = "";
  // The name or the address that the server's certificate must be for, and the
  // one that is asked for (SNI). Empty: the host of the channel's URI.
  std::string server_name = "";
  // True: takes any certificate, expired, of another host or of an attacker in
  // the middle. For experiments only.
  bool insecure_skip_verify = false;
  TlsVersion min_version = TlsVersion::k1_2;
  std::chrono::nanoseconds reload_interval = std::chrono::seconds(1);

  friend bool operator==(const TlsClientOptions&,
                         const TlsClientOptions&) = default;
};

// Facts of the certificate that the peer of a TLS connection has shown.
struct PeerIdentity {
  // Its chain ends at a trusted root, nothing of it has expired or is revoked.
  bool verified = false;
  // "CN=alice,O=Example", RFC 2253.
  std::string subject = {};
  // Its subject alternative names.
  std::vector<std::string> dns_names = {};
  std::vector<std::string> ip_addresses = {};
  std::vector<std::string> emails = {};
  std::vector<std::string> uris = {};
  // The one of `uris` that begins with "spiffe://", if there is just one.
  std::string spiffe_id = {};
};

}  // namespace flare

#endif  // FLARE_IO_TLS_OPTIONS_H_
