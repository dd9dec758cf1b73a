// TLS on one connection, by OpenSSL. Made by tls_context.h.
#ifndef FLARE_IO_TLS_SESSION_H_
#define FLARE_IO_TLS_SESSION_H_

#include <openssl/ssl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/io/handshakes.h"
#include "flare/io/tls_counters.h"
#include "flare/io/transport.h"

namespace flare::io {

class TlsSession final : public Transport {
 public:
  struct Setup {
    bool is_server = false;
    std::int64_t handshake_timeout_ns = 0;
    // Keeps the objects that `ssl` uses.
    std::shared_ptr<const void> keys = nullptr;
    // For a server: the number of handshakes that go on, counted down at the
    // end of this one.
    std::shared_ptr<std::atomic<std::size_t>> handshake_count = nullptr;
    std::shared_ptr<Handshakes> handshakes = nullptr;
    // For a client: takes a session that a later connection may resume.
    std::function<void(SSL_SESSION*)> remember = nullptr;
  };

  // Takes `ssl`, which is new. Null: there is no memory.
  static std::unique_ptr<TlsSession> Make(SSL* ssl, Setup setup);
  ~TlsSession() override;

  void Attach(int fd) override { fd_ = fd; }
  Progress Handshake() override;
  std::int64_t handshake_timeout_ns() const override {
    return setup_.handshake_timeout_ns;
  }
  Handshakes* handshakes() const override { return setup_.handshakes.get(); }
  ssize_t Receive(const iovec* pieces, int count) override;
  bool HasMore() const override { return has_more_; }
  std::size_t taken() const override { return taken_; }
  bool cut_short() const override { return cut_short_; }
  ssize_t Send(const iovec* pieces, std::size_t count, int flags) override;
  ssize_t SendEnd() override;
  bool end_sent() const override;
  Status failure() const override { return failure_; }
  const PeerIdentity* peer_identity() const override {
    return identity_ ? &*identity_ : nullptr;
  }
  std::string_view alpn() const override { return alpn_; }

  // For the callback of new sessions, on the client's side.
  void Remember(SSL_SESSION* session) { setup_.remember(session); }
  // For the callback of messages: the peer has sent one beside its data, or has
  // been answered one, by an alert.
  void NoteMessage(bool sent, int content_type);
  // For the callback of servers that ask for a certificate, if there is none.
  void NoteCertificateLacks() { lacks_certificate_ = true; }

  // The work of its BIO.
  int ReadSocket(char* to, int size);
  int WriteCipher(const char* from, int size);

 private:
  static constexpr std::size_t kNoLimit = static_cast<std::size_t>(-1);

  // The input's state, the reader's own.
  enum class Input { kOpen, kEnded, kBroken };

  TlsSession(SSL* ssl, Setup setup);
  ssize_t ReceiveAll(const iovec* pieces, int count) FLARE_REQUIRES(mutex_);
  std::size_t ReceiveSome(const iovec& piece) FLARE_REQUIRES(mutex_);
  void EndInput(int result) FLARE_REQUIRES(mutex_);
  bool TooManyMessages() const FLARE_REQUIRES(mutex_);
  bool Encrypt(const iovec* pieces, std::size_t count) FLARE_REQUIRES(mutex_);
  bool WriteRecord(const void* data, std::size_t size) FLARE_REQUIRES(mutex_);
  ssize_t FlushCipher(int flags = 0) FLARE_REQUIRES(mutex_);
  void NoteHandshake() FLARE_REQUIRES(mutex_);
  void EndHandshake();
  void CountOutcome(std::atomic<std::uint64_t> TlsCounters::*outcome);
  std::string DescribeFailure() FLARE_REQUIRES(mutex_);

  const Setup setup_;
  int fd_ = -1;

  mutable ThreadMutex mutex_;
  SSL* const ssl_ FLARE_PT_GUARDED_BY(mutex_);
  // Records that the socket hasn't taken, from `sent_` on.
  std::string cipher_ FLARE_GUARDED_BY(mutex_);
  std::size_t sent_ FLARE_GUARDED_BY(mutex_) = 0;
  // How much of the output is in cipher_.
  std::size_t encrypted_ FLARE_GUARDED_BY(mutex_) = 0;
  bool ended_ FLARE_GUARDED_BY(mutex_) = false;  // SSL_shutdown() was called.
  bool drained_ FLARE_GUARDED_BY(mutex_) = false;
  bool got_bytes_ FLARE_GUARDED_BY(mutex_) = false;  // Since it was cleared.
  // How many bytes the call at hand may take off the socket; and it would have
  // taken more.
  std::size_t may_take_ FLARE_GUARDED_BY(mutex_) = kNoLimit;
  bool paused_ FLARE_GUARDED_BY(mutex_) = false;
  // Since the handshake: messages beside data, and bytes of data.
  std::uint64_t messages_ FLARE_GUARDED_BY(mutex_) = 0;
  std::uint64_t data_ FLARE_GUARDED_BY(mutex_) = 0;
  bool eof_ FLARE_GUARDED_BY(mutex_) = false;
  int read_error_ FLARE_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> secure_{false};  // The handshake is done.

  // The reader's own.
  Input input_ = Input::kOpen;
  bool has_more_ = false;
  std::size_t taken_ = 0;
  bool cut_short_ = false;
  bool got_data_ = false;
  bool lacks_certificate_ = false;  // The server has asked for one.
  bool counted_;                    // In setup_.handshake_count.
  bool outcome_counted_ = false;    // In tls_counters.h.
  unsigned char first_bytes_[2] = {};
  int first_count_ = 0;
  Status failure_;
  std::optional<const PeerIdentity> identity_;
  std::string alpn_;
};

}  // namespace flare::io

#endif  // FLARE_IO_TLS_SESSION_H_
