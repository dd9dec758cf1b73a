// A key and a certificate that it has signed, for tests of TLS.
#ifndef FLARE_IO_TESTING_TLS_CERTIFICATE_H_
#define FLARE_IO_TESTING_TLS_CERTIFICATE_H_

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdio>
#include <string>

#include "glog/logging.h"

namespace flare::io::testing {

// Writes them to `folder`, as "key" and "certificate", which is valid for so
// long.
inline void MakeTlsCertificate(const std::string& folder,
                               long seconds = 36'000) {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const certificate = X509_new();
  CHECK(key != nullptr && certificate != nullptr);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), seconds);
  X509_set_pubkey(certificate, key);
  CHECK_NE(X509_sign(certificate, key, EVP_sha256()), 0);
  std::FILE* file = std::fopen((folder + "/key").c_str(), "w");
  CHECK(file != nullptr) << folder;
  PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  file = std::fopen((folder + "/certificate").c_str(), "w");
  CHECK(file != nullptr) << folder;
  PEM_write_X509(file, certificate);
  std::fclose(file);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

}  // namespace flare::io::testing

#endif  // FLARE_IO_TESTING_TLS_CERTIFICATE_H_
