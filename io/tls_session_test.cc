#include "flare/io/tls_session.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>

#include "flare/io/fd.h"
#include "flare/io/tls_context.h"
#include "flare/io/tls_options.h"
#include "flare/io/transport.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

// Writes a key and a certificate that it has signed to `folder`.
void MakeCertificate(const std::string& folder) {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const certificate = X509_new();
  ASSERT_TRUE(key && certificate);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  ASSERT_NE(X509_sign(certificate, key, EVP_sha256()), 0);
  std::FILE* file = std::fopen((folder + "/key").c_str(), "w");
  PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  file = std::fopen((folder + "/certificate").c_str(), "w");
  PEM_write_X509(file, certificate);
  std::fclose(file);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

// The server's end is a TlsSession; the client's is OpenSSL's own.
class TlsSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "/tls_session_XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    ASSERT_NO_FATAL_FAILURE(MakeCertificate(folder));
    TlsServerOptions options;
    options.certificates = {{folder + "/certificate", folder + "/key"}};
    auto context = TlsServerContext::Create(options);
    ASSERT_TRUE(context) << context.error().message();
    context_ = *context;
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    server_fd_ = UniqueFd(fds[0]);
    client_fd_ = UniqueFd(fds[1]);
    server_ = context_->NewTransport();
    ASSERT_TRUE(server_);
    server_->Attach(server_fd_.get());
    client_context_.reset(SSL_CTX_new(TLS_client_method()));
    client_.reset(SSL_new(client_context_.get()));
    SSL_set_fd(client_.get(), client_fd_.get());
    ASSERT_NO_FATAL_FAILURE(ShakeHands());
  }

  void ShakeHands() {
    for (int i = 0; i != 100; ++i) {
      const bool client_done = SSL_connect(client_.get()) == 1;
      const Transport::Progress progress =
          server_secure_ ? Transport::Progress::kDone : server_->Handshake();
      ASSERT_NE(progress, Transport::Progress::kFailed)
          << server_->failure().message();
      server_secure_ = progress == Transport::Progress::kDone;
      if (client_done && server_secure_) return;
    }
    FAIL() << "no handshake";
  }

  ssize_t Receive() {
    const iovec piece{input_.data(), input_.size()};
    return server_->Receive(&piece, 1);
  }

  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };

  std::shared_ptr<TlsServerContext> context_;
  UniqueFd server_fd_;
  UniqueFd client_fd_;
  std::unique_ptr<SSL_CTX, Free> client_context_;
  std::unique_ptr<SSL, Free> client_;
  std::unique_ptr<Transport> server_;
  bool server_secure_ = false;
  std::array<char, 1000> input_;
};

TEST_F(TlsSessionTest, Receives) {
  ASSERT_EQ(SSL_write(client_.get(), "hello", 5), 5);
  ASSERT_EQ(Receive(), 5);
  EXPECT_EQ(std::string(input_.data(), 5), "hello");
  EXPECT_EQ(Receive(), -1);
  EXPECT_EQ(errno, EAGAIN);
}

// No event follows by which the server would look for the end.
TEST_F(TlsSessionTest, SeesTheEndBehindAPieceOfARecord) {
  ASSERT_EQ(::write(client_fd_.get(), "\x17\x03\x03", 3), 3);
  ASSERT_EQ(::shutdown(client_fd_.get(), SHUT_WR), 0);
  EXPECT_EQ(Receive(), 0);
  EXPECT_TRUE(server_->cut_short());
}

TEST_F(TlsSessionTest, WaitsForTheRestOfARecord) {
  ASSERT_EQ(::write(client_fd_.get(), "\x17\x03\x03", 3), 3);
  EXPECT_EQ(Receive(), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_FALSE(server_->cut_short());
}

}  // namespace
}  // namespace flare::io
