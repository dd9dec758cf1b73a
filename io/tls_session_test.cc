#include "flare/io/tls_session.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/ssl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/io/fd.h"
#include "flare/io/socket_options.h"
#include "flare/io/testing/loopback.h"
#include "flare/io/testing/tls_certificate.h"
#include "flare/io/tls_context.h"
#include "flare/io/tls_counters.h"
#include "flare/io/tls_options.h"
#include "flare/io/transport.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

// The server's end is a TlsSession; the client's is OpenSSL's own.
class TlsSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "/tls_session_XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    testing::MakeTlsCertificate(folder);
    TlsServerOptions options;
    options.certificates = {{folder + "/certificate", folder + "/key"}};
    auto context = TlsServerContext::Create(options);
    ASSERT_TRUE(context) << context.error().message();
    context_ = *context;
    ASSERT_NO_FATAL_FAILURE(MakeSockets());
    server_ = context_->NewTransport();
    ASSERT_TRUE(server_);
    server_->Attach(server_fd_.get());
    client_context_.reset(SSL_CTX_new(TLS_client_method()));
    client_.reset(SSL_new(client_context_.get()));
    SSL_set_fd(client_.get(), client_fd_.get());
    ASSERT_NO_FATAL_FAILURE(ShakeHands());
  }

  virtual void MakeSockets() {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    server_fd_ = UniqueFd(fds[0]);
    client_fd_ = UniqueFd(fds[1]);
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

  // Bytes that the client could read now.
  int BytesAtClient() {
    int bytes = -1;
    EXPECT_EQ(::ioctl(client_fd_.get(), FIONREAD, &bytes), 0);
    return bytes;
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
  std::array<char, 1000> input_{};
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

// As send() would: a flusher that were told 0 would take it for sent.
TEST_F(TlsSessionTest, CannotSendTheEndToAPeerThatHasReset) {
  const iovec reply{input_.data(), input_.size()};
  ASSERT_EQ(server_->Send(&reply, 1, 0), static_cast<ssize_t>(input_.size()));
  client_fd_ = UniqueFd();  // With bytes unread.
  ASSERT_EQ(Receive(), -1);
  ASSERT_EQ(server_->failure().code(), ECONNRESET);
  EXPECT_EQ(server_->SendEnd(), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_FALSE(server_->end_sent());
}

TEST_F(TlsSessionTest, SendsOneTicket) {
  static int tickets;
  tickets = 0;
  SSL_CTX_set_session_cache_mode(client_context_.get(), SSL_SESS_CACHE_CLIENT);
  SSL_CTX_sess_set_new_cb(client_context_.get(), [](SSL*, SSL_SESSION*) {
    ++tickets;
    return 0;
  });
  char byte;
  EXPECT_EQ(SSL_read(client_.get(), &byte, 1), -1);
  EXPECT_EQ(tickets, 1);
}

// A client whose output is gathered, to be sent at once.
class TlsSessionFloodTest : public TlsSessionTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(TlsSessionTest::SetUp());
    output_ = BIO_new(BIO_s_mem());
    SSL_set0_wbio(client_.get(), output_);
  }

  void Send() {
    char* data = nullptr;
    const long size = BIO_get_mem_data(output_, &data);
    ASSERT_EQ(::write(client_fd_.get(), data, static_cast<std::size_t>(size)),
              size);
    BIO_reset(output_);
  }
  void WriteRecords(int count, const std::string& data) {
    for (int i = 0; i != count; ++i) {
      ASSERT_EQ(
          SSL_write(client_.get(), data.data(), static_cast<int>(data.size())),
          static_cast<int>(data.size()));
    }
  }
  void ChangeKeys(int count) {
    for (int i = 0; i != count; ++i) {
      ASSERT_EQ(SSL_key_update(client_.get(), SSL_KEY_UPDATE_NOT_REQUESTED), 1);
      ASSERT_EQ(SSL_do_handshake(client_.get()), 1);
    }
  }

 private:
  BIO* output_ = nullptr;  // The client's.
};

// A record of one byte costs as much as one of a thousand.
TEST_F(TlsSessionFloodTest, LeavesRecordsToTheNextTurn) {
  constexpr int kRecords = 4000;
  ASSERT_NO_FATAL_FAILURE(WriteRecords(kRecords, "x"));
  ASSERT_NO_FATAL_FAILURE(Send());
  std::array<char, 8192> space;
  const iovec piece{space.data(), space.size()};
  int got = 0;
  int calls = 0;
  for (; got != kRecords; ++calls) {
    const ssize_t n = server_->Receive(&piece, 1);
    ASSERT_GT(n, 0);
    got += static_cast<int>(n);
    EXPECT_LT(server_->taken(), space.size() + (64 << 10));
  }
  EXPECT_GE(calls, 2);
  while (server_->HasMore()) ASSERT_EQ(server_->Receive(&piece, 1), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(TlsSessionFloodTest, TakesNewKeysNowAndThen) {
  std::array<char, 16 << 10> space;
  const iovec piece{space.data(), space.size()};
  for (int i = 0; i != 60; ++i) {
    ASSERT_NO_FATAL_FAILURE(ChangeKeys(1));
    ASSERT_NO_FATAL_FAILURE(WriteRecords(1, "x"));
    ASSERT_NO_FATAL_FAILURE(Send());
    ASSERT_EQ(server_->Receive(&piece, 1), 1);
  }
  // ... and more with more data.
  const std::string data(space.size(), 'x');
  for (int i = 0; i != 500; ++i) {
    if (i % 5 == 0) ASSERT_NO_FATAL_FAILURE(ChangeKeys(1));
    ASSERT_NO_FATAL_FAILURE(WriteRecords(1, data));
    ASSERT_NO_FATAL_FAILURE(Send());
    ASSERT_EQ(server_->Receive(&piece, 1), static_cast<ssize_t>(data.size()));
  }
}

// Each costs several microseconds, and a peer can send millions.
TEST_F(TlsSessionFloodTest, GivesUpAPeerThatOnlyChangesItsKeys) {
  int calls = 0;
  do {
    ASSERT_LT(++calls, 10);
    ASSERT_NO_FATAL_FAILURE(ChangeKeys(500));
    ASSERT_NO_FATAL_FAILURE(Send());
    ASSERT_EQ(Receive(), -1);
  } while (errno == EAGAIN || errno == EINTR);
  EXPECT_EQ(errno, EPROTO);
  EXPECT_EQ(server_->failure().message(),
            "TLS: the peer sends too many messages without data, such as "
            "changes of its keys");
}

class TlsSessionOverTcpTest : public TlsSessionTest {
 protected:
  void MakeSockets() override {
    testing::SocketPair pair = testing::TcpPair();
    server_fd_ = std::move(pair.ours);
    client_fd_ = std::move(pair.peer);
    ASSERT_EQ(::fcntl(client_fd_.get(), F_SETFL, O_NONBLOCK), 0);
    ASSERT_TRUE(SetTcpNoDelay(server_fd_.get()));
  }
};

TEST_F(TlsSessionOverTcpTest, CloseNotifyLeavesWithTheFin) {
  char byte;
  EXPECT_EQ(SSL_read(client_.get(), &byte, 1), -1);  // Takes the ticket.
  EXPECT_EQ(BytesAtClient(), 0);
  const std::int64_t start = NowNs();
  ASSERT_EQ(server_->SendEnd(), 0);
  EXPECT_TRUE(server_->end_sent());
  const int bytes = BytesAtClient();
  // The kernel keeps it for 0.2 s at most.
  if (NowNs() - start < 100 * kNsPerMs) EXPECT_EQ(bytes, 0);
  ASSERT_EQ(::shutdown(server_fd_.get(), SHUT_WR), 0);
  EXPECT_EQ(SSL_read(client_.get(), &byte, 1), 0);
  EXPECT_EQ(SSL_get_error(client_.get(), 0), SSL_ERROR_ZERO_RETURN);
}

// Else nobody could tell a slow peer from one that takes nothing.
TEST_F(TlsSessionTest, TellsWhatASlowPeerHasTaken) {
  constexpr int kSmall = 8 << 10;
  ASSERT_EQ(::setsockopt(server_fd_.get(), SOL_SOCKET, SO_SNDBUF, &kSmall,
                         sizeof(kSmall)),
            0);
  std::string reply(200 << 10, ' ');
  for (std::size_t i = 0; i != reply.size(); ++i) {
    reply[i] = static_cast<char>(i * 7 % 251);
  }
  std::string got;
  std::size_t taken = 0;
  int partial = 0;
  while (got.size() != reply.size() || taken != reply.size()) {
    const iovec rest{reply.data() + taken, reply.size() - taken};
    const ssize_t n = rest.iov_len == 0 ? 0 : server_->Send(&rest, 1, 0);
    if (n < 0) ASSERT_EQ(errno, EAGAIN);
    if (n > 0) {
      partial += static_cast<std::size_t>(n) % (64 << 10) != 0;
      taken += static_cast<std::size_t>(n);
    }
    std::array<char, 4 << 10> piece;
    const int read = SSL_read(client_.get(), piece.data(), piece.size());
    if (read > 0) got.append(piece.data(), static_cast<std::size_t>(read));
    ASSERT_GE(taken + (64 << 10), got.size());
  }
  EXPECT_EQ(got, reply);
  EXPECT_GT(partial, 4);
  EXPECT_EQ(server_->SendEnd(), 0);
}

std::uint64_t Read(const std::atomic<std::uint64_t>& counter) {
  return counter.load(std::memory_order_relaxed);
}

TEST_F(TlsSessionTest, CountsHandshakesByTheirOutcome) {
  const TlsCounters& counters = TlsCountersOf(/*is_server=*/true);
  // By SetUp(), and maybe by tests before.
  const std::uint64_t full = Read(counters.full);
  EXPECT_GE(full, 1u);
  const std::uint64_t failed = Read(counters.failed);
  const std::uint64_t abandoned = Read(counters.abandoned);
  server_.reset();
  EXPECT_EQ(Read(counters.abandoned), abandoned);  // It had come to an end.

  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  const UniqueFd near(fds[0]), far(fds[1]);
  server_ = context_->NewTransport();
  server_->Attach(near.get());
  ASSERT_EQ(server_->Handshake(), Transport::Progress::kWaiting);
  server_.reset();
  EXPECT_EQ(Read(counters.abandoned), abandoned + 1);

  server_ = context_->NewTransport();
  server_->Attach(near.get());
  ASSERT_EQ(::write(far.get(), "GET / HTTP/1.1\r\n\r\n", 18), 18);
  ASSERT_EQ(server_->Handshake(), Transport::Progress::kFailed);
  server_.reset();
  EXPECT_EQ(Read(counters.failed), failed + 1);
  EXPECT_EQ(Read(counters.abandoned), abandoned + 1);
  EXPECT_EQ(Read(counters.full), full);
}

TEST_F(TlsSessionTest, CountsHandshakesThatThePeerLeaves) {
  const TlsCounters& counters = TlsCountersOf(/*is_server=*/true);
  const std::uint64_t failed = Read(counters.failed);
  for (const bool reset : {false, true}) {
    SCOPED_TRACE(reset);
    const std::uint64_t abandoned = Read(counters.abandoned);
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    const UniqueFd near(fds[0]);
    UniqueFd far(fds[1]);
    server_ = context_->NewTransport();
    server_->Attach(near.get());
    if (reset) {  // By closing with bytes unread.
      ASSERT_EQ(::write(near.get(), "hello", 5), 5);
    }
    far = UniqueFd();
    ASSERT_EQ(server_->Handshake(), Transport::Progress::kFailed);
    server_.reset();
    EXPECT_EQ(Read(counters.abandoned), abandoned + 1);
  }
  EXPECT_EQ(Read(counters.failed), failed);
}

}  // namespace
}  // namespace flare::io
