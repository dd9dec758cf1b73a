// Invariants for any bytes that the peer of a TLS session sends. Shared by the
// randomised test and the fuzzer; a violation ends the process.
//
//   CheckTlsSession(script);
//
// The bytes are a script: whether the session is a server's or a client's, the
// acts of OpenSSL as its peer, and how the peer's records are damaged and cut
// into pieces on their way.
#ifndef FLARE_IO_TESTING_TLS_FUZZING_H_
#define FLARE_IO_TESTING_TLS_FUZZING_H_

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "flare/io/fd.h"
#include "flare/io/testing/tls_certificate.h"
#include "flare/io/tls_context.h"
#include "flare/io/tls_counters.h"
#include "flare/io/tls_options.h"
#include "flare/io/transport.h"
#include "glog/logging.h"

namespace flare::io::testing {

// The contexts of all sessions, made once.
struct TlsFuzzContexts {
  TlsFuzzContexts() {
    std::string folder = "/tmp/flare_tls_fuzzing_XXXXXX";
    PCHECK(::mkdtemp(folder.data()) != nullptr);
    MakeTlsCertificate(folder);
    const std::string certificate = folder + "/certificate";
    const std::string key = folder + "/key";
    TlsServerOptions options;
    options.certificates = {{certificate, key}};
    options.alpn = {"h2", "http/1.1"};
    options.reload_interval = {};
    server = TlsServerContext::Create(options).value();
    options.client_certificates = ClientCertificates::kRequest;
    options.client_ca = certificate;
    asking_server = TlsServerContext::Create(options).value();
    client = TlsClientContext::Get(
                 {.insecure_skip_verify = true, .reload_interval = {}}, {"h2"})
                 .value();
    strict_client = TlsClientContext::Get(
                        {.ca = certificate, .reload_interval = {}}, {"h2"})
                        .value();
    peer = SSL_CTX_new(TLS_method());
    CHECK(peer != nullptr);
    CHECK_EQ(SSL_CTX_use_certificate_chain_file(peer, certificate.c_str()), 1);
    CHECK_EQ(SSL_CTX_use_PrivateKey_file(peer, key.c_str(), SSL_FILETYPE_PEM),
             1);
    ::unlink(certificate.c_str());
    ::unlink(key.c_str());
    ::rmdir(folder.c_str());
  }

  std::shared_ptr<TlsServerContext> server, asking_server;
  std::shared_ptr<TlsClientContext> client, strict_client;
  SSL_CTX* peer;

  static TlsFuzzContexts& Get() {
    static auto* const contexts = new TlsFuzzContexts;
    return *contexts;
  }
};

class TlsSessionCheck {
 public:
  explicit TlsSessionCheck(std::string_view script) : script_(script) {
    TlsFuzzContexts& contexts = TlsFuzzContexts::Get();
    const unsigned kind = Next();
    is_server_ = (kind & 1) != 0;
    ended_before_ = Ended();
    int fds[2];
    PCHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
    near_ = UniqueFd(fds[0]);
    far_ = UniqueFd(fds[1]);
    if (is_server_) {
      session_ = ((kind & 2) != 0 ? contexts.asking_server : contexts.server)
                     ->NewTransport();
    } else {
      session_ = ((kind & 2) != 0 ? contexts.strict_client : contexts.client)
                     ->NewTransport("localhost", (kind & 4) != 0 ? "a" : "b");
    }
    CHECK(session_ != nullptr);
    session_->Attach(near_.get());
    peer_ = SSL_new(contexts.peer);
    CHECK(peer_ != nullptr);
    if ((kind & 8) != 0) SSL_set_max_proto_version(peer_, TLS1_2_VERSION);
    from_session_ = BIO_new(BIO_s_mem());
    to_session_ = BIO_new(BIO_s_mem());
    BIO_set_mem_eof_return(from_session_, -1);
    SSL_set_bio(peer_, from_session_, to_session_);
    is_server_ ? SSL_set_connect_state(peer_) : SSL_set_accept_state(peer_);
  }
  TlsSessionCheck(const TlsSessionCheck&) = delete;
  TlsSessionCheck& operator=(const TlsSessionCheck&) = delete;

  ~TlsSessionCheck() {
    SSL_free(peer_);
    session_.reset();
    CHECK_EQ(Ended(), ended_before_ + 1);  // By one outcome.
  }

  void Run() {
    Pump();
    while (!script_.empty()) Step();
    if (damaged_) return;
    Settle();
    CHECK_EQ(received_, written_);
    CHECK_EQ(peer_received_, sent_);
  }

 private:
  unsigned Next() {
    if (script_.empty()) return 0;
    const auto byte = static_cast<unsigned char>(script_.front());
    script_.remove_prefix(1);
    return byte;
  }

  std::uint64_t Ended() const {
    const TlsCounters& counters = TlsCountersOf(is_server_);
    std::uint64_t sum = 0;
    for (const auto* counter : {&counters.full, &counters.resumed,
                                &counters.failed, &counters.abandoned}) {
      sum += counter->load(std::memory_order_relaxed);
    }
    return sum;
  }

