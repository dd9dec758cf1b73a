#include "flare/io/tls_text.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/sslerr.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <memory>

#include "flare/base/string.h"

namespace flare::io {
namespace {

struct TlsReason {
  int code;
  const char* text;
};

// Faults that this side found.
constexpr TlsReason kOwnReasons[] = {
    {SSL_R_NO_SHARED_CIPHER, "the two sides have no cipher in common"},
    {SSL_R_UNSUPPORTED_PROTOCOL,
     "the peer speaks too old a version of TLS (min_version)"},
    {SSL_R_VERSION_TOO_LOW,
     "the peer speaks too old a version of TLS (min_version)"},
    {SSL_R_WRONG_SSL_VERSION,
     "the peer speaks too old a version of TLS (min_version)"},
    {SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE,
     "the client has shown no certificate, which this server requires"},
    {SSL_R_NO_RENEGOTIATION, "the peer wants to renegotiate"},
};

// Faults that the peer has told by an alert.
constexpr TlsReason kAlertReasons[] = {
    {SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED,
     "the server requires a client certificate"},
    {SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE,
     "the peer refused: the two sides have no cipher in common, or it requires "
     "a client certificate (alert handshake_failure)"},
    {SSL_R_TLSV1_ALERT_PROTOCOL_VERSION,
     "the peer refused this side's version of TLS: one of them is too old "
     "(alert protocol_version)"},
    {SSL_R_TLSV1_ALERT_INSUFFICIENT_SECURITY,
     "the peer refused this side's ciphers (alert insufficient_security)"},
    {SSL_R_TLSV1_ALERT_UNKNOWN_CA,
     "the peer doesn't trust this side's certificate: its root is unknown "
     "there (alert unknown_ca)"},
    {SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED,
     "the peer says that this side's certificate has expired"},
    {SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED,
     "the peer says that this side's certificate is revoked"},
    {SSL_R_SSLV3_ALERT_BAD_CERTIFICATE,
     "the peer refused this side's certificate (alert bad_certificate)"},
    {SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE,
     "the peer refused this side's certificate (alert "
     "unsupported_certificate)"},
    {SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN,
     "the peer refused this side's certificate (alert certificate_unknown)"},
    {SSL_R_TLSV1_ALERT_ACCESS_DENIED,
     "the peer refused this side (alert access_denied)"},
    {SSL_R_TLSV1_ALERT_DECRYPT_ERROR,
     "the peer found a wrong signature: the key may not belong to the "
     "certificate (alert decrypt_error)"},
};

template <std::size_t kCount>
const char* FindReason(const TlsReason (&reasons)[kCount], int code) {
  for (const TlsReason& reason : reasons) {
    if (reason.code == code) return reason.text;
  }
  return nullptr;
}

std::string TextOf(const ASN1_STRING* string) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(string)),
          static_cast<std::size_t>(ASN1_STRING_length(string))};
}

std::string AddressOf(const ASN1_STRING* bytes) {
  char text[INET6_ADDRSTRLEN] = "";
  const int length = ASN1_STRING_length(bytes);
  if (length != 4 && length != 16) return "";
  inet_ntop(length == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(bytes),
            text, sizeof(text));
  return text;
}

std::string SubjectOf(X509* certificate) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new(BIO_s_mem()),
                                                      &BIO_free);
  if (out == nullptr) return "";
  X509_NAME_print_ex(out.get(), X509_get_subject_name(certificate), 0,
                     XN_FLAG_RFC2253 & ~ASN1_STRFLGS_ESC_MSB);
  char* data = nullptr;
  const long size = BIO_get_mem_data(out.get(), &data);
  return {data, static_cast<std::size_t>(std::max(size, 0L))};
}

}  // namespace

std::string TakeOpenSslErrors() {
  std::string text;
  while (const unsigned long error = ERR_get_error()) {
    const char* const reason = ERR_reason_error_string(error);
    if (!text.empty()) text += "; ";
    text += reason != nullptr ? reason : "error " + std::to_string(error);
  }
  return text;
}

std::string DescribeVerification(long result) {
  switch (result) {
    case X509_V_OK:
      return "it is valid";
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "it has expired";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "it is not yet valid";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return "it is for another host";
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
      return "it is self-signed";
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
      return "its root is unknown here";
    case X509_V_ERR_CERT_REVOKED:
      return "it is revoked";
    case X509_V_ERR_UNABLE_TO_GET_CRL:
      return "there is no revocation list (crl) of its issuer";
    case X509_V_ERR_CRL_HAS_EXPIRED:
      return "the revocation list (crl) of its issuer has expired";
    case X509_V_ERR_INVALID_PURPOSE:
      return "it is not for this purpose";
    default:
      return X509_verify_cert_error_string(result);
  }
}

std::string DescribeTlsFailure(SSL* ssl, bool of_server) {
  const unsigned long error = ERR_peek_error();
  const int reason =
      ERR_GET_LIB(error) == ERR_LIB_SSL ? ERR_GET_REASON(error) : 0;
  const std::string all = TakeOpenSslErrors();
  if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
    const long result = SSL_get_verify_result(ssl);
    return std::string("the ") + (of_server ? "client" : "server") +
           "'s certificate is refused: " + DescribeVerification(result);
  }
  if (const char* text = FindReason(kOwnReasons, reason)) return text;
  if (const char* text = FindReason(kAlertReasons, reason)) return text;
  return all.empty() ? "it broke off" : all;
}

PeerIdentity IdentityOf(X509* certificate, bool verified) {
  PeerIdentity identity;
  identity.verified = verified;
  identity.subject = SubjectOf(certificate);
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(
          certificate, NID_subject_alt_name, nullptr, nullptr)),
      &GENERAL_NAMES_free);
  const int count = names == nullptr ? 0 : sk_GENERAL_NAME_num(names.get());
  for (int i = 0; i != count; ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    switch (name->type) {
      case GEN_DNS:
        identity.dns_names.push_back(TextOf(name->d.dNSName));
        break;
      case GEN_IPADD:
        identity.ip_addresses.push_back(AddressOf(name->d.iPAddress));
        break;
      case GEN_EMAIL:
        identity.emails.push_back(TextOf(name->d.rfc822Name));
        break;
      case GEN_URI:
        identity.uris.push_back(TextOf(name->d.uniformResourceIdentifier));
        break;
      default:
        break;
    }
  }
  const auto is_spiffe = [](const std::string& uri) {
    return uri.starts_with("spiffe://");
  };
  if (std::count_if(identity.uris.begin(), identity.uris.end(), is_spiffe) ==
      1) {
    identity.spiffe_id =
        *std::find_if(identity.uris.begin(), identity.uris.end(), is_spiffe);
  }
  return identity;
}

std::vector<std::string> DnsNamesOf(X509* certificate) {
  std::vector<std::string> names = IdentityOf(certificate, false).dns_names;
  for (std::string& name : names) name = ToLower(name);
  return names;
}

}  // namespace flare::io
