#include "flare/io/secrets.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/md5.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <new>

namespace flare::io {

SecretDigest::SecretDigest(std::string_view secret) {
  static_assert(sizeof(digest_) == SHA256_DIGEST_LENGTH);
  if (EVP_Digest(secret.data(), secret.size(), digest_.data(), nullptr,
                 EVP_sha256(), nullptr) != 1) {
    throw std::bad_alloc();  // SHA-256 fails for no other reason.
  }
}

bool operator==(const SecretDigest& a, const SecretDigest& b) {
  return CRYPTO_memcmp(a.digest_.data(), b.digest_.data(), a.digest_.size()) ==
         0;
}

std::string Sha1Of(std::string_view bytes) {
  std::string digest(SHA_DIGEST_LENGTH, '\0');
  if (EVP_Digest(bytes.data(), bytes.size(),
                 reinterpret_cast<unsigned char*>(digest.data()), nullptr,
                 EVP_sha1(), nullptr) != 1) {
    throw std::bad_alloc();  // It fails for no other reason.
  }
  return digest;
}

std::array<unsigned char, 16> Md5Of(std::string_view bytes) {
  std::array<unsigned char, 16> digest;
  static_assert(sizeof(digest) == MD5_DIGEST_LENGTH);
  // Works where EVP_md5() isn't allowed, and takes no lock.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  MD5(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
      digest.data());
#pragma GCC diagnostic pop
  return digest;
}

void FillRandom(unsigned char* bytes, std::size_t size) {
  if (RAND_bytes(bytes, static_cast<int>(size)) != 1) {
    throw std::bad_alloc();  // As the system gives no random numbers.
  }
}

std::string EncodeBase64(std::string_view bytes) {
  // Has room for the zero that OpenSSL writes at the end.
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                  reinterpret_cast<const unsigned char*>(bytes.data()),
                  static_cast<int>(bytes.size()));
  text.pop_back();
  return text;
}

}  // namespace flare::io