  void Step() {
    switch (Next() % 16) {
      case 0:
      case 1:
      case 2:
        return Exchange();
      case 3:
        return Deliver(Next() + 1);
      case 4:
        return Deliver(pending_.size());
      case 5:
        return Flip();
      case 6:
        return Insert();
      case 7:
        return Drop();
      case 8:
        return Repeat();
      case 9:
        return PeerWrites();
      case 10:
        return SessionSends();
      case 11:
        return PeerChangesKeys();
      case 12:
        return PeerShutsDown();
      case 13:
        return EndInput();
      case 14:
        return SendEnd();
      case 15:
        room_ = Next() * 64 + 1;
        return;
    }
  }

  // Whether the bytes received behind the first `before` are those sent;
  // earlier ones were checked at the time, and may be many.
  static bool ContinuesWith(std::string_view sent, std::size_t before,
                            std::string_view received) {
    return sent.substr(std::min(before, sent.size()))
        .starts_with(received.substr(before));
  }

  // --- The peer -------------------------------------------------------------

  // Passes the session's output to the peer, which goes as far as it can.
  void Exchange() {
    PeerReads();
    TakePeerOutput();
    Deliver(pending_.size());
    PeerReads();
    TakePeerOutput();
  }

  void PeerReads() {
    char bytes[4096];
    ssize_t n;
    while ((n = ::recv(far_.get(), bytes, sizeof(bytes), 0)) > 0) {
      BIO_write(from_session_, bytes, static_cast<int>(n));
    }
    int read;
    const std::size_t before = peer_received_.size();
    ERR_clear_error();
    while ((read = SSL_read(peer_, bytes, sizeof(bytes))) > 0) {
      peer_received_.append(bytes, static_cast<std::size_t>(read));
    }
    ERR_clear_error();
    CHECK(ContinuesWith(sent_, before, peer_received_));
  }

  void TakePeerOutput() {
    char bytes[4096];
    int n;
    while ((n = BIO_read(to_session_, bytes, sizeof(bytes))) > 0) {
      pending_.append(bytes, static_cast<std::size_t>(n));
    }
  }

  void PeerWrites() {
    const std::string text(Next() * 40 + 1, static_cast<char>(Next()));
    ERR_clear_error();
    if (SSL_write(peer_, text.data(), static_cast<int>(text.size())) > 0) {
      written_ += text;
    }
    ERR_clear_error();
    TakePeerOutput();
  }

  void PeerChangesKeys() {
    ERR_clear_error();
    if (SSL_version(peer_) == TLS1_3_VERSION) {
      // Sessions give up peers that do it too often.
      if (++key_changes_ > 50) damaged_ = true;
      SSL_key_update(peer_, SSL_KEY_UPDATE_REQUESTED);
    } else if (SSL_is_init_finished(peer_) != 0) {
      damaged_ = true;  // Sessions refuse it, and later bytes may be lost.
      SSL_renegotiate(peer_);
    }
    SSL_do_handshake(peer_);
    ERR_clear_error();
    TakePeerOutput();
  }

  void PeerShutsDown() {
    damaged_ = true;  // It may not read the session's output from now on.
    ERR_clear_error();
    SSL_shutdown(peer_);
    ERR_clear_error();
    TakePeerOutput();
  }

  // --- The way --------------------------------------------------------------

  void Deliver(std::size_t size) {
    size = std::min(size, pending_.size());
    const ssize_t n = ::send(far_.get(), pending_.data(), size, MSG_NOSIGNAL);
    if (n > 0) pending_.erase(0, static_cast<std::size_t>(n));
    Pump();
  }

  void Flip() {
    TakePeerOutput();
    const unsigned at = Next() * 256 + Next();
    const unsigned with = Next();
    if (pending_.empty() || with == 0) return;
    damaged_ = true;
    char& c = pending_[at % pending_.size()];
    c = static_cast<char>(static_cast<unsigned char>(c) ^ with);
  }

  void Insert() {
    const std::size_t size = std::min<std::size_t>(Next(), script_.size());
    if (size == 0) return;
    damaged_ = true;
    const std::size_t at = Next() % (pending_.size() + 1);
    const std::string_view bytes = script_.substr(0, size);
    pending_.insert(at, bytes);
    script_.remove_prefix(std::min(bytes.size(), script_.size()));
  }

  void Drop() {
    TakePeerOutput();
    const std::size_t at = Next(), size = Next();
    if (at >= pending_.size() || size == 0) return;
    damaged_ = true;
    pending_.erase(at, size);
  }

