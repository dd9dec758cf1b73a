// Comparison of a secret that a caller shows with a known one, and small
// functions of the TLS library. Thread-safe; nothing blocks.
//
//   const SecretDigest known("s3cret");
//   if (SecretDigest(shown) == known) ...
#ifndef FLARE_IO_SECRETS_H_
#define FLARE_IO_SECRETS_H_

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace flare::io {

// The SHA-256 digest of a secret; the secret itself isn't kept. The time of a
// comparison depends neither on the length of the known secret nor on the place
// of the first difference.
class SecretDigest {
 public:
  explicit SecretDigest(std::string_view secret);

  friend bool operator==(const SecretDigest& a, const SecretDigest& b);

 private:
  std::array<unsigned char, 32> digest_{};
};

// Returns standard Base64 with padding, without line breaks.
std::string EncodeBase64(std::string_view bytes);

// Returns the SHA-1 digest of `bytes`, 20 bytes. For protocols that ask for it:
// it protects nothing.
std::string Sha1Of(std::string_view bytes);

// Returns the MD5 digest of `bytes`. To spread keys as others do: it protects
// nothing.
std::array<unsigned char, 16> Md5Of(std::string_view bytes);

// Fills in `size` bytes that nobody can guess.
void FillRandom(unsigned char* bytes, std::size_t size);

}  // namespace flare::io

#endif  // FLARE_IO_SECRETS_H_
