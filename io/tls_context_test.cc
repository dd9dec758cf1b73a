// Files that hang, and sessions that outlive certificates.
#include "flare/io/tls_context.h"

#include <fcntl.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/fd.h"
#include "flare/io/testing/tls_certificate.h"
#include "flare/io/tls_options.h"
#include "flare/io/transport.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

std::string NewFolder() {
  std::string folder = ::testing::TempDir() + "/tls_context_XXXXXX";
  EXPECT_NE(::mkdtemp(folder.data()), nullptr);
  return folder;
}

class TlsFilesTest : public fiber::testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(TlsFilesTest);

// As on a network mount whose server is gone: here the files are pipes that
// nobody writes to, so reads wait.
TEST_P(TlsFilesTest, ConnectionsDoNotWaitForFilesThatHang) {
  const std::string folder = NewFolder();
  testing::MakeTlsCertificate(folder);
  const std::string certificate = folder + "/certificate";
  const auto context = TlsServerContext::Create(
      {.certificates = {{certificate, folder + "/key"}},
       .reload_interval = std::chrono::nanoseconds(1)});
  ASSERT_TRUE(context) << context.error().message();
  const std::string kept = folder + "/kept";
  ASSERT_EQ(std::rename(certificate.c_str(), kept.c_str()), 0);
  ASSERT_EQ(::mkfifo(certificate.c_str(), 0600), 0);
  const std::int64_t start_ns = NowNs();
  Fiber connecting([&] {
    for (int i = 0; i != 100; ++i) {
      EXPECT_NE((*context)->NewTransport(), nullptr);
    }
  });
  // Somebody else works meanwhile, were there one worker.
  Fiber([] { this_fiber::Yield(); }).join();
  connecting.join();
  // Had each of them waited, it were 20 s.
  EXPECT_LT(NowNs() - start_ns, 15 * kNsPerSecond);
  // Lets the read go on, which finds nothing of use.
  const UniqueFd writer(::open(certificate.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(writer);
  ASSERT_EQ(std::rename(kept.c_str(), certificate.c_str()), 0);
}

// A server that requires certificates of its clients, and a client that keeps
// its session.
class TlsTicketTest : public ::testing::Test {
 protected:
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
    void operator()(SSL_SESSION* session) const { SSL_SESSION_free(session); }
  };

  void MakeClient(int seconds) {
    making_ns_ = NowNs();
    testing::MakeTlsCertificate(folder_ + "/client", seconds);
    made_ns_ = NowNs();
    client_context_.reset(SSL_CTX_new(TLS_client_method()));
    ASSERT_EQ(SSL_CTX_use_certificate_file(
                  client_context_.get(),
                  (folder_ + "/client/certificate").c_str(), SSL_FILETYPE_PEM),
              1);
    ASSERT_EQ(SSL_CTX_use_PrivateKey_file(client_context_.get(),
                                          (folder_ + "/client/key").c_str(),
                                          SSL_FILETYPE_PEM),
              1);
    auto context = TlsServerContext::Create(
        {.certificates = {{folder_ + "/certificate", folder_ + "/key"}},
         .client_ca = folder_ + "/client/certificate",
         .client_certificates = ClientCertificates::kRequire});
    ASSERT_TRUE(context) << context.error().message();
    server_context_ = *context;
  }

  // False: the server has refused the client; see `why`.
  bool Connect(int version, bool* resumed, std::string* why) {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    const UniqueFd server_fd(fds[0]), client_fd(fds[1]);
    const std::unique_ptr<Transport> server = server_context_->NewTransport();
    server->Attach(server_fd.get());
    const std::unique_ptr<SSL, Free> client(SSL_new(client_context_.get()));
    SSL_set_max_proto_version(client.get(), version);
    SSL_set_fd(client.get(), client_fd.get());
    if (session_) SSL_set_session(client.get(), session_.get());
    bool secure = false;
    bool connected = false;
    for (int i = 0; i != 20 && !(secure && connected); ++i) {
      connected = connected || SSL_connect(client.get()) == 1;
      if (secure) continue;
      const Transport::Progress progress = server->Handshake();
      if (progress == Transport::Progress::kFailed) {
        *why = server->failure().message();
        return false;
      }
      secure = progress == Transport::Progress::kDone;
    }
    EXPECT_TRUE(secure && connected);
    const PeerIdentity* const peer = server->peer_identity();
    EXPECT_TRUE(peer != nullptr && peer->verified);
    *resumed = SSL_session_reused(client.get()) == 1;
    char byte;
    SSL_read(client.get(), &byte, 1);  // Takes the tickets.
    session_.reset(SSL_get1_session(client.get()));
    SSL_set_shutdown(client.get(), SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
    return true;
  }

  void SetUp() override {
    folder_ = NewFolder();
    testing::MakeTlsCertificate(folder_);
    ASSERT_EQ(::mkdir((folder_ + "/client").c_str(), 0700), 0);
  }

  std::string folder_;
  // The client's certificate: it lives from some time between.
  std::int64_t making_ns_ = 0;
  std::int64_t made_ns_ = 0;
  std::shared_ptr<TlsServerContext> server_context_;
  std::unique_ptr<SSL_CTX, Free> client_context_;
  std::unique_ptr<SSL_SESSION, Free> session_;
};

// ... which its client might resume for ever.
TEST_F(TlsTicketTest, EndsWithTheClientsCertificate) {
  constexpr int kSeconds = 3;
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    SCOPED_TRACE(version);
    bool connected = false;
    bool first_resumed = false;
    bool resumed = false;
    std::string why;
    // On a busy machine a certificate may end too early.
    bool in_time = false;
    for (int i = 0; i != 10 && !in_time; ++i) {
      session_.reset();
      ASSERT_NO_FATAL_FAILURE(MakeClient(kSeconds));
      connected = Connect(version, &first_resumed, &why) &&
                  Connect(version, &resumed, &why);
      // It was made out in whole seconds.
      in_time = NowNs() - making_ns_ < (kSeconds - 1) * kNsPerSecond;
    }
    ASSERT_TRUE(connected) << why;
    EXPECT_FALSE(first_resumed);
    EXPECT_TRUE(resumed);
    std::this_thread::sleep_until(
        ToTimePoint(made_ns_ + (kSeconds + 1) * kNsPerSecond));
    EXPECT_FALSE(Connect(version, &resumed, &why));
    EXPECT_EQ(why, "TLS: the client's certificate is refused: it has expired");
  }
}

}  // namespace
}  // namespace flare::io