  void Repeat() {
    TakePeerOutput();
    if (pending_.empty() || pending_.size() > 100'000) return;
    damaged_ = true;
    pending_ += pending_;
  }

  void EndInput() {
    damaged_ = true;
    static_cast<void>(::shutdown(far_.get(), SHUT_WR));
    Pump();
  }

  // --- The session, used as a StreamConnection does -------------------------

  void Pump() {
    if (broken_) return;
    if (!secure_) {
      switch (session_->Handshake()) {
        case Transport::Progress::kWaiting:
          return;
        case Transport::Progress::kFailed:
          CHECK(!session_->failure().ok());
          CHECK(session_->Handshake() == Transport::Progress::kFailed);
          broken_ = true;
          return;
        case Transport::Progress::kDone:
          secure_ = true;
      }
    }
    while (!broken_ && ReceiveOnce()) {
    }
  }

  // False: there is nothing to receive.
  bool ReceiveOnce() {
    std::string first(room_, '\0'), second(room_ / 2 + 1, '\0');
    const iovec pieces[] = {{first.data(), first.size()},
                            {second.data(), second.size()}};
    const ssize_t n = session_->Receive(pieces, 2);
    if (n < 0) {
      if (errno == EINTR) {
        CHECK(session_->HasMore());
        return true;
      }
      CHECK(errno == EAGAIN || errno == EPROTO) << errno;
      if (errno == EPROTO) {
        CHECK(damaged_);
        CHECK(!session_->failure().ok());
        broken_ = true;
        return true;
      }
      return false;
    }
    if (n == 0) {
      input_ended_ = true;
      return false;
    }
    CHECK(!input_ended_);
    const auto size = static_cast<std::size_t>(n);
    CHECK_LE(size, first.size() + second.size());
    const std::size_t before = received_.size();
    received_.append(first, 0, std::min(size, first.size()));
    if (size > first.size()) received_.append(second, 0, size - first.size());
    // Damage may end a stream, and never alters it.
    CHECK(ContinuesWith(written_, before, received_));
    // Less than there was room for: that was all.
    return size == first.size() + second.size() || session_->HasMore();
  }

  void SessionSends() {
    unsent_.append(Next() * 200 + 1, static_cast<char>(Next()));
    SendUnsent();
  }

  void SendUnsent() {
    if (!secure_ || output_broken_ || end_told_) return;
    while (!unsent_.empty()) {
      const std::size_t half = unsent_.size() / 2;
      const iovec pieces[] = {{unsent_.data(), half},
                              {unsent_.data() + half, unsent_.size() - half}};
      // Records of it may arrive before all of it was taken.
      const std::size_t told = sent_.size();
      sent_ += unsent_;
      const ssize_t n = session_->Send(pieces, 2, 0);
      if (n < 0) {
        if (errno == EAGAIN) {
          sent_.resize(told);
          PeerReadsRaw();
          continue;
        }
        CHECK(errno == EPROTO || errno == EPIPE || errno == ECONNRESET)
            << errno;
        output_broken_ = true;
        return;
      }
      CHECK_NE(n, 0);
      sent_.resize(told + static_cast<std::size_t>(n));
      unsent_.erase(0, static_cast<std::size_t>(n));
    }
  }

  void SendEnd() {
    if (!secure_) return;
    end_told_ = true;
    if (session_->SendEnd() == 0) CHECK(session_->end_sent());
  }

  // Makes room in the socket; the peer decrypts it later.
  void PeerReadsRaw() {
    char bytes[4096];
    ssize_t n;
    while ((n = ::recv(far_.get(), bytes, sizeof(bytes), 0)) > 0) {
      BIO_write(from_session_, bytes, static_cast<int>(n));
    }
  }

  // Without damage everything arrives.
  void Settle() {
    for (int i = 0; i != 20; ++i) {
      Exchange();
      SendUnsent();
    }
    CHECK(pending_.empty());
    // A strict client takes no certificate of this peer.
    if (broken_) {
      CHECK(!is_server_) << session_->failure().message();
      sent_ = peer_received_;
      written_ = received_;
    }
  }

  std::string_view script_;
  bool is_server_ = false;
  std::uint64_t ended_before_ = 0;
  UniqueFd near_, far_;  // The session's end, and the peer's.
  std::unique_ptr<Transport> session_;
  SSL* peer_ = nullptr;
  BIO* from_session_ = nullptr;  // The peer's input.
  BIO* to_session_ = nullptr;    // Its output.
  std::string pending_;          // On the way to the session.
  bool damaged_ = false;         // The session may fail.
  int key_changes_ = 0;
  bool secure_ = false, broken_ = false, input_ended_ = false;
  bool output_broken_ = false, end_told_ = false;
  std::size_t room_ = 1000;
  std::string written_, received_;    // By the peer; of it by the session.
  std::string unsent_;                // For the session to send.
  std::string sent_, peer_received_;  // By the session; of it by the peer.
};

inline void CheckTlsSession(std::string_view script) {
  TlsSessionCheck check(script);
  check.Run();
}

}  // namespace flare::io::testing

#endif  // FLARE_IO_TESTING_TLS_FUZZING_H_
