// Texts for OpenSSL's errors, which name the cause, and certificates as our
// values. For io/tls_*.cc only: needs OpenSSL's headers.
#ifndef FLARE_IO_TLS_TEXT_H_
#define FLARE_IO_TLS_TEXT_H_

#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <string>
#include <vector>

#include "flare/io/tls_options.h"

namespace flare::io {

// Takes the errors of this thread's last call of OpenSSL; "" if there are none.
std::string TakeOpenSslErrors();

// Why a handshake or a record failed, from OpenSSL's errors, which are taken.
// `of_server`: this side is the server.
std::string DescribeTlsFailure(SSL* ssl, bool of_server);

// "it has expired": of a certificate that can't be verified.
std::string DescribeVerification(long result);

PeerIdentity IdentityOf(X509* certificate, bool verified);

// Names that a certificate is for, in lower case; "*.example.com" among them.
std::vector<std::string> DnsNamesOf(X509* certificate);

}  // namespace flare::io

#endif  // FLARE_IO_TLS_TEXT_H_
